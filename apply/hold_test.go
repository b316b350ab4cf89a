package apply

import (
	"slices"
	"strings"
	"testing"
)

func TestHold(t *testing.T) {
	h, err := ParseHold("")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		".git": true, "sub/.git": true, ".git/config": true, ".git/hooks/pre-commit": true, ".git/hooks/a/b": true, ".git/modules/x/config": true,
		".git/modules/x/y/hooks/post-checkout": true, ".git/worktrees/w/config.worktree": true, "deep/in/it/.git/config": true,
		".git/commondir": true, ".git/worktrees/w/commondir": true, "x/.git/rebase-merge/git-rebase-todo": true, ".Rprofile": true, "a/.mvn/extensions.xml": true,
		"bare.git/config": true, "x/bare.git/hooks/update": true, ".GIT/Config": true, ".G\u0130T/config": false, ".g\u200cit/hooks/x": true, "\u212a.git/config": true,
		".envrc": true, "a/.envrc": true, ".vscode/tasks.json": true, "web/.vscode/Settings.JSON": true, ".npmrc": true, ".husky/_/husky.sh": true,
		".github/workflows/ci.yml": true, ".github/CODEOWNERS": false, "Jenkinsfile": true, ".idea/runConfigurations/x.xml": true, "p.code-workspace": true,
		"hooks/x": false, "config": false, ".git/HEAD": false, ".git/objects/ab/cd": false, ".gitignore": false, "src/main.go": false, "git/config": false, "x.git.txt": false,
	} {
		if got := h.listed(path); got != want {
			t.Errorf("%q held back: %v", path, got)
		}
	}
	for path, want := range map[string]bool{".vscode": true, ".husky": true, "x/.github": true, "x/.github/workflows": true, ".idea": true, "src": false, "a.git": true} {
		if got := h.leads(parts(path)); got != want {
			t.Errorf("a link at %q held back: %v", path, got)
		}
	}
	if _, err := ParseHold("a\n[\n"); err == nil {
		t.Error("a bad pattern was taken")
	}
	if h, err = ParseHold("# mine\n!.NPMRC\n!no-such\nmine/**\n"); err != nil || !h.listed(".envrc") || h.listed(".npmrc") || !h.listed("x/mine/y") {
		t.Errorf("the user's own: %v", err)
	}
	if _, err := ParseHold("a\n[\n"); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a bad pattern in line 2: %v", err)
	}
}

// A file of a version that wrote all its patterns into it says what the user added and took out, not that later ones are not wanted.
func TestHoldFileOfEarlierVersion(t *testing.T) {
	var old []string
	for _, l := range holdLines(DefaultHold) {
		if !slices.Contains(laterHold, l) && l != ".npmrc" {
			old = append(old, l)
		}
	}
	text := NewHoldFile(strings.Join(old, "\n") + "\n# my own\nsecret.key\n")
	if want := HoldHeader + "!.npmrc\n# my own\nsecret.key\n"; text != want {
		t.Fatalf("it becomes\n%s\nnot\n%s", text, want)
	}
	if again := NewHoldFile(text); again != text {
		t.Errorf("and then\n%s", again)
	}
	h, err := ParseHold(text)
	if err != nil || h.listed(".npmrc") || !h.listed("secret.key") || !h.listed(".Rprofile") || !h.listed(".envrc") {
		t.Errorf("what it says: %v", err)
	}
	if whole := NewHoldFile(DefaultHold); whole != HoldHeader {
		t.Errorf("one that nobody changed becomes\n%s", whole)
	}
}
