package patch

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree is a Side in memory: content by path. A path that ends with a slash is a directory, one with @ a symlink's.
type tree map[string]string

func (t tree) Stat(p string) (*Object, error) {
	if text, ok := t[p]; ok {
		if target, is := strings.CutPrefix(text, "@"); is {
			return &Object{Mode: 0o120777, Size: int64(len(target)), Target: target}, nil
		}
		mode := uint32(0o100644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o100755
		}
		return &Object{Mode: mode, Size: int64(len(text))}, nil
	}
	for q := range t {
		if strings.HasPrefix(q, p+"/") {
			return &Object{Mode: 0o040755}, nil
		}
	}
	return nil, nil
}

func (t tree) Leaves(p string, fn func(string) error) error {
	for _, q := range slices.Sorted(maps.Keys(t)) {
		if strings.HasPrefix(q, p+"/") {
			if err := fn(q); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t tree) Read(p string, _ int64) ([]byte, error) {
	if text, ok := t[p]; ok {
		return []byte(text), nil
	}
	return nil, errors.New("nothing there")
}

func written(t *testing.T, from, to tree, o Options, changes ...Change) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(from, to, changes, o, func(f *File) error { b.Write(f.Text); return nil }); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestForms(t *testing.T) {
	from := tree{"a": "one\ntwo\n", "bin": "\x00a", "d/x": "x\n", "d/y": "y\n", "l": "@old", "gone": "g", "run": "#!x\n", "onto": "was\n", "mover": "m\n"}
	to := tree{"a": "one\nzwei\n", "bin": "\x00b", "e/x": "x\n", "e/y": "y!\n", "l": "now a file\n", "new \"\xff": "", "run": "plain\n", "onto": "m\n"}
	got := written(t, from, to, Options{}, []Change{
		{"M", "a", ""}, {"M", "bin", ""}, {"R", "e", "d"}, {"M", "e/y", ""}, {"T", "l", ""}, {"D", "gone", ""},
		{"A", "new \"\xff", ""}, {"M", "run", ""}, {"R", "onto", "mover"},
	}...)
	const want = `diff --git a/a b/a
--- a/a
+++ b/a
@@ -1,2 +1,2 @@
 one
-two
+zwei
diff --git a/bin b/bin
Binary files a/bin and b/bin differ
# renamed directory: d -> e
diff --git a/d/x b/e/x
similarity index 100%
rename from d/x
rename to e/x
diff --git a/d/y b/e/y
similarity index 66%
rename from d/y
rename to e/y
--- a/d/y
+++ b/e/y
@@ -1,1 +1,1 @@
-y
+y!
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1,1 +0,0 @@
-g
\ No newline at end of file
diff --git a/l b/l
deleted file mode 120000
--- a/l
+++ /dev/null
@@ -1,1 +0,0 @@
-old
\ No newline at end of file
diff --git a/l b/l
new file mode 100644
--- /dev/null
+++ b/l
@@ -0,0 +1,1 @@
+now a file
diff --git a/mover b/mover
deleted file mode 100644
--- a/mover
+++ /dev/null
@@ -1,1 +0,0 @@
-m
diff --git "a/new \"\377" "b/new \"\377"
new file mode 100644
diff --git a/onto b/onto
--- a/onto
+++ b/onto
@@ -1,1 +1,1 @@
-was
+m
diff --git a/run b/run
old mode 100755
new mode 100644
--- a/run
+++ b/run
@@ -1,1 +1,1 @@
-#!x
+plain
`
	if got != want {
		t.Errorf("%s", got)
	}
}

// applied is what git apply makes of a tree of files and a patch.
func applied(t *testing.T, from tree, text string) tree {
	t.Helper()
	dir := t.TempDir()
	for p, content := range from {
		at := filepath.Join(dir, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin, cmd.Env = dir, strings.NewReader(text), append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, text)
	}
	got := tree{}
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		got[strings.TrimPrefix(p, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Two names that change places, a chain of renames, a file in place of a directory and the reverse, binary content: git agrees.
func TestGitTakesIt(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	long := strings.Repeat("\x00\x01abc", 3000)
	from := tree{"a": "A\n", "b": "B\n", "c1": "1\n", "c2": "2\n", "dir/f": "f\n", "file": "file\n", "bin": long, "two": "t\n", "p/x": "in p, goes\n", "p/y": "in p\n", "q/x": "in q\n"}
	to := tree{"a": "B\n", "b": "A\n", "c2": "1\n", "c3": "2\n", "dir": "f is gone\n", "file/g": "g\n", "bin": long + "\x00", "newbin": "\x00", "t1": "t\n", "t2": "t\n", "p/x": "in q\n", "q/y": "in p\n"}
	text := written(t, from, to, Options{Binary: true}, []Change{
		{"R", "a", "b"}, {"R", "b", "a"}, {"R", "c2", "c1"}, {"R", "c3", "c2"}, {"D", "dir/f", ""}, {"T", "dir", ""}, {"T", "file", ""}, {"A", "file/g", ""},
		{"M", "bin", ""}, {"A", "newbin", ""}, {"R", "t1", "two"}, {"R", "t2", "two"},
		{"R", "p", "q"}, {"R", "q", "p"}, {"D", "p/x", ""},
	}...)
	if got := applied(t, from, text); !maps.Equal(got, to) {
		t.Errorf("git makes %q of it", got)
	}
}

// What would make a minimal diff take for ever is told in time that grows with its size only.
func TestLargeInputs(t *testing.T) {
	var a, b strings.Builder
	for i := range 150_000 {
		fmt.Fprintf(&a, "%d\n", i*7919%1000)
		fmt.Fprintf(&b, "%d\n", i*104729%1000)
	}
	text := written(t, tree{"f": a.String()}, tree{"f": b.String()}, Options{}, Change{"M", "f", ""})
	if len(text) < 500_000 {
		t.Errorf("%d bytes of patch", len(text))
	}
	huge := strings.Repeat("x\n", maxText)
	if text := written(t, tree{"f": huge}, tree{"f": "x\n"}, Options{}, Change{"M", "f", ""}); !strings.Contains(text, "Binary files a/f and b/f differ") {
		t.Errorf("%.200s", text)
	}
}
