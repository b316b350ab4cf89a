package layers

import (
	"bytes"
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

// sameBytes compares two files of one size. The caller does not hold t.mu.
func sameBytes(v *View, n Ino, w *View, m Ino, size int64) (bool, error) {
	a, b := make([]byte, regionSize), make([]byte, regionSize)
	for off := int64(0); off < size; off += regionSize {
		k, err := v.ReadAt(n, a, off)
		if err != nil {
			return false, err
		}
		j, err := w.ReadAt(m, b, off)
		if err != nil || !bytes.Equal(a[:k], b[:j]) {
			return false, err
		}
	}
	return true, nil
}
