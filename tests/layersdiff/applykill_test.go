package layersdiff

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// errKilled is what a commit gets from the point on where it is killed.
var errKilled = errors.New("killed")

// TestApplyKilled kills commits and undos in front of a call, at another one in each sequence, and sometimes what the next start does about it, too.
// Then the host is as it was or as it was to be, path by path, and after the next start as a whole; nothing is left in it.
func TestApplyKilled(t *testing.T) {
	runApplied(t, 40, killed, func(s *applied, steps []twin.Step) {
		for i, step := range steps {
			if step.Ctl == twin.Commit {
				s.kill(step.Pick, i%4 == 0)
			} else {
				s.step(step)
			}
		}
	})
}

var killed = twin.Plan{
	Ops: fsops.GenOptions{}, Lo: 20, Hi: 60,
	Chance: map[twin.Ctl]int{twin.Move: 20, twin.Commit: 120},
}

// kill commits the head, or takes the last commit back, and stops it in front of a call that pick chooses.
func (s *applied) kill(pick int, undo bool) {
	undo = undo && len(s.befores) > 0
	sealed, err := s.target.b.Seal(nil)
	s.must(err)
	s.seals = append(s.seals, sealed.Layer)
	v, err := s.w.tree.View(sealed.Layer)
	s.must(err)
	want, before := treeOf(v), s.scan()
	v.Close()
	if undo {
		want = s.befores[len(s.befores)-1]
	}
	var left atomic.Int64 // calls until the end
	left.Store(int64(pick % 70))
	stop := func(string, string) error {
		if left.Add(-1) < 0 {
			return errKilled
		}
		return nil
	}
	a := s.applier()
	a.StopAt(stop)
	c, err := s.planKilled(a, sealed.Layer, undo)
	s.must(err)
	if c.Conflicts() {
		s.tb.Fatalf("conflicts: %+v", c.Left)
	}
	err = c.Do(context.Background(), nil, nil)
	noop := c.Noop()
	c.Close()
	if err != nil && !errors.Is(err, errKilled) {
		s.tb.Fatalf("%v", err)
	}
	s.oldOrNew(before, want)
	s.must(s.w.reopen())
	if pick%3 == 0 {
		s.flatten()
	}
	for n := pick % 11; ; n = 1000 { // a start that is killed, too, and another one
		left.Store(int64(n))
		a := s.applier()
		a.StopAt(stop)
		_, rerr := a.Recover(nil)
		if rerr == nil {
			break
		}
		if !errors.Is(rerr, errKilled) {
			s.tb.Fatalf("recover: %v", rerr)
		}
		s.oldOrNew(before, want)
		s.must(s.w.reopen())
	}
	s.branch()
	s.checkEnd(before, want, undo, noop, err == nil)
}

// flatten makes of a commit that was cut off what a version of the program would have left that had all objects in the stage itself.
func (s *applied) flatten() {
	key := kv.Meta("commit")
	v, ok, err := s.w.db.Get(key)
	s.must(err)
	if !ok {
		return
	}
	var j map[string]json.RawMessage
	s.must(json.Unmarshal(v, &j))
	j["v"] = json.RawMessage("1")
	v, err = json.Marshal(j)
	s.must(err)
	var b kv.Batch
	b.Put(key, v)
	s.must(s.w.db.Apply(&b))
	dirs, err := filepath.Glob(filepath.Join(s.w.base, layers.StagePrefix+"*", "*"))
	s.must(err)
	for _, dir := range dirs {
		objects, err := os.ReadDir(dir)
		s.must(err)
		for _, o := range objects {
			s.must(os.Rename(filepath.Join(dir, o.Name()), filepath.Join(filepath.Dir(dir), o.Name())))
		}
		s.must(os.Remove(dir))
	}
}

func (s *applied) planKilled(a *apply.Applier, l layers.Layer, undo bool) (*apply.Commit, error) {
	r := apply.Request{Layer: l, Branch: "main", Special: true}
	if undo {
		return a.PlanUndo(context.Background(), r, apply.Record{})
	}
	return a.PlanBase(context.Background(), r, apply.Record{})
}

// checkEnd holds what is there after the next start against what may be.
func (s *applied) checkEnd(before, want *fstree.Tree, undo, noop, done bool) {
	now := s.scan()
	for p := range now.Entries {
		if strings.HasPrefix(p, layers.StagePrefix) {
			s.tb.Fatalf("%q is left on the host", p)
		}
	}
	records, err := apply.Records(s.w.db)
	s.must(err)
	made := len(records) > len(s.befores)
	if undo {
		made = len(records) < len(s.befores)
	}
	if done && !made && !noop {
		s.tb.Fatalf("a commit that came to its end is not known")
	}
	for _, prefix := range [][]byte{kv.CommitStepsPrefix(), kv.Meta("commit")} {
		_ = s.w.db.Scan(prefix, nil, func(k, _ []byte) bool {
			if string(prefix) == string(k) || !made && !noop && string(prefix) == "m/commit" {
				s.tb.Fatalf("record %q is left", k)
			}
			return true
		})
	}
	c := &apply.Commit{}
	switch {
	case !made:
		s.compare(before, now, "host before", "host after the next start", c)
	case undo:
		s.compare(want, now, "host before the commit", "host after its undo", c)
		s.befores = s.befores[:len(s.befores)-1]
	default:
		s.befores = append(s.befores, before)
		s.compare(want, now, "checkpoint", "host", c)
	}
}

// oldOrNew checks that each path shows what was there before or what is to be there.
func (s *applied) oldOrNew(before, want *fstree.Tree) {
	f := fstree.Fields{Mtime: true}
	for p, e := range s.scan().Entries {
		if strings.HasPrefix(p, layers.StagePrefix) || e.IsDir() {
			continue
		}
		is := func(t *fstree.Tree) bool {
			o := t.Entries[p]
			if o == nil {
				return false
			}
			a, b := fstree.New(), fstree.New()
			one, two := *o, *e
			one.Nlink, two.Nlink = 1, 1
			a.Add(&one)
			b.Add(&two)
			return len(fstree.Diff(a, b, f, "", "")) == 0
		}
		if !is(before) && !is(want) {
			s.tb.Fatalf("%q is neither what it was nor what it is to be: %+v, was %+v, is to be %+v", p, e, before.Entries[p], want.Entries[p])
		}
	}
}
