package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// OpKind is what an operation did.
type OpKind string

// The kinds of operation. Rollback, undo and redo move the head.
const (
	OpMount      OpKind = "mount"
	OpCheckpoint OpKind = "checkpoint"
	OpRollback   OpKind = "rollback"
	OpUndo       OpKind = "undo"
	OpRedo       OpKind = "redo"
)

// ErrNothing is returned when there is nothing to undo or redo.
var ErrNothing = errors.New("nothing to take back")

// Op is one record of the operation log. From is the layer that the head was
// left in (sealed by the operation), To the layer it moved onto, Open the new head.
type Op struct {
	N      uint64
	Kind   OpKind
	Branch string
	From   uint64
	To     uint64
	Open   uint64
	Steps  int // for undo and redo: how many movements
	Label  string
	At     time.Time
}

type opRecord struct {
	V      int       `json:"v"`
	N      uint64    `json:"op"`
	Kind   OpKind    `json:"kind"`
	Branch string    `json:"branch"`
	From   uint64    `json:"from"`
	To     uint64    `json:"to"`
	Open   uint64    `json:"open"`
	Steps  int       `json:"steps,omitempty"`
	Label  string    `json:"label,omitempty"`
	At     time.Time `json:"at"`
}

func encodeOp(op *Op) ([]byte, error) {
	b, err := json.Marshal(opRecord{
		V: recordVersion, N: op.N, Kind: op.Kind, Branch: op.Branch, From: op.From,
		To: op.To, Open: op.Open, Steps: op.Steps, Label: op.Label, At: op.At.UTC(),
	})
	if err != nil {
		return nil, fmt.Errorf("encode operation %d: %w", op.N, err)
	}
	return b, nil
}

func decodeOp(b []byte) (Op, error) {
	var r opRecord
	if err := decodeRecord(b, &r, func() int { return r.V }); err != nil {
		return Op{}, err
	}
	return Op{N: r.N, Kind: r.Kind, Branch: r.Branch, From: r.From, To: r.To, Open: r.Open, Steps: r.Steps, Label: r.Label, At: r.At}, nil
}

// Step is a head movement that undo or redo goes back over: Back is the layer to
// return to, Label what the movement was about.
type Step struct {
	Back  uint64
	Label string
}

// walk is the place of one branch in its history of head movements, as in an
// editor, except that nothing is ever lost: each movement sealed the
// state it left, and a rollback after an undo keeps the undone states reachable.
type walk struct {
	undo   []Step // newest last: undoing goes back to its Back
	redo   []Step // newest last: redoing goes back to its Back
	undone []Step // what undo took off w.undo, newest last; pairs with redo
}

func (w *walk) apply(op Op) {
	switch op.Kind {
	case OpRollback:
		w.fold()
		w.undo = append(w.undo, Step{Back: op.From, Label: op.Label})
	case OpUndo:
		taken := take(&w.undo, op.Steps)
		w.undone = append(w.undone, taken...)
		w.redo = append(w.redo, reverseSteps(op.From, taken)...)
	case OpRedo:
		taken := take(&w.redo, op.Steps)
		take(&w.undone, op.Steps)
		w.undo = append(w.undo, reverseSteps(op.From, taken)...)
	}
}

// take removes the last n steps of s and returns them, last first.
func take(s *[]Step, n int) []Step {
	n = min(n, len(*s))
	out := make([]Step, 0, n)
	for range n {
		last := len(*s) - 1
		out = append(out, (*s)[last])
		*s = (*s)[:last]
	}
	return out
}

// reverseSteps is the way back over the taken steps for one who was at layer from
// before: over the first of them back to from, over the second back to where the first went.
func reverseSteps(from uint64, taken []Step) []Step {
	out := make([]Step, len(taken))
	for i, s := range taken {
		out[i] = Step{Back: from, Label: s.Label}
		from = s.Back
	}
	return out
}

// fold makes undone movements part of the way that undo goes, because a new
// rollback leaves them behind: first the movements as they were, then the states
// that the undos left.
func (w *walk) fold() {
	have := map[uint64]bool{}
	add := func(s Step) {
		if !have[s.Back] {
			have[s.Back] = true
			w.undo = append(w.undo, s)
		}
	}
	for i := len(w.undone) - 1; i >= 0; i-- {
		add(w.undone[i])
	}
	for _, s := range w.redo {
		add(s)
	}
	w.undone, w.redo = nil, nil
}

// Undo returns where the head of branch goes when its last n movements are taken
// back: the steps gone over, newest first; the last one's Back is the target. The
// index does not change until an OpUndo is committed.
func (j *Journal) Undo(branch string, n int) ([]Step, error) {
	return j.steps(branch, n, "undo", func(w *walk) []Step { return w.undo })
}

// Redo is Undo for movements that an undo took back.
func (j *Journal) Redo(branch string, n int) ([]Step, error) {
	return j.steps(branch, n, "redo", func(w *walk) []Step { return w.redo })
}

func (j *Journal) steps(branch string, n int, verb string, pick func(*walk) []Step) ([]Step, error) {
	if n < 1 {
		return nil, fmt.Errorf("%s %d times: the number must be 1 or more", verb, n)
	}
	j.mu.RLock()
	defer j.mu.RUnlock()
	var have []Step
	if w := j.walks[branch]; w != nil {
		have = pick(w)
	}
	if len(have) < n {
		return nil, fmt.Errorf("%w: %s %d asked for, %d possible", ErrNothing, verb, n, len(have))
	}
	have = have[:len(have):len(have)]
	own := append([]Step(nil), have...)
	return take(&own, n), nil
}

// Steps returns how many movements of branch undo and redo can go over.
func (j *Journal) Steps(branch string) (undo, redo int) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if w := j.walks[branch]; w != nil {
		undo, redo = len(w.undo), len(w.redo)
	}
	return undo, redo
}
