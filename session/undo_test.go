package session

import (
	"context"
	"fmt"
	"testing"

	"github.com/rewindfs/rewindfs/control"
)

func TestUndoWithNothing(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "x", "1")
	_, err := r.Undo(t.Context(), control.UndoRequest{})
	wantCode(t, err, control.CodeNothing)
	_, err = r.Redo(t.Context(), control.UndoRequest{N: 3})
	wantCode(t, err, control.CodeNothing)
	_, err = r.Undo(t.Context(), control.UndoRequest{N: -1})
	wantCode(t, err, control.CodeBadRequest)
	r.checkpoint(t, "c")
	r.rollback(t, "base")
	_, err = r.Undo(t.Context(), control.UndoRequest{N: 2})
	wantCode(t, err, control.CodeNothing)
	r.wantNone(t, "x")
}

// Rolling back, taking it back and rolling back again leaves states in which nothing
// was changed: undo passes what was written, and nothing else.
func TestUndoPassesWhatWasWritten(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "f", "a")
	a := r.checkpoint(t, "A")
	move := func(call func(context.Context, control.UndoRequest) (*control.Rollback, error), text, before, at string) {
		t.Helper()
		res, err := call(t.Context(), control.UndoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if res.Before == nil || res.Before.Kind+" "+res.Before.Label != before || res.Checkpoint != at || res.Noop {
			t.Errorf("gone to %q: %+v, before %+v; want %s at %q", text, res, res.Before, before, at)
		}
		r.want(t, "", "f", text)
	}
	r.write(t, "f", "one")
	r.rollback(t, "A")
	r.write(t, "f", "two")
	r.rollback(t, "A")
	move(r.Undo, "two", "rollback A", "")
	r.rollback(t, "A")
	move(r.Undo, "two", "rollback A", "")
	move(r.Undo, "one", "rollback A", "")
	_, err := r.Undo(t.Context(), control.UndoRequest{})
	wantCode(t, err, control.CodeNothing)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	move(r.Redo, "two", "undo A", "")
	move(r.Redo, "a", "undo A", "A")
	_, err = r.Redo(t.Context(), control.UndoRequest{})
	wantCode(t, err, control.CodeNothing)

	// The log says what was as it had been found.
	l, err := r.Log(t.Context(), control.LogRequest{Ops: true})
	if err != nil {
		t.Fatal(err)
	}
	var same []string
	for _, op := range l.Ops {
		if op.Same != nil {
			same = append(same, fmt.Sprint(op.Kind, *op.Same == a.Layer))
		}
	}
	if got := fmt.Sprint(same); got != "[redofalse redofalse undofalse undotrue rollbackfalse undotrue]" {
		t.Errorf("left as they were found: %s", got)
	}
}

// Steps that lead back to where they began move nothing, and still are steps.
func TestUndoInACircle(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "a")
	a := r.checkpoint(t, "A")
	r.rollback(t, "base")
	r.rollback(t, a.ID)
	res, err := r.Undo(t.Context(), control.UndoRequest{N: 2})
	if err != nil || !res.Noop || res.Checkpoint != "A" {
		t.Fatalf("%+v, %v", res, err)
	}
	if st, err := r.Status(t.Context()); err != nil || st.Undo != 0 || st.Redo != 2 {
		t.Fatalf("undo %d, redo %d, %v", st.Undo, st.Redo, err)
	}
	for _, want := range []string{"base", "A"} {
		if res, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil || res.Checkpoint != want {
			t.Fatalf("redo to %s: %+v, %v", want, res, err)
		}
	}
}
