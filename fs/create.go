package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// birth is what a new object gets from its maker and its directory.
type birth struct {
	mode uint32
	cred layers.Cred
}

// newborn works out the birth of name in the directory node. The kernel passes mode and
// umask apart, because a default ACL takes the umask's place.
func (f *FS) newborn(h *fuse.InHeader, name string, mode, umask uint32) (layers.Ino, birth, fuse.Status) {
	b := birth{mode: mode, cred: layers.Cred{UID: h.Uid, GID: h.Gid}}
	dir, st := f.live(h.NodeId)
	if st != fuse.OK {
		return 0, b, st
	}
	if len(name) > nameMax {
		return 0, b, enametoolong
	}
	if dir == layers.RootIno && name == rewindName {
		return 0, b, eexist
	}
	parent, err := f.branch.Getattr(dir)
	if err != nil {
		return 0, b, f.status("create", h.NodeId, err)
	}
	isDir := mode&unix.S_IFMT == unix.S_IFDIR
	if parent.Mode&unix.S_ISGID != 0 {
		b.cred.GID = parent.GID
		if isDir {
			b.mode |= unix.S_ISGID
		}
	}
	if mode&unix.S_IFMT == unix.S_IFLNK {
		return dir, b, fuse.OK
	}
	def, err := f.defaultACL(dir)
	if err != nil {
		return 0, b, f.status("create", h.NodeId, err)
	}
	if def == nil {
		b.mode &^= umask & 0o777
		return dir, b, fuse.OK
	}
	b.mode, b.cred.Xattrs = def.inherit(b.mode)
	return dir, b, fuse.OK
}

// born makes an object and answers.
func (f *FS) born(op string, h *fuse.InHeader, out *fuse.EntryOut, create func() (layers.Attr, error)) fuse.Status {
	var a layers.Attr
	err := f.roomy(func() (err error) {
		a, err = create()
		return err
	})
	if err != nil {
		return f.status(op, h.NodeId, err)
	}
	f.entry(place{&f.branch.View, 0, 0}, &a, out)
	return fuse.OK
}

func (f *FS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	dir, b, st := f.newborn(&in.InHeader, name, in.Mode, in.Umask)
	if st != fuse.OK {
		return st
	}
	return f.born("mknod", &in.InHeader, out, func() (layers.Attr, error) {
		return f.branch.Mknod(dir, name, b.mode, in.Rdev, b.cred)
	})
}

func (f *FS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	dir, b, st := f.newborn(&in.InHeader, name, in.Mode&^unix.S_IFMT|unix.S_IFDIR, in.Umask)
	if st != fuse.OK {
		return st
	}
	return f.born("mkdir", &in.InHeader, out, func() (layers.Attr, error) {
		return f.branch.Mkdir(dir, name, b.mode, b.cred)
	})
}

func (f *FS) Symlink(_ <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	dir, b, st := f.newborn(h, name, unix.S_IFLNK|0o777, 0)
	if st != fuse.OK {
		return st
	}
	return f.born("symlink", h, out, func() (layers.Attr, error) {
		return f.branch.Symlink(dir, name, target, b.cred)
	})
}

// Tmpfile makes a file without a name. It is the only creation that opens, too.
func (f *FS) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	dir, b, st := f.newborn(&in.InHeader, "", in.Mode&^unix.S_IFMT|unix.S_IFREG, in.Umask)
	if st != fuse.OK {
		return st
	}
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE // as for every other file
	return f.born("tmpfile", &in.InHeader, &out.EntryOut, func() (layers.Attr, error) {
		return f.branch.Tmpfile(dir, b.mode, b.cred)
	})
}

func (f *FS) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	dir, st := f.live(in.NodeId)
	if st != fuse.OK {
		return st
	}
	if len(name) > nameMax {
		return enametoolong
	}
	if dir == layers.RootIno && name == rewindName {
		return eexist
	}
	_, st = f.change("link", in.Oldnodeid, func(ino layers.Ino) error {
		a, err := f.branch.Link(ino, dir, name)
		if err == nil {
			f.entry(place{&f.branch.View, 0, 0}, &a, out)
		}
		return err
	})
	return st
}

// Create and Open are not needed: the kernel makes do with MKNOD, and opens without asking.

func (f *FS) Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status {
	return fuse.ENOSYS
}

func (f *FS) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

func (f *FS) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

func (f *FS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (f *FS) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }
