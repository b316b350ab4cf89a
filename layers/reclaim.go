package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

// Deleting makes room again. What the open layer wrote and then deleted, truncated or
// wrote over is named by nothing any more, and when the disk runs low its chunks go:
// every hash that any layer's extents name is collected, and the chunk store frees all
// others. No sealed layer, and none that a rollback took back, loses anything.
//
// Extents may come into being meanwhile. So the tree notes the hashes that are named
// from the beginning on (Tree.named), and a chunk that was stored before the index
// records went, but is named only after, is stored again (Tree.store, stale).

const (
	// looseWorth is how many bytes must have lost their name for a writer to wait
	// for them: finding them costs the size of the store's index.
	looseWorth = 1 << 20
	// reclaimTick is how often is looked whether the disk runs low, and reclaimRest
	// how many times its own duration one attempt in the background waits for the next.
	reclaimTick = time.Second
	reclaimRest = 10
)

// loosen notes that about n bytes may have lost their last name: of chunks, or of
// pending bytes in the log. The caller holds t.mu.
func (t *Tree) loosen(n int64) { t.loose += max(n, 0) }

// putRegion adds the record of a region with the extents xs to batch. The caller holds t.mu.
// It is the only place where chunks get names, besides NameChunks.
func (t *Tree) putRegion(b *kv.Batch, ino Ino, region uint64, l Layer, xs []extent) {
	if t.named != nil {
		for _, x := range xs {
			if x.kind == kindChunk {
				t.named[x.hash] = struct{}{}
			}
		}
	}
	b.Put(kv.Extent(uint64(ino), region, uint64(l)), encodeExtents(region, xs))
}

// NameChunks applies b, which has the index records of chunks that somebody else than the tree has stored, and
// that one's records which name them, so that Options.Named tells of them from then on. It does nothing and returns false where a sweep came in between: sweep is
// what cas.Store.Sweeps said before they were stored; they must be stored again.
func (t *Tree) NameChunks(sweep uint64, names []cas.Hash, b *kv.Batch) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sweep != t.chunks.Sweeps() {
		return false, nil
	}
	if t.named != nil {
		for _, h := range names {
			t.named[h] = struct{}{}
		}
	}
	return true, t.db.Apply(b)
}

// chunkBytes sums the bytes of xs that come from chunks.
func chunkBytes(xs []extent) (n int64) {
	for _, x := range xs {
		if x.kind == kindChunk {
			n += x.n
		}
	}
	return n
}

// MakeRoom frees what was deleted, for a caller to whom ErrNoSpace was just said.
// It reports whether to try again.
func (t *Tree) MakeRoom() bool {
	before := t.reclaims.Load()
	t.reclaiming.Lock()
	defer t.reclaiming.Unlock()
	if t.reclaims.Load() != before {
		return true // somebody else just did
	}
	t.mu.RLock()
	worth := t.loose >= looseWorth
	t.mu.RUnlock()
	if !worth {
		return false
	}
	freed, err := t.reclaim(false)
	if err != nil {
		t.log.Warn("cannot free the bytes of deleted files", "error", err)
	}
	return freed > 0
}

// Reclaim frees the chunks that no layer needs, and returns how many bytes the disk
// got back.
func (t *Tree) Reclaim() (freed int64, err error) {
	t.reclaiming.Lock()
	defer t.reclaiming.Unlock()
	return t.reclaim(false)
}

// Squeeze is Reclaim that also moves chunks out of packs with much waste, as far as there is room, and gives back what the
// log has ahead.
func (t *Tree) Squeeze() (freed int64, err error) {
	t.reclaiming.Lock()
	defer t.reclaiming.Unlock()
	if freed, err = t.squeeze(); err == nil {
		err = t.db.TrimLog()
	}
	return freed, err
}

func (t *Tree) squeeze() (freed int64, err error) {
	freed, err = t.reclaim(false)
	if err != nil {
		return freed, err
	}
	moved, err := t.chunks.Repack()
	if err != nil || moved == 0 {
		return freed, err
	}
	more, err := t.reclaim(false)
	return max(0, freed+more-moved), err
}

// reclaimLoop frees what was deleted while the disk is low, so that others on the
// disk, and df, see it too.
func (t *Tree) reclaimLoop() {
	wait := time.NewTimer(reclaimTick)
	defer wait.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-wait.C:
		}
		wait.Reset(max(reclaimTick, reclaimRest*t.reclaimIfLow()))
	}
}

// reclaimIfLow returns how long it took.
func (t *Tree) reclaimIfLow() time.Duration {
	t.mu.RLock()
	loose := t.loose
	t.mu.RUnlock()
	if loose == 0 {
		return 0
	}
	if low, err := t.db.SpaceLow(); err != nil || !low {
		return 0 // whoever needs the space will see the error
	}
	start := time.Now()
	if _, err := t.Reclaim(); err != nil {
		t.log.Warn("cannot free the bytes of deleted files", "error", err)
	}
	return time.Since(start)
}

// reclaim frees the chunks that nothing names, and the space of deleted records. It
// returns how many bytes the disk got back. With wipe set, none of their bytes is left in the packs. The
// caller holds t.reclaiming.
func (t *Tree) reclaim(wipe bool) (freed int64, err error) {
	start := time.Now()
	t.mu.Lock()
	t.named, t.loose = map[cas.Hash]struct{}{}, 0
	t.mu.Unlock()
	n, g, err := t.forgetChunks()
	if err != nil {
		return 0, err
	}
	// A power cut must not bring back a name of bytes that are gone.
	if err := t.db.Sync(); err != nil {
		return 0, fmt.Errorf("sync before freeing chunks: %w", err)
	}
	g.Wipe = wipe
	freed, err = g.Free()
	before, err1 := t.db.DiskBytes()
	err = errors.Join(err, err1, t.db.Compact())
	after, err1 := t.db.DiskBytes()
	freed += max(0, before-after)
	t.reclaims.Add(1)
	t.log.Info("freed what was deleted", "chunks", n, "bytes", freed, "took", time.Since(start))
	return freed, errors.Join(err, err1)
}

// forgetChunks takes the chunks that nothing names out of the index.
func (t *Tree) forgetChunks() (n int, g *cas.Garbage, err error) {
	names, err := t.namedChunks()
	if err == nil {
		g, err = t.chunks.Unneeded(names.has)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		n, err = g.Drop(t.named)
	}
	t.named = nil
	return n, g, err
}

// LooseBytes is how many bytes of chunks nothing names: Reclaim would free them. It looks
// at the whole index; what is being written may count.
func (t *Tree) LooseBytes() (int64, error) {
	names, err := t.namedChunks()
	if err != nil {
		return 0, err
	}
	g, err := t.chunks.Unneeded(names.has)
	if err != nil {
		return 0, fmt.Errorf("measure what nothing names: %w", err)
	}
	return g.Bytes(), nil
}

// nameSet is a set of hashes by their first 8 bytes, sorted. It may have a hash too many,
// which costs a chunk's bytes once in 2^64/size times, but 8 bytes each instead of 32.
type nameSet []uint64

func (s nameSet) has(h cas.Hash) bool {
	_, ok := slices.BinarySearch(s, short(h))
	return ok
}

// namedChunks lists the chunks that the extents of any layer, or others than the tree, name. What is named
// meanwhile is in t.named.
func (t *Tree) namedChunks() (nameSet, error) {
	var names nameSet
	var bad error
	err := t.db.Scan(kv.ExtentsPrefix(), nil, func(k, v []byte) bool {
		_, region, _, ok := kv.ParseExtent(k)
		if !ok {
			bad = fmt.Errorf("extent key %x: %w", k, ErrCorrupt)
			return false
		}
		var xs []extent
		if xs, bad = decodeExtents(region, v); bad != nil {
			return false
		}
		for _, x := range xs {
			if x.kind == kindChunk {
				names = append(names, short(x.hash))
			}
		}
		return true
	})
	if err = errors.Join(err, bad); err == nil && t.others != nil {
		err = t.others(func(h cas.Hash) { names = append(names, short(h)) })
	}
	if err != nil {
		return nil, fmt.Errorf("list the chunks in use: %w", err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func short(h cas.Hash) uint64 { return binary.BigEndian.Uint64(h[:8]) }
