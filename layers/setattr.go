package layers

import (
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Setattr changes attributes as s says and returns the new ones.
func (b *Branch) Setattr(ino Ino, s SetAttr) (Attr, error) {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	n, err := b.get(ino)
	if err != nil {
		return Attr{}, err
	}
	o := b.newOp()
	if s.Size != nil {
		if n, err = b.prepareSize(n, *s.Size); err != nil {
			return Attr{}, err
		}
	}
	rec, err := o.rec(n)
	if err != nil {
		return Attr{}, err
	}
	if s.Size != nil {
		if *s.Size < rec.size {
			o.batch.UseReserve()
		}
		if err := o.resize(n, rec, *s.Size); err != nil {
			return Attr{}, err
		}
	}
	if s.Mode != nil {
		rec.mode = rec.mode&unix.S_IFMT | *s.Mode&0o7777
	}
	if s.UID != nil {
		rec.uid = *s.UID
	}
	if s.GID != nil {
		rec.gid = *s.GID
	}
	if s.Atime != nil {
		rec.atime = *s.Atime
	}
	if s.Mtime != nil {
		rec.mtime = *s.Mtime
	}
	rec.ctime = o.now
	if s.Ctime != nil {
		rec.ctime = *s.Ctime
	}
	if s.KillPriv {
		o.killPriv(n, rec)
	}
	for name, val := range s.Xattrs {
		if val == nil {
			o.dropXattr(n, rec, name)
			continue
		}
		o.putXattr(ino, rec, name, val)
	}
	if err := o.commit(); err != nil {
		return Attr{}, err
	}
	return b.recAttr(ino, rec)
}

// prepareSize makes pending bytes fit a change of size: what older layers have
// pending, and what straddles the new end, is cut first. It may give up t.mu.
func (b *Branch) prepareSize(n *node, size int64) (*node, error) {
	if size < 0 {
		return nil, unix.EINVAL
	}
	if size > maxSize {
		return nil, unix.EFBIG
	}
	ino := n.ino
	err := b.settle(ino, func(p *pending) bool {
		if p.layer != b.layer {
			return true
		}
		for _, s := range p.segs {
			if s.off < size && s.end() > size {
				return true
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	return b.file(ino)
}

// resize sets the size; bytes behind a smaller one never come back.
func (o *op) resize(n *node, rec *inode, size int64) error {
	if size > rec.size {
		rec.flags |= flagSparse
	}
	rec.mtime = o.now // also when the size stays: the kernel leaves that to us (fuse_do_setattr)
	old := rec.size
	rec.size = size
	if size >= old {
		return nil
	}
	rec.limit = min(rec.limit, size)
	if err := o.trimRegions(n.ino, rec, size); err != nil {
		return err
	}
	if p := o.t.pendingOf(n.ino, o.b.layer, false); p != nil {
		o.trimPending(p, size)
	}
	return nil
}

// trimRegions drops the extents at and behind size.
func (o *op) trimRegions(ino Ino, rec *inode, size int64) error {
	first := uint64(size / regionSize)
	if first >= rec.regions {
		return nil
	}
	return o.b.regions(ino, first, rec.regions, func(region uint64, xs []extent) bool {
		if kept := trim(xs, size); len(xs) > 0 {
			o.t.loosen(chunkBytes(xs) - chunkBytes(kept))
			o.t.putRegion(&o.batch, ino, region, o.b.layer, kept)
		}
		return true
	})
}

// trimPending drops the runs behind size; prepareSize left none across it. A cut
// under way has some of them in hand: p.limit tells it to leave them out.
func (o *op) trimPending(p *pending, size int64) {
	var keep []*seg
	freed := int64(0)
	for _, s := range p.segs {
		if s.off < size {
			keep = append(keep, s)
			continue
		}
		freed += int64(len(s.data))
		for _, q := range s.seqs {
			o.batch.Delete(kv.Pending(uint64(p.ino), uint64(p.layer), q))
		}
	}
	o.then = append(o.then, func() {
		p.segs = keep
		p.bytes -= freed
		o.t.pendBytes -= freed
		o.t.loosen(freed)
		p.limit = min(p.limit, size)
		if len(keep) == 0 && p.cutting == nil {
			o.t.dropPending(p)
		}
	})
}

// Fallocate does as fallocate(2): mode 0 and KEEP_SIZE reserve nothing, because
// space is taken when bytes are stored, but extend the size as asked; PUNCH_HOLE
// (with KEEP_SIZE) and ZERO_RANGE make zeros. EOPNOTSUPP for other modes, and for zeros over more
// than maxHoles regions of a base file.
func (b *Branch) Fallocate(ino Ino, mode uint32, off, length int64, kill bool) error {
	const keep, punch, zero = unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE
	switch mode {
	case 0, keep, punch | keep, zero, zero | keep:
	default:
		return unix.EOPNOTSUPP
	}
	if off < 0 || length <= 0 || off+length < 0 {
		return unix.EINVAL
	}
	if off+length > maxSize {
		return unix.EFBIG
	}
	if mode&punch == 0 {
		if err := b.t.db.CheckSpace(length); err != nil {
			return unix.ENOSPC
		}
	}
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	clears := mode&(punch|zero) != 0
	if clears {
		if err := b.settle(ino, nil); err != nil {
			return err
		}
	}
	n, err := b.file(ino)
	if err != nil {
		return err
	}
	o := b.newOp()
	rec, err := o.rec(n)
	if err != nil {
		return err
	}
	end := off + length
	if clears {
		if err := o.zero(n, rec, off, min(end, rec.size)); err != nil {
			return err
		}
	}
	if mode&keep == 0 && end > rec.size {
		if err := o.resize(n, rec, end); err != nil {
			return err
		}
	}
	rec.mtime, rec.ctime = o.now, o.now
	if kill {
		o.killPriv(n, rec)
	}
	return o.commit()
}

// maxHoles bounds the regions over which one operation lays holes: each is a record, and the tree is locked meanwhile.
const maxHoles = 64 << 10 // 64 GiB

// zero makes [lo, hi) read as zeros: holes lie over what is there, the base's bytes
// included. Base bytes up to their end are rather given up for good.
func (o *op) zero(n *node, rec *inode, lo, hi int64) error {
	if lo >= hi {
		return nil
	}
	rec.flags |= flagSparse
	if rec.limit > lo && rec.limit <= hi {
		rec.limit = lo
	}
	hole := func(region uint64, xs []extent) bool {
		from, to := max(lo, int64(region)*regionSize), min(hi, int64(region+1)*regionSize)
		had := chunkBytes(xs)
		xs = overlay(xs, extent{off: from, n: to - from, kind: kindHole})
		o.t.loosen(had - chunkBytes(xs))
		o.t.putRegion(&o.batch, n.ino, region, o.b.layer, xs)
		return true
	}
	first, last := uint64(lo/regionSize), uint64((hi-1)/regionSize)
	if rec.limit <= lo { // no base bytes: only records matter
		if first >= rec.regions {
			return nil
		}
		return o.b.regions(n.ino, first, last, hole)
	}
	if last-first >= maxHoles { // the end of the range is among the base's bytes
		return unix.EOPNOTSUPP
	}
	rec.regions = max(rec.regions, last+1)
	for region := first; region <= last; region++ {
		xs, err := o.b.extents(n.ino, region)
		if err != nil {
			return err
		}
		hole(region, xs)
	}
	return nil
}
