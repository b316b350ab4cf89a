package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// flipInPacks changes the first byte of text wherever the packs hold it.
func (w *world) flipInPacks(store, text string) {
	w.t.Helper()
	packs, err := filepath.Glob(filepath.Join(store, "packs", "*.pack"))
	if err != nil {
		w.t.Fatal(err)
	}
	found := false
	for _, pack := range packs {
		b, err := os.ReadFile(pack)
		if err != nil {
			w.t.Fatal(err)
		}
		at := bytes.Index(b, []byte(text))
		if at < 0 {
			continue
		}
		found = true
		f, err := os.OpenFile(pack, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt([]byte{b[at] + 1}, int64(at))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if !found {
		w.t.Fatalf("none of %q has %q", packs, text)
	}
}

func TestFsckMainJob(t *testing.T) {
	w := newWorld(t)
	w.mount()
	store := w.rewind("status", "--json").data(t)["store"].(string)
	w.sh("seq 100 >$M/good; mkdir $M/new; seq 20000 >$M/new/bad")
	w.rewind("checkpoint", "stable").want(t, 0)
	w.finish([]string{"memory", "sync", "-"}, stdin(`[{"role":"user","content":"hello"}]`)).want(t, 0)
	w.rewind("checkpoint", "told").want(t, 0)
	w.rewind("fsck").want(t, 0, "The store is clean", "3 layers")
	w.unmount()
	w.rewind("fsck", "-s", "proj").want(t, 0, "The store is clean")
	w.flipInPacks(store, "\n19999\n20000\n")
	w.rewind("fsck", "-s", "proj", "--quick").want(t, 0)
	w.rewind("fsck", "-s", "proj").want(t, exitFailure, "new/bad", "stable", "lost")
	w.mount()
	w.rewind("fsck").want(t, exitFailure, "new/bad", "stable", "the store is not as it should be")
	w.rewind("fsck", "--repair").want(t, exitFailure, "new/bad", "repaired")
	w.same("tail -1 $M/good; cat $M/new/bad >/dev/null 2>&1 || echo lost", "100\nlost\n")
	// The same bytes, written again, bring back what was lost.
	w.sh("seq 20000 >$M/new/again")
	w.unmount()
	w.mount()
	w.same("tail -1 $M/new/bad", "20000\n")
	w.rewind("fsck").want(t, 0, "The store is clean")
	w.rewind("ledger", "--event", "recovered").want(t, 0, "fsck")
	w.unmount()
}
