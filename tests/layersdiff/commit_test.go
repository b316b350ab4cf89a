package layersdiff

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// hostOps draws what a commit does to the base.
var hostOps = fsops.GenSequence(fsops.GenOptions{}, 1, 8)

// Commit implements twin.Committer: it keeps what the base has at the paths of some
// operations and carries these out on the base, by name and in place. Some commits do
// not come, and some change nothing.
func (s *subject) Commit(pick int) error {
	rng := rand.New(rand.NewPCG(uint64(pick), 2))
	if err := s.checkBuilt(); err != nil {
		return err
	}
	ops := hostOps.Example(pick)
	var paths []string
	for _, o := range ops {
		for _, p := range []string{o.Path, o.Path2} {
			if p != "" {
				paths = append(paths, p)
			}
		}
		if o.Kind == fsops.Chmod && rng.IntN(2) == 0 {
			paths[len(paths)-1] += "/" // itself: nothing below changes
		}
	}
	gen := s.w.tree.Generation()
	if rng.IntN(4) == 0 {
		no := errors.New("no")
		if _, err := s.w.tree.KeepBase(context.Background(), paths, func(*kv.Batch, uint64) error { return no }); !errors.Is(err, no) {
			return fmt.Errorf("a commit that does not come: %v", err)
		}
	}
	next, err := s.w.tree.KeepBase(context.Background(), paths, nil)
	if err != nil || next != gen+1 || s.w.tree.Generation() != next || s.b.Generation() != s.gen {
		return fmt.Errorf("keep the base: generation %d after %d, the branch's %d was %d: %v", next, gen, s.b.Generation(), s.gen, err)
	}
	if rng.IntN(8) > 0 {
		if err := changeHost(s.w.base, ops); err != nil {
			return err
		}
	}
	s.w.tree.BaseChanged()
	return s.checkBases()
}

func changeHost(base string, ops []fsops.Op) error {
	host, err := fsops.NewDir(base)
	if err != nil {
		return err
	}
	defer host.Close()
	for _, o := range ops {
		host.Do(o)
	}
	return nil
}

// checkBases looks at all generations of the base: each shows what it did, and the newest what is on the host.
func (s *subject) checkBases() error {
	live, err := fstree.Scan(s.w.base)
	if err != nil {
		return err
	}
	for gen := s.gen; gen <= s.w.tree.Generation(); gen++ {
		v, err := s.w.tree.BaseView(gen)
		if err != nil {
			return err
		}
		now := treeOf(v)
		v.Close()
		problems := now.LinkProblems()
		if gen == s.w.tree.Generation() {
			host := fstree.Exact
			host.Ino = false
			problems = append(problems, fstree.Diff(live, now, host, "host", "base")...)
		}
		if was := s.bases[gen]; was == nil {
			s.bases[gen] = now
		} else {
			problems = append(problems, fstree.Diff(was, now, fstree.Exact, "before", "after")...)
		}
		if len(problems) > 0 {
			return fmt.Errorf("generation %d of the base (the newest is %d):\n  %s", gen, s.w.tree.Generation(), strings.Join(problems, "\n  "))
		}
	}
	return nil
}

// checkBuilt holds what the branch says about the base it is built on against that base.
func (s *subject) checkBuilt() error {
	base := s.bases[s.gen]
	paths := map[string]bool{} // of which it must know
	err := s.w.tree.Diff(layers.BaseLayer, s.b.HeadLayer(), func(c layers.Change) error {
		for _, p := range []string{c.Path, c.OldPath} {
			if p != "" {
				paths[p] = true
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for p := range base.Entries {
		if _, ok := paths[p]; !ok && p != "." {
			paths[p] = false
		}
	}
	for p, must := range paths {
		got, err := s.b.Built(p)
		if err != nil {
			return err
		}
		if !got.Known {
			if must && !underUnknown(s, p) {
				return fmt.Errorf("%q has changed, but what the base had is not known", p)
			}
			continue
		}
		want := base.Entries[p]
		if got.Exists != (want != nil) {
			return fmt.Errorf("the base had %q: %v, it says %v", p, want != nil, got.Exists)
		}
		if want != nil && (got.Type != want.Type() || got.Size != want.Size || timeOf(got.Mtime) != want.Mtime || timeOf(got.Ctime) != want.Ctime) {
			return fmt.Errorf("the base had %q as %+v, it says %+v", p, want, got)
		}
	}
	return nil
}

// underUnknown reports whether p lies below a directory that moved as a whole: nothing
// changed there, so no record says anything.
func underUnknown(s *subject, p string) bool {
	for dir := filepath.Dir(p); dir != "."; dir = filepath.Dir(dir) {
		if b, err := s.b.Built(dir); err == nil && b.Known && (!b.Exists || b.Type == unix.S_IFDIR) {
			return true
		}
	}
	return false
}

// committed is history with commits.
var committed = twin.Plan{
	Ops: fsops.GenOptions{Held: true}, Lo: 20, Hi: 80,
	Chance: map[twin.Ctl]int{twin.Seal: 40, twin.Move: 25, twin.Undo: 12, twin.Redo: 8, twin.Reopen: 8, twin.Collect: 15, twin.Commit: 50, twin.Restore: 20},
}

// TestCommits changes the base between operations, checkpoints and rollbacks. Each
// sequence has a base of its own, every fourth one on a file system that gives the
// numbers of deleted files to new ones.
func TestCommits(t *testing.T) {
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: 50}, "REWINDFS_TEST_CHECKS")
	for at := 0; at < seq.Count; at += perStore {
		part := twin.Sequences{Seed: seq.Seed + at, Count: min(perStore, seq.Count-at)}
		t.Run(fmt.Sprintf("from %d", part.Seed), func(t *testing.T) {
			t.Parallel()
			runCommits(t, part)
		})
	}
}

func runCommits(t *testing.T, seq twin.Sequences) {
	fast, disk := fstree.FastTemp(t), t.TempDir()
	n := 0
	twin.Check(t, seq, twin.Steps(committed), func(tb twin.TB, steps []twin.Step) {
		n++
		top := filepath.Join(fast, fmt.Sprint(n))
		base := filepath.Join(top, "base")
		if n%4 == 0 {
			base = filepath.Join(disk, fmt.Sprint(n))
		}
		defer os.RemoveAll(top)
		defer os.RemoveAll(base)
		commitSequence(tb, steps, top, base)
	})
}

func commitSequence(tb twin.TB, steps []twin.Step, top, base string) {
	must := func(err error) {
		if err != nil {
			tb.Fatalf("%v", err)
		}
	}
	w := &world{store: filepath.Join(top, "store"), base: base}
	for _, dir := range []string{top, base, w.store} {
		must(os.Mkdir(dir, 0o755))
	}
	must(fstree.MakeBase(base))
	must(w.open())
	defer func() { must(w.close()) }()
	// Two branches, one after the other: the second one is built on what the first one left.
	var heads []layers.Layer
	var trees []*fstree.Tree
	for i := range 2 {
		name, b, err := w.newBranch()
		must(err)
		s := &subject{target: target{b: b}, w: w, name: name, gen: b.Generation(), bases: map[uint64]*fstree.Tree{}}
		must(s.checkBases())
		first, scratch := filepath.Join(top, fmt.Sprint("first", i)), filepath.Join(top, fmt.Sprint("scratch", i))
		must(os.Mkdir(first, 0o755))
		must(os.Mkdir(scratch, 0o755))
		must(fstree.Copy(base, first))
		r := twin.New(tb, s, twin.Options{Base: first, BaseRef: "0", Scratch: scratch, Every: 16, AnyLine: true, At: fstree.Exact, Exact: fstree.Exact})
		r.Do(steps)
		must(s.checkBuilt())
		must(s.checkBases())
		r.Close()
		heads, trees = append(heads, s.b.HeadLayer()), append(trees, treeOf(&s.b.View))
		must(s.diffLines(heads, trees))
	}
}

// diffLines compares what branches show that are built on different generations of the base.
func (s *subject) diffLines(heads []layers.Layer, trees []*fstree.Tree) error {
	for i, from := range heads {
		for j, to := range heads {
			changes, err := s.Diff(ref(from), ref(to))
			if err != nil {
				return err
			}
			if problems := twin.DiffProblems(trees[i], trees[j], changes); len(problems) > 0 {
				return fmt.Errorf("diff of %d and %d, in other lines:\n  %s\nit says:\n  %v", from, to, strings.Join(problems, "\n  "), changes)
			}
		}
	}
	return nil
}

var _ twin.Committer = (*subject)(nil)
