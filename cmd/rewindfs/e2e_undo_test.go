package main

import "testing"

// Rolling back, taking it back and rolling back again: undo leads to all that was
// written, and says where it leads.
func TestUndoEndToEnd(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo zero >$M/f")
	w.rewind("checkpoint", "A").want(t, 0)
	w.sh("echo one >$M/f")
	w.rewind("rollback", "A").want(t, 0)
	w.sh("echo two >$M/f")
	w.rewind("rollback", "A").want(t, 0)
	w.rewind("undo").want(t, 0, "1 step back, as it was before the rollback to 'A'")
	w.same("cat $M/f", "two\n")
	w.rewind("rollback", "A").want(t, 0)
	w.same("cat $M/f", "zero\n")
	w.rewind("undo").want(t, 0, "as it was before the rollback to 'A'")
	w.same("cat $M/f", "two\n")
	w.unmount()
	w.mount()
	w.rewind("undo").want(t, 0, "as it was before the rollback to 'A'")
	w.same("cat $M/f", "one\n")
	w.rewind("undo").want(t, exitFailure, "no rollback, restore or run to undo")
	w.rewind("redo", "2").want(t, 0, "2 steps forward, at 'A', as it was before the undo")
	w.same("cat $M/f", "zero\n")
	w.rewind("undo", "3").want(t, exitFailure, "2 possible")
	w.rewind("undo", "2").want(t, 0, "2 steps back, as it was before the redo")
	w.same("cat $M/f", "one\n")
	id := w.rewind("log", "--json").data(t)["checkpoints"].([]any)[0].(map[string]any)["id"].(string)
	w.rewind("checkpoint", id).want(t, exitCheckpoint, "taken", id)
	w.rewind("checkpoint", id[:12]).want(t, exitCheckpoint, "taken", id)
	w.unmount()
}
