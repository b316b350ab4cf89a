package session

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/ledger"
)

// An unknown verdict is never a pass, and goes back only when somebody decided so.
func TestVerificationUnknown(t *testing.T) {
	r := start(t, options(t))
	r.checkpoint(t, "A")
	r.write(t, "f", "x")
	for _, decision := range []string{"", "continue", "stop"} {
		v, err := r.Verification(t.Context(), control.Verification{Command: "x", Status: "unknown", To: "A", Decision: decision})
		if err != nil || v.RolledBack != nil {
			t.Errorf("%q: %+v, %v", decision, v, err)
		}
	}
	r.want(t, "", "f", "x")
	if v, err := r.Verification(t.Context(), control.Verification{Command: "x", Status: "unknown", To: "A", Decision: "rollback"}); err != nil || v.RolledBack == nil {
		t.Errorf("%+v, %v", v, err)
	}
	r.wantNone(t, "f")
	_, err := r.Verification(t.Context(), control.Verification{Command: "x", Status: "great"})
	wantCode(t, err, control.CodeBadRequest)
	if n := len(r.events(t, ledger.KindEscalation)); n != 3 {
		t.Errorf("%d escalations in the ledger", n)
	}
}

func TestTwoSteps(t *testing.T) {
	o := options(t)
	r := start(t, o)
	record := func(label string) *control.Checkpoint {
		t.Helper()
		c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label, Pending: true})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	current := func(want string) {
		t.Helper()
		c, err := r.Current(t.Context())
		if want == "" {
			wantCode(t, err, control.CodeUnknownCheckpoint)
			return
		}
		if err != nil || c.Label != want {
			t.Errorf("the current one is %+v, %v, want %s", c, err, want)
		}
	}
	ref := func(s string) control.CheckpointRef { return control.CheckpointRef{Ref: s} }
	r.write(t, "f", "1")
	one := record("one")
	if one.State != "recorded" || one.Existing {
		t.Errorf("%+v", one)
	}
	if again := record("one"); again.ID != one.ID || !again.Existing {
		t.Errorf("the same revision again: %+v", again)
	}
	current("")
	r.write(t, "f", "2")
	record("two")
	r.write(t, "f", "3")
	three := record("three")
	for _, label := range []string{"one", "two", "three"} {
		if c, err := r.Attach(t.Context(), ref(label)); err != nil || c.State != "attached" {
			t.Fatalf("attach %s: %+v, %v", label, c, err)
		}
	}
	current("three")
	if rej, err := r.Reject(t.Context(), ref("two")); err != nil || rej.Moved || rej.Current.Label != "three" {
		t.Errorf("rejecting what something newer decided about: %+v, %v", rej, err)
	}
	if rej, err := r.Reject(t.Context(), ref("three")); err != nil || !rej.Moved || rej.Current.Label != "two" || rej.Rejected.State != "rejected" {
		t.Errorf("%+v, %v", rej, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	current("two")
	r.write(t, "f", "4")
	r.checkpoint(t, "plain")
	current("plain")
	r.write(t, "f", "5")
	record("five")
	r.write(t, "f", "6")
	record("six")
	got, err := r.Collect(t.Context(), control.CollectRequest{Limit: 1})
	if err != nil || len(got.Checkpoints) != 1 || got.Checkpoints[0].Label != "five" || !got.More {
		t.Errorf("collected %+v, %v", got, err)
	}
	if got, err := r.Collect(t.Context(), control.CollectRequest{BeforeMS: time.Hour.Milliseconds()}); err != nil || len(got.Checkpoints) != 0 {
		t.Errorf("collected what is young: %+v, %v", got, err)
	}
	if got, err := r.Collect(t.Context(), control.CollectRequest{}); err != nil || len(got.Checkpoints) != 1 || got.More {
		t.Errorf("collected %+v, %v", got, err)
	}
	_, err = r.Rollback(t.Context(), control.RollbackRequest{Ref: "five"})
	wantCode(t, err, control.CodeUnknownCheckpoint)
	if _, err := r.Delete(t.Context(), ref("plain")); err != nil {
		t.Fatal(err)
	}
	current("two")
	r.want(t, "", "f", "6")
	r.rollback(t, "one")
	r.want(t, "", "f", "1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	current("two")
	r.rollback(t, three.ID)
	r.want(t, "", "f", "3")
}

// Everything that matters is in the ledger, unasked, and a crash between the store and
// the ledger is made up for.
func TestLedgerHasItAll(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "f", "1")
	r.checkpoint(t, "A")
	r.write(t, "f", "2")
	r.rollback(t, "A")
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	// As if the daemon had been killed before it could write this down.
	if err := r.s.ledger.Close(); err != nil {
		t.Fatal(err)
	}
	r.checkpoint(t, "B")
	if st, err := r.Status(t.Context()); err != nil || st.Unaudited == 0 {
		t.Errorf("status does not say that the ledger misses something: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Logf("stop: %v", err)
	}
	r = start(t, o)
	var got []string
	for _, rec := range r.events(t) {
		got = append(got, string(rec.Kind)+":"+rec.Label)
	}
	want := []string{"mount:", "checkpoint:A", "rollback:A", "undo:A", "redo:A", "checkpoint:B", "mount:"}
	if !slices.Equal(got, want) {
		t.Errorf("the ledger has\n%q, want\n%q", got, want)
	}
	id, err := LedgerID(r.o.Store)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := ledger.Verify(LedgerDir(r.o.Store), id)
	if err != nil || !rep.OK() {
		t.Errorf("%+v, %v", rep, err)
	}
	if filepath.Dir(LedgerDir(r.o.Store)) != r.o.Store {
		t.Error("the ledger is elsewhere")
	}
}
