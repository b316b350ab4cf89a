package layers

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"
)

// equal reports whether two objects, which may be different inodes, show the same: what a
// restored file and the one that it was made after do. Only records are looked at, so files that
// were written separately count as different.
func (d *differ) equal(a, b *node) (bool, error) {
	if x, y := d.from.typeOf(a), d.to.typeOf(b); x != y {
		return false, nil
	}
	same, _, err := d.same(a, b)
	if err != nil || !same || a.ino == b.ino {
		return same, err
	}
	return d.sameBytes(a, b)
}

// sameBytes reports whether two objects of one type have the same content by their records.
func (d *differ) sameBytes(a, b *node) (bool, error) {
	switch d.from.typeOf(a) {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		x, err := d.from.target(a)
		if err != nil {
			return false, err
		}
		y, err := d.to.target(b)
		return x == y, err
	default:
		return true, nil
	}
	if len(d.from.visiblePending(a.ino)) > 0 || len(d.to.visiblePending(b.ino)) > 0 {
		return false, nil
	}
	x, xlimit, err := d.from.contentOf(a)
	if err != nil {
		return false, err
	}
	y, ylimit, err := d.to.contentOf(b)
	if err != nil || xlimit != ylimit {
		return false, err
	}
	if xlimit > 0 && (x.dev != y.dev || x.ino != y.ino || x.size != y.size || x.mtime != y.mtime || x.ctime != y.ctime) {
		return false, nil
	}
	return d.sameExtents(a, b)
}

func (d *differ) sameExtents(a, b *node) (bool, error) {
	xs, err := d.from.allExtents(a)
	if err != nil {
		return false, err
	}
	ys, err := d.to.allExtents(b)
	return slices.Equal(xs, ys), err
}

func (v *View) allExtents(n *node) ([]extent, error) {
	if n.rec == nil || n.rec.regions == 0 {
		return nil, nil
	}
	var out []extent
	err := v.regions(n.ino, 0, n.rec.regions-1, func(_ uint64, xs []extent) bool {
		out = append(out, xs...)
		return true
	})
	return out, err
}

// contentOf returns the base object that the first limit bytes of a regular file come from
// where no extent covers them.
func (v *View) contentOf(n *node) (from *origin, limit int64, err error) {
	if n.rec != nil {
		if from = n.rec.content(); from == nil {
			return nil, 0, nil
		}
		return from, n.rec.limit, nil
	}
	st, err := v.statBase(n)
	if err != nil {
		return nil, 0, err
	}
	return st.origin(n.path()), st.size, nil
}

func (v *View) target(n *node) (string, error) {
	if n.rec != nil {
		return n.rec.target, nil
	}
	return v.base.readlink(n.path())
}

// same compares what an inode shows, and says whether its content may differ.
func (d *differ) same(a, b *node) (same, content bool, err error) {
	x, err := d.from.attr(a)
	if err != nil {
		return false, false, err
	}
	y, err := d.to.attr(b)
	if err != nil {
		return false, false, err
	}
	if x.IsDir() {
		same = x.Mode == y.Mode && x.UID == y.UID && x.GID == y.GID
	} else {
		content = x.Size != y.Size || x.Mtime != y.Mtime
		same = !content && x.Mode == y.Mode && x.UID == y.UID && x.GID == y.GID && x.Rdev == y.Rdev
	}
	if !same {
		return false, content, nil
	}
	if same, err = d.sameXattrs(a, b); err != nil || !same {
		return false, false, err
	}
	return true, false, nil
}

func (d *differ) sameXattrs(a, b *node) (bool, error) {
	x, err := d.from.attrs(a)
	if err != nil {
		return false, err
	}
	y, err := d.to.attrs(b)
	if err != nil || len(x) != len(y) {
		return false, err
	}
	for name, v := range x {
		if w, ok := y[name]; !ok || !bytes.Equal(v, w) {
			return false, nil
		}
	}
	return true, nil
}
