package convo_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/rewindfs/rewindfs/memory/convo"
	"github.com/rewindfs/rewindfs/memory/valid"
)

// accepted fails when the validator, which was written apart from the repair, refuses
// what the repair gave, or finds that it did something a provider would notice.
func accepted(t *rapid.T, f convo.Format, items []json.RawMessage, o convo.Options) {
	h, changes, err := convo.Repair(convo.History{Format: f, Items: items}, o)
	if err != nil {
		t.Fatal(err)
	}
	err = valid.Check(f, h.Items, valid.Options{MidSystem: o.MidSystem})
	if f == convo.Codex && len(h.Items) > 0 && !bytes.Contains(h.Items[0], []byte("session_meta")) {
		if err == nil {
			t.Fatalf("a rollout without its first row is taken\n%s", convo.Lines(h.Items))
		}
		return // which session it was of nobody can make up
	}
	if err != nil {
		text, _ := json.Marshal(changes)
		t.Fatalf("refused: %v\noptions %+v\nchanges %s\n%s\nfrom\n%s", err, o, text, convo.Lines(h.Items), convo.Lines(items))
	}
	if err := valid.CheckEdit(f, items, h.Items); err != nil {
		text, _ := json.Marshal(changes)
		t.Fatalf("edit refused: %v\noptions %+v\nchanges %s\n%s\nfrom\n%s", err, o, text, convo.Lines(h.Items), convo.Lines(items))
	}
}

func each(t *testing.T, check func(*rapid.T, convo.Format)) {
	for _, f := range convo.AllFormats {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { check(t, f) })
		})
	}
}

func TestValidatorTakesEveryCut(t *testing.T) {
	each(t, func(t *rapid.T, f convo.Format) {
		items := convo.DrawHistory(t, f)
		o := convo.DrawOptions(t)
		for cut := range len(items) + 1 {
			accepted(t, f, items[:cut], o)
			accepted(t, f, items[cut:], o)
		}
	})
}

func TestValidatorTakesRepairedDamage(t *testing.T) {
	each(t, func(t *rapid.T, f convo.Format) {
		items, _ := convo.DrawDamaged(t, f)
		accepted(t, f, items, convo.DrawOptions(t))
	})
}

func TestValidatorTakesExpectations(t *testing.T) {
	for _, f := range convo.Fixtures(t) {
		want := f.Expected()
		_, o := f.Input()
		if err := valid.Check(f.Format, want.Items, valid.Options{MidSystem: o.MidSystem}); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}
