package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
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

// TestEveryLeftStateStaysReachable makes random movements; afterwards undo must
// pass, one by one, every state that a rollback or undo left and that no later redo stands for.
func TestEveryLeftStateStaysReachable(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := newHead()
		left := map[uint64]bool{}
		for range 30 {
			n := 1 + r.IntN(3)
			switch r.IntN(3) {
			case 0:
				left[h.move(OpRollback, uint64(1+r.IntN(9)), 0)] = true
			case 1:
				if steps, err := h.j.Undo("main", n); err == nil {
					// The state gone back to is the head again; what grows out of it replaces it.
					delete(left, steps[n-1].Back)
					left[h.undo(t, n)] = true
				}
			case 2:
				if steps, err := h.j.Redo("main", n); err == nil {
					delete(left, steps[n-1].Back)
					left[h.redo(t, n)] = true
				}
			}
		}
		reach := map[uint64]bool{}
		collect := func(pick func(string, int) ([]Step, error)) {
			for n := 1; ; n++ {
				steps, err := pick("main", n)
				if err != nil {
					return
				}
				reach[steps[n-1].Back] = true
			}
		}
		collect(h.j.Undo)
		collect(h.j.Redo)
		for l := range left {
			if !reach[l] {
				t.Fatalf("seed %d: state %d cannot be reached any more (left %v, reached %v)", seed, l, len(left), fmt.Sprint(reach))
			}
		}
	}
}
