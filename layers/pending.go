package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

// Bytes of a small write are first only logged: each write is a w/ record in kv,
// and a seg in memory to read from. When a slot is full, memory gets tight, or
// the file rests, the segs are cut: hashed, stored as chunks, and named by extents.
//
// Invariant: an x/ record of layer M is written only when no older layer that M
// sees has pending bytes of the same inode; so the newest visible record, with the
// pending bytes over it in layer order, is always the whole truth.

// pending is what one inode got in one layer and is not cut yet. Guarded by Tree.mu.
type pending struct {
	ino     Ino
	layer   Layer
	segs    []*seg // in the order they were written: later ones cover earlier ones
	bytes   int64
	touched time.Time
	cutting chan struct{} // closed when the cut under way is over; nil when there is none
	limit   int64         // bytes at or behind it were truncated away since the cut began
	whole   []int64       // slots that the cut under way stores as a whole
	dead    bool          // its records are gone: nothing to cut
}

// seg is a run of pending bytes. Its w/ records hold the same bytes.
type seg struct {
	off    int64
	data   []byte
	seqs   []uint64
	frozen bool // being cut: neither grows nor changes
}

func (s *seg) end() int64 { return s.off + int64(len(s.data)) }

// When to cut: bytes pending over all files, and how long a file must rest.
const (
	pendHigh = 32 << 20
	pendLow  = 16 << 20
	pendRest = time.Second
)

// pendingValue is a w/ record: the offset (8 bytes), then the bytes.
func pendingValue(off int64, p []byte) []byte {
	v := make([]byte, 8+len(p))
	binary.BigEndian.PutUint64(v, uint64(off))
	copy(v[8:], p)
	return v
}

// pendingData is the bytes in a w/ record.
func pendingData(v []byte) []byte { return v[min(8, len(v)):] }

// pendingOf returns what ino has pending in layer l, making it when make is set.
func (t *Tree) pendingOf(ino Ino, l Layer, create bool) *pending {
	list := t.pend[ino]
	i, ok := slices.BinarySearchFunc(list, l, func(p *pending, l Layer) int {
		return int(int64(p.layer) - int64(l))
	})
	if ok {
		return list[i]
	}
	if !create {
		return nil
	}
	p := &pending{ino: ino, layer: l}
	t.pend[ino] = slices.Insert(list, i, p)
	return p
}

func (t *Tree) dropPending(p *pending) {
	t.loosen(p.bytes)
	t.pendBytes -= p.bytes
	p.bytes, p.segs, p.dead = 0, nil, true
	list := slices.DeleteFunc(t.pend[p.ino], func(q *pending) bool { return q == p })
	if len(list) == 0 {
		delete(t.pend, p.ino)
	} else {
		t.pend[p.ino] = list
	}
}

// append adds bytes that were just logged as record seq. value is the record.
func (t *Tree) appendPending(p *pending, seq uint64, value []byte) {
	off, data := int64(binary.BigEndian.Uint64(value)), value[8:]
	t.pendBytes += int64(len(data))
	p.bytes += int64(len(data))
	p.touched = t.now()
	if k := len(p.segs) - 1; k >= 0 {
		last := p.segs[k]
		if !last.frozen && last.end() == off && last.off/slotSize == (off+int64(len(data))-1)/slotSize {
			if len(last.seqs) == 1 { // data still is the record in kv: do not grow into it
				last.data = slices.Grow(append(make([]byte, 0, 2*(len(last.data)+len(data))), last.data...), len(data))
			}
			last.data = append(last.data, data...)
			last.seqs = append(last.seqs, seq)
			return
		}
	}
	p.segs = append(p.segs, &seg{off: off, data: data, seqs: []uint64{seq}})
}

// loadPending rebuilds from the w/ records what was pending when the store was closed or its daemon died.
func (t *Tree) loadPending() error {
	var bad error
	err := t.db.Scan(kv.PendingPrefix(), nil, func(k, v []byte) bool {
		ino, l, seq, ok := kv.ParsePending(k)
		if !ok || len(v) < 8 {
			bad = fmt.Errorf("pending record %x: %w", k, ErrCorrupt)
			return false
		}
		t.pendSeq = max(t.pendSeq, seq)
		if t.layers[Layer(l)] == nil {
			return true // the layer is doomed, and this with it
		}
		t.appendPending(t.pendingOf(Ino(ino), Layer(l), true), seq, slices.Clone(v))
		return true
	})
	return errors.Join(err, bad)
}

// visiblePending returns what v sees pending for ino, oldest layer first.
func (v *View) visiblePending(ino Ino) []*pending {
	list := v.t.pend[ino]
	for i, p := range list {
		if !v.anc.has(p.layer) {
			out := slices.Clone(list[:i])
			for _, p := range list[i+1:] {
				if v.anc.has(p.layer) {
					out = append(out, p)
				}
			}
			return out
		}
	}
	return list
}

// olderPending returns a pending of the same inode in a layer below p's.
func (t *Tree) olderPending(p *pending) *pending {
	list := t.pend[p.ino]
	if len(list) < 2 || list[0] == p {
		return nil
	}
	anc := t.ancestry(p.layer)
	for _, q := range list {
		if q.layer < p.layer && anc.has(q.layer) {
			return q
		}
	}
	return nil
}

// run is a stretch of bytes within one slot.
type run struct {
	off  int64
	data []byte
}

// flatten merges segs into disjoint runs, later bytes over earlier ones, each
// within one slot.
func flatten(segs []*seg) []run {
	if len(segs) == 1 && segs[0].off/slotSize == (segs[0].end()-1)/slotSize {
		return []run{{segs[0].off, segs[0].data}}
	}
	slots := map[int64][]run{}
	for _, s := range segs {
		for off := s.off; off < s.end(); {
			slot := off / slotSize
			end := min(s.end(), (slot+1)*slotSize)
			slots[slot] = append(slots[slot], run{off, s.data[off-s.off : end-s.off]})
			off = end
		}
	}
	var out []run
	for slot, parts := range slots {
		buf := make([]byte, slotSize)
		var cover []extent
		for _, r := range parts {
			copy(buf[r.off-slot*slotSize:], r.data)
			cover = overlay(cover, extent{off: r.off, n: int64(len(r.data)), kind: kindChunk})
		}
		for i := 0; i < len(cover); {
			off, end := cover[i].off, cover[i].end()
			for i++; i < len(cover) && cover[i].off == end; i++ {
				end = cover[i].end()
			}
			out = append(out, run{off, buf[off-slot*slotSize : end-slot*slotSize]})
		}
	}
	slices.SortFunc(out, func(a, b run) int { return int(min(1, max(-1, a.off-b.off))) })
	return out
}

// putExtents lays exts, which are sorted, over the regions of ino that v sees and
// adds the new records, of layer l, to b.
func (v *View) putExtents(b *kv.Batch, ino Ino, l Layer, exts []extent) error {
	for len(exts) > 0 {
		region := uint64(exts[0].off / regionSize)
		xs, err := v.extents(ino, region)
		if err != nil {
			return err
		}
		had := chunkBytes(xs)
		for len(exts) > 0 && uint64(exts[0].off/regionSize) == region {
			xs = overlay(xs, exts[0])
			had += chunkBytes(exts[:1])
			exts = exts[1:]
		}
		v.t.loosen(had - chunkBytes(xs))
		v.t.putRegion(b, ino, region, l, xs)
	}
	return nil
}

// settle makes sure that nothing is pending for ino, in any layer v sees, that
// satisfies which (nil: all). It gives up t.mu, which the caller holds, while it works.
func (v *View) settle(ino Ino, which func(*pending) bool) error {
	for {
		var todo *pending
		for _, p := range v.visiblePending(ino) {
			if which == nil || which(p) {
				todo = p
				break
			}
		}
		if todo == nil {
			return nil
		}
		v.t.mu.Unlock()
		err := v.t.cut(todo)
		v.t.mu.Lock()
		if err != nil {
			return err
		}
	}
}
