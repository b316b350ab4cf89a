package cas

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// A sweep gives back whole blocks. Where small chunks that live lie between dead ones, hardly a block is free:
// Repack moves the live ones elsewhere, side by side, so that the next sweep frees all of the rest.

const (
	// A pack is worth it when its blocks are more than repackNum/repackDen of what lives in it, and
	// at least repackMin bytes can be had.
	repackNum, repackDen = 12, 11
	repackMin            = 256 << 10
	repackBytes          = 4 << 20 // of chunks in one batch
)

// Repack stores the chunks of packs with much waste anew, and returns how many bytes it moved: a sweep
// then frees the old places. Without room for the copies it moves none, or some. The caller sees to it that there
// is no sweep meanwhile.
func (s *Store) Repack() (moved int64, err error) {
	live := map[uint32][]written{}
	err = s.db.Scan(kv.ChunkPrefix(), nil, func(k, v []byte) bool {
		raw, _ := kv.ParseChunk(k)
		if at, ok := parsePlace(v); ok && len(raw) == len(Hash{}) {
			live[at.pack] = append(live[at.pack], written{Hash(raw), at})
		}
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("looking for packs with much waste: %w", err)
	}
	for _, n := range slices.Sorted(maps.Keys(live)) {
		worth, err := s.wasteful(n, live[n])
		if err == nil && worth {
			var k int64
			k, err = s.move(live[n])
			moved += k
		}
		if errors.Is(err, kv.ErrNoSpace) {
			return moved, nil
		}
		if err != nil {
			return moved, fmt.Errorf("moving the chunks of pack %s: %w", packName(n), err)
		}
	}
	return moved, nil
}

// wasteful reports whether pack n takes much more than what lives in it.
func (s *Store) wasteful(n uint32, live []written) (bool, error) {
	f, err := os.Open(filepath.Join(s.dir, packName(n)))
	if err != nil {
		return false, nil // that it is missing is for others to say
	}
	defer f.Close()
	disk, _, err := blocks(f)
	sum := int64(packHdrLen)
	for _, w := range live {
		sum += int64(recHdrLen + w.at.n)
	}
	return disk-sum >= repackMin && disk*repackDen > sum*repackNum, err
}

// move stores chunks anew, in the order in which they lie. What cannot be read stays where it is.
func (s *Store) move(chunks []written) (moved int64, err error) {
	slices.SortFunc(chunks, func(a, b written) int { return int(min(1, max(-1, a.at.off-b.at.off))) })
	for len(chunks) > 0 {
		var data [][]byte
		var hashes []Hash
		var fresh []int
		size := 0
		for len(chunks) > 0 && size < repackBytes && len(data) < partChunks {
			w := chunks[0]
			chunks = chunks[1:]
			p := make([]byte, w.at.n)
			if s.readWhole(w.h, w.at, p) != nil {
				continue
			}
			fresh = append(fresh, len(data))
			data, hashes = append(data, p), append(hashes, w.h)
			size += w.at.n
		}
		if len(data) == 0 {
			continue
		}
		places := make([]place, len(data))
		if err := s.store(s.Sweeps(), fresh, data, hashes, places); err != nil {
			return moved, err
		}
		var b kv.Batch
		b.UseReserve()
		for i, at := range places {
			b.Put(kv.Chunk(hashes[i][:]), at.encode())
		}
		if err := s.db.Apply(&b); err != nil {
			return moved, err
		}
		moved += int64(size)
	}
	return moved, nil
}
