package twin

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Subject is the file system under test, on one branch.
type Subject interface {
	fsops.Target
	// Tree describes what it shows now.
	Tree() (*fstree.Tree, error)
	// Seen reads a held directory to its end, as fsops.Dir.Seen.
	Seen(slot int) ([]string, bool)
	// DropSlots lets go of what is held.
	DropSlots()
	// HeldProblems says how what is held contradicts tree, which the subject
	// has just been rolled back to.
	HeldProblems(tree *fstree.Tree) []string
	History
}

// History is the part of a subject that moves between states. A reference names
// a sealed state.
type History interface {
	// Seal makes a checkpoint.
	Seal() (ref string, err error)
	// Move goes back (or forth) to a checkpoint. left names the state that was
	// left, if the subject can go there again by name; moved is false if it was
	// there already, with no change.
	Move(ref string) (left string, moved bool, err error)
	// Undo goes back to a state that a move left, Redo to one that an undo left; in which
	// order is the subject's business. They report whether there was one.
	Undo() (bool, error)
	Redo() (bool, error)
	// Moved names the state that the last Seal, Move, Undo or Redo left, and the one that
	// it led to (before the first: where it starts). States of one name are the same.
	Moved() (left, to string)
	// Reopen closes everything and opens it again.
	Reopen() error
	// At describes a checkpoint without moving there.
	At(ref string) (*fstree.Tree, error)
}

// Collector is a subject that can be told to forget states, so that what only they need goes.
type Collector interface {
	// Collect forgets some of the states in refs; pick makes the choice. It returns
	// which: they are gone, and neither Undo nor Redo led to them.
	Collect(pick int, refs []string) (gone []string, err error)
}

// Committer is a History whose base can be changed.
type Committer interface {
	// Commit changes the base, in a way that pick chooses. Of what there is, nothing may show that.
	Commit(pick int) error
}

// Step is an operation or, when Ctl is set, a move in history.
type Step struct {
	Op   fsops.Op
	Ctl  Ctl
	Pick int // chooses among the states
}

// GoString keeps rapid's reports short.
func (s Step) GoString() string {
	if s.Ctl != "" {
		return fmt.Sprintf("{%s %d}", s.Ctl, s.Pick)
	}
	return s.Op.String()
}

// Ctl is a move in history.
type Ctl string

// The moves in history.
const (
	Seal   Ctl = "seal"
	Move   Ctl = "move"
	Undo   Ctl = "undo"
	Redo   Ctl = "redo"
	Reopen Ctl = "reopen"
	// Collect is for a Collector, Commit for a Committer, Restore for a Restorer.
	Collect Ctl = "collect"
	Commit  Ctl = "commit"
	Restore Ctl = "restore"
)

// Plan says what Steps draws.
type Plan struct {
	Ops    fsops.GenOptions
	Lo, Hi int         // how many operations
	Chance map[Ctl]int // of each move, in 1000 steps
}

// controls makes the choice independent of map order.
var controls = []Ctl{Seal, Move, Undo, Redo, Reopen, Collect, Commit, Restore}

// Steps draws sequences.
func Steps(p Plan) *rapid.Generator[[]Step] {
	ops := fsops.GenSequence(p.Ops, p.Lo, p.Hi)
	return rapid.Custom(func(t *rapid.T) []Step {
		var out []Step
		for _, o := range ops.Draw(t, "ops") {
			s := Step{Op: o}
			n := 999 - fsops.Uniform(t, 1000) // small draws, which rapid shrinks to, are operations
			for _, c := range controls {
				if n < p.Chance[c] {
					s = Step{Ctl: c, Pick: fsops.Uniform(t, 1000)}
					break
				}
				n -= p.Chance[c]
			}
			out = append(out, s)
		}
		return out
	})
}
