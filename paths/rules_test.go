package paths

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRules(t *testing.T) {
	r, err := Parse([]byte("[paths]\nkeep = [\"*.log\", \"/.cache/\", \"!important.log\"]\nignore = [\"docs/*.txt\", \"**/tmp\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		"a.log": true, "d/a.log": true, "a.logs": false, "important.log": false, "d/important.log": false, ".cache/": true, ".cache/x/y": true,
		".cache": false, "d/.cache/x": false, "x.log/important.log": true,
	} {
		if got := r.Kept(strings.TrimSuffix(p, "/"), strings.HasSuffix(p, "/")); got != want {
			t.Errorf("%q is kept: %t", p, got)
		}
	}
	for p, want := range map[string]bool{"docs/a.txt": true, "docs/d/a.txt": false, "x/docs/a.txt": false, "tmp": true, "a/b/tmp/c": true, "docs": false} {
		if got := r.Ignored(p, false); got != want {
			t.Errorf("%q is ignored: %t", p, got)
		}
	}
	if none := (*Rules)(nil); none.Kept("a", false) || none.Ignored("a", true) || none.Keeps() || none.Ignores() {
		t.Error("no rules say something")
	}
}

func TestBadRules(t *testing.T) {
	for text, want := range map[string]string{
		"[paths]\nkeep = [\"a[\"]":    "malformed",
		"[paths]\nkeep = [\"\"]":      "empty",
		"[paths]\nkeep = [\"/\"]":     "no path",
		"[paths]\nignore = [\"!\"]":   "empty",
		"[paths]\nkeep = [\"../x\"]":  "..",
		"[paths]\nkeep = [\"a//b\"]":  "part",
		"[paths]\nkeep = [\"x\\\\\"]": "backslash",
		"[paths]\nkep = [\"x\"]":      "unknown key paths.kep",
		"[path]\nkeep = [\"x\"]":      "unknown key",
		"[paths]\nkeep = \"x\"":       "keep",
		"[paths\n":                    "line 2",
		"[paths]\nkeep = [" + strings.Repeat(`"x",`, maxPatterns+1) + "]": "allowed",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	store, base := t.TempDir(), t.TempDir()
	if r, err := Load(store, base); err != nil || r != nil {
		t.Fatalf("without a file: %v, %v", r, err)
	}
	write := func(dir, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(base, "[paths]\nkeep = ['b']\n")
	if r, err := Load(store, base); err != nil || !r.Kept("b", false) || r.File != filepath.Join(base, FileName) {
		t.Fatalf("from the base: %+v, %v", r, err)
	}
	write(store, "[paths]\nkeep = ['s']\n")
	if r, err := Load(store, base); err != nil || r.Kept("b", false) || !r.Kept("s", false) {
		t.Fatalf("from the store: %+v, %v", r, err)
	}
	write(store, "[paths]\nkeep = ['[']\n")
	if _, err := Load(store, base); err == nil || !strings.Contains(err.Error(), filepath.Join(store, FileName)) {
		t.Errorf("a bad file: %v", err)
	}
	write(store, strings.Repeat("#", maxSize+1))
	if _, err := Load(store, base); err == nil {
		t.Error("a large file is read")
	}
	for what, make := range map[string]func(p string) error{
		"a link": func(p string) error { return os.Symlink("/etc/passwd", p) }, "a directory": func(p string) error { return os.Mkdir(p, 0o755) },
	} {
		p := filepath.Join(store, FileName)
		if err := os.RemoveAll(p); err != nil {
			t.Fatal(err)
		}
		if err := make(p); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(store, base); err == nil {
			t.Errorf("%s is taken for the file", what)
		}
	}
}

// Patterns mean what they mean to git.
func TestRulesAsGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git")
	}
	dir := t.TempDir()
	if out, err := exec.Command(git, "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := rand.New(rand.NewPCG(1, 1))
	names := []string{"a", "b", "ab", "a.b", "{a}", "[x]", "a b"}
	globs := []string{"a", "b", "a*", "*b", "?", "[ab]", "[!a]", "[^b]*", "**", "a.b", "{a}", `\[x]`, "a?b", "*"}
	var tree []string
	for range 60 {
		var parts []string
		for range 1 + r.IntN(4) {
			parts = append(parts, names[r.IntN(len(names))])
		}
		p := strings.Join(parts, "/")
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(p)), 0o755); err != nil {
			continue // a part of it is a file
		}
		if f, err := os.OpenFile(filepath.Join(dir, p), os.O_CREATE, 0o644); err == nil {
			f.Close()
		}
	}
	filepath.WalkDir(dir, func(p string, d os.DirEntry, _ error) error {
		if rel, _ := filepath.Rel(dir, p); rel != "." && !strings.HasPrefix(rel, ".git") {
			tree = append(tree, rel)
		}
		return nil
	})
	for round := range 200 {
		var patterns []string
		for range 1 + r.IntN(4) {
			var parts []string
			for range 1 + r.IntN(3) {
				parts = append(parts, globs[r.IntN(len(globs))])
			}
			p := strings.Join(parts, "/")
			for _, q := range []string{"/", "!"} {
				if r.IntN(4) == 0 {
					p = q + strings.TrimPrefix(p, "!")
				}
			}
			if r.IntN(4) == 0 {
				p += "/"
			}
			patterns = append(patterns, p)
		}
		var text strings.Builder
		for _, p := range patterns {
			fmt.Fprintf(&text, "'%s', ", p)
		}
		rules, err := Parse([]byte("[paths]\nkeep = [" + text.String() + "]\n"))
		if err != nil {
			t.Fatalf("%q: %v", patterns, err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".git/info/exclude"), []byte(strings.Join(patterns, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(git, "check-ignore", "-z", "--stdin", "--no-index")
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(strings.Join(tree, "\x00")+"\x00")
		out, err := cmd.Output()
		if err != nil && cmd.ProcessState.ExitCode() != 1 {
			t.Fatal(err)
		}
		ignored := map[string]bool{}
		for p := range strings.SplitSeq(string(out), "\x00") {
			ignored[p] = true
		}
		for _, p := range tree {
			st, err := os.Lstat(filepath.Join(dir, p))
			if err != nil {
				t.Fatal(err)
			}
			if got := rules.Kept(p, st.IsDir()); got != ignored[p] {
				t.Errorf("round %d, patterns %q: %q matches: %t, to git %t", round, patterns, p, got, ignored[p])
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[paths]\nkeep = ['*.log', '!x/**/y/']\n", "x/a/y")
	f.Fuzz(func(t *testing.T, text, p string) {
		if r, err := Parse([]byte(text)); err == nil {
			r.Kept(p, false)
			r.Ignored(p, true)
		}
	})
}

func TestTargets(t *testing.T) {
	r, err := Parse([]byte("[[target]]\nsqlite = '/a/b.db'\n[[target]]\nsqlite = '~/c.db'\n[[target]]\nvolume = 'data'\nimage = 'busybox'\ndocker = 'podman'\n"))
	if err != nil || !slices.Equal(r.Targets, []Target{{SQLite: "/a/b.db"}, {SQLite: "~/c.db"}, {Volume: "data", Image: "busybox", Docker: "podman"}}) {
		t.Errorf("%+v, %v", r, err)
	}
	for text, want := range map[string]string{
		"[[target]]\n": "needs sqlite or volume",
		"[[target]]\nsqlite = '/a'\nvolume = 'b'\n":       "not both",
		"[[target]]\nsqlite = 'a.db'\n":                   "absolute",
		"[[target]]\nsqlite = '~other/a.db'\n":            "absolute",
		"[[target]]\nsqlite = '/a'\nimage = 'b'\n":        "go with volume",
		"[[target]]\npostgres = '/a'\n":                   "unknown key",
		"[target]\nsqlite = '/a'\n":                       "",
		strings.Repeat("[[target]]\nvolume = 'a'\n", 101): "100 are allowed",
		"[[target]]\nsqlite = ['/a']\n":                   "",
	} {
		if r, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %+v, %v; want %q", text, r, err, want)
		}
	}
}
