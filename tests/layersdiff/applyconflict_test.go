package layersdiff

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
)

// TestApplyConflicts changes the base by hand between what the layers were built on and a commit. Each change that meets one of
// the layers is a conflict by its path; none is overwritten; the others stay.
func TestApplyConflicts(t *testing.T) {
	runApplied(t, 60, meeting, func(s *applied, steps []twin.Step) {
		for _, step := range steps {
			if step.Ctl == twin.Commit {
				s.meet(step.Pick)
				return
			}
			s.step(step)
		}
	})
}

var meeting = twin.Plan{Lo: 10, Hi: 60, Chance: map[twin.Ctl]int{twin.Seal: 20, twin.Commit: 80}}

// meet changes the host as pick says, and commits the head.
func (s *applied) meet(pick int) {
	sealed, err := s.target.b.Seal(nil)
	s.must(err)
	v, err := s.w.tree.View(sealed.Layer)
	s.must(err)
	defer v.Close()
	want, before := treeOf(v), s.scan()
	s.must(changeHost(s.w.base, hostOps.Example(pick)))
	s.w.tree.BaseChanged() // the kernel's part in noticing it
	now, shown := s.scan(), treeOf(v)
	r := apply.Request{Layer: sealed.Layer, Branch: "main", Special: true}
	c, err := s.applier().PlanBase(context.Background(), r, apply.Record{})
	s.must(err)
	c.Close()
	named := map[string]bool{}
	for _, l := range c.Left {
		if l.Status == "conflict" {
			named[l.Path] = true
		}
	}
	meets := false
	for p := range union(before, now, want) {
		b, n, w := before.Entries[p], now.Entries[p], want.Entries[p]
		if alike(b, n) || alike(b, w) || alike(n, w) || !alike(w, shown.Entries[p]) || n != nil && n.IsDir() || moved(n, shown) {
			continue
		}
		meets = true
		if !under(named, p) {
			s.tb.Fatalf("no conflict: %q was %+v, is %+v, the checkpoint has %+v\nplan: %+v\nleft: %+v", p, b, n, w, c.Changes, c.Left)
		}
	}
	if meets != c.Conflicts() && meets {
		s.tb.Fatalf("the plan has no conflicts")
	}
	r.OnConflict = apply.Theirs
	if c, err = s.applier().PlanBase(context.Background(), r, apply.Record{}); err != nil {
		s.tb.Fatalf("%v", err)
	}
	defer c.Close()
	err = c.Do(context.Background(), nil, nil)
	if race := new(apply.ConflictError); errors.As(err, &race) && strings.Contains(race.Reason, "lost") {
		if problems := fstree.Diff(now, s.scan(), fstree.Fields{Nlink: true, Mtime: true, Ino: true}, "before", "after"); len(problems) > 0 {
			s.tb.Fatalf("a commit that cannot be changed the host:\n%s", strings.Join(problems, "\n"))
		}
		return
	}
	s.must(err)
	after := s.scan()
	for p := range union(before, now, want, after) {
		b, n, w, a := before.Entries[p], now.Entries[p], want.Entries[p], after.Entries[p]
		switch {
		case !alike(b, n) && !alike(n, a) && !moved(n, after) && !alike(shown.Entries[p], a):
			s.tb.Fatalf("a change on the host is lost: %q was %+v, then %+v, is %+v\nplan: %+v\nleft: %+v", p, b, n, a, c.Changes, c.Left)
		case !alike(a, n) && !alike(a, w) && !alike(a, shown.Entries[p]):
			s.tb.Fatalf("%q was %+v, the checkpoint has %+v, and it is %+v", p, n, w, a)
		case alike(b, n) && alike(b, w) && !alike(a, b) && !alike(a, shown.Entries[p]):
			s.tb.Fatalf("%q, which nobody changed, was %+v, and is %+v", p, b, a)
		}
	}
}

func union(trees ...*fstree.Tree) map[string]bool {
	all := map[string]bool{}
	for _, t := range trees {
		for p, e := range t.Entries {
			if p != "." && e.Type() != unix.S_IFSOCK {
				all[p] = true
			}
		}
	}
	return all
}

// under reports whether p or a directory above it is in set.
func under(set map[string]bool, p string) bool {
	for ; p != "."; p = filepath.Dir(p) {
		if set[p] {
			return true
		}
	}
	return false
}

// alike compares objects without times, links and numbers.
func alike(a, b *fstree.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.Nlink, y.Nlink, x.Path, y.Path = 1, 1, "", ""
	s, t := fstree.New(), fstree.New()
	s.Add(&x)
	t.Add(&y)
	return len(fstree.Diff(s, t, fstree.Fields{}, "", "")) == 0
}

// moved reports whether an object shows somewhere in a tree: a directory that the layers only moved brings along what the host
// has since put into it.
func moved(e *fstree.Entry, in *fstree.Tree) bool {
	if e == nil {
		return false
	}
	for _, o := range in.Entries {
		if alike(e, o) {
			return true
		}
	}
	return false
}
