package layersdiff

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// committing is operations with checkpoints, rollbacks and commits to the host.
var committing = twin.Plan{
	Lo: 10, Hi: 60,
	Chance: map[twin.Ctl]int{twin.Seal: 30, twin.Move: 30, twin.Reopen: 10, twin.Collect: 15, twin.Commit: 70},
}

// TestApply brings random states of the tree to the base, takes some commits back, and compares the base with
// what the checkpoint shows, and with what it was.
func TestApply(t *testing.T) {
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: 70}, "REWINDFS_TEST_CHECKS")
	for at := 0; at < seq.Count; at += perStore {
		part := twin.Sequences{Seed: seq.Seed + at, Count: min(perStore, seq.Count-at)}
		t.Run(fmt.Sprintf("from %d", part.Seed), func(t *testing.T) {
			t.Parallel()
			fast, disk := fstree.FastTemp(t), t.TempDir()
			n := 0
			twin.Check(t, part, twin.Steps(committing), func(tb twin.TB, steps []twin.Step) {
				n++
				top := filepath.Join(fast, fmt.Sprint(n))
				base := filepath.Join(top, "base")
				if n%16 == 0 { // a commit waits for the disk, which others may use, too
					base = filepath.Join(disk, fmt.Sprint(n))
				}
				defer os.RemoveAll(top)
				defer os.RemoveAll(base)
				s := newApplied(tb, top, base)
				defer s.close()
				for _, step := range steps {
					s.step(step)
				}
				s.commit(0, true)
			})
		})
	}
}

// runApplied gives fn count sequences of the plan, each with a base and a store of its own.
func runApplied(t *testing.T, count int, plan twin.Plan, fn func(s *applied, steps []twin.Step)) {
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: count}, "REWINDFS_TEST_CHECKS")
	for at := 0; at < seq.Count; at += perStore {
		part := twin.Sequences{Seed: seq.Seed + at, Count: min(perStore, seq.Count-at)}
		t.Run(fmt.Sprintf("from %d", part.Seed), func(t *testing.T) {
			t.Parallel()
			fast := fstree.FastTemp(t)
			n := 0
			twin.Check(t, part, twin.Steps(plan), func(tb twin.TB, steps []twin.Step) {
				n++
				top := filepath.Join(fast, fmt.Sprint(n))
				defer os.RemoveAll(top)
				s := newApplied(tb, top, filepath.Join(top, "base"))
				defer s.close()
				fn(s, steps)
			})
		})
	}
}

// applied is a branch that is committed.
type applied struct {
	tb      twin.TB
	w       *world
	target  target
	seals   []layers.Layer
	befores []*fstree.Tree // of the commits that can be undone: what the host had
}

func newApplied(tb twin.TB, top, base string) *applied {
	s := &applied{tb: tb, w: &world{store: filepath.Join(top, "store"), base: base}}
	for _, dir := range []string{top, base, s.w.store} {
		s.must(os.MkdirAll(dir, 0o755))
	}
	s.must(fstree.MakeBase(base))
	s.must(s.w.open())
	s.branch()
	return s
}

func (s *applied) must(err error) {
	if err != nil {
		s.tb.Fatalf("%v", err)
	}
}

func (s *applied) branch() {
	b, err := s.w.tree.Branch("main")
	s.must(err)
	s.target.b = b
}

func (s *applied) close() { s.must(s.w.close()) }

func (s *applied) step(step twin.Step) {
	switch step.Ctl {
	case "":
		s.target.Do(step.Op)
	case twin.Seal:
		l, err := s.target.b.Seal(nil)
		s.must(err)
		s.seals = append(s.seals, l.Layer)
	case twin.Move:
		if len(s.seals) > 0 {
			_, err := s.target.b.MoveHead(s.seals[step.Pick%len(s.seals)], false, nil, nil)
			s.must(err)
		}
	case twin.Reopen:
		s.must(s.w.reopen())
		s.branch()
	case twin.Collect: // stands for undo
		s.undo()
	case twin.Commit:
		s.commit(step.Pick, step.Pick%3 > 0)
	}
}

func (s *applied) applier() *apply.Applier {
	return apply.New(s.w.db, s.w.tree, s.w.host, slog.New(slog.DiscardHandler), time.Now)
}

func (s *applied) scan() *fstree.Tree {
	t, err := fstree.Scan(s.w.base)
	s.must(err)
	return t
}

// commit brings the head, or an older checkpoint, to the base.
func (s *applied) commit(pick int, head bool) {
	var l layers.Layer
	if sealed, err := s.target.b.Seal(nil); head || len(s.seals) == 0 {
		s.must(err)
		l = sealed.Layer
		s.seals = append(s.seals, l)
	} else {
		s.must(err)
		l = s.seals[pick%len(s.seals)]
	}
	v, err := s.w.tree.View(l)
	s.must(err)
	defer v.Close()
	want, head0, before := treeOf(v), treeOf(&s.target.b.View), s.scan()
	c, err := s.applier().PlanBase(context.Background(), apply.Request{Layer: l, Branch: "main", Special: true}, apply.Record{})
	s.must(err)
	defer c.Close()
	if c.Conflicts() {
		s.tb.Fatalf("conflicts: %+v", c.Left)
	}
	if !c.Noop() {
		s.befores = append(s.befores, before)
	}
	s.must(c.Do(context.Background(), nil, nil))
	s.exact(want, treeOf(v), "checkpoint before the commit", "after it")
	s.exact(head0, treeOf(&s.target.b.View), "head before the commit", "after it")
	s.compare(want, s.scan(), "checkpoint", "host", c)
	again, err := s.applier().PlanBase(context.Background(), apply.Request{Layer: l, Branch: "main", Special: true}, apply.Record{})
	s.must(err)
	defer again.Close()
	if !again.Noop() {
		s.tb.Fatalf("a second commit would do something: %+v", again.Changes)
	}
}

func (s *applied) undo() {
	if len(s.befores) == 0 {
		return
	}
	c, err := s.applier().PlanUndo(context.Background(), apply.Request{Branch: "main"}, apply.Record{})
	s.must(err)
	defer c.Close()
	if c.Conflicts() {
		s.tb.Fatalf("conflicts of an undo: %+v", c.Left)
	}
	s.must(c.Do(context.Background(), nil, nil))
	last := len(s.befores) - 1
	s.compare(s.befores[last], s.scan(), "host before the commit", "host after its undo", c)
	s.befores = s.befores[:last]
}

// compare compares what a commit is to bring. Times of directories are another matter.
func (s *applied) compare(want, got *fstree.Tree, wantName, gotName string, c *apply.Commit) {
	for p, e := range want.Entries {
		g := got.Entries[p]
		if e.Type() == unix.S_IFSOCK {
			delete(want.Entries, p)
			delete(got.Entries, p)
			continue
		}
		if e.IsDir() && g != nil && wantName == "checkpoint" {
			e.Mtime = g.Mtime
		}
	}
	if problems := fstree.Diff(want, got, fstree.Fields{Mtime: true}, wantName, gotName); len(problems) > 0 {
		s.tb.Fatalf("%s\nplan: %+v\nleft: %+v", strings.Join(problems, "\n"), c.Changes, c.Left)
	}
}

func (s *applied) exact(want, got *fstree.Tree, wantName, gotName string) {
	if problems := fstree.Diff(want, got, fstree.Exact, wantName, gotName); len(problems) > 0 {
		s.tb.Fatalf("%s", strings.Join(problems, "\n"))
	}
}

// TestApplyFound has what seeds have found, as short as it could be made.
func TestApplyFound(t *testing.T) {
	commit, undo := twin.Step{Ctl: twin.Commit, Pick: 1}, twin.Step{Ctl: twin.Collect}
	op := func(o fsops.Op) twin.Step { return twin.Step{Op: o} }
	for name, steps := range map[string][]twin.Step{
		"what an undone commit noted of a link's other names counted on": {
			op(fsops.Op{Kind: fsops.Write, Path: "src/pkg/f3", Off: 8192, Len: 100, Seed: 883}), commit,
			op(fsops.Op{Kind: fsops.Link, Path: "src/hl3", Path2: "modes/big"}), commit, undo, undo, commit,
		},
		"a link of an object that is on the host moved its ctime before it was kept": {
			op(fsops.Op{Kind: fsops.Link, Path: "d/e/a", Path2: "n1"}), commit, undo,
		},
		"names of a changed object that nobody had looked at": {
			op(fsops.Op{Kind: fsops.Append, Path: "src/hl3", Len: 7, Seed: 902}),
			op(fsops.Op{Kind: fsops.Replace, Path: "src/hl3", Path2: "modes/sgid", Len: 131072, Mode: 0o600, Seed: 325}), commit, undo,
		},
		"the times of the root were kept after the stage had moved them": {
			op(fsops.Op{Kind: fsops.Unlink, Path: "fifo"}), commit, undo,
		},
	} {
		t.Run(name, func(t *testing.T) {
			top := fstree.FastTemp(t)
			s := newApplied(failer{t}, filepath.Join(top, "s"), filepath.Join(top, "base"))
			defer s.close()
			for _, step := range steps {
				s.step(step)
			}
		})
	}
}
