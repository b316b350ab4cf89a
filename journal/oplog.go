package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// OpKind is what an operation did.
type OpKind string

// The kinds of operation. Rollback, undo and redo move the head. A restore, which brought paths of
// the checkpoint Label back, counts as a movement, too: from what it sealed to the head above it; so does a merge,
// which brought what the branch Label changed, and a command Label that was run on top of From and changed something
// (only the newest maxRuns in a row, because gc keeps what undo leads to). A fork makes the branch, on top of
// To; dropping it ends its history, and seals its head From.
const (
	OpMount      OpKind = "mount"
	OpCheckpoint OpKind = "checkpoint"
	OpRollback   OpKind = "rollback"
	OpUndo       OpKind = "undo"
	OpRedo       OpKind = "redo"
	OpRestore    OpKind = "restore"
	OpMerge      OpKind = "merge"
	OpRun        OpKind = "run"
	OpFork       OpKind = "fork"
	OpDropBranch OpKind = "drop_branch"
	OpImport     OpKind = "import"      // like a fork, on top of what an archive brought
	OpForgetUndo OpKind = "forget_undo" // nothing before it can be taken back; the head stays
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
	// Untouched: nothing was changed in From, so it equals Same, the layer below it.
	// Head movements say so.
	Untouched bool
	Same      uint64
	// Live is the conversation that was live in From when it was left; nil for none.
	// Head movements say so.
	Live *Conversation
	// Targets are what targets outside of the mount held when From was left, as far as the movement put others back.
	Targets []Copy
	// FilesOnly: the conversation went on as it was; to take the movement back leaves it alone, too.
	FilesOnly bool
	Steps     int // for undo and redo: how many steps
	Label     string
	At        time.Time
}

type opRecord struct {
	V      int           `json:"v"`
	N      uint64        `json:"op"`
	Kind   OpKind        `json:"kind"`
	Branch string        `json:"branch"`
	From   uint64        `json:"from"`
	To     uint64        `json:"to"`
	Open   uint64        `json:"open"`
	Same   *uint64       `json:"same,omitempty"` // missing when something was changed, and in records from before there was this
	Live   *Conversation `json:"live,omitempty"`
	Target []Copy        `json:"targets,omitempty"`
	Files  bool          `json:"files_only,omitempty"`
	Steps  int           `json:"steps,omitempty"`
	Label  string        `json:"label,omitempty"`
	At     time.Time     `json:"at"`
}

func encodeOp(op *Op) ([]byte, error) {
	r := opRecord{
		V: recordVersion, N: op.N, Kind: op.Kind, Branch: op.Branch, From: op.From,
		To: op.To, Open: op.Open, Live: op.Live, Target: op.Targets, Files: op.FilesOnly, Steps: op.Steps, Label: op.Label, At: op.At.UTC(),
	}
	if op.Untouched {
		r.Same = &op.Same
	}
	b, err := json.Marshal(r)
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
	op := Op{N: r.N, Kind: r.Kind, Branch: r.Branch, From: r.From, To: r.To, Open: r.Open, Live: r.Live, Targets: r.Target, FilesOnly: r.Files, Steps: r.Steps, Label: r.Label, At: r.At}
	if r.Same != nil {
		op.Untouched, op.Same = true, *r.Same
	}
	return op, nil
}

// Step is a state that a head movement left, and that undo or redo can go back to:
// layer Back, left by a movement of kind By that was about Label.
type Step struct {
	Back      uint64
	By        OpKind
	Label     string
	Untouched bool // it was left as it was found
	FilesOnly bool // by a movement that left the conversation alone: to go back does, too
	Live      *Conversation
	Targets   []Copy // what they held then
}

// left is the state that op left. One in which nothing was changed is not a place of
// its own: it is the one below it.
func (op *Op) left() Step {
	s := Step{Back: op.From, By: op.Kind, Label: op.Label, Untouched: op.Untouched, FilesOnly: op.FilesOnly, Live: op.Live, Targets: op.Targets}
	if s.Untouched {
		s.Back = op.Same
	}
	return s
}

// place tells apart what undo can lead to: the layer, and what targets outside of the mount held.
func (s *Step) place() string {
	at := strconv.FormatUint(s.Back, 10)
	for i := range s.Targets {
		at += "\x00" + s.Targets[i].Key() + "\x00" + s.Targets[i].Digest
	}
	return at
}

// walk is the place of one branch in its history of head movements, as in an
// editor, except that nothing is ever lost. All states that were changed and then
// left by a movement are in undo, redo or taken; the next rollback makes one way of
// them, which undo goes back. Steps next to each other differ, and the newest of undo
// and of redo differ from what the head stands on: no step leads nowhere.
type walk struct {
	undo  []Step // newest last: undoing goes back to its Back
	redo  []Step // newest last: redoing goes back to its Back
	taken []Step // what undo and redo went back to since the last rollback, newest last
	low   int    // undo[:low] is as the last rollback left it
}

func (w *walk) apply(op Op) {
	switch op.Kind {
	case OpRollback, OpRestore, OpMerge:
		w.fold()
		w.push(op.left())
		w.low = len(w.undo)
	case OpRun:
		w.fold()
		w.pushRun(op.left())
		w.low = len(w.undo)
	case OpFork, OpDropBranch, OpImport, OpForgetUndo:
		*w = walk{} // of another branch that had the name, nothing can be taken back
	case OpUndo:
		path := take(&w.undo, stepsOf(op, w.undo))
		w.redo = append(w.redo, wayBack(op.left(), path)...)
		w.taken = append(w.taken, path...)
		w.low = min(w.low, len(w.undo))
	case OpRedo:
		path := take(&w.redo, stepsOf(op, w.redo))
		w.undo = append(w.undo, wayBack(op.left(), path)...)
		for _, s := range path {
			if !s.Untouched {
				w.taken = append(w.taken, s)
			}
		}
	}
}

// stepsOf is how many steps of s the undo or redo op took: what it says, or more, if
// that does not lead to where it went. Older versions forgot states that are kept now.
func stepsOf(op Op, s []Step) int {
	for n := max(op.Steps, 1); n <= len(s); n++ {
		if s[len(s)-n].Back == op.To {
			return n
		}
	}
	return op.Steps
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

// wayBack is the way back over path for one who was at left before: in the other
// direction each state comes before the one it came after, and the movement that led to it is made again.
func wayBack(left Step, path []Step) []Step {
	if len(path) == 0 {
		return nil
	}
	back := append([]Step{left}, path[:len(path)-1]...)
	for i := range back {
		back[i].FilesOnly = path[i].FilesOnly
		if i > 0 {
			back[i].Targets = AndAlso(back[i].Targets, back[i-1].Targets)
		}
	}
	return back
}

// fold makes what was undone part of the way that undo goes, because a new rollback
// leaves it behind: first the movements as they were, then the states that the undos left, as
// far as something was changed in them.
func (w *walk) fold() {
	have := map[string]bool{}
	for _, s := range w.undo[w.low:] {
		have[s.place()] = true
	}
	add := func(s Step) {
		if !have[s.place()] {
			have[s.place()] = true
			s.FilesOnly = false // as a place of its own it is whole
			w.push(s)
		}
	}
	for _, s := range slices.Backward(w.taken) {
		add(s)
	}
	for _, s := range w.redo {
		if !s.Untouched {
			add(s)
		}
	}
	w.taken, w.redo = nil, nil
}

// sameTalk reports whether two states have the same conversation.
func sameTalk(a, b *Conversation) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Digest == b.Digest && a.State == b.State && maps.EqualFunc(a.Threads, b.Threads, func(x, y Conversation) bool {
		return x.Digest == y.Digest && x.State == y.State
	})
}

// push adds s to the way that undo goes. Of one state left twice in a row the later time counts.
func (w *walk) push(s Step) {
	if n := len(w.undo); n > 0 && w.undo[n-1].Back == s.Back && sameTalk(w.undo[n-1].Live, s.Live) && sameCopies(w.undo[n-1].Targets, s.Targets) {
		w.undo[n-1].By, w.undo[n-1].Label, w.undo[n-1].Live, w.undo[n-1].FilesOnly = s.By, s.Label, s.Live, s.FilesOnly
		return
	}
	w.undo = append(w.undo, s)
}

// maxRuns is how many commands in a row undo goes back over one by one.
const maxRuns = 10

// pushRun adds the state in front of a command. One that began before others, and ended after them, takes their place.
func (w *walk) pushRun(s Step) {
	w.undo = slices.DeleteFunc(w.undo, func(t Step) bool { return t.By == OpRun && t.Back > s.Back })
	w.push(s)
	oldest := len(w.undo) - 1 - maxRuns
	if oldest < 0 {
		return
	}
	for _, t := range w.undo[oldest:] {
		if t.By != OpRun {
			return
		}
	}
	w.undo = slices.Delete(w.undo, oldest, oldest+1)
}

// MovedSince reports whether the head of branch was moved since the checkpoint was made that sealed layer; true, too, if
// that is not known any more.
func (j *Journal) MovedSince(branch string, layer uint64) bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for _, op := range slices.Backward(j.ops) {
		switch {
		case op.Branch != branch || op.Kind == OpMount || op.Kind == OpRun:
		case op.Kind != OpCheckpoint:
			return true
		case op.From == layer:
			return false
		}
	}
	return true
}

// HasRun reports whether the log of branch has the command that began when the checkpoint was made that sealed layer.
func (j *Journal) HasRun(branch string, layer uint64) bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for _, op := range slices.Backward(j.ops) {
		switch {
		case op.Branch != branch:
		case op.Kind == OpRun && op.From == layer:
			return true
		case op.Open == layer: // it was not sealed yet
			return false
		}
	}
	return false
}

// Undo returns where the head of branch goes when it is taken back n steps: the
// states gone over, newest first; the last one's Back is the target. The
// index does not change until an OpUndo is committed.
func (j *Journal) Undo(branch string, n int) ([]Step, error) {
	return j.steps(branch, n, "undo", func(w *walk) []Step { return w.undo })
}

// Redo is Undo for the other direction, over what undos left.
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
	out := slices.Clone(have[len(have)-n:])
	slices.Reverse(out)
	return out, nil
}

// Steps returns how many steps of branch undo and redo can go.
func (j *Journal) Steps(branch string) (undo, redo int) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if w := j.walks[branch]; w != nil {
		undo, redo = len(w.undo), len(w.redo)
	}
	return undo, redo
}

// Movers lists the branches in which undo or redo can go somewhere.
func (j *Journal) Movers() (out []string) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for branch, w := range j.walks {
		if len(w.undo)+len(w.redo)+len(w.taken) > 0 {
			out = append(out, branch)
		}
	}
	slices.Sort(out)
	return out
}

// LastFork returns the operation that made branch, be it an import; false for main.
func (j *Journal) LastFork(branch string) (Op, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for i := len(j.ops) - 1; i >= 0; i-- {
		if op := &j.ops[i]; op.Branch == branch && (op.Kind == OpFork || op.Kind == OpImport) {
			return *op, true
		}
	}
	return Op{}, false
}

// Reachable returns the layers that undo and redo may lead to, of all branches, in no
// order: they must be kept.
func (j *Journal) Reachable() []uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	var out []uint64
	for _, w := range j.walks {
		for _, steps := range [][]Step{w.undo, w.redo, w.taken} {
			for _, s := range steps {
				out = append(out, s.Back)
			}
		}
	}
	return out
}
