package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// Answers that go-fuse has no name for.
const (
	eexist       = fuse.Status(syscall.EEXIST)
	estale       = fuse.Status(syscall.ESTALE)
	efbig        = fuse.Status(syscall.EFBIG)
	enametoolong = fuse.Status(syscall.ENAMETOOLONG)
	enotty       = fuse.Status(syscall.ENOTTY)
	eopnotsupp   = fuse.Status(syscall.EOPNOTSUPP)
)

// errno finds what a program is to see of err. It is the only place that decides,
// and it never says ENOSYS: the kernel would not ask again for the life of the mount.
func errno(err error) syscall.Errno {
	var e syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, layers.ErrCorrupt), errors.Is(err, cas.ErrCorrupt):
		return syscall.EIO
	case errors.Is(err, kv.ErrNoSpace):
		return syscall.ENOSPC
	case errors.Is(err, layers.ErrNoLayer):
		return syscall.ESTALE
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return syscall.EINTR
	case errors.As(err, &e) && e != 0 && e != syscall.ENOSYS:
		return e
	}
	return syscall.EIO
}

// status is the answer to a request that ended with err. What a program only sees
// as EIO is told in full in the log.
func (f *FS) status(op string, node uint64, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	e := errno(err)
	if e == syscall.EIO {
		f.log.Error("request failed", "op", op, "node", node, "error", err)
	}
	return fuse.Status(e)
}
