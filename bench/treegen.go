package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// treeShape says what generateTree makes. The same shape gives the same tree, byte
// for byte and with the same times, on every machine.
type treeShape struct {
	Files int
	Bytes int64 // of all files together, about; 0 makes them empty
	Seed  uint64
}

const (
	filesPerDir = 100
	dirsPerDir  = 100
)

// treeEpoch is the modification time of the first file; each later one is a second younger.
var treeEpoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// path is the name of file i below the tree's root.
func (treeShape) path(i int) string {
	d := i / filesPerDir
	return filepath.Join(fmt.Sprintf("g%02d", d/dirsPerDir), fmt.Sprintf("d%02d", d%dirsPerDir), fmt.Sprintf("f%02d.txt", i%filesPerDir))
}

// generateTree makes the tree below dir, which exists. Sizes vary: most files are
// small, a few are large. step is told now and then how many files there are.
func generateTree(ctx context.Context, dir string, s treeShape, step func(n int)) error {
	rng := rand.New(rand.NewPCG(s.Seed, 0x5eed))
	words := makeWords(rng)
	mean := 0.0
	if s.Files > 0 {
		mean = float64(s.Bytes) / float64(s.Files)
	}
	var buf []byte
	for i := range s.Files {
		if i%1000 == 0 {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			step(i)
		}
		name := filepath.Join(dir, s.path(i))
		if i%filesPerDir == 0 {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return fmt.Errorf("make a directory of the tree: %w", err)
			}
		}
		buf = appendText(buf[:0], rng, words, int(rng.ExpFloat64()*mean))
		if err := os.WriteFile(name, buf, 0o644); err != nil {
			return fmt.Errorf("write a file of the tree: %w", err)
		}
		if s.Bytes > 0 {
			t := treeEpoch.Add(time.Duration(i) * time.Second)
			if err := os.Chtimes(name, t, t); err != nil {
				return fmt.Errorf("set the times of a file of the tree: %w", err)
			}
		}
	}
	return nil
}

// makeWords makes a small vocabulary, so that text compresses and greps like text.
func makeWords(rng *rand.Rand) []string {
	words := make([]string, 2000)
	for i := range words {
		w := make([]byte, 2+rng.IntN(9))
		for j := range w {
			w[j] = byte('a' + rng.IntN(26))
		}
		words[i] = string(w)
	}
	return words
}

// appendText appends n bytes of words in lines of about 60 characters.
func appendText(buf []byte, rng *rand.Rand, words []string, n int) []byte {
	end, line := len(buf)+n, len(buf)
	for len(buf) < end {
		buf = append(buf, words[rng.IntN(len(words))]...)
		if len(buf)-line > 60 {
			buf, line = append(buf, '\n'), len(buf)+1
		} else {
			buf = append(buf, ' ')
		}
	}
	return buf[:end]
}

// noise fills buffers of incompressible bytes, no two of which are alike, fast.
type noise struct {
	pool []byte
	n    uint64
}

func newNoise(seed uint64) *noise {
	rng := rand.New(rand.NewPCG(seed, 0x0157))
	pool := make([]byte, 1<<20)
	for i := 0; i+8 <= len(pool); i += 8 {
		x := rng.Uint64()
		for j := range 8 {
			pool[i+j] = byte(x >> (8 * j))
		}
	}
	return &noise{pool: pool}
}

// fill writes the next bytes to p. Every 4 KiB of it begins with a number of its
// own, so that nothing that finds equal blocks can save work.
func (z *noise) fill(p []byte) {
	for off := 0; off < len(p); off += len(z.pool) {
		copy(p[off:], z.pool)
	}
	for off := 0; off+20 <= len(p); off += 4096 {
		z.n++
		copy(p[off:], strconv.FormatUint(1e19+z.n, 10))
	}
}
