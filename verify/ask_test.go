package verify

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/capture"
)

func question(target string) Question {
	return Question{Target: target, Result: Result{
		Status: Unknown, Reason: "no verdict: \x1b[31mstdout is empty",
		Attempts: []Attempt{{Number: 1, Stderr: capture.Output{Head: "line 1\nevil \x1b]0;title\x07\u202e end\n"}}},
	}}
}

func TestTerminal(t *testing.T) {
	for _, c := range []struct {
		name, in, target string
		want             Decision
	}{
		{"continue", "c\n", "", Continue},
		{"whole word", "  Continue \n", "", Continue},
		{"rollback", "r\n", "stable", Rollback},
		{"rollback without a target", "r\ns\n", "", Stop},
		{"stop", "stop\n", "x", Stop},
		{"empty line", "\n", "x", Stop},
		{"end of input", "", "x", Stop},
		{"no line end", "c", "x", Continue},
		{"nonsense at the end of input", "what", "x", Stop},
		{"asked again", "what\nhm\nc\n", "x", Continue},
		{"asked too often", "1\n2\n3\n4\n5\nc\n", "x", Stop},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			got, err := Escalate(t.Context(), NewTerminal(strings.NewReader(c.in), &out), question(c.target))
			if err != nil || got != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
			if strings.ContainsAny(out.String(), "\x1b\x07\u202e") {
				t.Errorf("control characters reach the terminal: %q", out.String())
			}
			if !strings.Contains(out.String(), "stdout is empty") || !strings.Contains(out.String(), "line 1\nevil") {
				t.Errorf("what happened is not shown: %s", out.String())
			}
		})
	}
}

func TestTerminalEndlessLine(t *testing.T) {
	got, err := Escalate(t.Context(), NewTerminal(strings.NewReader(strings.Repeat("c", 1<<20)), io.Discard), question("x"))
	if got != Stop || err == nil {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestTerminalCancelled(t *testing.T) {
	in, keyboard := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	term := NewTerminal(in, io.Discard)
	if got, err := Escalate(ctx, term, question("")); got != Stop || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %s, %v", got, err)
	}
	// The line that was waited for goes to the next question.
	go keyboard.Write([]byte("c\n"))
	if got, err := Escalate(t.Context(), term, question("")); got != Continue || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}

type broken struct{ d Decision }

func (b broken) Ask(context.Context, Question) (Decision, error) { return b.d, errors.New("no line") }

type says string

func (s says) Ask(context.Context, Question) (Decision, error) { return Decision(s), nil }

func TestEscalateNeverGuesses(t *testing.T) {
	if d, err := Escalate(t.Context(), Agent{}, question("x")); d != Stop || err != nil {
		t.Errorf("agent: %s, %v", d, err)
	}
	if d, err := Escalate(t.Context(), broken{Continue}, question("x")); d != Stop || err == nil {
		t.Errorf("with an error: %s, %v", d, err)
	}
	for _, answer := range []says{"", "pass", "rollback"} {
		if d, err := Escalate(t.Context(), answer, question("")); d != Stop || err == nil {
			t.Errorf("%q: %s, %v", answer, d, err)
		}
	}
	if d, err := Escalate(t.Context(), says("rollback"), question("x")); d != Rollback || err != nil {
		t.Errorf("rollback: %s, %v", d, err)
	}
}
