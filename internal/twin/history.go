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
	r.same(r.lastTree, r.tree(), r.opt.Exact, "the tree when sealed", "the tree after sealing")
}

// reachable lists the states that Move may name.
func (r *Run) reachable() []*state {
	if r.opt.AnyLine {
		return r.states
	}
	var out []*state
	for s := r.under; s != nil; s = s.parent {
		if s.ref != "" {
			out = append(out, s)
		}
	}
	return out
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
		r.fold()
		r.undo = append(r.undo, was)
	}
	r.arrive(s)
	r.under = s
}

// fold makes the states that undo and redo came from part of the way back: a new
// rollback leaves them behind, and nothing is ever lost.
func (r *Run) fold() {
	for i := len(r.undone) - 1; i >= 0; i-- {
		r.undo = append(r.undo, r.undone[i])
	}
	r.undo = append(r.undo, r.redo...)
	r.undone, r.redo = nil, nil
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

func (r *Run) undoOrRedo(name string, from, to *[]*state, do func() error) {
	if len(*from) == 0 {
		return
	}
	r.compare()
	n := len(*from) - 1
	s := (*from)[n]
	r.note("%s", name)
	r.check(do(), name)
	*to = append(*to, r.now(""))
	*from = (*from)[:n]
	if name == "undo" {
		r.undone = append(r.undone, s)
	} else {
		r.undone = r.undone[:len(r.undone)-1]
	}
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
