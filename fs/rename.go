package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Rename moves or, with RENAME_EXCHANGE, swaps. RENAME_WHITEOUT is EINVAL: whiteouts are
// records of ours, which nobody else makes.
func (f *FS) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return fuse.EINVAL
	}
	odir, st := f.removable(in.NodeId, from)
	if st != fuse.OK {
		return st
	}
	ndir, st := f.removable(in.Newdir, to)
	if st != fuse.OK {
		return st
	}
	return f.status("rename", in.NodeId, f.roomy(func() error {
		return f.branch.Rename(odir, from, ndir, to, in.Flags)
	}))
}
