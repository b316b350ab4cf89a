package bench

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// BenchmarkLookupLayers looks files up that have versions in more and more layers.
func BenchmarkLookupLayers(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("layers=%d", n), func(b *testing.B) {
			base, names := baseOf(b, 100)
			br := engine(b, base)
			stackLayers(b, br, inodes(b, br, names), n)
			for i := 0; b.Loop(); i++ {
				a, err := br.Lookup(layers.RootIno, names[i%100])
				if err != nil {
					b.Fatal(err)
				}
				br.Forget(a.Ino, 1)
			}
		})
	}
}

// BenchmarkReadLayers reads such files.
func BenchmarkReadLayers(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("layers=%d", n), func(b *testing.B) {
			base, names := baseOf(b, 100)
			br := engine(b, base)
			inos := inodes(b, br, names)
			stackLayers(b, br, inos, n)
			buf := make([]byte, 4096)
			for i := 0; b.Loop(); i++ {
				if got, err := br.ReadAt(inos[i%100], buf, 0); err != nil || got != 1024 {
					b.Fatal(got, err)
				}
			}
		})
	}
}

// BenchmarkCreate makes files of 4 KiB.
func BenchmarkCreate(b *testing.B) {
	br := engine(b, b.TempDir())
	data := make([]byte, 4096)
	z := newNoise(1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		z.fill(data)
		create4K(b, br, fmt.Sprintf("f%d", i), data)
	}
}

// BenchmarkWrite writes to one file, request after request, in the sizes that programs use.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{100, 4096, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			br := engine(b, b.TempDir())
			a, err := br.Mknod(layers.RootIno, "f", unix.S_IFREG|0o644, 0, layers.Cred{})
			if err != nil {
				b.Fatal(err)
			}
			data := make([]byte, size)
			z := newNoise(2)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			const around = 256 << 20 // the file does not grow beyond
			for off := int64(0); b.Loop(); off = (off + int64(size)) % around {
				z.fill(data)
				if _, err := br.Write(a.Ino, data, off, layers.WriteFlags{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUnlink removes files that were made before.
func BenchmarkUnlink(b *testing.B) {
	br := engine(b, b.TempDir())
	made, data := 0, make([]byte, 100)
	for i := 0; b.Loop(); i++ {
		if i == made {
			b.StopTimer()
			for range 1000 {
				create4K(b, br, fmt.Sprintf("f%d", made), data)
				made++
			}
			b.StartTimer()
		}
		if err := br.Unlink(layers.RootIno, fmt.Sprintf("f%d", i)); err != nil {
			b.Fatal(err)
		}
	}
}
