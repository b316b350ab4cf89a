package linediff

import (
	"bytes"
	"fmt"
	"strings"
)

// Context is how many lines that stay are shown around a change.
const Context = 3

// noNewline stands behind a line that has no newline.
const noNewline = "\\ No newline at end of file\n"

// Unified appends what makes b out of a to w, as hunks with lines of context as a patch has them, and says
// how many lines go and come.
func Unified(w *bytes.Buffer, a, b []string) (added, removed int) {
	hunks := Diff(a, b)
	for len(hunks) > 0 {
		n := 1 // so many are told in one
		for n < len(hunks) && hunks[n].Lo-hunks[n-1].Hi <= 2*Context {
			n++
		}
		one(w, a, b, hunks[:n])
		for _, h := range hunks[:n] {
			added, removed = added+h.To-h.From, removed+h.Hi-h.Lo
		}
		hunks = hunks[n:]
	}
	return added, removed
}

// one appends hunks, which lie close to each other, as one.
func one(w *bytes.Buffer, a, b []string, hunks []Hunk) {
	first, last := hunks[0], hunks[len(hunks)-1]
	before := min(Context, first.Lo)
	after := min(Context, len(a)-last.Hi)
	lo, hi := first.Lo-before, last.Hi+after
	Head(w, lo, hi-lo, first.From-before, last.To+after-(first.From-before))
	for _, h := range hunks {
		put(w, ' ', a[lo:h.Lo])
		put(w, '-', a[h.Lo:h.Hi])
		put(w, '+', b[h.From:h.To])
		lo = h.Hi
	}
	put(w, ' ', a[lo:hi])
}

// Head appends the line that begins a hunk: of so many lines of the old text from line old on, counted from 0, and of the new one.
func Head(w *bytes.Buffer, old, oldLines, now, newLines int) {
	if oldLines > 0 {
		old++ // of none it is the line before, else the first one, counted from 1
	}
	if newLines > 0 {
		now++
	}
	fmt.Fprintf(w, "@@ -%d,%d +%d,%d @@\n", old, oldLines, now, newLines)
}

func put(w *bytes.Buffer, mark byte, lines []string) {
	for _, l := range lines {
		w.WriteByte(mark)
		w.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			w.WriteString("\n" + noNewline)
		}
	}
}
