package layersdiff

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
)

func TestMain(m *testing.M) {
	syscall.Umask(0)
	if arg := os.Getenv(diskEnv); arg != "" {
		if err := serveDisks(arg); err != nil {
			fmt.Fprintln(os.Stderr, "serve disks:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// perStore is how many sequences share a store. Each leaves its layers behind, which
// the next ones have to pass over in every directory.
const perStore = 50

// runSteps runs the sequences side by side, some at a time on a store of their own.
func runSteps(t *testing.T, plan twin.Plan, high bool, seed, count int) {
	seq := twin.FromEnv(t, twin.Sequences{Seed: seed, Count: count}, "REWINDFS_TEST_CHECKS")
	for at := 0; at < seq.Count; at += perStore {
		part := twin.Sequences{Seed: seq.Seed + at, Count: min(perStore, seq.Count-at)}
		t.Run(fmt.Sprintf("from %d", part.Seed), func(t *testing.T) {
			t.Parallel()
			runSequences(t, plan, high, part)
		})
	}
}

func runSequences(t *testing.T, plan twin.Plan, high bool, seq twin.Sequences) {
	w := newWorld(t, high)
	top := fstree.FastTemp(t)
	n := 0
	twin.Check(t, seq, twin.Steps(plan), func(tb twin.TB, steps []twin.Step) {
		n++
		scratch := fmt.Sprintf("%s/%d", top, n)
		if err := os.Mkdir(scratch, 0o755); err != nil {
			tb.Fatalf("%v", err)
		}
		defer os.RemoveAll(scratch)
		name, b, err := w.newBranch()
		if err != nil {
			tb.Fatalf("make a branch: %v", err)
		}
		s := &subject{target: target{b: b}, w: w, name: name}
		r := twin.New(tb, s, twin.Options{Base: w.base, BaseRef: "0", Scratch: scratch, Every: 16, AnyLine: true, At: fstree.Exact, Exact: fstree.Exact})
		defer r.Close()
		r.Do(steps)
	})
}

// history is operations with checkpoints and all that can be done to them in between.
var history = twin.Plan{
	Ops: fsops.GenOptions{Held: true}, Lo: 20, Hi: 80,
	Chance: map[twin.Ctl]int{twin.Seal: 40, twin.Move: 25, twin.Undo: 12, twin.Redo: 8, twin.Reopen: 4, twin.Collect: 15},
}

// TestOperations runs operations alone.
func TestOperations(t *testing.T) {
	runSteps(t, twin.Plan{Ops: fsops.GenOptions{Held: true}, Lo: 20, Hi: 60}, false, 1, 300)
}

// TestCheckpointsAndRollbacks seals, moves the head back and forth, collects garbage and
// reopens the store between operations.
func TestCheckpointsAndRollbacks(t *testing.T) { runSteps(t, history, false, 1, 1000) }

// TestBaseWithHighNumbers does so over a base whose inode numbers cannot be used.
func TestBaseWithHighNumbers(t *testing.T) { runSteps(t, history, true, 1, 150) }
