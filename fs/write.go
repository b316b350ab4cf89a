package fs

import (
	"errors"
	"math"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// current returns the inode number of a node that may be changed: not in a
// read-only view, and no earlier incarnation. The caller holds gate for reading
// until the change is done.
func (f *FS) current(node uint64) (layers.Ino, fuse.Status) {
	ino, st := f.live(node)
	if st == fuse.OK && f.inc.stale(node) {
		return 0, estale
	}
	return ino, st
}

func (f *FS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if in.Offset > math.MaxInt64-uint64(len(data)) {
		return 0, efbig
	}
	cached := in.WriteFlags&fuse.WRITE_CACHE != 0
	if cached {
		f.cachedWrites.Add(1)
	}
	kill := in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0
	ino, at, st := f.put(in, data, layers.WriteFlags{KillPriv: kill})
	if st != fuse.OK {
		if cached && st != estale {
			f.lost.Store(uint32(st))
		}
		return 0, st
	}
	switch {
	case kill:
		f.setidCleared(ino, in.NodeId)
	case !cached:
		f.dropCaps(ino)
	}
	if cached {
		f.mapped.add(ino)
		if !f.writeback {
			// The kernel thinks that the times are what they were. Not to be
			// said from here: this request holds the page.
			f.voider.attrs(in.NodeId)
		}
	}
	f.voidOld(in.NodeId)
	if at != int64(in.Offset) || f.inc.stale(in.NodeId) {
		f.elsewhere(ino, in.NodeId)
	}
	if wrote := f.wrote.Load(); wrote != nil {
		(*wrote)()
	}
	return uint32(len(data)), fuse.OK
}

// put is the write itself, while the head stands still. It returns where in the file it went.
//
// The kernel says where an append goes, by the size that it knows. If that may not be the size any more, it goes to the file's end. So it does
// through an earlier incarnation that only merges came over: one write(2) may come as two requests, and a merge in between
// would leave half of it there.
func (f *FS) put(in *fuse.WriteIn, data []byte, flags layers.WriteFlags) (ino layers.Ino, at int64, st fuse.Status) {
	f.gate.RLock()
	defer f.gate.RUnlock()
	if ino, st = f.live(in.NodeId); st != fuse.OK {
		return 0, 0, st
	}
	appends := in.Flags&unix.O_APPEND != 0 && in.WriteFlags&fuse.WRITE_CACHE == 0
	if f.inc.stale(in.NodeId) {
		if !appends || !f.inc.merged(in.NodeId) {
			return 0, 0, estale
		}
		f.resized.add(ino) // for those that append to the present incarnation
	}
	st = f.status("write", in.NodeId, f.roomy(func() (err error) {
		if at = int64(in.Offset); !appends || !f.resized.has(ino) {
			_, err = f.branch.Write(ino, data, at, flags)
			if !errors.Is(err, unix.ESTALE) || !appends || !f.resized.has(ino) {
				return err
			}
			// Just now the base file turned out to have changed.
		}
		at, err = f.branch.Append(ino, data, flags)
		return err
	}))
	return ino, at, st
}

// elsewhere has the kernel forget what it knows of a file after an append through node that went elsewhere than it thinks, or that it
// thinks went to another file. The data goes once this request is answered: it holds pages.
func (f *FS) elsewhere(ino layers.Ino, node uint64) {
	f.drifts.add(ino)
	ids := f.inc.ids(ino)
	for _, id := range ids {
		f.voider.data(id)
	}
	// Of node itself it has the size checked after a write anyway.
	if now := ids[len(ids)-1]; now != node {
		if err := f.voider.attrsNow(now); err != nil && !errors.Is(err, unix.ENOENT) {
			f.log.Warn("cannot have the kernel forget a file's size", "inode", ino, "error", err)
		}
	}
}

// change runs do, which changes the file behind node, while the head stands still.
func (f *FS) change(op string, node uint64, do func(layers.Ino) error) (layers.Ino, fuse.Status) {
	f.gate.RLock()
	defer f.gate.RUnlock()
	ino, st := f.current(node)
	if st != fuse.OK {
		return 0, st
	}
	return ino, f.status(op, node, f.roomy(func() error { return do(ino) }))
}

// roomy does an operation that needs space, once more when there was none but what
// was deleted has made room.
func (f *FS) roomy(do func() error) error {
	err := do()
	if err != nil && errno(err) == unix.ENOSPC && f.tree.MakeRoom() {
		err = do()
	}
	return err
}

// Writev is not for us: requests come in one piece.
func (f *FS) Writev(<-chan struct{}, *fuse.WriteIn, [][]byte) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS // read by go-fuse, not by the kernel
}

// voidOld has the kernel drop what it caches of the earlier incarnations of a file
// that was changed as node, for descriptors from before a rollback. They are rare.
//
// It waits for requests that these have under way, while node's own request holds pages. That
// cannot go in circles: one waits for older ones only, and one that has been superseded
// meanwhile waits for none. The gate is not held: what is under way may want it.
func (f *FS) voidOld(node uint64) {
	for _, old := range f.inc.older(node) {
		if errors.Is(f.voider.dataNow(old), unix.ENOENT) {
			f.inc.forgotten(old)
		}
	}
}

// setidCleared has the kernel forget the mode of a file that may just have lost its
// setuid or setgid bit: it only expects new times and a new size. A handler may say this much
// of the file it changes if that is open, which keeps the inode from going away.
func (f *FS) setidCleared(ino layers.Ino, node uint64) {
	if !f.setid.drop(ino) {
		return
	}
	if err := f.voider.attrsNow(node); err != nil && !errors.Is(err, unix.ENOENT) {
		f.log.Warn("cannot have the kernel forget a file's mode", "inode", ino, "error", err)
	}
}

// privileged reports whether the caller keeps setuid and setgid bits when it
// changes a file. The kernel says so of write and truncate; for the rest, root is.
func privileged(h *fuse.InHeader) bool { return h.Uid == 0 }

func (f *FS) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if in.Offset > math.MaxInt64 || in.Length > math.MaxInt64-in.Offset {
		return efbig
	}
	ino, st := f.change("fallocate", in.NodeId, func(ino layers.Ino) error {
		return f.branch.Fallocate(ino, in.Mode, int64(in.Offset), int64(in.Length), !privileged(&in.InHeader))
	})
	if st == fuse.OK {
		f.setidCleared(ino, in.NodeId)
		f.voidOld(in.NodeId)
	}
	return st
}

func (f *FS) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	if in.OffIn > math.MaxInt64 || in.OffOut > math.MaxInt64 {
		return 0, efbig
	}
	if in.Flags != 0 {
		return 0, fuse.EINVAL
	}
	src, st := f.live(in.NodeId)
	if st != fuse.OK {
		return 0, fuse.EXDEV // out of a checkpoint: the kernel copies it by reading and writing
	}
	n := min(in.Len, math.MaxUint32&^(blockSize-1), math.MaxInt64-max(in.OffIn, in.OffOut))
	done := int64(0)
	dst, st := f.change("copy_file_range", in.NodeIdOut, func(dst layers.Ino) (err error) {
		done, err = f.branch.CopyRange(src, int64(in.OffIn), dst, int64(in.OffOut), int64(n), !privileged(&in.InHeader))
		return err
	})
	if st == fuse.OK {
		f.setidCleared(dst, in.NodeIdOut)
		f.voidOld(in.NodeIdOut)
	}
	return uint32(done), st
}
