package layers

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// compare compares the content of x on two sides as far as records tell.
func (f *mergeFind) compare(x *mergeObject, s, r int) (likeness, error) {
	a, b := &x.attr[s], &x.attr[r]
	if a.Mode&unix.S_IFMT != b.Mode&unix.S_IFMT {
		return unlike, nil
	}
	yes := true
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if a.Size != b.Size {
			return unlike, nil
		}
		same, err := samePieces(f.v[s], x.node[s], f.v[r], x.node[r])
		if err != nil || !same {
			return unsure, err
		}
	case unix.S_IFLNK:
		yes = x.target[s] == x.target[r]
	case unix.S_IFCHR, unix.S_IFBLK:
		yes = a.Rdev == b.Rdev
	}
	if yes {
		return alike, nil
	}
	return unlike, nil
}

// samePieces reports whether two files of one size, of which nothing is pending, are made of the same pieces.
func samePieces(v *View, n *node, w *View, m *node) (bool, error) {
	if n.ino == m.ino && (n.rec == nil && m.rec == nil || n.rec != nil && m.rec != nil && n.rec.layer == m.rec.layer) {
		return true, nil
	}
	x, xlimit, err := v.contentOf(n)
	if err != nil {
		return false, err
	}
	y, ylimit, err := w.contentOf(m)
	if err != nil || xlimit != ylimit {
		return false, err
	}
	if xlimit > 0 && (x.dev != y.dev || x.ino != y.ino || x.size != y.size || x.mtime != y.mtime || x.ctime != y.ctime) {
		return false, nil
	}
	a, err := v.allExtents(n)
	if err != nil {
		return false, err
	}
	b, err := w.allExtents(m)
	return slices.Equal(a, b), err
}

// sameBytes compares two files of one size. Holes that both have cost nothing: a file may be of 8 EiB. The caller does not hold t.mu.
func sameBytes(ctx context.Context, v *View, n Ino, w *View, m Ino, size int64) (bool, error) {
	a, b := make([]byte, regionSize), make([]byte, regionSize)
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		a, b := a[:min(regionSize, size-off)], b[:min(regionSize, size-off)]
		k, err := v.ReadAt(n, a, off)
		if err != nil {
			return false, err
		}
		j, err := w.ReadAt(m, b, off)
		if err != nil || !bytes.Equal(a[:k], b[:j]) {
			return false, err
		}
		if off += int64(len(a)); off < size && len(bytes.TrimLeft(a, "\x00")) == 0 {
			if off, err = nextData(v, n, w, m, off, size); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// nextData returns where, from off on, one of two files has data next; size if there is none.
func nextData(v *View, n Ino, w *View, m Ino, off, size int64) (int64, error) {
	next := size
	for _, f := range []struct {
		v   *View
		ino Ino
	}{{v, n}, {w, m}} {
		at, err := f.v.Seek(f.ino, off, unix.SEEK_DATA)
		if err == nil {
			next = min(next, at)
		} else if !errors.Is(err, unix.ENXIO) {
			return 0, err
		}
	}
	return max(next, off), nil
}
