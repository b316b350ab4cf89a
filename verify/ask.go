package verify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Decision is what to do when a verification ended without a verdict.
type Decision string

const (
	// Continue goes on with the work as if nothing had been asked. It is not a Pass.
	Continue Decision = "continue"
	// Rollback goes back to the target.
	Rollback Decision = "rollback"
	// Stop leaves everything as it is, with the mount kept.
	Stop Decision = "stop"
)

// Question is what an Asker is asked.
type Question struct {
	Result Result
	Target string // checkpoint that Rollback would go back to; "" means that there is none and Rollback is no answer
}

// Asker decides about UNKNOWN: a person, or a rule.
type Asker interface {
	Ask(context.Context, Question) (Decision, error)
}

// Escalate asks, and makes sure of the answer: without one, with an error, or with
// one that is not possible, it is Stop. The error says why; the decision holds all the same.
func Escalate(ctx context.Context, asker Asker, q Question) (Decision, error) {
	d, err := asker.Ask(ctx, q)
	switch {
	case err != nil:
		return Stop, fmt.Errorf("ask what to do after a verification without a verdict: %w", err)
	case d == Continue, d == Stop, d == Rollback && q.Target != "":
		return d, nil
	default:
		return Stop, fmt.Errorf("ask what to do after a verification without a verdict: %q is no possible answer", d)
	}
}

// Agent is the Asker for runs without a person: it stops.
type Agent struct{}

// Ask returns Stop.
func (Agent) Ask(context.Context, Question) (Decision, error) { return Stop, nil }

// Terminal is the Asker that puts the question to a person. Make it with NewTerminal, once for each input.
type Terminal struct {
	in    *bufio.Reader
	out   io.Writer
	lines chan line // of a read that a cancelled Ask left behind; nil when there is none
}

type line struct {
	text string
	err  error
}

const (
	maxLine = 4 << 10 // bytes of an answer
	maxAsk  = 5       // times that the question is put
)

// NewTerminal asks on out and takes the answers from in.
func NewTerminal(in io.Reader, out io.Writer) *Terminal {
	return &Terminal{in: bufio.NewReaderSize(in, maxLine), out: out}
}

// Ask shows what happened and waits for an answer. The end of the input, an empty
// line, and a question put too often without a usable answer are Stop. It is for one goroutine at a time.
func (t *Terminal) Ask(ctx context.Context, q Question) (Decision, error) {
	if err := t.show(q); err != nil {
		return Stop, err
	}
	choice := "[c]ontinue or [s]top"
	if q.Target != "" {
		choice = "[c]ontinue, [r]oll back to " + printable(q.Target) + ", or [s]top"
	}
	for range maxAsk {
		if _, err := fmt.Fprintf(t.out, "%s? (stop) ", choice); err != nil {
			return Stop, fmt.Errorf("write the question: %w", err)
		}
		text, err := t.readLine(ctx)
		if err != nil && !errors.Is(err, io.EOF) {
			return Stop, fmt.Errorf("read the answer: %w", err)
		}
		answer := strings.ToLower(strings.TrimSpace(text))
		switch {
		case answer == "", answer == "s", answer == "stop":
			return Stop, nil
		case answer == "c", answer == "continue":
			return Continue, nil
		case q.Target != "" && (answer == "r" || answer == "rollback"):
			return Rollback, nil
		case err != nil:
			return Stop, nil
		}
		if _, err := fmt.Fprintf(t.out, "%q is none of these.\n", answer); err != nil {
			return Stop, fmt.Errorf("write the question: %w", err)
		}
	}
	return Stop, nil
}

func (t *Terminal) show(q Question) error {
	var b strings.Builder
	n := len(q.Result.Attempts)
	fmt.Fprintf(&b, "The verification gave no verdict (%d attempt%s): %s\n", n, plural(n), printable(q.Result.Reason))
	if n > 0 {
		const most = 2000 // characters of output; the result has all that was kept
		for _, o := range []struct{ name, text string }{{"stdout", q.Result.Attempts[n-1].Stdout.String()}, {"stderr", q.Result.Attempts[n-1].Stderr.String()}} {
			if strings.TrimSpace(o.text) == "" {
				continue
			}
			text := []rune(o.text)
			if len(text) > most {
				text = append([]rune("… "), text[len(text)-most:]...)
			}
			fmt.Fprintf(&b, "%s:\n%s\n", o.name, printable(strings.TrimRight(string(text), "\n")))
		}
	}
	if _, err := io.WriteString(t.out, b.String()); err != nil {
		return fmt.Errorf("write the question: %w", err)
	}
	return nil
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// readLine reads one line, also one without an end at the end of the input. A read cannot be cancelled: when ctx
// ends, it goes on, and the next call gets its line.
func (t *Terminal) readLine(ctx context.Context) (string, error) {
	if t.lines == nil {
		lines := make(chan line, 1)
		t.lines = lines
		go func() {
			text, err := t.in.ReadSlice('\n')
			if errors.Is(err, bufio.ErrBufferFull) {
				err = fmt.Errorf("the line has more than %d bytes", maxLine)
			}
			lines <- line{string(text), err}
		}()
	}
	select {
	case l := <-t.lines:
		t.lines = nil
		return l.text, l.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// printable makes text from outside harmless on a terminal: line ends and tabs stay,
// other control characters, and those that change the direction of writing, become visible.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
