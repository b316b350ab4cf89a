package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// treeHash covers names, modes, times and contents, in order.
func treeHash(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(p)
		fmt.Fprintf(h, "%s %v %d %d\n", rel, info.Mode(), info.ModTime().UnixNano(), len(b))
		h.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func TestGeneratedTreeIsTheSameEverywhere(t *testing.T) {
	shape := treeShape{Files: 250, Bytes: 250 * 3000, Seed: 42}
	make := func(s treeShape) string {
		dir := t.TempDir()
		if err := generateTree(t.Context(), dir, s, func(int) {}); err != nil {
			t.Fatal(err)
		}
		if n, err := countFiles(dir); err != nil || n != s.Files {
			t.Fatalf("made %d files (%v), want %d", n, err, s.Files)
		}
		return dir
	}
	a, b := make(shape), make(shape)
	const want = "8afec9d09f285e7e942314bffbd1505913236d5e171cfc3ced3140731706a37d"
	if ha, hb := treeHash(t, a), treeHash(t, b); ha != hb || ha != want {
		t.Errorf("trees hash to %s and %s, want %s", ha, hb, want)
	}
	used := int64(0)
	for i := range shape.Files {
		st, err := os.Stat(filepath.Join(a, shape.path(i)))
		if err != nil {
			t.Fatal(err)
		}
		used += st.Size()
	}
	if used < shape.Bytes*7/10 || used > shape.Bytes*13/10 {
		t.Errorf("the tree has %d bytes, want about %d", used, shape.Bytes)
	}
	other := shape
	other.Seed++
	if treeHash(t, make(other)) == want {
		t.Error("another seed made the same tree")
	}
}

func TestGenerateTreeStops(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if err := generateTree(ctx, t.TempDir(), treeShape{Files: 5000}, func(int) {}); !errors.Is(err, why) {
		t.Errorf("err = %v, want %v", err, why)
	}
}

func TestNoiseHasNoTwoBlocksAlike(t *testing.T) {
	seen := map[[32]byte]bool{}
	z := newNoise(1)
	buf := make([]byte, 128<<10)
	for range 100 {
		z.fill(buf)
		for off := 0; off < len(buf); off += 4096 {
			sum := sha256.Sum256(buf[off : off+4096])
			if seen[sum] {
				t.Fatal("a block came twice")
			}
			seen[sum] = true
		}
	}
}

func TestSomeFilesPicksSpreadOut(t *testing.T) {
	dir := t.TempDir()
	if err := generateTree(t.Context(), dir, treeShape{Files: 300, Bytes: 300 * 9000, Seed: 1}, func(int) {}); err != nil {
		t.Fatal(err)
	}
	got, err := someFiles(dir, 10)
	if err != nil || len(got) != 10 {
		t.Fatalf("someFiles = %v, %v", got, err)
	}
	dirs := map[string]bool{}
	for _, p := range got {
		dirs[filepath.Dir(p)] = true
	}
	if len(dirs) < 3 {
		t.Errorf("all lie in %v", dirs)
	}
	if _, err := someFiles(t.TempDir(), 10); !isSkip(err) {
		t.Errorf("an empty tree gives %v, want a skip", err)
	}
}
