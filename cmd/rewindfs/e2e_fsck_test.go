package main

import (
	"os"
	"path/filepath"
	"testing"
)

// flipInPacks changes the byte in front of the last one of what the packs hold.
func (w *world) flipInPacks(store string) {
	w.t.Helper()
	packs, err := filepath.Glob(filepath.Join(store, "packs", "*.pack"))
	if err != nil || len(packs) == 0 {
		w.t.Fatalf("packs: %v, %v", packs, err)
	}
	f, err := os.OpenFile(packs[len(packs)-1], os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	b := make([]byte, 1)
	if err == nil {
		_, err = f.ReadAt(b, st.Size()-2)
	}
	if b[0]++; err == nil {
		_, err = f.WriteAt(b, st.Size()-2)
	}
	if err != nil {
		w.t.Fatal(err)
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
	w.flipInPacks(store)
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
