package layersdiff

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/layers"
)

// treeOf describes what a view shows, as fstree.Scan does for a mount.
func treeOf(v *layers.View) *fstree.Tree {
	t := fstree.New()
	root := &fstree.Entry{Path: "."}
	t.Add(root)
	a, err := v.Getattr(layers.RootIno)
	if err != nil {
		root.Err = "getattr: " + err.Error()
		return t
	}
	fillEntry(v, root, a)
	treeDir(v, t, a.Ino, "", root)
	return t
}

func treeDir(v *layers.View, t *fstree.Tree, dir layers.Ino, prefix string, de *fstree.Entry) {
	var list []layers.Entry
	if err := v.ReadDir(dir, 0, func(e layers.Entry) bool {
		list = append(list, e)
		return true
	}); err != nil {
		de.Err = "readdir: " + err.Error()
	}
	for _, le := range list {
		e := &fstree.Entry{Path: prefix + le.Name}
		if t.Entries[e.Path] != nil {
			t.Entries[e.Path].Err = "listed twice"
			continue
		}
		t.Add(e)
		a, err := v.Lookup(dir, le.Name)
		if err != nil {
			e.Err = "lookup: " + err.Error()
			continue
		}
		fillEntry(v, e, a)
		if a.Ino != le.Ino || a.Mode&unix.S_IFMT != le.Type&unix.S_IFMT {
			e.Err = fmt.Sprintf("listed as inode %d type %o, is inode %d mode %o", le.Ino, le.Type, a.Ino, a.Mode)
		}
		if a.IsDir() {
			treeDir(v, t, a.Ino, e.Path+"/", e)
		}
		v.Forget(a.Ino, 1)
	}
}

func timeOf(t layers.Time) fstree.Time { return fstree.Time{Sec: t.Sec, Nsec: int64(t.Nsec)} }

func fillEntry(v *layers.View, e *fstree.Entry, a layers.Attr) {
	e.Mode, e.UID, e.GID, e.Nlink, e.Ino = a.Mode, a.UID, a.GID, uint64(a.Nlink), uint64(a.Ino)
	e.Rdev, e.Size, e.Blocks = uint64(a.Rdev), a.Size, a.Blocks
	e.Atime, e.Mtime, e.Ctime = timeOf(a.Atime), timeOf(a.Mtime), timeOf(a.Ctime)
	names, err := v.Listxattr(a.Ino)
	if err != nil {
		e.Err = "listxattr: " + err.Error()
	}
	for _, n := range names {
		val, err := v.Getxattr(a.Ino, n)
		if err != nil {
			e.Err = "getxattr: " + err.Error()
		}
		if e.Xattrs == nil {
			e.Xattrs = map[string]string{}
		}
		e.Xattrs[n] = string(val)
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if e.Target, err = v.Readlink(a.Ino); err != nil {
			e.Err = "readlink: " + err.Error()
		}
	case unix.S_IFREG:
		p := make([]byte, a.Size+1)
		n, err := v.ReadAt(a.Ino, p, 0)
		if err != nil {
			e.Err = "read: " + err.Error()
		}
		e.Hash = fstree.HashBytes(p[:n])
		if int64(n) != a.Size {
			e.Err = fmt.Sprintf("read %d bytes of %d", n, a.Size)
		}
	}
}
