package fs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
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
	st = f.status("rename", in.NodeId, f.roomy(func() error {
		return f.branch.Rename(odir, from, ndir, to, in.Flags)
	}))
	if st == fuse.OK && odir != ndir {
		f.reparented(ndir, to)
		if in.Flags&unix.RENAME_EXCHANGE != 0 {
			f.reparented(odir, from)
		}
	}
	return st
}

// reparented has the kernel forget the listing of a directory that came to dir as
// name: ".." in it has another inode number now.
func (f *FS) reparented(dir layers.Ino, name string) {
	a, err := f.branch.Lookup(dir, name)
	if err != nil {
		return // gone again
	}
	defer f.branch.Forget(a.Ino, 1)
	if a.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	for _, node := range f.inc.ids(a.Ino) {
		if err := f.voider.dataNow(node); err != nil && !errors.Is(err, unix.ENOENT) {
			f.log.Warn("cannot have the kernel forget a moved directory's listing", "inode", a.Ino, "error", err)
		}
	}
}
