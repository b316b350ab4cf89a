package session

import (
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
)

// A daemon that dies between a change and its line in the ledger leaves the line owing; the
// next one writes it, once.
func TestOwedLines(t *testing.T) {
	o := options(t)
	r := start(t, o)
	if _, err := r.SetPolicy(t.Context(), control.PolicyRequest{NoRollback: []string{"ls"}}); err != nil {
		t.Fatal(err)
	}
	event := r.s.event(ledger.KindPolicy)
	event.Details = map[string]any{"action": "killed before"}
	var b kv.Batch
	if _, err := r.s.owe(&b, event); err != nil {
		t.Fatal(err)
	}
	event.Details["action"] = "killed behind"
	written, err := r.s.owe(&b, event)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.s.db.Apply(&b); err != nil {
		t.Fatal(err)
	}
	r.s.audit(written.event)
	for range 2 {
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, o)
		got := map[any]int{}
		for _, e := range r.events(t, ledger.KindPolicy) {
			got[e.Details["action"]]++
			if e.Details["action"] == "killed before" && e.Details["recovered"] != true {
				t.Errorf("it does not say that it comes late: %v", e.Details)
			}
		}
		for _, action := range []string{"set", "killed before", "killed behind"} {
			if got[action] != 1 {
				t.Errorf("%d lines of %q, want 1", got[action], action)
			}
		}
	}
}
