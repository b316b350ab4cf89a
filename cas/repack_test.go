package cas

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rewindfs/rewindfs/kv"
)

// TestRepackFreesWhatLiesBetween: every other one of many small chunks dies, so that hardly a block is free.
func TestRepackFreesWhatLiesBetween(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir, kv.Options{}, Options{})
	chunks := map[Hash][]byte{}
	keep := map[Hash]struct{}{}
	for i := range 1000 {
		data := random(uint64(i), 1500)
		if h := put(t, s, db, data); i%2 == 0 {
			keep[h], chunks[h] = struct{}{}, data
		}
	}
	sweep(t, s, keep, nil)
	before, err := s.DiskBytes()
	must(t, err)
	moved, err := s.Repack()
	must(t, err)
	if moved != 500*1500 {
		t.Errorf("moved %d bytes", moved)
	}
	sweep(t, s, keep, nil)
	after, err := s.DiskBytes()
	must(t, err)
	if live := int64(500 * 1540); before < live*3/2 || after > live*11/10 {
		t.Errorf("%d bytes live; the packs took %d, now %d", live, before, after)
	}
	if moved, err = s.Repack(); moved != 0 || err != nil {
		t.Errorf("again: moved %d, %v", moved, err)
	}
	for h, data := range chunks {
		check(t, s, h, data)
	}
}

// TestWipe: of what nothing names not a byte is left in the packs, also in blocks that what lives has a part of.
func TestWipe(t *testing.T) {
	for seed := range uint64(6) {
		dir := t.TempDir()
		s, db := openT(t, dir, kv.Options{}, Options{packLimit: 100_000})
		chunks, dead := map[Hash][]byte{}, map[Hash][]byte{}
		keep := map[Hash]struct{}{}
		for i := range uint64(100) {
			size := []int{ChunkSize / 8, 40, 3000, 4096, 700}[(i+seed)%5]
			data := random(1000*seed+i, size)
			if h := put(t, s, db, data); (i*7+seed)%3 == 0 {
				keep[h], chunks[h] = struct{}{}, data
			} else {
				dead[h] = data
			}
		}
		g, err := s.Unneeded(func(h Hash) bool { _, ok := keep[h]; return ok })
		must(t, err)
		_, err = g.Drop(nil)
		must(t, err)
		g.Wipe = true
		_, err = g.Free()
		must(t, err)
		names, err := filepath.Glob(filepath.Join(dir, "packs", "*"))
		must(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			must(t, err)
			for h, data := range dead {
				if bytes.Contains(b, data[:16]) || bytes.Contains(b, data[len(data)-16:]) || bytes.Contains(b, h[:]) {
					t.Fatalf("seed %d: chunk of %d bytes is still in %s", seed, len(data), name)
				}
			}
		}
		for h, data := range chunks {
			check(t, s, h, data)
		}
	}
}
