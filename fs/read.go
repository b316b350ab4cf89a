package fs

import (
	"math"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func (f *FS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	p, st := f.at(in.NodeId)
	if st != fuse.OK {
		return nil, st
	}
	if in.Offset > math.MaxInt64 {
		return nil, fuse.EINVAL
	}
	n, err := p.view.ReadAt(p.ino, buf, int64(in.Offset))
	if err != nil {
		return nil, f.status("read", in.NodeId, err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (f *FS) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	p, st := f.at(in.NodeId)
	if st != fuse.OK {
		return st
	}
	if in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE {
		return fuse.EINVAL // the kernel does the others itself
	}
	off, err := p.view.Seek(p.ino, int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return f.status("lseek", in.NodeId, err)
}
