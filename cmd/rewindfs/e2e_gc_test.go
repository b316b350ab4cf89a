package main

import (
	"testing"
)

func TestGCMainJob(t *testing.T) {
	w := newWorld(t)
	w.mount()
	for _, label := range []string{"one", "two", "three"} {
		w.sh("head -c 2000000 /dev/urandom >$M/big; echo " + label + " >$M/a.txt")
		w.rewind("checkpoint", label).want(t, 0)
	}
	w.rewind("gc", "--keep", "0").want(t, exitUsage, "1 or more")
	w.rewind("gc", "--keep-labeled").want(t, exitUsage, "--older-than")
	w.rewind("gc", "--older-than", "x").want(t, exitUsage, "7d")
	w.rewind("gc", "--older-than", "1d", "--keep", "1").want(t, 0, "Dropped 0 checkpoints")
	w.rewind("gc", "--keep", "1", "--dry-run").want(t, 0, "Would drop", "one", "two", "1.9 MiB of its own")
	w.rewind("log").want(t, 0, "one")
	w.rewind("status").want(t, 0, "gc would free ")
	d := w.rewind("gc", "--keep", "2", "--json").data(t)
	if d["freed_bytes"].(float64) < 1_900_000 || d["store_bytes"].(float64) < 4_000_000 || len(d["dropped"].([]any)) != 1 {
		t.Errorf("gc --keep 2: %v", d)
	}
	w.rewind("rollback", "one").want(t, exitCheckpoint)
	w.same("cat $M/.rewind/checkpoints/two/a.txt $M/a.txt; ls $M/.rewind/checkpoints", "two\nthree\nthree\ntwo\n")
	w.rewind("gc", "--max-size", "1M").want(t, exitFailure, "cannot be made as small")
	w.rewind("policy", "gc", "--keep", "5", "--keep-labeled").want(t, 0, "the newest 5", "label")
	w.rewind("policy", "gc", "--off").want(t, 0)
	w.unmount()
	w.rewind("gc", "-s", "proj").want(t, 0, "Freed") // without a daemon
	w.mount()
	w.same("cat $M/a.txt", "three\n")
	w.rewind("ledger", "--event", "gc").want(t, 0, "gc")
	w.unmount()
}
