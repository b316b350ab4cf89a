package layersdiff

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// mergers are two branches that part, change, and are merged with each other.
type mergers struct {
	tb       twin.TB
	w        *world
	names    [2]string
	b        [2]*layers.Branch
	ancestor layers.Layer // of which both know
	at       int          // the one that operations are about
	targets  [2]target    // with what programs hold open in each
	clean    *int         // counts merges without conflicts
}

// mergePlan is operations on one branch, then the other: Seal changes over, Move merges.
var mergePlan = twin.Plan{
	Ops: fsops.GenOptions{Held: true}, Lo: 8, Hi: 40,
	Chance: map[twin.Ctl]int{twin.Seal: 120, twin.Move: 100, twin.Reopen: 8, twin.Collect: 15},
}

// TestMerges holds merges against a model that knows trees only.
func TestMerges(t *testing.T) {
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: 100}, "REWINDFS_TEST_CHECKS")
	for at := 0; at < seq.Count; at += perStore {
		part := twin.Sequences{Seed: seq.Seed + at, Count: min(perStore, seq.Count-at)}
		t.Run(fmt.Sprintf("from %d", part.Seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			clean := 0
			twin.Check(t, part, twin.Steps(mergePlan), func(tb twin.TB, steps []twin.Step) {
				name, b, err := w.newBranch()
				m := &mergers{tb: tb, w: w, names: [2]string{name, name + "x"}, b: [2]*layers.Branch{b}, clean: &clean}
				m.must(err)
				m.run(steps)
			})
			if clean < part.Count {
				t.Errorf("only %d merges of %d sequences had no conflict: the test is not worth much", clean, part.Count)
			}
		})
	}
}

func (m *mergers) must(err error) {
	m.tb.Helper()
	if err != nil {
		m.tb.Fatalf("%v", err)
	}
}

func (m *mergers) run(steps []twin.Step) {
	half := len(steps) / 4
	for i, s := range steps {
		if i == half { // what comes before is what both have
			_, err := m.b[0].Seal(nil)
			m.must(err)
			m.ancestor = m.b[0].Parent()
			m.b[1], err = m.w.tree.Fork(m.names[1], m.ancestor, nil)
			m.must(err)
		}
		switch {
		case s.Ctl == "":
			m.targets[m.at].b = m.b[m.at]
			m.targets[m.at].Do(s.Op)
		case i < half:
		case s.Ctl == twin.Seal:
			m.at = 1 - m.at
		case s.Ctl == twin.Move:
			m.merge(s.Pick % 2)
		case s.Ctl == twin.Reopen:
			m.targets = [2]target{}
			m.must(m.w.reopen())
			for i, name := range m.names {
				var err error
				m.b[i], err = m.w.tree.Branch(name)
				m.must(err)
			}
		case s.Ctl == twin.Collect:
			forks, err := m.w.tree.Forks()
			m.must(err)
			_, err = m.w.tree.Collect(context.Background(), forks, layers.CollectOptions{})
			m.must(err)
		}
	}
	if len(steps) > half {
		m.merge(0)
		m.merge(1)
	}
	for _, b := range m.b {
		if b != nil {
			_, err := b.Drop(nil)
			m.must(err)
		}
	}
}

func (m *mergers) side(b *layers.Branch, l layers.Layer) (modelSide, *fstree.Tree, func()) {
	v, err := b.At(l)
	m.must(err)
	t := treeOf(v)
	return newModelSide(t, func(p string) []byte {
		a, err := v.Resolve(p)
		m.must(err)
		buf := make([]byte, a.Size)
		for n := 0; n < len(buf); {
			k, err := v.ReadAt(a.Ino, buf[n:], int64(n))
			m.must(err)
			n += k
		}
		return buf
	}), t, v.Close
}

// merge merges the other branch into the one at into, and holds what comes of it against the model.
func (m *mergers) merge(into int) {
	b, from := m.b[into], m.b[1-into]
	for _, b := range m.b {
		if !b.Clean() {
			_, err := b.Seal(nil)
			m.must(err)
		}
	}
	model := &mergeModel{same: map[uint64]uint64{}}
	var trees [3]*fstree.Tree
	for i, l := range []layers.Layer{m.ancestor, b.Parent(), from.Parent()} {
		var done func()
		model.side[i], trees[i], done = m.side(b, l)
		defer done()
	}
	model.run()
	plan, err := b.PlanMerge(context.Background(), from.Parent())
	m.must(err)
	defer plan.Close()
	if plan.Noop() {
		if from.Parent() != plan.Base {
			m.tb.Fatalf("nothing to do, though layer %d is not %d", from.Parent(), plan.Base)
		}
		return
	}
	if plan.Base != m.ancestor {
		m.tb.Fatalf("into %d: compared with layer %d, want %d; ours %d theirs %d", into, plan.Base, m.ancestor, plan.Ours, plan.Theirs)
	}
	ops := b.Ops()
	_, err = b.Merge(plan, nil, nil)
	now := treeOf(&b.View)
	if len(model.bad) > 0 {
		if !errors.Is(err, layers.ErrConflict) {
			m.tb.Fatalf("merged (%v) where the model finds\n  %s", err, strings.Join(model.bad, "\n  "))
		}
		if d := fstree.Diff(trees[1], now, fstree.Exact, "before", "after"); len(d) > 0 || b.Ops() != ops || !b.Clean() {
			m.tb.Fatalf("a merge with conflicts changed something: %s", strings.Join(d, "\n"))
		}
		return
	}
	if err != nil {
		m.tb.Fatalf("merge: %v, %+v, where the model finds no conflict", err, plan.Conflicts)
	}
	m.ancestor = from.Parent()
	*m.clean++
	m.check(model, trees, now, "merged")
	l := b.HeadLayer()
	_, err = b.Seal(nil)
	m.must(err)
	for what, to := range map[string]layers.Layer{"taken back": plan.Ours, "theirs": from.Parent()} {
		_, err = b.MoveHead(to, false, nil, nil)
		m.must(err)
		want := trees[1]
		if what == "theirs" {
			want = trees[2]
		}
		if d := fstree.Diff(want, treeOf(&b.View), fstree.Exact, what, "the head"); len(d) > 0 {
			m.tb.Fatalf("after a move from the merge:\n%s", strings.Join(d, "\n"))
		}
		_, err = b.MoveHead(l, false, nil, nil)
		m.must(err)
		if d := fstree.Diff(now, treeOf(&b.View), fstree.Exact, "merged", "and again"); len(d) > 0 {
			m.tb.Fatalf("after a move back to the merge:\n%s", strings.Join(d, "\n"))
		}
	}
}

// check compares the result of a merge with the model's, and what changed with what the diff says.
func (m *mergers) check(model *mergeModel, trees [3]*fstree.Tree, now *fstree.Tree, what string) {
	want := model.tree()
	problems := append(fstree.Diff(want, now, fstree.Fields{}, "model", what), now.LinkProblems()...)
	for p, e := range now.Entries {
		if w := want.Entries[p]; w != nil && !e.IsDir() && e.Nlink != w.Nlink {
			problems = append(problems, fmt.Sprintf("%s has link count %d and %d names", p, e.Nlink, w.Nlink))
		}
		// What one side alone has touched has its mtime.
		o, t := trees[1].Entries[p], trees[2].Entries[p]
		if e.IsDir() || o != nil && e.Mtime == o.Mtime || t != nil && e.Mtime == t.Mtime {
			continue
		}
		if o != nil && t != nil && e.Hash == o.Hash && e.Hash == t.Hash {
			problems = append(problems, fmt.Sprintf("%s has an mtime of its own: %v, %v and %v", p, e.Mtime, o.Mtime, t.Mtime))
		}
	}
	if len(problems) > 0 {
		m.tb.Fatalf("%s:\n  %s", what, strings.Join(problems, "\n  "))
	}
}
