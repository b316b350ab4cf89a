package fs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

const (
	// forever is the validity, in seconds, of what only we change.
	forever = 1 << 30
	// nameMax is the longest name in bytes; the kernel leaves it to us to check.
	nameMax = 255

	blockSize = 4096
)

func (f *FS) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > nameMax {
		return enametoolong
	}
	if h.NodeId == fuse.FUSE_ROOT_ID && name == rewindName || isVirtual(h.NodeId) {
		return f.lookupVirtual(h.NodeId, name, out)
	}
	p, st := f.at(h.NodeId)
	if st != fuse.OK {
		return st
	}
	a, err := f.enter(p, name, func(*layers.Attr) *fuse.EntryOut { return out })
	if errors.Is(err, unix.ENOENT) {
		out.EntryValid = forever // node 0: the absence may be remembered
		return fuse.OK
	}
	if err != nil {
		return f.status("lookup", h.NodeId, err)
	}
	f.voidDrift(a.Ino, out.NodeId)
	return fuse.OK
}

// enter looks name up in the directory p and describes it in what to returns. Attributes from before the head moved must not go out with a
// node id from after that: the kernel would believe them for ever, and append where the file ended.
func (f *FS) enter(p place, name string, to func(*layers.Attr) *fuse.EntryOut) (layers.Attr, error) {
	moves := f.inc.moves.Load()
	a, err := p.view.Lookup(p.ino, name)
	if err != nil {
		return a, err
	}
	out := to(&a)
	for f.entry(p, &a, out); p.num == 0 && moves != f.inc.moves.Load(); f.entry(p, &a, out) {
		moves = f.inc.moves.Load()
		ino := a.Ino
		if a, err = p.view.Getattr(ino); err != nil {
			p.view.Forget(ino, 1)
			out.NodeId, out.EntryValid = 0, 0
			return a, err
		}
	}
	return a, nil
}

// entry describes a, to which layers has added a reference for the kernel.
func (f *FS) entry(p place, a *layers.Attr, out *fuse.EntryOut) {
	out.NodeId = f.id(p, a)
	out.EntryValid, out.AttrValid = forever, forever
	f.fillAttr(&out.Attr, a, p.statIno(a.Ino))
	if p.num != 0 {
		f.views.ref(p.num, 1)
	}
}

func (f *FS) fillAttr(out *fuse.Attr, a *layers.Attr, ino uint64) {
	if a.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && a.Mode&unix.S_IFMT == unix.S_IFREG {
		f.setid.add(a.Ino)
	}
	*out = fuse.Attr{
		Ino: ino, Size: uint64(a.Size), Blocks: uint64(a.Blocks),
		Atime: uint64(a.Atime.Sec), Mtime: uint64(a.Mtime.Sec), Ctime: uint64(a.Ctime.Sec),
		Atimensec: a.Atime.Nsec, Mtimensec: a.Mtime.Nsec, Ctimensec: a.Ctime.Nsec,
		Mode: a.Mode, Nlink: a.Nlink, Owner: fuse.Owner{Uid: a.UID, Gid: a.GID},
		Rdev: a.Rdev, Blksize: blockSize,
	}
}

func (f *FS) Forget(node, n uint64) {
	if isVirtual(node) {
		return
	}
	p, st := f.at(node)
	if st != fuse.OK {
		return
	}
	p.view.Forget(p.ino, n)
	if p.num != 0 {
		f.views.ref(p.num, -int64(n))
	}
}

// getattr is the common part of GETATTR and STATX. The second result is how long
// it stays true: what is said of an earlier incarnation is not to be kept.
func (f *FS) getattr(op string, node uint64) (layers.Attr, uint64, uint64, fuse.Status) {
	if isVirtual(node) {
		return virtualAttr(node), node, 0, fuse.OK
	}
	p, st := f.at(node)
	if st != fuse.OK {
		return layers.Attr{}, 0, 0, st
	}
	a, err := p.view.Getattr(p.ino)
	if err != nil {
		return a, 0, 0, f.status(op, node, err)
	}
	f.voidDrift(a.Ino, node)
	valid := uint64(forever)
	if f.inc.stale(node) && a.Mode&unix.S_IFMT == unix.S_IFREG {
		valid = 0
	}
	return a, p.statIno(a.Ino), valid, fuse.OK
}

func (f *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	a, ino, valid, st := f.getattr("getattr", in.NodeId)
	if st == fuse.OK {
		out.AttrValid = valid
		f.fillAttr(&out.Attr, &a, ino)
	}
	return st
}

func (f *FS) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	a, ino, valid, st := f.getattr("statx", in.NodeId)
	if st != fuse.OK {
		return st
	}
	t := func(t layers.Time) fuse.SxTime { return fuse.SxTime{Sec: uint64(t.Sec), Nsec: t.Nsec} }
	out.AttrValid = valid
	out.Statx = fuse.Statx{
		Mask: unix.STATX_BASIC_STATS | unix.STATX_BTIME, Blksize: blockSize,
		Nlink: a.Nlink, Uid: a.UID, Gid: a.GID, Mode: uint16(a.Mode), Ino: ino,
		Size: uint64(a.Size), Blocks: uint64(a.Blocks),
		Atime: t(a.Atime), Btime: t(a.Btime), Ctime: t(a.Ctime), Mtime: t(a.Mtime),
		// The kernel's encoding of device numbers, taken apart.
		RdevMajor: a.Rdev >> 8 & 0xfff, RdevMinor: a.Rdev&0xff | a.Rdev>>12&0xfff00,
	}
	return fuse.OK
}

func (f *FS) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	p, st := f.at(h.NodeId)
	if st != fuse.OK {
		return nil, st
	}
	target, err := p.view.Readlink(p.ino)
	if err != nil {
		return nil, f.status("readlink", h.NodeId, err)
	}
	return []byte(target), fuse.OK
}

func (f *FS) StatFs(_ <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var s unix.Statfs_t
	if err := unix.Statfs(f.statfsDir, &s); err != nil {
		return f.status("statfs", h.NodeId, err)
	}
	*out = fuse.StatfsOut{
		Blocks: s.Blocks, Bfree: s.Bfree, Bavail: s.Bavail, Files: s.Files, Ffree: s.Ffree,
		Bsize: uint32(s.Bsize), Frsize: uint32(s.Frsize), NameLen: nameMax,
	}
	return fuse.OK
}
