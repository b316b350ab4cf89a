package merge3

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

func TestMerge(t *testing.T) {
	for name, c := range map[string]struct{ base, ours, theirs, want string }{
		"one side":          {"a\nb\nc\n", "a\nB\nc\n", "a\nb\nc\n", "a\nB\nc\n"},
		"other side":        {"a\nb\nc\n", "a\nb\nc\n", "a\nb\nC\n", "a\nb\nC\n"},
		"apart":             {"a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", "A\nb\nC\n"},
		"the same":          {"a\nb\nc\n", "a\nB\nc\n", "a\nB\nc\n", "a\nB\nc\n"},
		"insert and delete": {"a\nb\nc\nd\ne\n", "a\nnew\nb\nc\nd\ne\n", "a\nb\nc\ne\n", "a\nnew\nb\nc\ne\n"},
		"to nothing":        {"a\n", "", "a\n", ""},
		"crlf":              {"a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", "A\r\nb\r\nC\r\n"},
		"no newline":        {"a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC"},
		"not utf-8":         {"\xff\nb\nc\xfe\n", "\xff!\nb\nc\xfe\n", "\xff\nb\nc\xfe!\n", "\xff!\nb\nc\xfe!\n"},
		"conflict":          {"a\nb\nc\n", "a\nX\nc\n", "a\nY\nc\n", "a\n<<<<<<< us\nX\n=======\nY\n>>>>>>> them\nc\n"},
		"beside each other": {"a\nb\n", "A\nb\n", "a\nB\n", "<<<<<<< us\nA\nb\n=======\na\nB\n>>>>>>> them\n"},
		"no ancestor":       {"", "x\n", "y", "<<<<<<< us\nx\n=======\ny\n>>>>>>> them\n"},
		"shared edges":      {"a\nb\nc\n", "1\nX\n2\nc\n", "1\nY\n2\nc\n", "1\n<<<<<<< us\nX\n=======\nY\n>>>>>>> them\n2\nc\n"},
	} {
		got := Merge([]byte(c.base), []byte(c.ours), []byte(c.theirs), Labels{"us", "them"})
		if string(got.Text) != c.want || (got.Conflicts > 0) != strings.Contains(c.want, "<<<<") {
			t.Errorf("%s: %d conflicts, %q; want %q", name, got.Conflicts, got.Text, c.want)
		}
	}
}

// change makes some edits to a text, of unlike and of repeated lines.
func change(r *rand.Rand, text []string, mark string) []string {
	out := append([]string(nil), text...)
	for n := range r.IntN(6) {
		line := fmt.Sprintf("%s %d\n", mark, n)
		if r.IntN(3) == 0 {
			line = []string{"}\n", "\n", "same\n"}[r.IntN(3)]
		}
		at := r.IntN(len(out) + 1)
		switch end := min(len(out), at+r.IntN(4)); r.IntN(3) {
		case 0:
			out = append(out[:at:at], append([]string{line}, out[at:]...)...)
		case 1:
			out = append(out[:at:at], out[end:]...)
		case 2:
			out = append(out[:at:at], append([]string{line, line}, out[end:]...)...)
		}
	}
	return out
}

// Where git merges, so do we, with the same result; where git finds a conflict, so do we.
func TestMergeAsGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git")
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	clean := 0
	const rounds = 300
	for round := range rounds {
		var base []string
		for i := range r.IntN(40) {
			line := fmt.Sprintf("line %d\n", i)
			if r.IntN(4) == 0 {
				line = []string{"}\n", "\n", "same\n"}[r.IntN(3)]
			}
			base = append(base, line)
		}
		texts := map[string][]byte{}
		for name, l := range map[string][]string{"base": base, "ours": change(r, base, "our"), "theirs": change(r, base, "their")} {
			texts[name] = []byte(strings.Join(l, ""))
			if err := os.WriteFile(filepath.Join(dir, name), texts[name], 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(git, "merge-file", "-p", "ours", "base", "theirs")
		cmd.Dir = dir
		want, err := cmd.Output()
		got := Merge(texts["base"], texts["ours"], texts["theirs"], Labels{"ours", "theirs"})
		switch {
		case (err == nil) != (got.Conflicts == 0):
			t.Errorf("round %d: git: %v, we: %d conflicts\nbase:\n%s\nours:\n%s\ntheirs:\n%s\ngit:\n%s\nwe:\n%s", round, err, got.Conflicts, texts["base"], texts["ours"], texts["theirs"], want, got.Text)
		case err == nil && !bytes.Equal(want, got.Text):
			t.Errorf("round %d: git says\n%s\nwe say\n%s", round, want, got.Text)
		case err == nil:
			clean++
		}
	}
	if clean < rounds/3 {
		t.Errorf("only %d of %d could be merged: the test is not worth much", clean, rounds)
	}
}

// Whatever the texts are, the work is bounded: all lines unlike, all alike, few that come again and again.
func TestMergeLarge(t *testing.T) {
	text := func(mod, step int) []byte {
		var b bytes.Buffer
		for i := 0; b.Len() < 1<<20; i++ {
			fmt.Fprintf(&b, "%d\n", (i*step+7)%mod)
		}
		return b.Bytes()
	}
	for _, mod := range []int{1, 2, 1000, 1 << 30} {
		base, ours, theirs := text(mod, 1), text(mod, 3), text(mod, 5)
		Merge(base, ours, theirs, Labels{})
		if got := Merge(base, ours, base, Labels{}); got.Conflicts > 0 || !bytes.Equal(got.Text, ours) {
			t.Errorf("of lines modulo %d, with changes on one side: %d conflicts", mod, got.Conflicts)
		}
	}
}

func FuzzMerge(f *testing.F) {
	f.Add("a\nb\n", "a\nc\n", "d\nb\n")
	f.Fuzz(func(t *testing.T, base, ours, theirs string) {
		b, o, th := []byte(base), []byte(ours), []byte(theirs)
		for _, c := range []struct{ base, ours, theirs, want []byte }{{b, o, b, o}, {b, b, th, th}, {b, o, o, o}} {
			if got := Merge(c.base, c.ours, c.theirs, Labels{}); got.Conflicts > 0 || !bytes.Equal(got.Text, c.want) {
				t.Fatalf("%q, %q, %q: %d conflicts, %q", c.base, c.ours, c.theirs, got.Conflicts, got.Text)
			}
		}
		x, y := Merge(b, o, th, Labels{}), Merge(b, th, o, Labels{})
		if x.Conflicts != y.Conflicts || x.Conflicts == 0 && !bytes.Equal(x.Text, y.Text) {
			t.Fatalf("%q, %q, %q: the sides are not alike: %d conflicts, %q; %d, %q", base, ours, theirs, x.Conflicts, x.Text, y.Conflicts, y.Text)
		}
	})
}
