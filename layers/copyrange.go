package layers

import (
	"golang.org/x/sys/unix"
)

// CopyRange copies up to n bytes from soff in src to doff in dst, and returns how
// many: fewer at the end of src. Bytes that are in chunks are shared, not copied;
// bytes that only the base has are stored once, like any other content.
func (b *Branch) CopyRange(src Ino, soff int64, dst Ino, doff, n int64, kill bool) (int64, error) {
	if soff < 0 || doff < 0 || n < 0 || soff+n < 0 || doff+n < 0 {
		return 0, unix.EINVAL
	}
	if src == dst && soff < doff+n && doff < soff+n {
		return 0, unix.EINVAL
	}
	done := int64(0)
	for done < n {
		k, err := b.share(src, soff+done, dst, doff+done, n-done, kill)
		if err == nil && k == 0 {
			k, err = b.copyBytes(src, soff+done, dst, doff+done, n-done, kill)
		}
		if err != nil {
			if done > 0 {
				return done, nil
			}
			return 0, err
		}
		if k == 0 {
			break
		}
		done += k
	}
	return done, nil
}

// copyBytes copies a stretch by reading and writing it.
func (b *Branch) copyBytes(src Ino, soff int64, dst Ino, doff, n int64, kill bool) (int64, error) {
	buf := make([]byte, min(n, regionSize))
	k, err := b.ReadAt(src, buf, soff)
	if err != nil || k == 0 {
		return 0, err
	}
	k, err = b.Write(dst, buf[:k], doff, WriteFlags{KillPriv: kill})
	return int64(k), err
}

// maxShare bounds the work of one batch of shared extents, in bytes of file.
const maxShare = 256 * regionSize

// share makes dst name the chunks of src for as much of the range as has no bytes
// of the base; 0 when it starts with such bytes, or src ends.
func (b *Branch) share(src Ino, soff int64, dst Ino, doff, n int64, kill bool) (int64, error) {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	for len(b.visiblePending(src)) > 0 || len(b.visiblePending(dst)) > 0 {
		if err := b.settle(src, nil); err != nil {
			return 0, err
		}
		if err := b.settle(dst, nil); err != nil {
			return 0, err
		}
	}
	from, err := b.file(src)
	if err != nil {
		return 0, err
	}
	to, err := b.file(dst)
	if err != nil || from.rec == nil {
		return 0, err
	}
	n = min(n, maxShare, from.rec.size-soff)
	if n <= 0 {
		return 0, nil
	}
	if doff > maxSize-n {
		return 0, unix.EFBIG
	}
	l, err := b.plan(from, soff, soff+n, nil)
	if err != nil {
		return 0, err
	}
	exts, n := shareable(l, soff, l.hi-soff)
	if n == 0 {
		return 0, nil
	}
	o := b.newOp()
	rec, err := o.rec(to)
	if err != nil {
		return 0, err
	}
	var moved []extent
	for _, x := range exts {
		x.off += doff - soff
		moved = append(moved, splitRegions(x)...)
		if x.kind == kindHole {
			rec.flags |= flagSparse
		}
	}
	if doff > rec.size {
		rec.flags |= flagSparse
	}
	rec.size = max(rec.size, doff+n)
	rec.regions = max(rec.regions, uint64((doff+n-1)/regionSize)+1)
	rec.mtime, rec.ctime = o.now, o.now
	if kill {
		o.killPriv(to, rec)
	}
	if err := b.putExtents(&o.batch, dst, b.layer, moved); err != nil {
		return 0, err
	}
	if err := o.commit(); err != nil {
		return 0, err
	}
	return n, nil
}

// shareable returns the extents of the longest start of [off, off+n) that needs no
// byte of the base, zeros as holes, and its length.
func shareable(l *layout, off, n int64) ([]extent, int64) {
	var out []extent
	at, end := off, off+n
	gap := func(to int64) bool {
		if at >= to {
			return true
		}
		if l.path != "" && at < l.limit {
			return false
		}
		out = append(out, extent{off: at, n: to - at, kind: kindHole})
		at = to
		return true
	}
	for _, x := range l.exts {
		if !gap(x.off) {
			return out, at - off
		}
		out = append(out, x)
		at = x.end()
	}
	gap(end)
	return out, at - off
}

// splitRegions cuts x at region borders.
func splitRegions(x extent) []extent {
	var out []extent
	for x.n > 0 {
		end := min(x.end(), (x.off/regionSize+1)*regionSize)
		out = append(out, x.cut(x.off, end))
		if end == x.end() {
			break
		}
		x = x.cut(end, x.end())
	}
	return out
}
