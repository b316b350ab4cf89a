package linediff

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What Unified writes, patch(1) makes the new text out of the old one with, whatever the texts are.
func TestUnifiedAsPatch(t *testing.T) {
	tool, err := exec.LookPath("patch")
	if err != nil {
		t.Skip("no patch")
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 150 {
		a, b := text(r), text(r)
		if round%3 > 0 {
			b = edited(r, a)
		}
		var w bytes.Buffer
		added, removed := Unified(&w, Split(a), Split(b))
		if (w.Len() == 0) != bytes.Equal(a, b) {
			t.Fatalf("%q and %q: %d bytes of patch", a, b, w.Len())
		}
		if w.Len() == 0 {
			continue
		}
		if plus, minus := count(w.Bytes(), '+'), count(w.Bytes(), '-'); plus != added || minus != removed {
			t.Errorf("says %d added, %d removed; has %d, %d", added, removed, plus, minus)
		}
		file := filepath.Join(dir, "f")
		if err := os.WriteFile(file, a, 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(tool, "--fuzz=0", "-s", file)
		cmd.Stdin = strings.NewReader("--- a/f\n+++ b/f\n" + w.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("patch: %v: %s\nold:\n%s\nnew:\n%s\npatch:\n%s", err, out, a, b, w.String())
		}
		if got, err := os.ReadFile(file); err == nil && !bytes.Equal(got, b) || err != nil && len(b) > 0 {
			t.Fatalf("patch makes %q (%v), not %q, with\n%s", got, err, b, w.String())
		}
	}
}

func count(p []byte, mark byte) (n int) {
	for l := range bytes.Lines(p) {
		if l[0] == mark {
			n++
		}
	}
	return n
}

// text is a text with lines that come again, and perhaps no newline at the end.
func text(r *rand.Rand) []byte {
	var b bytes.Buffer
	for i := range r.IntN(30) {
		if r.IntN(3) == 0 {
			b.WriteString([]string{"}\n", "\n", "same\r\n"}[r.IntN(3)])
		} else {
			fmt.Fprintf(&b, "line %d\n", i)
		}
	}
	if r.IntN(3) == 0 {
		b.WriteString("end")
	}
	return b.Bytes()
}

func edited(r *rand.Rand, a []byte) []byte {
	var b bytes.Buffer
	for _, l := range Split(a) {
		switch r.IntN(8) {
		case 0:
		case 1:
			b.WriteString("new\n" + l)
		case 2:
			b.WriteString("x" + l)
		default:
			b.WriteString(l)
		}
	}
	return b.Bytes()
}
