package hunks

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/linediff"
)

func TestParse(t *testing.T) {
	text := strings.Join([]string{
		"some words in front", "# new directory, mode 0755: d",
		"diff --git a/f b/f", "old mode 100644", "new mode 100755", "--- a/f", "+++ b/f", "@@ -1,2 +1,3 @@ func x()", " one", "+--- two", "-three", `\ No newline at end of file`,
		"diff --git a/new b/new", "new file mode 100644", "--- /dev/null", "+++ b/new", "@@ -0,0 +1 @@", "+n",
		"diff --git a/empty file b/empty file", "new file mode 100644",
		"diff --git a/gone b/gone", "deleted file mode 100644", "--- a/gone", "+++ /dev/null", "@@ -1 +0,0 @@", "-g",
		`diff --git "a/q\"\303\244" b/z`, "similarity index 90%", `rename from "q\"\303\244"`, "rename to z",
		"diff --git a/bin b/bin", "Binary files a/bin and b/bin differ",
		`diff --git a/sp ace b/sp ace`, "--- a/sp ace\t", "+++ b/sp ace\t", "@@ -5,0 +6,1 @@", "+x", "",
	}, "\n")
	files, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, fmt.Sprintf("%q %q mode=%v binary=%v%s", f.Old, f.New, f.Mode, f.Binary, show(f.Hunks)))
	}
	want := []string{
		`"f" "f" mode=true binary=false 0:[" one\n" "+--- two\n" "-three"]`,
		`"" "new" mode=false binary=false 0:["+n\n"]`,
		`"" "empty file" mode=false binary=false`,
		`"gone" "" mode=false binary=false 0:["-g\n"]`,
		`"q\"ä" "z" mode=false binary=false`,
		`"bin" "bin" mode=false binary=true`,
		`"sp ace" "sp ace" mode=false binary=false 5:["+x\n"]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for bad, why := range map[string]string{
		"diff --git a/f b/f\n@@ nothing @@\n":                 "line 2",
		"diff --git a/f b/f\n@@ -1 +1 @@\n x\n?\n":            "line 4",
		"diff --git a/f b/f\n@@ -1 +1 @@\n\\ No newline\n":    "line 3",
		"diff --git a/f b/g\n":                                "which file",
		"diff --git \"a/\\x\" \"b/\\x\"\n":                    "which file",
		"diff --git a/f b/f\n--- \"a/f\n+++ b/f\n@@ -1 +1 @@": "line 2",
	} {
		if _, err := Parse([]byte(bad)); err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(why, "which ")) {
			t.Errorf("%q: %v, want %q", bad, err, why)
		}
	}
}

func show(all []Hunk) (out string) {
	for _, h := range all {
		out += fmt.Sprintf(" %d:%q", h.Line, h.Lines)
	}
	return out
}

func TestApplyRefuses(t *testing.T) {
	for old, h := range map[string][]Hunk{
		"a\nb\n":  {{0, []string{" a\n", "-x\n"}}},
		"a\n":     {{0, []string{" a\n", "-b\n"}}},
		"a\nb":    {{1, []string{"-b\n"}}},
		"a\nb\n ": {{7, []string{"+b\n"}}},
		"c\nd\n":  {{1, []string{"-d\n"}}, {0, []string{"-c\n"}}},
		"e":       {{1, []string{"+f\n"}}},
		"g\n":     {{0, []string{"+f"}}},
	} {
		if got, err := (&File{Hunks: h}).Apply([]byte(old)); err == nil {
			t.Errorf("%q with%s became %q", old, show(h), got)
		}
	}
}

// Any choice of the hunks between two texts, split or not, is for us what it is for git apply.
func TestApplyAsGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git")
	}
	r := rand.New(rand.NewPCG(5, 6))
	partial := 0
	for round := range 200 {
		a := text(r)
		b := edited(r, a)
		var w bytes.Buffer
		w.WriteString("diff --git a/f b/f\n--- a/f\n+++ b/f\n")
		linediff.Unified(&w, linediff.Split(a), linediff.Split(b))
		files, err := Parse(w.Bytes())
		if err != nil || len(files) != 1 {
			t.Fatalf("%v, %d files", err, len(files))
		}
		f := files[0]
		whole, err := f.Apply(a)
		if err != nil || !bytes.Equal(whole, b) {
			t.Fatalf("round %d: the whole patch makes %q (%v), want %q", round, whole, err, b)
		}
		var all, use []Hunk
		for _, h := range f.Hunks {
			parts := h.Split()
			if r.IntN(2) == 0 {
				parts = []Hunk{h}
			}
			all = append(all, parts...)
		}
		for _, h := range all {
			if r.IntN(2) == 0 {
				use = append(use, h)
			}
		}
		if len(use) == 0 {
			continue
		}
		if len(use) < len(all) {
			partial++
		}
		var some bytes.Buffer
		f.Format(&some, use)
		again, err := Parse(some.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		got, err := again[0].Apply(a)
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, a, some.String())
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "f"), a, 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(git, "apply", "--unidiff-zero", "-")
		cmd.Dir, cmd.Stdin = dir, &some
		patch := some.String()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git apply: %v: %s\n%s\n%s", err, out, a, patch)
		}
		if want, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("we make\n%q\ngit makes\n%q (%v) of\n%q\nwith\n%s", got, want, err, a, patch)
		}
	}
	if partial < 50 {
		t.Errorf("only %d choices were partial: the test is not worth much", partial)
	}
}

func text(r *rand.Rand) []byte {
	var b bytes.Buffer
	for i := range 10 + r.IntN(40) {
		if r.IntN(4) == 0 {
			b.WriteString([]string{"}\n", "\n", "--- a/x\n"}[r.IntN(3)])
		} else {
			fmt.Fprintf(&b, "line %d\n", i)
		}
	}
	return b.Bytes()
}

func edited(r *rand.Rand, a []byte) []byte {
	var b bytes.Buffer
	for _, l := range linediff.Split(a) {
		switch r.IntN(10) {
		case 0:
		case 1:
			b.WriteString("new\n" + l)
		case 2:
			b.WriteString("x" + l)
		default:
			b.WriteString(l)
		}
	}
	b.WriteString("end\n")
	return b.Bytes()
}

// What Parse takes, Format writes so that it means the same; nothing makes either of them, or Apply, fail otherwise than by an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte("diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"), []byte("a\nb\n"))
	f.Add([]byte("diff --git \"a/\\303\" \"b/\\303\"\nnew file mode 100644\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"), []byte(""))
	f.Fuzz(func(t *testing.T, patch, old []byte) {
		files, err := Parse(patch)
		if err != nil {
			return
		}
		for _, g := range files {
			want, err := g.Apply(old)
			if err != nil {
				continue
			}
			var parts []Hunk
			for _, h := range g.Hunks {
				parts = append(parts, h.Split()...)
			}
			split := *g
			split.Hunks = parts
			if got, err := split.Apply(old); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("split, %q makes %q (%v), not %q", patch, got, err, want)
			}
			var w bytes.Buffer
			g.Format(&w, g.Hunks)
			again, err := Parse(w.Bytes())
			if err != nil || len(again) != 1 || again[0].Old != g.Old || again[0].New != g.New || len(again[0].Hunks) != len(g.Hunks) {
				t.Fatalf("%q was written as %q: %v", patch, w.Bytes(), err)
			}
		}
	})
}
