package mountdiff

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
	"github.com/rewindfs/rewindfs/internal/twin"
)

// branch is a fork as twin.Subject: opened again, it alone is unmounted and mounted.
type branch struct {
	*subject
	name string
}

// Reopen implements twin.Subject.
func (b *branch) Reopen() error {
	b.Dir.Close()
	if err := b.cli("unmount", b.m.Dir); err != nil {
		return err
	}
	// Nothing stands in the mount any more that could say which session it is.
	if err := b.cli("branch", "mount", b.name, b.m.Dir, "-s", b.m.Store); err != nil {
		return err
	}
	var err error
	b.Dir, err = fsops.NewDir(b.m.Dir)
	return err
}

// TestBranchesAtOnce has many branches of one store work at the same time, each with a plain directory as its twin:
// whatever one of them did in another would show there, in contents, attributes, inode numbers, what is held open
// and what is cached.
func TestBranchesAtOnce(t *testing.T) {
	t.Parallel()
	plan := history()
	plan.Lo, plan.Hi = 30, 60
	plan.Chance[twin.Reopen] = 10
	seq := twin.FromEnv(t, twin.Sequences{Seed: 5001, Count: 16}, "REWINDFS_TEST_BRANCHES")
	m := mounttest.New(t, mounttest.Options{})
	// Half of them begin at a checkpoint: on layers that they share with each other and with main.
	m.Sh("cp -a $M/d $M/copy; mv $M/a $M/moved; echo more >>$M/d/b; mkdir -p $M/new/deep; ln $M/d/b $M/new/deep/link")
	m.Checkpoint("start")
	m.Sh("echo main >$M/new/only-here; rm -r $M/copy")
	before := m.Snapshot()
	gen := twin.Steps(plan)
	scratch := t.TempDir()
	forks := make([]*mounttest.Mount, seq.Count)
	refs := make([]string, seq.Count)
	for i := range forks {
		refs[i] = []string{"start", "base"}[i%2]
		forks[i] = m.Fork(refs[i], fmt.Sprintf("b%d", i))
	}
	var wg sync.WaitGroup
	for i, f := range forks {
		wg.Go(func() {
			steps := gen.Example(seq.Seed + i)
			msg := twin.Try(func(tb twin.TB, steps []twin.Step) { runBranch(tb, f, refs[i], fmt.Sprintf("b%d", i), scratch, steps) }, steps)
			if msg != "" {
				var lines []string
				for _, s := range steps {
					lines = append(lines, s.GoString())
				}
				t.Errorf("branch %d, seed %d: %s\nsteps:\n\t%s", i, seq.Seed+i, msg, strings.Join(lines, "\n\t"))
			}
		})
	}
	wg.Wait()
	mounttest.Same(t, before, m.Snapshot(), fstree.Exact, "main before", "main after")
	m.Rollback("start")
	mounttest.Same(t, mounttest.Snapshot(t, m.Path(".rewind/checkpoints/start")), m.Snapshot(), fstree.Fields{Nlink: true, Mtime: true, Ctime: true}, "start", "main at start")
}

func runBranch(tb twin.TB, f *mounttest.Mount, ref, name, scratch string, steps []twin.Step) {
	dir := filepath.Join(scratch, name)
	base := f.Base
	if err := os.Mkdir(dir, 0o755); err != nil {
		tb.Fatalf("%v", err)
	}
	defer os.RemoveAll(dir)
	if ref != "base" {
		base = f.Path(".rewind", "checkpoints", ref)
	}
	s, err := newSubjectAt(f, name, ref)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	b := &branch{s, name}
	defer func() { b.Dir.Close() }()
	r := twin.New(tb, b, twin.Options{
		Base: base, BaseRef: ref, Scratch: dir, Every: 10, Maps: true, Exact: fstree.Exact,
		At: fstree.Fields{Nlink: true, Mtime: true, Ctime: true, Blocks: true},
	})
	defer r.Close()
	r.Do(steps)
}
