package layersdiff

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// world is one store over one base, used by many sequences, each with a branch
// of its own.
type world struct {
	store, base string
	baseTree    *fstree.Tree
	db          *kv.DB
	chunks      *cas.Store
	host        *layers.Base
	tree        *layers.Tree
	branches    int
	spare       func(path string, dir bool) bool // see layers.Options
}

// newWorld makes a store. A high one has a base none of whose inode numbers can be kept.
func newWorld(t *testing.T, high bool) *world {
	t.Helper()
	top := fstree.FastTemp
	if high {
		top = func(t testing.TB) string { return t.TempDir() } // see HighInodes
	}
	w := &world{store: fstree.FastTemp(t), base: filepath.Join(top(t), "base")}
	if err := os.Mkdir(w.base, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := fstree.MakeBase(w.base); err != nil {
		t.Fatal(err)
	}
	if high {
		w.base = fstree.HighInodes(t, w.base)
	}
	var err error
	if w.baseTree, err = fstree.Scan(w.base); err != nil {
		t.Fatal(err)
	}
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.isClean(t)
		if err := w.close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
		now, err := fstree.Scan(w.base)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range fstree.Diff(w.baseTree, now, fstree.Exact, "before", "after") {
			t.Errorf("the base was changed: %s", d)
		}
	})
	return w
}

// isClean fails the test unless the store is what package layers promises.
func (w *world) isClean(t *testing.T) {
	n := 0
	_, err := layers.Check(context.Background(), w.db, w.chunks, layers.CheckOptions{Live: w.tree, Found: func(f layers.Finding) {
		if n++; n <= 10 {
			t.Errorf("the store is not clean: %s: %s (%q in %v)", f.Kind, f.What, f.Path, f.Layers)
		}
	}})
	if err != nil {
		t.Error(err)
	}
}

func (w *world) open() (err error) {
	replay := cas.NewReplayCheck(filepath.Join(w.store, "cas")) // as the daemon does
	defer replay.Close()
	if w.db, err = kv.Open(filepath.Join(w.store, "kv"), kv.Options{CheckReplay: replay.Check}); err != nil {
		return fmt.Errorf("open kv: %w", err)
	}
	if w.chunks, err = cas.Open(filepath.Join(w.store, "cas"), w.db, cas.Options{}); err != nil {
		return fmt.Errorf("open cas: %w", err)
	}
	w.db.SetBeforeFlush(w.chunks.Sync)
	if w.host, err = layers.OpenBase(w.base); err != nil {
		return fmt.Errorf("open base: %w", err)
	}
	if w.tree, err = layers.Open(w.db, w.chunks, w.host, layers.Options{Spare: w.spare}); err != nil {
		return fmt.Errorf("open layers: %w", err)
	}
	return nil
}

func (w *world) close() error {
	for _, f := range []func() error{w.tree.Close, w.chunks.Close, w.db.Close, w.host.Close} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) reopen() error {
	if err := w.close(); err != nil {
		return err
	}
	return w.open()
}

// newBranch makes a branch on top of the base.
func (w *world) newBranch() (string, *layers.Branch, error) {
	w.branches++
	name := fmt.Sprintf("b%d", w.branches)
	b, err := w.tree.Branch(name)
	return name, b, err
}
