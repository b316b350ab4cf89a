package twin

import (
	"fmt"
	"strings"

	"github.com/rewindfs/rewindfs/internal/fsops"
)

// now makes a state of the present, which compare has just described.
func (r *Run) now(ref string) *state {
	return &state{ref: ref, parent: r.under, plain: r.copyOf(r.dir), tree: r.lastTree}
}

// seal makes a checkpoint while pages of the held mappings are dirty: what was
// stored to them before is in it.
func (r *Run) seal() {
	r.compare()
	if r.opt.Maps {
		for slot := range fsops.Slots {
			o := fsops.Op{Kind: fsops.MDirty, Slot: slot, Off: 10, Len: 30, Seed: uint64(r.ops)}
			if want, got := r.plain.Do(o), r.sub.Do(o); want != got {
				r.fatalf("%v\n  plain:   %v\n  subject: %v", o, want, got)
			}
		}
	}
	ref, err := r.sub.Seal()
	r.note("seal: %s", ref)
	r.check(err, "seal")
	if r.opt.Maps {
		for slot := range fsops.Slots { // the plain twin's pages are still dirty
			o := fsops.Op{Kind: fsops.MSync, Slot: slot}
			r.plain.Do(o)
			r.sub.Do(o)
		}
	}
	r.compare()
	r.under = r.now(ref)
	r.states = append(r.states, r.under)
	r.leave(r.under)
	r.same(r.lastTree, r.tree(), r.opt.Exact, "the tree when sealed", "the tree after sealing")
}

// reachable lists the states that Move may name.
func (r *Run) reachable() []*state {
	var out []*state
	if r.opt.AnyLine {
		for _, s := range r.states {
			if !s.gone {
				out = append(out, s)
			}
		}
		return out
	}
	for s := r.under; s != nil; s = s.parent {
		if s.ref != "" && !s.gone {
			out = append(out, s)
		}
	}
	return out
}

// collect has the subject forget some states. What it shows stays as it is, and nothing
// leads to them any more.
func (r *Run) collect(pick int) {
	r.compare()
	byRef := map[string]*state{}
	var refs []string
	for _, s := range r.states[1:] { // not the base
		if s.ref != "" && !s.gone {
			byRef[s.ref] = s
			refs = append(refs, s.ref)
		}
	}
	gone, err := r.sub.(Collector).Collect(pick, refs)
	r.note("collect: %v of %v", gone, refs)
	r.check(err, "collect")
	for _, ref := range gone {
		byRef[ref].gone = true
		if _, err := r.sub.At(ref); err == nil {
			r.fatalf("state %s, which was forgotten, can be looked at", ref)
		}
	}
	r.same(r.lastTree, r.tree(), r.opt.Exact, "the tree before the collection", "the tree after it")
}

// commit changes the base below everything.
func (r *Run) commit(pick int) {
	r.compare()
	err := r.sub.(Committer).Commit(pick)
	r.note("commit %d", pick)
	r.check(err, "commit")
	r.same(r.lastTree, r.tree(), r.opt.Exact, "the tree before the commit", "the tree after it")
}

func (r *Run) move(pick int) {
	list := r.reachable()
	r.moveTo(list[pick%len(list)])
}

func (r *Run) moveTo(s *state) {
	r.compare()
	left, moved, err := r.sub.Move(s.ref)
	r.note("move to %s, left %q", s.ref, left)
	r.check(err, "move")
	if moved {
		was := r.now(left)
		if left != "" {
			r.states = append(r.states, was)
		}
		if to := r.leave(was); to != s {
			r.fatalf("the move led elsewhere: %+v", to)
		}
	}
	r.arrive(s)
	r.under = s
}

// leave remembers the state that the last movement left, or checks that it is still what
// it was, and returns the one that it led to.
func (r *Run) leave(was *state) *state {
	left, to := r.sub.Moved()
	if same := r.named[left]; same != nil {
		r.same(same.tree, was.tree, r.opt.Exact, left+" as it was", left+" as it was left")
	} else {
		r.named[left] = was
	}
	s := r.named[to]
	if s == nil {
		r.fatalf("a movement from %s led to %s, which there never was", left, to)
	}
	return s
}

// arrive checks that the subject shows s, and puts the plain directory there.
func (r *Run) arrive(s *state) {
	r.same(s.tree, r.tree(), r.opt.Exact, "the tree that comes back", "the tree after the move")
	if p := r.sub.HeldProblems(s.tree); len(p) > 0 {
		r.fatalf("what was held over the move:\n  %s", strings.Join(p, "\n  "))
	}
	r.dropQuietly()
	r.setPlain(s.plain)
	r.compare()
}

func (r *Run) undoOrRedo(name string, do func() (bool, error)) {
	r.compare()
	r.note("%s", name)
	ok, err := do()
	r.check(err, name)
	if !ok {
		return
	}
	s := r.leave(r.now(""))
	r.arrive(s)
	r.under = s
}

func (r *Run) reopen() {
	r.note("reopen")
	r.endWatches()
	r.compare()
	r.sub.DropSlots()
	r.plain.DropSlots()
	r.check(r.sub.Reopen(), "reopen")
	r.same(r.lastTree, r.tree(), r.opt.Exact, "the tree before closing", "the tree after opening again")
	r.lastTree, r.lastPlain = nil, nil
}

// checkStates holds every sealed state that has a name against what it was.
func (r *Run) checkStates() {
	for _, s := range r.reachable() {
		got, err := r.sub.At(s.ref)
		r.check(err, "look at "+s.ref)
		r.same(s.tree, got, r.opt.At, fmt.Sprintf("%s when it was sealed", s.ref), fmt.Sprintf("%s now", s.ref))
	}
}
