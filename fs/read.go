package fs

import (
	"errors"
	"fmt"
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
	off, err := f.seek(p, in.NodeId, int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return f.status("lseek", in.NodeId, err)
}

// seek finds data or a hole. In what we know as a hole the kernel may have dirty pages: what
// programs stored through shared mappings and, with the writeback cache, wrote. So
// a hole that the answer rests on is collected before it is believed. The request
// holds no page of the file, and the writes that come are for other threads.
func (f *FS) seek(p place, node uint64, from int64, whence int) (int64, error) {
	off, err := p.view.Seek(p.ino, from, whence)
	for range seekRounds {
		lo, hi := f.restsOn(p, from, off, whence, err)
		if lo == hi || p.num != 0 {
			break
		}
		if err := f.voider.conn.InvalInode(node, lo, hi-lo); err != nil && !errors.Is(err, unix.ENOENT) {
			return 0, fmt.Errorf("collect what the kernel has of inode %d: %w", p.ino, err)
		}
		before := off
		if off, err = p.view.Seek(p.ino, from, whence); off == before {
			break
		}
	}
	return off, err
}

// seekRounds bounds how often seek begins anew while somebody fills holes.
const seekRounds = 100

// restsOn returns the hole [lo, hi) that is the reason for an answer of View.Seek. None is lo == hi.
func (f *FS) restsOn(p place, from, off int64, whence int, err error) (lo, hi int64) {
	switch a, aerr := p.view.Getattr(p.ino); {
	case aerr != nil || from < 0 || err != nil && !errors.Is(err, unix.ENXIO):
		return 0, 0
	case from >= a.Size || err == nil && off >= a.Size: // the end, which the kernel knows as we do
		if !f.writeback {
			return 0, 0
		}
		return min(from, a.Size), math.MaxInt64
	case err != nil:
		return from, math.MaxInt64
	case whence == unix.SEEK_DATA:
		return from, off
	}
	if hi, err = p.view.Seek(p.ino, off, unix.SEEK_DATA); err != nil {
		hi = math.MaxInt64
	}
	return off, hi
}
