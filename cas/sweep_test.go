package cas

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rewindfs/rewindfs/kv"
)

// sweep keeps what is in keep, and of the rest what was named meanwhile.
func sweep(t testing.TB, s *Store, keep, named map[Hash]struct{}) (dropped int, freed int64) {
	t.Helper()
	g, err := s.Unneeded(func(h Hash) bool { _, ok := keep[h]; return ok })
	must(t, err)
	dropped, err = g.Drop(named)
	must(t, err)
	freed, err = g.Free()
	must(t, err)
	return dropped, freed
}

func set(hs ...Hash) map[Hash]struct{} {
	m := map[Hash]struct{}{}
	for _, h := range hs {
		m[h] = struct{}{}
	}
	return m
}

// Whatever is swept, what is kept is read as before, what is not is gone, and the
// disk gets the blocks back.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir, kv.Options{}, Options{packLimit: 1 << 20})
	chunks := map[Hash][]byte{}
	var order []Hash
	for i := range 60 {
		data := random(uint64(i), []int{ChunkSize, 50_000, 700}[i%3])
		h := put(t, s, db, data)
		chunks[h] = data
		order = append(order, h)
	}
	keep, named := set(order[10], order[11], order[32]), set(order[20], order[41])
	before, err := s.DiskBytes()
	must(t, err)
	dropped, freed := sweep(t, s, keep, named)
	after, err := s.DiskBytes()
	must(t, err)
	if dropped != 55 || freed != before-after {
		t.Errorf("%d chunks of 55 dropped, %d bytes freed, %d fewer on the disk", dropped, freed, before-after)
	}
	live := int64(0)
	look := func(s *Store) {
		t.Helper()
		live = 0
		for h, data := range chunks {
			_, a := keep[h]
			_, b := named[h]
			if a || b {
				check(t, s, h, data)
				live += int64(len(data))
				continue
			}
			if _, ok, err := db.Get(kv.Chunk(h[:])); ok || err != nil {
				t.Errorf("a chunk that was swept is in the index (%v)", err)
			}
		}
	}
	look(s)
	if after > live+int64(len(keep)+len(named)+8)*2*block {
		t.Errorf("%d bytes on the disk for %d that are needed", after, live)
	}
	// The same bytes again are stored again.
	again := put(t, s, db, chunks[order[0]])
	check(t, s, again, chunks[order[0]])
	must(t, s.Sync())
	keep[again] = struct{}{}
	sweep(t, s, keep, named)
	look(s)
	must(t, s.Close())
	must(t, db.Close())
	s, db = openT(t, dir, kv.Options{}, Options{packLimit: 1 << 20})
	look(s)
	put(t, s, db, random(100, 1000))
	sweep(t, s, nil, nil)
	if left, err := s.DiskBytes(); left != 0 || err != nil {
		t.Errorf("with nothing needed %d bytes are left (%v)", left, err)
	}
	check(t, s, put(t, s, db, chunks[order[0]]), chunks[order[0]])
}

// What no index record names goes, too: a failed batch leaves it.
func TestSweepFreesLitter(t *testing.T) {
	s, db := openT(t, t.TempDir(), kv.Options{}, Options{})
	data := random(1, ChunkSize)
	h := put(t, s, db, data)
	var lost kv.Batch
	_, err := s.Put(&lost, random(2, ChunkSize))
	must(t, err)
	if _, freed := sweep(t, s, set(h), nil); freed < ChunkSize-block {
		t.Errorf("%d bytes freed of a chunk whose batch failed", freed)
	}
	check(t, s, h, data)
}

// A Put from before a sweep is void: it must not be found by one that comes after.
func TestSweepVoidsPuts(t *testing.T) {
	s, db := openT(t, t.TempDir(), kv.Options{}, Options{})
	data := random(1, ChunkSize)
	sweeps := s.Sweeps()
	var early kv.Batch
	_, err := s.Put(&early, data)
	must(t, err)
	sweep(t, s, nil, nil)
	if s.Sweeps() == sweeps {
		t.Error("the sweep does not show")
	}
	check(t, s, put(t, s, db, data), data)
	must(t, s.Sync())
}

// A Put that is under way while a sweep ends does not leave its place to others.
func TestSweepDuringPut(t *testing.T) {
	writing, goOn := make(chan struct{}), make(chan struct{})
	var o Options
	hold := true
	o.Fault = func(step string) error {
		if step == "pack.write" && hold {
			hold = false
			close(writing)
			<-goOn
		}
		return nil
	}
	dir := t.TempDir()
	s, db := openT(t, dir, kv.Options{}, o)
	data := random(1, ChunkSize)
	done := make(chan error)
	go func() {
		var b kv.Batch
		_, err := s.Put(&b, data)
		done <- err
	}()
	<-writing
	sweep(t, s, nil, nil)
	close(goOn)
	must(t, <-done)
	check(t, s, put(t, s, db, data), data)
	must(t, s.Sync())
	sweep(t, s, set(HashOf(data)), nil)
	check(t, s, HashOf(data), data)
	names, err := os.ReadDir(filepath.Join(dir, "packs"))
	must(t, err)
	if len(names) != 1 {
		t.Errorf("%d packs for one chunk", len(names))
	}
}

// A batch that fails leaves the sweep undone, and the store whole.
func TestSweepThatFails(t *testing.T) {
	bad := errors.New("no")
	fail := false
	s, db := openT(t, t.TempDir(), kv.Options{Fault: func(step string) error {
		if fail && step == "log.write" {
			return bad
		}
		return nil
	}}, Options{})
	data := random(1, ChunkSize)
	h := put(t, s, db, data)
	g, err := s.Unneeded(func(Hash) bool { return false })
	must(t, err)
	fail = true
	if n, err := g.Drop(nil); n != 0 || !errors.Is(err, bad) {
		t.Errorf("dropped %d, %v", n, err)
	}
	fail = false
	check(t, s, h, data)
}
