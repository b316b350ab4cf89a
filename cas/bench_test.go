package cas

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/rewindfs/rewindfs/kv"
)

func openT(t testing.TB, dir string, ko kv.Options, o Options) (*Store, *kv.DB) {
	t.Helper()
	db, err := kv.Open(dir, ko)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s, err := Open(dir, db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	db.SetBeforeFlush(s.Sync)
	return s, db
}

func random(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	b := make([]byte, n)
	r.Read(b)
	return b
}

func BenchmarkPut(b *testing.B) {
	s, db := openT(b, b.TempDir(), kv.Options{}, Options{})
	data := random(1, ChunkSize)
	b.SetBytes(ChunkSize)
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		binary.BigEndian.PutUint64(data, i%2048) // bounds the disk use
		binary.BigEndian.PutUint64(data[8:], i/2048)
		var batch kv.Batch
		if _, err := s.Put(&batch, data); err != nil {
			b.Fatal(err)
		}
		if err := db.Apply(&batch); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	data := random(1, ChunkSize)
	b.SetBytes(ChunkSize)
	for b.Loop() {
		HashOf(data)
	}
}

func BenchmarkReadAt(b *testing.B) {
	const chunks = 512
	s, db := openT(b, b.TempDir(), kv.Options{}, Options{})
	var hs []Hash
	var batch kv.Batch
	for i := range uint64(chunks) {
		h, err := s.Put(&batch, random(i, ChunkSize))
		if err != nil {
			b.Fatal(err)
		}
		hs = append(hs, h)
	}
	if err := db.Apply(&batch); err != nil {
		b.Fatal(err)
	}
	if err := db.Flush(); err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name string
		n    int
		step int
	}{{"whole", ChunkSize, 1}, {"4K-sequential", 4096, 0}, {"4K-random", 4096, 7}} {
		b.Run(bench.name, func(b *testing.B) {
			p := make([]byte, bench.n)
			b.SetBytes(int64(bench.n))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h, off := hs[i*bench.step%chunks], 0
				if bench.step == 0 {
					h, off = hs[i/32%chunks], i%32*4096
				}
				if err := s.ReadAt(h, p, off); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// resum makes the checksum of a changed pack header right again.
func resum(h []byte) []byte {
	binary.BigEndian.PutUint32(h[packCRCAt:], crc32.Checksum(h[:packCRCAt], crc32.MakeTable(crc32.Castagnoli)))
	return h
}
