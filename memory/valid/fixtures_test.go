package valid

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// The cases in testdata are the golden ones of the shared fixtures, unchanged: what a repair gets, and what it is to make of it.

type fixture struct {
	Format  convo.Format
	Options struct {
		MidSystem bool `json:"mid_system"`
		Notice    string
	}
	History []json.RawMessage
	Cut     *int
}

type expected struct {
	Error   *string `json:"error_if_sent_unrepaired"` // "": takes it; null: not said
	History []json.RawMessage
}

func readJSON(t testing.TB, name string, to any) {
	t.Helper()
	if err := json.Unmarshal(readAll(t, name), to); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// eachFixture calls f with every golden case: the history as it is cut, and as it is to be.
func eachFixture(t *testing.T, f func(t *testing.T, in fixture, cut []json.RawMessage, want expected)) {
	t.Helper()
	names, err := filepath.Glob("testdata/*.expected.json")
	if err != nil || len(names) < 30 {
		t.Fatalf("%d golden cases in testdata, error %v", len(names), err)
	}
	for _, name := range names {
		input := strings.Replace(name, ".expected", "", 1)
		t.Run(strings.TrimSuffix(filepath.Base(input), ".json"), func(t *testing.T) {
			var (
				in   fixture
				want expected
			)
			readJSON(t, input, &in)
			readJSON(t, name, &want)
			cut := in.History
			if in.Cut != nil {
				cut = cut[:*in.Cut]
			}
			f(t, in, cut, want)
		})
	}
}

func TestGoldenHistoriesAreAccepted(t *testing.T) {
	eachFixture(t, func(t *testing.T, in fixture, cut []json.RawMessage, want expected) {
		o := Options{MidSystem: in.Options.MidSystem}
		if err := Check(in.Format, want.History, o); err != nil {
			t.Error(err)
		}
		if err := CheckEdit(in.Format, cut, want.History); err != nil {
			t.Error(err)
		}
		// A notice always leaves the model to answer next.
		if o.Send = true; in.Options.Notice != "" {
			if err := Check(in.Format, want.History, o); err != nil {
				t.Errorf("to be sent: %v", err)
			}
		}
	})
}

func TestGoldenInputsAreRefused(t *testing.T) {
	n := 0
	eachFixture(t, func(t *testing.T, in fixture, cut []json.RawMessage, want expected) {
		err := Check(in.Format, cut, Options{MidSystem: in.Options.MidSystem})
		switch {
		case want.Error == nil:
		case *want.Error == "":
			if err != nil {
				t.Error(err)
			}
		case err == nil:
			t.Errorf("accepted; want %q", *want.Error)
		case !strings.Contains(err.Error(), *want.Error):
			t.Errorf("refused with %q; want %q in it", err, *want.Error)
		default:
			n++
		}
	})
	if n < 20 {
		t.Errorf("only %d inputs were refused", n)
	}
}

// items decodes a JSON array.
func items(t *testing.T, array string) []json.RawMessage {
	t.Helper()
	var all []json.RawMessage
	if err := json.Unmarshal([]byte(array), &all); err != nil {
		t.Fatalf("%v in %s", err, array)
	}
	return all
}

// wantRefused fails unless err is a refusal by this rule at this item.
func wantRefused(t *testing.T, err error, rule string, at int) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("got %v, want a refusal by rule %s at %d", err, rule, at)
		return
	}
	if e.Rule != rule || e.At != at {
		t.Errorf("got rule %s at %d, want rule %s at %d: %v", e.Rule, e.At, rule, at, e)
	}
	if e.Message == "" {
		t.Error("no message")
	}
}

func readAll(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
