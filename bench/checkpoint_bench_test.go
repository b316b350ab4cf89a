package bench

import (
	"fmt"
	"testing"

	"github.com/rewindfs/rewindfs/layers"
)

// BenchmarkSealFiles checkpoints one changed file in trees of which the engine knows
// more and more files: the time must not grow.
func BenchmarkSealFiles(b *testing.B) {
	for _, n := range []int{100, 10_000, 50_000} {
		b.Run(fmt.Sprintf("files=%d", n), func(b *testing.B) {
			base, names := baseOf(b, n)
			br := engine(b, base)
			inos := inodes(b, br, names)
			for i := 0; b.Loop(); i++ {
				change(b, br, inos[i%n], i)
				seal(b, br)
			}
		})
	}
}

// BenchmarkSealLayers checkpoints one changed file on top of more and more layers.
func BenchmarkSealLayers(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("layers=%d", n), func(b *testing.B) {
			base, names := baseOf(b, 100)
			br := engine(b, base)
			inos := inodes(b, br, names)
			stackLayers(b, br, inos, n)
			for i := 0; b.Loop(); i++ {
				change(b, br, inos[i%100], n+i)
				seal(b, br)
			}
		})
	}
}

// BenchmarkSealChanged checkpoints layers in which more and more files have changed;
// changing them is not timed.
func BenchmarkSealChanged(b *testing.B) {
	for _, n := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("changed=%d", n), func(b *testing.B) {
			base, names := baseOf(b, max(n, 1))
			br := engine(b, base)
			inos := inodes(b, br, names)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				for k := range n {
					change(b, br, inos[k], i*n+k)
				}
				b.StartTimer()
				seal(b, br)
			}
		})
	}
}

// BenchmarkMoveHead rolls back over more and more changed files; changing them is not timed.
func BenchmarkMoveHead(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("changed=%d", n), func(b *testing.B) {
			base, names := baseOf(b, n)
			br := engine(b, base)
			inos := inodes(b, br, names)
			good := seal(b, br)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				for k := range n {
					change(b, br, inos[k], i*n+k)
				}
				b.StartTimer()
				if _, err := br.MoveHead(good, false, nil, func(layers.Moved) {}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
