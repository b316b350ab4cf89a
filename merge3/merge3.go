// Package merge3 merges two changed versions of a text by their common ancestor, line by line, as
// git merge-file does. Its time and memory are bounded by the length of the texts (see package linediff),
// whatever they hold, and it changes no byte of a line: CRLF, no newline at the end, and what is not UTF-8 stay.
//
// What does not belong here: which files to merge, and where they come from.
package merge3

import (
	"bytes"
	"strings"

	"github.com/rewindfs/rewindfs/linediff"
)

// MaxSize is the largest text that should be merged, in bytes. What is larger is data, not something that people edit.
const MaxSize = 8 << 20

// IsText reports whether p can be merged line by line: it is not too large, and has no NUL byte.
func IsText(p []byte) bool { return len(p) <= MaxSize && bytes.IndexByte(p, 0) < 0 }

// Labels name the versions in conflict markers.
type Labels struct{ Ours, Theirs string }

// Result is a merged text. With conflicts it has both versions of each, between markers.
type Result struct {
	Text      []byte
	Conflicts int
}

// Merge brings the changes from base to ours and those from base to theirs together. Changes
// that overlap or touch each other without being the same are conflicts.
func Merge(base, ours, theirs []byte, l Labels) Result {
	b, o, t := linediff.Split(base), linediff.Split(ours), linediff.Split(theirs)
	m := merger{b: b, o: side{lines: o, hunks: linediff.Diff(b, o)}, t: side{lines: t, hunks: linediff.Diff(b, t)}, l: l}
	m.run()
	return Result{[]byte(m.out.String()), m.conflicts}
}

// side is one changed version: its lines, and the hunks not yet merged.
type side struct {
	lines []string
	hunks []linediff.Hunk
	off   int // line i of the base, outside of hunks, is line i+off here
}

// upTo takes the hunks that begin at or before line hi of the base. It returns where they end, at least hi.
func (s *side) upTo(hi int) (taken []linediff.Hunk, end int) {
	end = hi
	n := 0
	for n < len(s.hunks) && s.hunks[n].Lo <= end {
		end = max(end, s.hunks[n].Hi)
		n++
	}
	taken, s.hunks = s.hunks[:n], s.hunks[n:]
	return taken, end
}

// text returns the lines that stand here for [lo, hi) of the base, which the taken hunks lie in.
func (s *side) text(lo, hi int, taken []linediff.Hunk) []string {
	from := lo + s.off
	for _, h := range taken {
		s.off += (h.To - h.From) - (h.Hi - h.Lo)
	}
	return s.lines[from : hi+s.off]
}

type merger struct {
	b         []string
	o, t      side
	l         Labels
	out       strings.Builder
	conflicts int
}

func (m *merger) run() {
	at := 0
	for len(m.o.hunks)+len(m.t.hunks) > 0 {
		lo := len(m.b)
		for _, s := range []*side{&m.o, &m.t} {
			if len(s.hunks) > 0 {
				lo = min(lo, s.hunks[0].Lo)
			}
		}
		m.write(m.b[at:lo])
		at = m.region(lo)
	}
	m.write(m.b[at:])
}

// region merges all hunks that hang together from line lo of the base on, and returns where they end.
func (m *merger) region(lo int) int {
	var ours, theirs []linediff.Hunk
	hi := lo
	for {
		before := len(m.o.hunks) + len(m.t.hunks)
		var more []linediff.Hunk
		more, hi = m.o.upTo(hi)
		ours = append(ours, more...)
		more, hi = m.t.upTo(hi)
		theirs = append(theirs, more...)
		if len(m.o.hunks)+len(m.t.hunks) == before {
			break
		}
	}
	o, t := m.o.text(lo, hi, ours), m.t.text(lo, hi, theirs)
	switch {
	case len(theirs) == 0 || equal(o, t):
		m.write(o)
	case len(ours) == 0:
		m.write(t)
	default:
		m.conflict(o, t)
	}
	return hi
}

func (m *merger) write(lines []string) {
	for _, l := range lines {
		m.out.WriteString(l)
	}
}

// conflict writes both versions, without the lines at the start and the end that they share.
func (m *merger) conflict(o, t []string) {
	m.conflicts++
	head, tail := common(o, t)
	m.write(o[:head])
	for _, part := range []struct {
		mark  string
		lines []string
	}{{"<<<<<<< " + m.l.Ours, o[head : len(o)-tail]}, {"=======", t[head : len(t)-tail]}} {
		m.out.WriteString(part.mark + "\n")
		m.write(part.lines)
		if n := len(part.lines); n > 0 && !strings.HasSuffix(part.lines[n-1], "\n") {
			m.out.WriteByte('\n')
		}
	}
	m.out.WriteString(">>>>>>> " + m.l.Theirs + "\n")
	m.write(o[len(o)-tail:])
}

// common counts the lines that a and b share at the start and, of the rest, at the end.
func common(a, b []string) (head, tail int) {
	n := min(len(a), len(b))
	for head < n && a[head] == b[head] {
		head++
	}
	for tail < n-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head, tail
}

func equal(a, b []string) bool {
	head, _ := common(a, b)
	return head == len(a) && head == len(b)
}
