package layers

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// directBytes is the smallest part of a slot that a write stores as a chunk at
// once. Smaller ones are logged and cut later, with their neighbours.
const directBytes = 32 << 10

// Write puts p at off, growing the file if need be, and returns len(p). When it
// returns, the bytes survive SIGKILL. ENOSPC, EFBIG, ESTALE, EINVAL.
func (b *Branch) Write(ino Ino, p []byte, off int64, f WriteFlags) (int, error) {
	if off < 0 || off > maxSize-int64(len(p)) {
		return 0, unix.EFBIG
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := b.t.db.CheckSpace(int64(len(p))); err != nil {
		return 0, unix.ENOSPC
	}
	least := int64(directBytes)
	if f.Chunks {
		least = 1
	}
	direct, small := carve(p, off, least)
	for {
		st, err := b.t.store(direct) // hashing and pack I/O without the lock
		if err != nil {
			return 0, err
		}
		n, err := b.write(ino, p, off, f, st, small)
		if !errors.Is(err, errVoid) {
			return n, err
		}
	}
}

// Append puts p at the end of the file, wherever that is by then, in one piece, and returns where. Errors as Write.
func (b *Branch) Append(ino Ino, p []byte, f WriteFlags) (off int64, err error) {
	f.atEnd = true
	for {
		a, err := b.Getattr(ino)
		if err != nil {
			return 0, err
		}
		if _, err = b.Write(ino, p, a.Size, f); !errors.Is(err, errEnd) {
			return a.Size, err
		}
	}
}

// errEnd says that the file has got another size.
var errEnd = errors.New("the file ends elsewhere by now")

// errVoid says that what was stored must be stored again.
var errVoid = errors.New("chunks were swept away before they got a name")

// write records that p is at off: what is stored as extents, the small rest as pending bytes.
func (b *Branch) write(ino Ino, p []byte, off int64, f WriteFlags, st *stored, small []run) (int, error) {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	n, err := b.file(ino)
	if err != nil {
		return 0, err
	}
	if len(st.exts) > 0 {
		if err := b.settle(ino, b.inTheWay(st.exts)); err != nil {
			return 0, err
		}
		if n, err = b.file(ino); err != nil { // settle let others in
			return 0, err
		}
	}
	if b.t.void(st) {
		return 0, errVoid
	}
	o := b.newOp()
	rec, err := o.rec(n)
	if err != nil {
		return 0, err
	}
	if f.atEnd && off != rec.size {
		b.t.loosen(chunkBytes(st.exts))
		return 0, errEnd
	}
	end := off + int64(len(p))
	if off > rec.size {
		rec.flags |= flagSparse
	}
	rec.size = max(rec.size, end)
	rec.regions = max(rec.regions, uint64((end-1)/regionSize)+1)
	rec.mtime, rec.ctime = o.now, o.now
	if f.KillPriv {
		o.killPriv(n, rec)
	}
	o.batch.Append(&st.index)
	if err := b.putExtents(&o.batch, ino, b.layer, st.exts); err != nil {
		return 0, err
	}
	o.pend(ino, small)
	if err := o.commit(); err != nil {
		b.t.loosen(chunkBytes(st.exts))
		return 0, err
	}
	b.t.written.Add(int64(len(p)))
	return len(p), b.filled(ino, small)
}

// carve splits p into parts within one slot: those of least bytes or more, which are worth a chunk of their own, and the small rest.
func carve(p []byte, off, least int64) (direct, small []run) {
	for len(p) > 0 {
		n := min(int64(len(p)), slotSize-off%slotSize)
		r := run{off, p[:n]}
		if n >= least {
			direct = append(direct, r)
		} else {
			small = append(small, r)
		}
		p, off = p[n:], off+n
	}
	return direct, small
}

// file returns the node of a regular file.
func (b *Branch) file(ino Ino) (*node, error) {
	n, err := b.get(ino)
	if err != nil {
		return nil, err
	}
	if n.rec != nil && n.rec.mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.EINVAL
	}
	return n, nil
}

// inTheWay picks pending bytes that must become extents before exts may: those of
// older layers, and those that exts would otherwise lie under.
func (b *Branch) inTheWay(exts []extent) func(*pending) bool {
	return func(p *pending) bool {
		if p.layer != b.layer {
			return true
		}
		for _, x := range exts {
			for _, s := range p.segs {
				if s.off < x.end() && s.end() > x.off {
					return true
				}
			}
			if slices.Contains(p.whole, x.off/slotSize) { // x lies within one slot
				return true
			}
		}
		return false
	}
}

// pend logs small runs as w/ records and, once that is done, as pending bytes.
func (o *op) pend(ino Ino, small []run) {
	for _, r := range small {
		o.t.pendSeq++
		seq, value := o.t.pendSeq, pendingValue(r.off, r.data)
		o.batch.Put(kv.Pending(uint64(ino), uint64(o.b.layer), seq), value)
		o.then = append(o.then, func() {
			o.t.appendPending(o.t.pendingOf(ino, o.b.layer, true), seq, value)
		})
	}
}

// maxSegs is how many separate runs of one file may be pending.
const maxSegs = 256

// filled cuts what a write has completed: a full slot, or too many loose runs. The
// caller holds t.mu, which is given up meanwhile. A failure to cut is no failure
// of the write: its bytes are logged, and the cutter tries again.
func (b *Branch) filled(ino Ino, small []run) error {
	b.t.pressure()
	p := b.t.pendingOf(ino, b.layer, false)
	if p == nil || len(small) == 0 {
		return nil
	}
	last := p.segs[len(p.segs)-1]
	if last.end()%slotSize != 0 && len(p.segs) < maxSegs {
		return nil
	}
	b.t.mu.Unlock()
	err := b.t.cut(p)
	b.t.mu.Lock()
	if err != nil {
		b.t.log.Warn("cannot store written bytes as a chunk yet; they are safe in the log", "inode", ino, "error", err)
	}
	return nil
}

// killPriv clears what must not survive a change of content: setuid, setgid of
// executables, and file capabilities.
func (o *op) killPriv(n *node, rec *inode) {
	rec.mode &^= unix.S_ISUID
	if rec.mode&unix.S_IXGRP != 0 {
		rec.mode &^= unix.S_ISGID
	}
	o.dropXattr(n, rec, "security.capability")
}
