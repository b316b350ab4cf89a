package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rewindfs/rewindfs/control"
)

// success and failure are the one object that --json prints.
type success struct {
	Success bool `json:"success"`
	Data    any  `json:"data"`
}

type failure struct {
	Success bool           `json:"success"`
	Error   string         `json:"error"`
	Code    int            `json:"code"` // the exit code
	Kind    control.Code   `json:"kind,omitempty"`
	Details map[string]any `json:"details,omitempty"`
	Data    any            `json:"data,omitempty"`
}

// RawMessages lets messages in Data keep their bytes.
func (s *success) RawMessages() []*[]json.RawMessage { return rawIn(s.Data) }

// RawMessages lets messages in Data keep their bytes.
func (f *failure) RawMessages() []*[]json.RawMessage { return rawIn(f.Data) }

func rawIn(data any) []*[]json.RawMessage {
	if h, ok := data.(control.RawHolder); ok {
		return h.RawMessages()
	}
	return nil
}

// foundError is a failure with a result: what was asked was found out, and is bad.
type foundError struct {
	error
	data any
}

func (e *foundError) Unwrap() error { return e.error }

// result prints data as JSON, or has text print it for a person.
func (a *app) result(data any, text func(w io.Writer)) error {
	if a.json {
		return a.printJSON(&success{true, data})
	}
	p := &sticky{w: a.out}
	text(p)
	if p.err != nil {
		return fmt.Errorf("print the result: %w", p.err)
	}
	return nil
}

func (a *app) printJSON(v any) error {
	b, err := control.EncodeRaw(v)
	if err == nil {
		_, err = a.out.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// sticky remembers the first error of writing, so that a full disk or a closed
// pipe is not taken for success.
type sticky struct {
	w   io.Writer
	err error
}

func (s *sticky) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	s.err = err
	return n, err
}

// note says something on stderr, unless it is to be quiet.
func (a *app) note(format string, args ...any) {
	if !a.quiet && !a.json {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

// warn says on stderr what is not as it should be, though it was done.
func (a *app) warn(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.err, "rewindfs: warning: "+format+"\n", args...)
	}
}

// complain says something on stderr in any case.
func (a *app) complain(s string) { fmt.Fprintln(a.err, harmless(s)) }

// harmless is a text of several lines in which nothing else than these is an order to a terminal: what names from elsewhere have of that
// is shown as show does.
func harmless(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[:n])
		} else {
			q := strconv.Quote(s[:n])
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// show makes text from a file name or a process safe for a terminal: what does not
// print, or is not UTF-8, is quoted.
func show(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}

// clipText bounds a text, in bytes, without cutting a character.
func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// showName is show for a path in JSON form.
func showName(n control.PathName) string {
	s, err := n.Bytes()
	if err != nil {
		s = n.Path
	}
	return show(s)
}

// size shows a number of bytes.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, exp := float64(n)/unit, 0
	for v >= unit && exp < 4 {
		v /= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[exp])
}

// count shows a number of things: "1 path", "2 paths".
func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// micros shows a duration in microseconds.
func micros(us int64) string {
	if us < 10_000 {
		return fmt.Sprintf("%.2f ms", float64(us)/1000)
	}
	return (time.Duration(us) * time.Microsecond).Round(time.Millisecond).String()
}

// when shows a time of today shorter than others.
func when(t time.Time) string {
	t = t.Local()
	now := time.Now()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// isTerminal reports whether f is a terminal, as far as it is a file at all.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	fi, err := file.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && fi.Mode()&os.ModeDevice != 0 && isTTY(file)
}

// table prints rows in columns that are two blanks apart. The last one is not padded.
func table(w io.Writer, rows [][]string) {
	var width []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range r {
			b.WriteString(c)
			if i < len(r)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}
