package patch

import (
	"os/exec"
	"strings"
	"testing"
)

// What lies in .git is named, and does not keep git from taking the rest; lines of it are counted.
func TestGitsOwn(t *testing.T) {
	from := tree{".git/index": "\x00", ".git/HEAD": "main\n", "a": "a\n", "in": "in\n", "sub/.git/out": "out\n", "m/.git": "gitdir: x\n", "w/git~1": "w\n"}
	to := tree{".git/index": "\x01\x00", ".git/HEAD": "try\n", "a": "b\n", ".git/hooks/pre-commit": "in\n", "out": "out\n", ".GIT. /x": "x\n", ".git-not": "is\n", "m/.git": "@x", "v\\.git/x": "x"}
	var files []*File
	var text strings.Builder
	err := Write(from, to, []Change{
		{"M", ".git/index", ""}, {"M", ".git/HEAD", ""}, {"M", "a", ""}, {"R", ".git/hooks/pre-commit", "in"}, {"R", "out", "sub/.git/out"},
		{"A", ".GIT. /x", ""}, {"A", ".git-not", ""}, {"T", "m/.git", ""}, {"D", "w/git~1", ""}, {"A", "v\\.git/x", ""},
	}, Options{Binary: true}, func(f *File) error {
		files = append(files, f)
		text.Write(f.Text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# changed file: .git/index\n", "# changed file: .git/HEAD\n", "# new file, mode 0644: .git/hooks/pre-commit\n", "# deleted file: sub/.git/out\n", "# new file, mode 0644: .GIT. /x\n",
		"# deleted file: m/.git\n# new symbolic link, mode 0777: m/.git\n", "# deleted file: w/git~1\n", "diff --git a/in b/in\ndeleted file", "diff --git a/out b/out\nnew file", "diff --git a/.git-not b/.git-not\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, text.String())
		}
	}
	for _, f := range files {
		if f.Note || f.Path == ".git/HEAD" && (f.Added != 1 || f.Removed != 1) || f.Path == ".git/index" && !f.Binary {
			t.Errorf("%+v", f)
		}
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	got := applied(t, from, text.String())
	for p, want := range map[string]string{"a": "b\n", "out": "out\n", ".git-not": "is\n", ".git/HEAD": "main\n", "in": ""} {
		if got[p] != want {
			t.Errorf("%s is %q", p, got[p])
		}
	}
}
