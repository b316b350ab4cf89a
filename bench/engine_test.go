package bench

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// The Go benchmarks below measure the engine without the kernel: what a request
// costs once it has arrived. `rewindfs bench` measures the rest.

// engine opens an engine with a store of its own over base.
func engine(tb testing.TB, base string) *layers.Branch {
	tb.Helper()
	dir := tb.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	db, err := kv.Open(dir, kv.Options{Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	chunks, err := cas.Open(dir, db, cas.Options{Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	host, err := layers.OpenBase(base)
	if err != nil {
		tb.Fatal(err)
	}
	tree, err := layers.Open(db, chunks, host, layers.Options{Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(tree.Close(), host.Close(), chunks.Close(), db.Close()); err != nil {
			tb.Error(err)
		}
	})
	br, err := tree.Branch("main")
	if err != nil {
		tb.Fatal(err)
	}
	return br
}

// baseOf makes a base of n files of 1 KiB in one directory and returns their names.
func baseOf(tb testing.TB, n int) (dir string, names []string) {
	tb.Helper()
	dir = tb.TempDir()
	data := make([]byte, 1024)
	for i := range n {
		name := fmt.Sprintf("f%d", i)
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			tb.Fatal(err)
		}
		names = append(names, name)
	}
	return dir, names
}

// inodes looks all names up, so that the engine holds them, and returns their numbers.
func inodes(tb testing.TB, br *layers.Branch, names []string) []layers.Ino {
	tb.Helper()
	var inos []layers.Ino
	for _, name := range names {
		a, err := br.Lookup(layers.RootIno, name)
		if err != nil {
			tb.Fatal(err)
		}
		inos = append(inos, a.Ino)
	}
	return inos
}

// change writes 100 bytes, other ones for every i, to a file.
func change(tb testing.TB, br *layers.Branch, ino layers.Ino, i int) {
	tb.Helper()
	var data [100]byte
	copy(data[:], fmt.Sprint(i))
	if _, err := br.Write(ino, data[:], 0, layers.WriteFlags{}); err != nil {
		tb.Fatal(err)
	}
}

func seal(tb testing.TB, br *layers.Branch) layers.Layer {
	tb.Helper()
	s, err := br.Seal(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return s.Layer
}

// stackLayers makes n layers, each with a version of one of the files.
func stackLayers(tb testing.TB, br *layers.Branch, inos []layers.Ino, n int) {
	tb.Helper()
	for i := range n {
		change(tb, br, inos[i%len(inos)], i)
		seal(tb, br)
	}
}

// create4K makes a file of data and drops the reference to it.
func create4K(tb testing.TB, br *layers.Branch, name string, data []byte) {
	tb.Helper()
	a, err := br.Mknod(layers.RootIno, name, unix.S_IFREG|0o644, 0, layers.Cred{})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := br.Write(a.Ino, data, 0, layers.WriteFlags{}); err != nil {
		tb.Fatal(err)
	}
	br.Forget(a.Ino, 1)
}
