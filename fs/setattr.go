package fs

import (
	"math"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

func (f *FS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	var s layers.SetAttr
	var a layers.Attr
	ino, st := f.change("setattr", in.NodeId, func(ino layers.Ino) (err error) {
		if s, err = f.wanted(ino, in); err == nil {
			a, err = f.branch.Setattr(ino, s)
		}
		return err
	})
	if st != fuse.OK {
		return st
	}
	if s.Size != nil {
		if !s.KillPriv {
			f.dropCaps(ino)
		}
		f.voidOld(in.NodeId)
	}
	out.AttrValid = forever
	f.fillAttr(&out.Attr, &a, uint64(ino))
	return fuse.OK
}

// wanted translates a SETATTR.
func (f *FS) wanted(ino layers.Ino, in *fuse.SetAttrIn) (layers.SetAttr, error) {
	s := layers.SetAttr{KillPriv: in.Valid&fuse.FATTR_KILL_SUIDGID != 0}
	if in.Valid&fuse.FATTR_SIZE != 0 {
		if in.Size > math.MaxInt64 {
			return s, unix.EFBIG
		}
		size := int64(in.Size)
		s.Size = &size
	}
	if in.Valid&fuse.FATTR_UID != 0 {
		s.UID = &in.Uid
	}
	if in.Valid&fuse.FATTR_GID != 0 {
		s.GID = &in.Gid
	}
	if s.UID != nil || s.GID != nil || in.Valid&^fuse.FATTR_CTIME == 0 {
		// Whoever does it, a change of owner takes privileges away. The kernel relies on us. A request
		// that sets nothing is one as well: chown(2) with -1 for both.
		a, err := f.branch.Getattr(ino)
		if err != nil {
			return s, err
		}
		s.KillPriv = s.KillPriv || !a.IsDir()
	}
	if in.Valid&fuse.FATTR_MODE != 0 {
		mode := in.Mode & 0o7777
		s.Mode = &mode
		var err error
		if s.Xattrs, err = f.chmodACL(ino, mode); err != nil {
			return s, err
		}
	}
	s.Atime = when(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec)
	s.Mtime = when(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
	s.Ctime = when(in.Valid, fuse.FATTR_CTIME, 0, in.Ctime, in.Ctimensec)
	return s, nil
}

// when is the time that a SETATTR sets, or nil.
func when(valid, set, now uint32, sec uint64, nsec uint32) *layers.Time {
	switch {
	case valid&set == 0:
		return nil
	case valid&now != 0:
		t := layers.TimeOf(time.Now())
		return &t
	}
	return &layers.Time{Sec: int64(sec), Nsec: nsec}
}

// dropCaps takes away the capabilities of a file whose content root changed: unlike
// setuid they never survive that. Changes by others come with a flag.
func (f *FS) dropCaps(ino layers.Ino) {
	if f.noCaps.has(ino) {
		return
	}
	err := f.branch.Removexattr(ino, "security.capability")
	if e := errno(err); e != 0 && e != unix.ENODATA && e != unix.EOPNOTSUPP {
		f.log.Warn("cannot take the capabilities of a changed file away", "inode", ino, "error", err)
		return
	}
	f.noCaps.add(ino)
}
