package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rewindfs/rewindfs/layers"
)

// removable checks the directory and the name of a removal.
func (f *FS) removable(node uint64, name string) (layers.Ino, fuse.Status) {
	dir, st := f.live(node)
	switch {
	case st != fuse.OK:
		return 0, st
	case len(name) > nameMax:
		return 0, enametoolong
	case dir == layers.RootIno && name == rewindName:
		return 0, fuse.EPERM
	}
	return dir, fuse.OK
}

func (f *FS) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	dir, st := f.removable(h.NodeId, name)
	if st != fuse.OK {
		return st
	}
	return f.status("unlink", h.NodeId, f.branch.Unlink(dir, name))
}

func (f *FS) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	dir, st := f.removable(h.NodeId, name)
	if st != fuse.OK {
		return st
	}
	return f.status("rmdir", h.NodeId, f.branch.Rmdir(dir, name))
}
