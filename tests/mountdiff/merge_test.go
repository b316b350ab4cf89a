package mountdiff

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
	"github.com/rewindfs/rewindfs/internal/twin"
)

// gitPair is a plain git work tree and mounts that go through the same.
type gitPair struct {
	t    *testing.T
	r    *rand.Rand
	repo string
	made int // so that no two new files are alike: git would take one for the other, renamed
}

func (g *gitPair) git(args ...string) error {
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.hooksPath=/dev/null", "-c", "merge.directoryRenames=false"}, args...)...)
	cmd.Dir = g.repo
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (g *gitPair) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *gitPair) lines(n int) []string {
	var out []string
	for range n {
		g.made++
		out = append(out, fmt.Sprintf("line %d of its own\n", g.made))
	}
	return out
}

// change makes one change in both trees: the first is the git work tree.
func (g *gitPair) change(dirs ...string) {
	files := g.files(dirs[0])
	if len(files) == 0 {
		return
	}
	name := files[g.r.IntN(len(files))]
	kind, to := g.r.IntN(12), fmt.Sprintf("d%d/n%d", g.r.IntN(3), g.r.IntN(20))
	_, err := os.Stat(filepath.Join(dirs[0], to))
	taken := err == nil
	b, err := os.ReadFile(filepath.Join(dirs[0], name))
	g.must(err)
	text := strings.SplitAfter(strings.TrimSuffix(string(b), "\n"), "\n")
	text[len(text)-1] += "\n"
	at := g.r.IntN(len(text))
	switch {
	case kind < 5:
		text[at] = g.lines(1)[0]
	case kind < 7:
		text = slices.Insert(text, at, g.lines(1+g.r.IntN(3))...)
	case kind < 8:
		text = slices.Delete(text, at, min(len(text)-1, at+2))
	case kind == 11:
		text = g.lines(30)
		if !taken {
			name = to
		}
	}
	for _, dir := range dirs {
		p := filepath.Join(dir, name)
		switch {
		case kind == 8:
			err = os.Remove(p)
		case kind == 9 && !taken:
			if err = os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755); err == nil {
				err = os.Rename(p, filepath.Join(dir, to))
			}
		case kind == 10:
			err = os.Chmod(p, 0o755)
		case kind%2 == 0: // as an editor saves
			if err = os.WriteFile(p+"~", []byte(strings.Join(text, "")), 0o644); err == nil {
				err = os.Rename(p+"~", p)
			}
		default:
			if err = os.MkdirAll(filepath.Dir(p), 0o755); err == nil {
				err = os.WriteFile(p, []byte(strings.Join(text, "")), 0o644)
			}
		}
		g.must(err)
	}
}

// files lists the regular files below dir.
func (g *gitPair) files(dir string) []string {
	t, err := fstree.Scan(dir)
	g.must(err)
	var out []string
	for _, p := range t.Paths() {
		if !t.Entries[p].IsDir() && !strings.HasPrefix(p, ".git") && p != ".rewind" {
			out = append(out, p)
		}
	}
	return out
}

// show describes the files below dir as git does.
func (g *gitPair) show(dir string) string {
	var b strings.Builder
	for _, p := range g.files(dir) {
		st, err := os.Stat(filepath.Join(dir, p))
		g.must(err)
		text, err := os.ReadFile(filepath.Join(dir, p))
		g.must(err)
		fmt.Fprintf(&b, "%s %t\n%s", p, st.Mode()&0o100 != 0, text)
	}
	return b.String()
}

// TestMergesAsGit merges text files: where git finds no conflict, neither do we, and the result is the same.
func TestMergesAsGit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: 16}, "REWINDFS_TEST_MOUNT_CHECKS")
	m := mounttest.New(t, mounttest.Options{})
	m.Sh("rm -rf $M/* $M/.[a-z]* 2>/dev/null || true")
	clean, clashes := 0, 0
	for n := range seq.Count {
		g := &gitPair{t: t, r: rand.New(rand.NewPCG(uint64(seq.Seed+n), 7)), repo: t.TempDir()}
		g.must(g.git("init", "-q", "-b", "main"))
		m.Sh("rm -rf $M/*")
		for i := range 6 {
			text := strings.Join(g.lines(8+g.r.IntN(20)), "")
			for _, dir := range []string{g.repo, m.Dir} {
				p := filepath.Join(dir, fmt.Sprintf("d%d/f%d", i%2, i))
				g.must(os.MkdirAll(filepath.Dir(p), 0o755))
				g.must(os.WriteFile(p, []byte(text), 0o644))
			}
		}
		commit := func() { g.must(g.git("add", "-A")); g.must(g.git("commit", "-q", "--allow-empty", "-m", "x")) }
		commit()
		name := fmt.Sprintf("g%d", n)
		m.Checkpoint(name)
		f := m.Fork(name, name)
		g.must(g.git("checkout", "-q", "-b", "theirs"))
		for range 1 + g.r.IntN(8) {
			g.change(g.repo, f.Dir)
		}
		commit()
		g.must(g.git("checkout", "-q", "main"))
		for range 1 + g.r.IntN(8) {
			g.change(g.repo, m.Dir)
		}
		commit()
		gitErr := g.git("merge", "-q", "--no-edit", "theirs")
		r := m.Run("merge", name)
		switch {
		case gitErr == nil && r.Code != 0:
			t.Fatalf("seed %d: git merges what we do not: %s", seq.Seed+n, r.String())
		case gitErr == nil:
			if want, got := g.show(g.repo), g.show(m.Dir); want != got {
				t.Fatalf("seed %d: git has\n%s\nwe have\n%s", seq.Seed+n, want, got)
			}
			clean++
		case r.Code == 6:
			clashes++
		case r.Code != 0:
			t.Fatalf("seed %d: %s", seq.Seed+n, r.String())
		}
		m.OK("branch", "delete", name)
	}
	if clean < seq.Count/4 || clashes < seq.Count/8 {
		t.Errorf("of %d merges %d were clean and %d conflicts: the test is not worth much", seq.Count, clean, clashes)
	}
}
