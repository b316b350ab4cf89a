package cas

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Many chunks at once: in order, duplicates among them and in the store before, in
// one part and in several, more than one pwritev takes.
func TestPutAll(t *testing.T) {
	for _, size := range []int{1, 100, 5000, ChunkSize} {
		s, db := openT(t, t.TempDir(), kv.Options{}, Options{})
		old := random(1, size)
		put(t, s, db, old)
		n := min(2*partChunks+3, 24*ChunkSize/size)
		chunks := [][]byte{old}
		for i := 1; i < n; i++ {
			chunks = append(chunks, random(uint64(1+i-i%2), size)) // each twice
		}
		var b kv.Batch
		hashes, err := s.PutAll(&b, chunks)
		must(t, err)
		must(t, db.Apply(&b))
		for i, h := range hashes {
			if h != HashOf(chunks[i]) {
				t.Fatalf("hash %d is not that of its chunk", i)
			}
			if i%50 == 0 || i == n-1 {
				check(t, s, h, chunks[i])
			}
		}
		must(t, s.Close())
	}
}

// When one part cannot be written nothing gets into the batch, and the same call
// works later.
func TestPutAllFails(t *testing.T) {
	fail := true
	s, db := openT(t, t.TempDir(), kv.Options{}, Options{Fault: func(step string) error {
		if step == "pack.write" && fail {
			return unix.EIO
		}
		return nil
	}})
	var chunks [][]byte
	for i := range 8 {
		chunks = append(chunks, random(uint64(i), ChunkSize))
	}
	var b kv.Batch
	if _, err := s.PutAll(&b, chunks); !errors.Is(err, unix.EIO) || b.Len() != 0 {
		t.Fatalf("put with a failing disk: %v, %d records", err, b.Len())
	}
	if _, err := s.PutAll(&b, append(chunks, nil)); !errors.Is(err, ErrSize) || b.Len() != 0 {
		t.Fatalf("put of an empty chunk: %v, %d records", err, b.Len())
	}
	fail = false
	hashes, err := s.PutAll(&b, chunks)
	must(t, err)
	must(t, db.Apply(&b))
	for i, h := range hashes {
		check(t, s, h, chunks[i])
	}
	must(t, s.Close())
}
