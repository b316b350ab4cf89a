package mountdiff

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
	"github.com/rewindfs/rewindfs/internal/twin"
)

func TestMain(m *testing.M) {
	os.Exit(mounttest.Main(m))
}

func runSteps(t *testing.T, plan twin.Plan, seed, count int, args ...string) {
	t.Parallel()
	var m *mounttest.Mount
	good := false          // the last sequence left the mount usable
	scratch := t.TempDir() // on a disk file system: its answers are the model
	n := 0
	seq := twin.FromEnv(t, twin.Sequences{Seed: seed, Count: count}, "REWINDFS_TEST_MOUNT_CHECKS")
	twin.Check(t, seq, twin.Steps(plan), func(tb twin.TB, steps []twin.Step) {
		n++
		dir := fmt.Sprintf("%s/%d", scratch, n)
		if err := os.Mkdir(dir, 0o755); err != nil {
			tb.Fatalf("%v", err)
		}
		defer os.RemoveAll(dir)
		if good {
			m.Rollback("base")
		} else {
			if m != nil {
				m.Close()
			}
			m = mounttest.New(t, mounttest.Options{Args: args})
		}
		good = false
		s, err := newSubject(m, fmt.Sprintf("s%d", n))
		if err != nil {
			tb.Fatalf("%v", err)
		}
		s.writeback = slices.Contains(args, "writeback")
		defer func() { s.Dir.Close() }()
		opt := twin.Options{
			Base: m.Base, BaseRef: "base", Scratch: dir, Every: 10, Maps: plan.Ops.Maps, Exact: fstree.Exact,
			At: fstree.Fields{Nlink: true, Mtime: true, Ctime: true, Blocks: true},
		}
		if s.writeback { // the kernel stamps, and tells the daemon later
			opt.Exact, opt.At = fstree.Fields{Nlink: true, Ino: true}, fstree.Fields{Nlink: true}
		}
		r := twin.New(tb, s, opt)
		defer r.Close()
		r.Do(steps)
		good = true
	})
}

// TestOperations runs operations alone.
func TestOperations(t *testing.T) {
	runSteps(t, twin.Plan{Ops: fsops.GenOptions{Held: true, Maps: true}, Lo: 40, Hi: 120}, 1, 25)
}

// TestCheckpointsAndRollbacks moves through history between operations.
func TestCheckpointsAndRollbacks(t *testing.T) {
	runSteps(t, history(), 1, 40)
}

// TestWritebackCache is the same with the kernel's writeback cache.
func TestWritebackCache(t *testing.T) {
	runSteps(t, history(), 1001, 10, "--cache", "writeback")
}

func history() twin.Plan {
	return twin.Plan{
		Ops: fsops.GenOptions{Held: true, Maps: true}, Lo: 40, Hi: 140,
		Chance: map[twin.Ctl]int{twin.Seal: 40, twin.Move: 30, twin.Undo: 15, twin.Redo: 10, twin.Reopen: 6},
	}
}
