package cas

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rewindfs/rewindfs/kv"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put stores one chunk in a batch of its own. It changes data afterwards: the
// store must have taken what it needs.
func put(t testing.TB, s *Store, db *kv.DB, data []byte) Hash {
	t.Helper()
	var b kv.Batch
	mine := bytes.Clone(data)
	h, err := s.Put(&b, mine)
	must(t, err)
	clear(mine)
	must(t, db.Apply(&b))
	return h
}

// check reads the chunk whole, in parts and with a wrong length.
func check(t testing.TB, s *Store, h Hash, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	must(t, s.ReadAt(h, got, 0))
	if !bytes.Equal(got, want) {
		t.Fatalf("chunk %s is not what was put", h)
	}
	n := len(want) / 3
	part := make([]byte, n)
	for range 2 { // from the pack, then from the cache
		must(t, s.ReadAt(h, part, n))
		if !bytes.Equal(part, want[n:2*n]) {
			t.Fatalf("part of chunk %s is not what was put", h)
		}
	}
	for _, bad := range []struct{ n, off int }{{len(want) + 1, 0}, {1, len(want)}, {2, len(want) - 1}, {1, -1}} {
		if err := s.ReadAt(h, make([]byte, bad.n), bad.off); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes at %d of %d: %v", bad.n, bad.off, len(want), err)
		}
	}
	if size, err := s.Size(h); err != nil || size != len(want) {
		t.Errorf("size %d, %v, want %d", size, err, len(want))
	}
}

func packs(t testing.TB, dir string) (size int64) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "packs", "*.pack"))
	must(t, err)
	for _, p := range found {
		st, err := os.Stat(p)
		must(t, err)
		size += st.Size()
	}
	return size
}

func TestPutRead(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir, kv.Options{}, Options{packLimit: 200_000})
	chunks := map[Hash][]byte{}
	for i, n := range []int{1, 2, 100, 4096, ChunkSize - 1, ChunkSize, ChunkSize, 77_777, 5} {
		data := random(uint64(i), n)
		h := put(t, s, db, data)
		if h != HashOf(data) {
			t.Fatal("hash is not of the data")
		}
		chunks[h] = data
	}
	for range 2 {
		for h, data := range chunks {
			check(t, s, h, data)
		}
		must(t, s.Sync())
		must(t, s.Close())
		must(t, db.Close())
		s, db = openT(t, dir, kv.Options{}, Options{packLimit: 200_000})
	}
	if s.last < 3 {
		t.Errorf("%d packs, want some", s.last)
	}
	if n, err := s.DiskBytes(); err != nil || n < packs(t, dir)/2 {
		t.Errorf("disk bytes %d %v", n, err)
	}
	var b kv.Batch
	for _, n := range []int{0, ChunkSize + 1} {
		if _, err := s.Put(&b, make([]byte, n)); !errors.Is(err, ErrSize) {
			t.Errorf("put of %d bytes: %v", n, err)
		}
	}
	if err := s.ReadAt(Hash{1}, make([]byte, 1), 0); !errors.Is(err, ErrCorrupt) || !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("chunk that nobody put: %v", err)
	}
	found := 0
	must(t, s.Check(nil, func(k []byte, size int, err error) bool {
		found++
		raw, _ := kv.ParseChunk(k)
		return err == nil && size == len(chunks[Hash(raw)])
	}))
	if found != len(chunks) {
		t.Errorf("check finds %d of %d chunks", found, len(chunks))
	}
}

// Equal data is stored once, whether the first batch is applied yet or not; and a
// batch that is never applied leaves the next Put its record.
func TestDedup(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir, kv.Options{}, Options{})
	data := random(1, ChunkSize)
	var lost, b1, b2 kv.Batch
	for _, b := range []*kv.Batch{&lost, &b1, &b2} {
		if _, err := s.Put(b, data); err != nil {
			t.Fatal(err)
		}
		if b.Len() != 1 {
			t.Error("no index record in the batch")
		}
	}
	h := HashOf(data)
	if err := s.ReadAt(h, make([]byte, 1), 0); !errors.Is(err, ErrCorrupt) {
		t.Errorf("chunk exists before its batch: %v", err)
	}
	must(t, db.Apply(&b2))
	must(t, db.Apply(&b1))
	var b3 kv.Batch
	if _, err := s.Put(&b3, data); err != nil || b3.Len() != 0 {
		t.Errorf("put of a chunk that is there: %d records, %v", b3.Len(), err)
	}
	check(t, s, h, data)
	if n := packs(t, dir); n > packHdrLen+recHdrLen+ChunkSize {
		t.Errorf("%d bytes in packs for one chunk", n)
	}
	must(t, s.Close())
	s2, err := Open(dir, db, Options{})
	must(t, err)
	put(t, s2, db, data)
	check(t, s2, h, data)
	must(t, s2.Close())
	if n := packs(t, dir); n > packHdrLen+recHdrLen+ChunkSize {
		t.Errorf("%d bytes in packs after opening again", n)
	}
}

// Puts, reads and syncs at once, with packs that are rolled over and files that
// are closed and opened all the time.
func TestConcurrent(t *testing.T) {
	s, db := openT(t, t.TempDir(), kv.Options{FlushIdle: time.Millisecond}, Options{packLimit: 40_000})
	var wg sync.WaitGroup
	var mu sync.Mutex
	known := map[Hash][]byte{}
	for w := range 4 {
		wg.Go(func() {
			for i := range 60 {
				data := random(uint64(i*3+w/2), 1000+i*100) // every chunk is put twice
				var b kv.Batch
				h, err := s.Put(&b, data)
				if err == nil {
					err = db.Apply(&b)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				known[h] = data
				var other Hash
				for other = range known {
					break
				}
				want := known[other]
				mu.Unlock()
				got := make([]byte, len(want)-i%2)
				if err := s.ReadAt(other, got, i%2); err != nil || !bytes.Equal(got, want[i%2:]) {
					t.Errorf("chunk %s: %v", other, err)
				}
				if i%10 == 0 {
					if err := s.Sync(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for h, data := range known {
		check(t, s, h, data)
	}
	s.mu.Lock()
	open := len(s.dirty)
	s.mu.Unlock()
	must(t, s.Sync())
	must(t, s.Sync())
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.dirty) != 0 {
		t.Errorf("%d packs are dirty after syncs, %d before", len(s.dirty), open)
	}
}

func TestManyPacks(t *testing.T) {
	s, db := openT(t, t.TempDir(), kv.Options{}, Options{packLimit: 1})
	chunks := map[Hash][]byte{}
	for i := range uint64(2 * maxOpen) {
		data := random(i, 100)
		chunks[put(t, s, db, data)] = data
	}
	for range 2 {
		for h, data := range chunks {
			check(t, s, h, data)
		}
	}
	if n := len(s.files.open); n > maxOpen {
		t.Errorf("%d files are open", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.readPack(place{1, packHdrLen + recHdrLen, 100}, make([]byte, 100)); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	var b kv.Batch
	if _, err := s.Put(&b, []byte("new")); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("put after close: %v", err)
	}
}

// Random puts, batches dropped, reads and reopenings against a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		defer os.RemoveAll(dir)
		opts := Options{packLimit: 20_000}
		s, db := openT(t, dir, kv.Options{FlushIdle: time.Hour}, opts)
		chunks := map[Hash][]byte{}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				data := bytes.Repeat(rapid.SliceOfN(rapid.Byte(), 1, 3).Draw(rt, "data"), rapid.IntRange(1, 4000).Draw(rt, "times"))
				var b kv.Batch
				h, err := s.Put(&b, bytes.Clone(data))
				must(t, err)
				if rapid.IntRange(0, 4).Draw(rt, "drop") > 0 {
					must(t, db.Apply(&b))
					chunks[h] = data
				}
			},
			"read": func(rt *rapid.T) {
				for h, data := range chunks {
					check(t, s, h, data)
				}
			},
			"sync": func(rt *rapid.T) { must(t, db.Sync()) },
			"reopen": func(rt *rapid.T) {
				if rapid.IntRange(0, 3).Draw(rt, "seldom") > 0 {
					return
				}
				must(t, s.Close())
				must(t, db.Close())
				s, db = openT(t, dir, kv.Options{FlushIdle: time.Hour}, opts)
			},
		})
		must(t, s.Close())
		must(t, db.Close())
	})
}

// After a power cut, a record whose chunk did not reach the disk ends the replay
// of the log; so what is there is whole.
func TestReplayCheck(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir, kv.Options{FlushIdle: time.Hour}, Options{})
	var hs []Hash
	for i := range uint64(10) {
		hs = append(hs, put(t, s, db, random(i, 5000)))
		var b kv.Batch
		b.Put(kv.Meta(fmt.Sprint(i)), []byte("x"))
		must(t, db.Apply(&b))
	}
	rc := NewReplayCheck(dir)
	defer rc.Close()
	key := func(i int) []byte { return kv.Chunk(hs[i][:]) }
	val, _, err := db.Get(key(6))
	must(t, err)
	must(t, rc.Check(key(6), val))
	must(t, rc.Check(kv.Meta("x"), []byte("not a chunk")))
	at, err := s.find(hs[6])
	must(t, err)
	path := filepath.Join(dir, "packs", packName(at.pack))
	must(t, flip(path, at.off+100))
	for what, err := range map[string]error{
		"lost chunk":    rc.Check(key(6), val),
		"missing pack":  rc.Check(key(6), place{99, at.off, at.n}.encode()),
		"beyond end":    rc.Check(key(6), place{at.pack, 1 << 40, at.n}.encode()),
		"no place":      rc.Check(key(6), []byte("x")),
		"another chunk": rc.Check(key(5), val),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
