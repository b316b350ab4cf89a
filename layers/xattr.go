package layers

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// An a/ record is one byte, 1 for a value and 0 for a removed one, and the value.
func xattrValue(v []byte) []byte { return append([]byte{1}, v...) }

var xattrGone = []byte{0}

// xattr returns the value of name that v sees for an inode with records.
func (v *View) xattr(ino Ino, name string) ([]byte, error) {
	var val []byte
	found := false
	err := v.newest(kv.XattrPrefix(uint64(ino), name), func(_ Layer, x []byte) error {
		if len(x) > 0 && x[0] == 1 {
			val, found = slices.Clone(x[1:]), true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read attribute %q of inode %d: %w", name, ino, err)
	}
	if !found {
		return nil, unix.ENODATA
	}
	return val, nil
}

// xattrs lists the attributes v sees for an inode with records, sorted.
func (v *View) xattrs(ino Ino) (map[string][]byte, error) {
	out, seen := map[string][]byte{}, map[string]bool{}
	err := v.t.db.Scan(kv.XattrInoPrefix(uint64(ino)), nil, func(k, x []byte) bool {
		_, name, l, ok := kv.ParseXattr(k)
		if !ok || seen[name] || !v.anc.has(Layer(l)) {
			return true
		}
		seen[name] = true
		if len(x) > 0 && x[0] == 1 {
			out[name] = slices.Clone(x[1:])
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("list attributes of inode %d: %w", ino, err)
	}
	return out, nil
}

// attrs returns every extended attribute of n.
func (v *View) attrs(n *node) (map[string][]byte, error) {
	if n.rec == nil {
		return v.base.xattrs(n.path())
	}
	if !n.rec.has(flagXattrs) {
		return nil, nil
	}
	return v.xattrs(n.ino)
}

// Getxattr returns an extended attribute. ENODATA.
func (v *View) Getxattr(ino Ino, name string) ([]byte, error) {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	n, err := v.get(ino)
	switch {
	case err != nil:
		return nil, err
	case n.rec == nil:
		return v.base.xattr(n.path(), name)
	case !n.rec.has(flagXattrs):
		return nil, unix.ENODATA
	}
	return v.xattr(ino, name)
}

// Listxattr returns the names of the extended attributes, sorted.
func (v *View) Listxattr(ino Ino) ([]string, error) {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	n, err := v.get(ino)
	if err != nil {
		return nil, err
	}
	xs, err := v.attrs(n)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(xs))
	for name := range xs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// Bounds of the VFS: XATTR_NAME_MAX and XATTR_SIZE_MAX.
const (
	maxXattrName = 255
	maxXattrSize = 64 << 10
)

// Setxattr sets an extended attribute; flags may be unix.XATTR_CREATE (EEXIST when
// there is one) or unix.XATTR_REPLACE (ENODATA when there is none).
func (b *Branch) Setxattr(ino Ino, name string, val []byte, flags int) error {
	if name == "" || len(name) > maxXattrName {
		return unix.ERANGE
	}
	if len(val) > maxXattrSize {
		return unix.E2BIG
	}
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	n, err := b.get(ino)
	if err != nil {
		return err
	}
	o := b.newOp()
	rec, err := o.rec(n)
	if err != nil {
		return err
	}
	has, err := b.hasXattr(n, rec, name)
	switch {
	case err != nil:
		return err
	case flags&unix.XATTR_CREATE != 0 && has:
		return unix.EEXIST
	case flags&unix.XATTR_REPLACE != 0 && !has:
		return unix.ENODATA
	}
	rec.ctime = o.now
	o.putXattr(ino, rec, name, val)
	return o.commit()
}

func (o *op) putXattr(ino Ino, rec *inode, name string, val []byte) {
	rec.flags |= flagXattrs
	o.batch.Put(kv.Xattr(uint64(ino), name, uint64(o.b.layer)), xattrValue(val))
}

// Removexattr removes an extended attribute. ENODATA.
func (b *Branch) Removexattr(ino Ino, name string) error {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	n, err := b.get(ino)
	if err != nil {
		return err
	}
	if has, err := b.hasXattr(n, n.rec, name); err != nil || !has {
		return errOr(err, unix.ENODATA)
	}
	o := b.newOp()
	o.batch.UseReserve()
	rec, err := o.rec(n)
	if err != nil {
		return err
	}
	rec.ctime = o.now
	o.batch.Put(kv.Xattr(uint64(ino), name, uint64(b.layer)), xattrGone)
	return o.commit()
}

func (v *View) hasXattr(n *node, rec *inode, name string) (bool, error) {
	var err error
	switch {
	case n.rec == nil:
		_, err = v.base.xattr(n.path(), name)
	case rec == nil || !rec.has(flagXattrs):
		return false, nil
	default:
		_, err = v.xattr(n.ino, name)
	}
	if errors.Is(err, unix.ENODATA) {
		return false, nil
	}
	return err == nil, err
}

// dropXattr stages the removal of an attribute if the inode has it.
func (o *op) dropXattr(n *node, rec *inode, name string) {
	has, err := o.b.hasXattr(n, rec, name)
	if err != nil {
		o.t.log.Warn("cannot look at an extended attribute", "inode", n.ino, "attribute", name, "error", err)
	}
	if has {
		o.batch.Put(kv.Xattr(uint64(n.ino), name, uint64(o.b.layer)), xattrGone)
	}
}
