package layers

import (
	"golang.org/x/sys/unix"
)

// node is an inode as one view knows it. A view keeps a node for as long as the
// kernel refers to it, a child's place in the base hangs on it, or it is the root.
// Guarded by Tree.mu.
type node struct {
	ino  Ino
	refs uint64 // references held by the kernel (or another caller of Lookup)
	kids int32  // nodes whose bdir this is

	// Where the object is in the base: bname below the base directory of bdir or,
	// with a nil bdir, below the base's root, where it may be a whole path. Empty
	// for objects that are not from the base. Renames in the tree do not change it.
	bdir  *node
	bname string
	inb   bool // there is a place in the base

	typ uint32 // S_IFMT bits, 0 while unknown; a node with a record need not have them

	rec    *inode // visible record; nil while the inode is as it is in the base
	mark   uint64 // baseStat.mark of the last look at a base file without a record
	gone   bool   // not in this view any more: ESTALE
	orphan bool   // no name left: the records go with the last reference

	// dead marks a directory that was removed while in use, when a move of the head came:
	// to the kernel it is dead for good, and if it comes back it needs a new identity.
	dead bool

	dir *dirState // nil until the directory is looked into
}

// path is the node's place in the base, "" for the base itself.
func (n *node) path() string {
	if n.bdir == nil || n.bname == "" {
		return n.bname
	}
	// Two passes instead of a join per level: deep trees are walked often.
	size := len(n.bname)
	for p := n.bdir; p != nil; p = p.bdir {
		if p.bname != "" {
			size += len(p.bname) + 1
		}
	}
	buf := make([]byte, size)
	at := size
	for p := n; p != nil; p = p.bdir {
		if p.bname == "" {
			continue
		}
		if at != size {
			at--
			buf[at] = '/'
		}
		at -= len(p.bname)
		copy(buf[at:], p.bname)
	}
	return string(buf)
}

// isDir asks the record or, without one, the base.
func (v *View) isDir(n *node) (bool, error) {
	if n.rec != nil {
		return n.rec.mode&unix.S_IFMT == unix.S_IFDIR, nil
	}
	if n.dir != nil {
		return true, nil
	}
	st, err := v.statBase(n)
	if err != nil {
		return false, err
	}
	return st.isDir(), nil
}

// typeOf returns the S_IFMT bits of n, 0 when they cannot be told.
func (v *View) typeOf(n *node) uint32 {
	if n.rec != nil {
		return n.rec.mode & unix.S_IFMT
	}
	if n.typ == 0 {
		if st, err := v.statBase(n); err == nil {
			n.typ = st.mode & unix.S_IFMT
		}
	}
	return n.typ
}

// place sets where n is in the base, moving the hold on the old base directory to the new one.
func (v *View) place(n, dir *node, name string) {
	old := n.bdir
	if dir != nil {
		dir.kids++
	}
	n.bdir, n.bname, n.inb = dir, name, true
	if old != nil {
		old.kids--
		v.drop(old)
	}
}

// drop forgets n when nothing holds it.
func (v *View) drop(n *node) {
	if v.keep {
		return
	}
	for n != nil && n.refs == 0 && n.kids == 0 && n.ino != RootIno && v.nodes[n.ino] == n {
		delete(v.nodes, n.ino)
		delete(v.links, n.ino)
		v.unlist1(n)
		up := n.bdir
		n.bdir = nil
		if up != nil {
			up.kids--
		}
		n = up
	}
}
