package layers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

func benchStore(b *testing.B, base string) (*Tree, *Branch) {
	b.Helper()
	dir := b.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	db, err := kv.Open(dir, kv.Options{Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	chunks, err := cas.Open(dir, db, cas.Options{Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	host, err := OpenBase(base)
	if err != nil {
		b.Fatal(err)
	}
	t, err := Open(db, chunks, host, Options{Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	br, err := t.Branch("main")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(t.Close(), host.Close(), chunks.Close(), db.Close()); err != nil {
			b.Error(err)
		}
	})
	return t, br
}

// BenchmarkSmallFile makes a file and writes 4 KiB to it: MKNOD, WRITE, FORGET as the kernel would send them.
func BenchmarkSmallFile(b *testing.B) {
	_, br := benchStore(b, b.TempDir())
	data := make([]byte, 4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		data[0], data[1], data[2] = byte(i), byte(i>>8), byte(i>>16)
		a, err := br.Mknod(RootIno, fmt.Sprintf("f%d", i), unix.S_IFREG|0o644, 0, Cred{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := br.Write(a.Ino, data, 0, WriteFlags{}); err != nil {
			b.Fatal(err)
		}
		br.Forget(a.Ino, 1)
	}
}

// BenchmarkWrite1M writes sequentially with 1 MiB requests.
func BenchmarkWrite1M(b *testing.B) {
	_, br := benchStore(b, b.TempDir())
	data := make([]byte, 1<<20)
	a, err := br.Mknod(RootIno, "f", unix.S_IFREG|0o644, 0, Cred{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for i := 0; b.Loop(); i++ {
		for k := 0; k < len(data); k += 4096 {
			data[k], data[k+1], data[k+2] = byte(i), byte(i>>8), byte(k>>12)
		}
		if _, err := br.Write(a.Ino, data, int64(i%512)<<20, WriteFlags{}); err != nil {
			b.Fatal(err)
		}
	}
}

// emptyFiles is a base of n files, f0 and so on.
func emptyFiles(b *testing.B, n int) string {
	b.Helper()
	base := b.TempDir()
	for i := range n {
		if err := os.WriteFile(filepath.Join(base, fmt.Sprintf("f%d", i)), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	return base
}

// BenchmarkLookupBase finds files of a directory of the base that were never seen before.
func BenchmarkLookupBase(b *testing.B) {
	const n = 2000
	_, br := benchStore(b, emptyFiles(b, n))
	for i := 0; b.Loop(); i++ {
		a, err := br.Lookup(RootIno, fmt.Sprintf("f%d", i%n))
		if err != nil {
			b.Fatal(err)
		}
		br.Forget(a.Ino, 1)
	}
}

// BenchmarkSeal checkpoints with changed files in the layer: its time must not depend on how many.
func BenchmarkSeal(b *testing.B) {
	for _, changed := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("changed=%d", changed), func(b *testing.B) {
			_, br := benchStore(b, b.TempDir())
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				for k := range changed {
					a, err := br.Mknod(RootIno, fmt.Sprintf("%d-%d", i, k), unix.S_IFREG|0o644, 0, Cred{})
					if err != nil {
						b.Fatal(err)
					}
					br.Forget(a.Ino, 1)
				}
				b.StartTimer()
				if _, err := br.Seal(nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRollback goes back and forth over a layer with changed files; the figure is per move.
func BenchmarkRollback(b *testing.B) {
	for _, changed := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprintf("changed=%d", changed), func(b *testing.B) {
			_, br := benchStore(b, b.TempDir())
			s, err := br.Seal(nil)
			if err != nil {
				b.Fatal(err)
			}
			for k := range changed {
				if _, err := br.Mknod(RootIno, fmt.Sprint(k), unix.S_IFREG|0o644, 0, Cred{}); err != nil {
					b.Fatal(err)
				}
			}
			target, other := s.Layer, Layer(0)
			for b.Loop() {
				m, err := br.MoveHead(target, false, nil, nil)
				if err != nil {
					b.Fatal(err)
				}
				if other == 0 {
					other = m.From
				}
				if target == s.Layer {
					target = other
				} else {
					target = s.Layer
				}
			}
		})
	}
}

// BenchmarkGetattrDeep reads attributes through many layers.
func BenchmarkColdInode(b *testing.B) {
	for _, layers := range []int{1, 1000} {
		b.Run(fmt.Sprintf("layers=%d", layers), func(b *testing.B) {
			_, br := benchStore(b, b.TempDir())
			for i := range 100 {
				if _, err := br.Mknod(RootIno, fmt.Sprint(i), unix.S_IFREG|0o644, 0, Cred{}); err != nil {
					b.Fatal(err)
				}
			}
			for range layers {
				if _, err := br.Seal(nil); err != nil {
					b.Fatal(err)
				}
			}
			for i := 0; b.Loop(); i++ {
				if _, err := br.visibleInode(firstOwnIno + Ino(i%100)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReadBase reads and stats a small file of the base.
func BenchmarkReadBase(b *testing.B) {
	base := b.TempDir()
	if err := os.WriteFile(filepath.Join(base, "f"), make([]byte, 4096), 0o644); err != nil {
		b.Fatal(err)
	}
	_, br := benchStore(b, base)
	a, err := br.Lookup(RootIno, "f")
	if err != nil {
		b.Fatal(err)
	}
	p := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := br.Getattr(a.Ino); err != nil {
			b.Fatal(err)
		}
		if _, err := br.ReadAt(a.Ino, p, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkListBase lists a directory of the base with 2,000 files.
func BenchmarkListBase(b *testing.B) {
	_, br := benchStore(b, emptyFiles(b, 2000))
	for b.Loop() {
		n := 0
		if err := br.ReadDir(RootIno, 0, func(Entry) bool { n++; return true }); err != nil || n != 2000 {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkUnlinkBase deletes files of the base.
func BenchmarkUnlinkBase(b *testing.B) {
	const n = 2000
	_, br := benchStore(b, emptyFiles(b, n))
	s, err := br.Seal(nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if i%n == 0 {
			b.StopTimer()
			if _, err := br.MoveHead(s.Layer, false, nil, nil); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		if err := br.Unlink(RootIno, fmt.Sprintf("f%d", i%n)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeepBase keeps 100,000 small files of the base, and reports how much memory that takes at its
// height, beyond what was in use, and afterwards.
func BenchmarkKeepBase(b *testing.B) {
	base := b.TempDir()
	const dirs, files = 100, 1000
	for i := range dirs {
		dir := filepath.Join(base, fmt.Sprintf("d%d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for k := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", k)), fmt.Appendf(make([]byte, 0, 1024), "%1000d", i*files+k), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	t, _ := benchStore(b, base)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var paths []string
	for i := range dirs {
		paths = append(paths, fmt.Sprintf("d%d", i))
	}
	for b.Loop() {
		runtime.GC()
		start, peak, n := heap(), uint64(0), 0
		ctx := watchedContext{context.Background(), func() {
			if n++; n%1000 == 0 {
				peak = max(peak, heap())
			}
		}}
		if _, err := t.KeepBase(ctx, paths, nil); err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		b.ReportMetric(float64(peak-start)/1e6, "MB-peak")
		b.ReportMetric(float64(max(heap(), start)-start)/1e6, "MB-after")
	}
}

// watchedContext calls looked whenever somebody looks whether it is done.
type watchedContext struct {
	context.Context
	looked func()
}

func (c watchedContext) Err() error { c.looked(); return c.Context.Err() }
