package journal

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// head plays the part of layers: it knows the layer under the head and gives
// every state that is left a number.
type head struct {
	j    *Journal
	at   uint64 // layer under the head
	next uint64
}

func (h *head) move(kind OpKind, to uint64, steps int) uint64 {
	h.next++
	from := h.next
	h.j.Commit(nil, &Op{Kind: kind, Branch: "main", From: from, To: to, Steps: steps})
	h.at = to
	return from
}

func (h *head) undo(t *testing.T, n int) uint64 {
	t.Helper()
	steps, err := h.j.Undo("main", n)
	if err != nil {
		t.Fatal(err)
	}
	return h.move(OpUndo, steps[len(steps)-1].Back, n)
}

func (h *head) redo(t *testing.T, n int) uint64 {
	t.Helper()
	steps, err := h.j.Redo("main", n)
	if err != nil {
		t.Fatal(err)
	}
	return h.move(OpRedo, steps[len(steps)-1].Back, n)
}

func (h *head) want(t *testing.T, layer uint64) {
	t.Helper()
	if h.at != layer {
		t.Fatalf("the head is on %d, want %d", h.at, layer)
	}
}

func newHead() *head { return &head{j: newJournal(nil), next: 100} }

func TestUndoRedo(t *testing.T) {
	h := newHead()
	if _, err := h.j.Undo("main", 1); !errors.Is(err, ErrNothing) {
		t.Fatalf("undo of nothing: %v", err)
	}
	f1 := h.move(OpRollback, 1, 0)
	f2 := h.undo(t, 1)
	h.want(t, f1)
	f3 := h.redo(t, 1)
	h.want(t, f2) // with what was written after the rollback
	h.undo(t, 1)
	h.want(t, f3)
	if _, err := h.j.Undo("main", 1); !errors.Is(err, ErrNothing) {
		t.Fatalf("undo past the start: %v", err)
	}
	if _, err := h.j.Undo("main", 0); err == nil {
		t.Fatal("undo 0 was accepted")
	}
	if _, err := h.j.Undo("other", 1); !errors.Is(err, ErrNothing) {
		t.Fatal("undo crossed branches")
	}
}

func TestUndoManyIsUndoOneByOne(t *testing.T) {
	h := newHead()
	f1 := h.move(OpRollback, 3, 0)
	f2 := h.move(OpRollback, 2, 0)
	f3 := h.move(OpRollback, 1, 0)
	last := h.undo(t, 3)
	h.want(t, f1)
	h.redo(t, 1)
	h.want(t, f2)
	h.redo(t, 1)
	h.want(t, f3)
	h.redo(t, 1)
	h.want(t, last)
	if _, err := h.j.Redo("main", 1); !errors.Is(err, ErrNothing) {
		t.Fatalf("redo past the end: %v", err)
	}
	h.undo(t, 2)
	h.redo(t, 2)
	if _, err := h.j.Redo("main", 1); !errors.Is(err, ErrNothing) {
		t.Fatalf("redo past the end: %v", err)
	}
}

func TestCheckpointsDoNotDisturbUndo(t *testing.T) {
	h := newHead()
	f1 := h.move(OpRollback, 1, 0)
	h.j.Commit(nil, &Op{Kind: OpCheckpoint, Branch: "main", From: 50, Open: 51})
	f2 := h.undo(t, 1)
	h.want(t, f1)
	h.j.Commit(nil, &Op{Kind: OpCheckpoint, Branch: "main", From: 52, Open: 53})
	h.redo(t, 1)
	h.want(t, f2)
}

func TestRollbackAfterUndoLosesNothing(t *testing.T) {
	h := newHead()
	f1 := h.move(OpRollback, 1, 0)
	f2 := h.undo(t, 1)
	f3 := h.move(OpRollback, 2, 0)
	if _, err := h.j.Redo("main", 1); !errors.Is(err, ErrNothing) {
		t.Fatalf("a rollback ends redo, got %v", err)
	}
	for _, want := range []uint64{f3, f2, f1} {
		h.undo(t, 1)
		h.want(t, want)
	}
}

// A state in which nothing was changed is no step of its own: undo after a rollback
// that was undone, and made again, still leads to what was written.
func TestUntouchedStatesAreNoSteps(t *testing.T) {
	m := newModel()
	m.work()
	a := m.checkpoint()
	m.work()
	one := m.shows
	m.rollback(a)
	m.work()
	two := m.shows
	m.rollback(a)
	for _, want := range []int{two, one} {
		m.walk(t, OpUndo, 1)
		if m.shows != want {
			t.Fatalf("undo shows %d, want %d", m.shows, want)
		}
		if want == two {
			m.rollback(a)
			m.walk(t, OpUndo, 1)
		}
	}
	if _, err := m.j.Undo("main", 1); !errors.Is(err, ErrNothing) {
		t.Fatalf("undo past the first state: %v", err)
	}
	// Forward over the same states, with the checkpoint between them.
	for _, want := range []int{two, m.content[a]} {
		m.walk(t, OpRedo, 1)
		if m.shows != want {
			t.Fatalf("redo shows %d, want %d", m.shows, want)
		}
	}
}

func TestStepsSayWhatLeftTheState(t *testing.T) {
	h := newHead()
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 10, To: 1, Label: "a"})
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 11, To: 2, Label: "b"})
	steps, err := h.j.Undo("main", 2)
	if err != nil || !reflect.DeepEqual(steps[0], Step{Back: 11, By: OpRollback, Label: "b"}) || !reflect.DeepEqual(steps[1], Step{Back: 10, By: OpRollback, Label: "a"}) {
		t.Fatalf("%+v, %v", steps, err)
	}
	h.j.Commit(nil, &Op{Kind: OpUndo, Branch: "main", From: 12, To: 10, Steps: 2, Label: "a", Untouched: true, Same: 2})
	steps, err = h.j.Redo("main", 2)
	if err != nil || !reflect.DeepEqual(steps[0], Step{Back: 11, By: OpRollback, Label: "b"}) || !reflect.DeepEqual(steps[1], Step{Back: 2, By: OpUndo, Label: "a", Untouched: true}) {
		t.Fatalf("%+v, %v", steps, err)
	}
	// The same state left again, in a row: it is one step, and the last rollback is what left it.
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 13, To: 3, Label: "c", Untouched: true, Same: 10})
	h.j.Commit(nil, &Op{Kind: OpUndo, Branch: "main", From: 14, To: 10, Steps: 1, Label: "c", Untouched: true, Same: 3})
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 15, To: 4, Label: "d", Untouched: true, Same: 10})
	steps, err = h.j.Undo("main", 1)
	if err != nil || !reflect.DeepEqual(steps[0], Step{Back: 10, By: OpRollback, Label: "d", Untouched: true}) {
		t.Fatalf("%+v, %v", steps, err)
	}
}

// A store of a version that kept fewer states: its undo of one step is more steps now.
func TestUndoGoesWhereItsRecordSays(t *testing.T) {
	h := newHead()
	for _, op := range []Op{
		{Kind: OpRollback, From: 10, To: 1}, {Kind: OpUndo, From: 11, To: 10, Steps: 1},
		{Kind: OpRedo, From: 12, To: 11, Steps: 1}, {Kind: OpRollback, From: 13, To: 1},
		// The older version had forgotten 10 and 11, of which 12 and 13 were made.
		{Kind: OpUndo, From: 14, To: 13, Steps: 1}, {Kind: OpUndo, From: 15, To: 12, Steps: 1},
	} {
		op.Branch = "main"
		h.j.Commit(nil, &op)
	}
	if _, err := h.j.Undo("main", 1); !errors.Is(err, ErrNothing) {
		t.Fatalf("undo past the first state: %v", err)
	}
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 16, To: 1})
	have := map[uint64]bool{}
	for n := 1; ; n++ {
		steps, err := h.j.Undo("main", n)
		if err != nil {
			break
		}
		have[steps[n-1].Back] = true
	}
	for l := uint64(10); l <= 16; l++ {
		if !have[l] {
			t.Errorf("state %d cannot be reached any more: %v", l, have)
		}
	}
}

// model is a history of states, each a number, as a session has it: work makes a new
// one, in the open layer; layers that are sealed keep theirs for ever.
type model struct {
	j       *Journal
	log     []Op
	content map[uint64]int // of sealed layers; the base shows 0
	points  []uint64       // layers that rollback can name
	under   uint64         // sealed layer under the head
	open    uint64
	shows   int // the present state
	made    int // the newest state
	changed bool
	left    map[int]bool // states that were made, and then left by a movement
	away    map[int]bool // those of them that the head has not been back to
}

func newModel() *model {
	return &model{
		j: newJournal(nil), content: map[uint64]int{0: 0}, points: []uint64{0}, open: 1,
		left: map[int]bool{}, away: map[int]bool{},
	}
}

func (m *model) work() {
	m.made++
	m.shows, m.changed = m.made, true
}

func (m *model) seal() (layer uint64) {
	layer, m.content[m.open] = m.open, m.shows
	m.open++
	return layer
}

func (m *model) checkpoint() uint64 {
	l := m.seal()
	m.points, m.under, m.changed = append(m.points, l), l, false
	return l
}

func (m *model) move(op Op) {
	op.Branch, op.From, op.Untouched = "main", m.open, !m.changed
	if m.changed {
		m.left[m.shows], m.away[m.shows] = true, true
	} else {
		op.Same = m.under
	}
	if m.changed || m.under != op.To {
		m.seal()
	} else if op.Kind == OpRollback {
		return // it is there already
	}
	m.log = append(m.log, op)
	m.j.Commit(nil, &op)
	m.under, m.shows, m.changed = op.To, m.content[op.To], false
}

func (m *model) rollback(to uint64) { m.move(Op{Kind: OpRollback, To: to}) }

// walk goes n steps, or as many as there are, and returns how many that were.
func (m *model) walk(t interface{ Fatalf(string, ...any) }, kind OpKind, n int) int {
	undo, redo := m.j.Steps("main")
	have, steps := undo, m.j.Undo
	if kind == OpRedo {
		have, steps = redo, m.j.Redo
	}
	if n = min(n, have); n == 0 {
		return 0
	}
	path, err := steps("main", n)
	if err != nil {
		t.Fatalf("%s %d of %d: %v", kind, n, have, err)
	}
	m.move(Op{Kind: kind, To: path[n-1].Back, Steps: n})
	delete(m.away, m.shows)
	return n
}

// check holds what undo and redo may lead to against what there was.
func (m *model) check(t *rapid.T) {
	undo, redo := m.j.Steps("main")
	near := map[int]bool{}
	for _, s := range []struct {
		n     int
		steps func(string, int) ([]Step, error)
	}{{undo, m.j.Undo}, {redo, m.j.Redo}} {
		if s.n == 0 {
			continue
		}
		path, err := s.steps("main", s.n)
		if err != nil {
			t.Fatal(err)
		}
		for i, step := range path {
			near[m.content[step.Back]] = true
			if i > 0 && path[i-1].Back == step.Back || i == 0 && step.Back == m.under && !m.changed {
				t.Fatalf("a step leads nowhere: %+v on layer %d", path, m.under)
			}
		}
	}
	for s := range m.away {
		if !near[s] {
			t.Fatalf("neither undo nor redo leads to state %d any more: %v", s, near)
		}
	}
	// The history as a restart reads it, and then a rollback: undo leads to all.
	j := newJournal(nil)
	commit := func(op Op) {
		b, err := encodeOp(&op)
		if err != nil {
			t.Fatal(err)
		}
		if op, err = decodeOp(b); err != nil {
			t.Fatal(err)
		}
		j.Commit(nil, &op)
	}
	for _, op := range m.log {
		commit(op)
	}
	if u, r := j.Steps("main"); u != undo || r != redo {
		t.Fatalf("after a restart there are %d and %d steps, before %d and %d", u, r, undo, redo)
	}
	end := uint64(1 << 40)
	commit(Op{Kind: OpRollback, Branch: "main", From: end})
	n, _ := j.Steps("main")
	path, err := j.Undo("main", n)
	if err != nil {
		t.Fatal(err)
	}
	reach := map[int]bool{m.shows: true}
	for _, step := range path {
		if step.Back != end {
			reach[m.content[step.Back]] = true
		}
	}
	for s := range m.left {
		if !reach[s] {
			t.Fatalf("state %d is lost: undo leads to %v", s, reach)
		}
	}
}

// Whatever is done, no state that was changed and left is ever lost, no step leads
// nowhere, and redo takes back what undo did.
func TestNothingIsEverLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel()
		steps := rapid.IntRange(1, 4)
		rt.Repeat(map[string]func(*rapid.T){
			"work":       func(*rapid.T) { m.work() },
			"checkpoint": func(*rapid.T) { m.checkpoint() },
			"rollback":   func(rt *rapid.T) { m.rollback(rapid.SampledFrom(m.points).Draw(rt, "to")) },
			"undo":       func(rt *rapid.T) { m.walk(rt, OpUndo, steps.Draw(rt, "n")) },
			"redo":       func(rt *rapid.T) { m.walk(rt, OpRedo, steps.Draw(rt, "n")) },
			"there and back": func(rt *rapid.T) {
				was := m.shows
				n := m.walk(rt, OpUndo, steps.Draw(rt, "n"))
				if n > 0 && m.walk(rt, OpRedo, n) != n || m.shows != was {
					rt.Fatalf("undo %d and redo %d lead from state %d to %d", n, n, was, m.shows)
				}
			},
			"": m.check,
		})
	})
}

// A restore is a step, too. That it left the conversation alone goes with it: back, forward, and through the
// store. As a place that a later rollback leaves behind, its state is whole.
func TestRestoresAreSteps(t *testing.T) {
	h := newHead()
	restore := &Op{N: 7, Kind: OpRestore, Branch: "main", From: 10, To: 10, Open: 11, Label: "a", FilesOnly: true}
	b, err := encodeOp(restore)
	if err != nil {
		t.Fatal(err)
	}
	if op, err := decodeOp(b); err != nil || !op.FilesOnly || op.Kind != OpRestore {
		t.Fatalf("%s came back as %+v, %v", b, op, err)
	}
	h.j.Commit(nil, restore)
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 11, To: 2, Label: "b"})
	steps, err := h.j.Undo("main", 2)
	if err != nil || steps[0].FilesOnly || !reflect.DeepEqual(steps[1], Step{Back: 10, By: OpRestore, Label: "a", FilesOnly: true}) {
		t.Fatalf("%+v, %v", steps, err)
	}
	h.j.Commit(nil, &Op{Kind: OpUndo, Branch: "main", From: 12, To: 10, Steps: 2})
	steps, err = h.j.Redo("main", 2)
	if err != nil || steps[0].Back != 11 || !steps[0].FilesOnly || steps[1].Back != 12 || steps[1].FilesOnly {
		t.Fatalf("forward, the restore is made again first: %+v, %v", steps, err)
	}
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 13, To: 3, Label: "c"})
	steps, err = h.j.Undo("main", 4)
	if err != nil || slices.ContainsFunc(steps, func(s Step) bool { return s.FilesOnly }) {
		t.Fatalf("%+v, %v", steps, err)
	}
}

func TestTargetsGoWithTheSteps(t *testing.T) {
	x := func(digest string) Copy { return Copy{Kind: TargetSQLite, Name: []byte("/x"), Digest: digest} }
	y := func(digest string) Copy { return Copy{Kind: TargetSQLite, Name: []byte("/y"), Digest: digest} }
	h := newHead()
	// No file was changed between the two: what the targets held makes them two states.
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 10, To: 1, Label: "a", Targets: []Copy{x("1")}})
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "main", From: 10, To: 1, Label: "b", Targets: []Copy{y("1")}})
	steps, err := h.j.Undo("main", 2)
	if err != nil || !sameCopies(steps[0].Targets, []Copy{y("1")}) || !sameCopies(steps[1].Targets, []Copy{x("1")}) {
		t.Fatalf("%+v, %v", steps, err)
	}
	// On the way back, a state that does not say what a target held says it as the one before did.
	h.j.Commit(nil, &Op{Kind: OpUndo, Branch: "main", From: 12, To: 10, Steps: 2, Targets: []Copy{x("2"), y("2")}})
	steps, err = h.j.Redo("main", 2)
	if err != nil || !sameCopies(steps[0].Targets, []Copy{y("1"), x("2")}) || !sameCopies(steps[1].Targets, []Copy{x("2"), y("2")}) {
		t.Fatalf("%+v, %v", steps, err)
	}
	if got := h.j.Copies(); len(got) != 6 {
		t.Errorf("needed: %+v", got)
	}
	h.j.Commit(nil, &Op{Kind: OpForgetUndo, Branch: "main"})
	if got := h.j.Copies(); len(got) != 0 {
		t.Errorf("needed when undo is forgotten: %+v", got)
	}
}

// TestRunsAreSteps: undo goes back over commands one by one, the newest ones.
func TestRunsAreSteps(t *testing.T) {
	h := newHead()
	run := func(from uint64) { h.j.Commit(nil, &Op{Kind: OpRun, Branch: "main", From: from, To: from}) }
	backs := func() (out []uint64) {
		n, _ := h.j.Steps("main")
		if n == 0 {
			return nil
		}
		steps, err := h.j.Undo("main", n)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			out = append(out, s.Back)
		}
		return out
	}
	run(1)
	run(2)
	run(4)
	run(3) // it began before the last one, and ended after it
	if got := backs(); !slices.Equal(got, []uint64{3, 2, 1}) {
		t.Fatalf("undo goes to %v", got)
	}
	left := h.undo(t, 1)
	h.want(t, 3)
	h.redo(t, 1)
	h.want(t, left)
	h.undo(t, 2)
	h.want(t, 2)
	run(200) // what was undone is on the way still
	if got := backs(); got[0] != 200 || !slices.Contains(got, left) || got[len(got)-1] != 1 {
		t.Fatalf("undo goes to %v, and %d is lost", got, left)
	}
	h.move(OpRollback, 1, 0)
	for i := range uint64(maxRuns + 3) {
		run(1000 + i)
	}
	got := backs()
	if got[0] != 1000+maxRuns+2 || got[maxRuns-1] != 1003 || got[maxRuns] >= 1000 {
		t.Fatalf("of many commands undo goes to %v", got)
	}
}

func TestMovedSince(t *testing.T) {
	h := newHead()
	at := func(layer uint64) { h.j.Commit(nil, &Op{Kind: OpCheckpoint, Branch: "main", From: layer, To: layer}) }
	at(1)
	at(2)
	h.j.Commit(nil, &Op{Kind: OpRun, Branch: "main", From: 2, To: 2})
	h.j.Commit(nil, &Op{Kind: OpRollback, Branch: "other", From: 3, To: 2})
	if h.j.MovedSince("main", 1) || h.j.MovedSince("main", 2) || !h.j.MovedSince("main", 7) {
		t.Error("checkpoints, commands and other branches move no head")
	}
	h.j.Commit(nil, &Op{Kind: OpCheckpoint, Branch: "main", From: 2, To: 2, Open: 9}) // one that shares the layer
	h.j.Commit(nil, &Op{Kind: OpCheckpoint, Branch: "other", From: 8, To: 8, Open: 2})
	if h.j.HasRun("main", 1) || !h.j.HasRun("main", 2) || h.j.HasRun("main", 3) || h.j.HasRun("other", 2) {
		t.Error("the command on top of layer 2 is in the log, and no other")
	}
	h.move(OpUndo, 1, 1)
	at(4)
	if !h.j.MovedSince("main", 2) || h.j.MovedSince("main", 4) {
		t.Error("an undo moves it")
	}
}
