package layersdiff

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/patch"
)

// patched is history whose states are compared by patches.
var patched = twin.Plan{
	Ops: fsops.GenOptions{Held: true}, Lo: 20, Hi: 60,
	Chance: map[twin.Ctl]int{twin.Seal: 60, twin.Move: 40, twin.Restore: 20},
}

// patcher is a subject that holds a patch against the trees for every diff that is checked.
type patcher struct {
	*subject
	scratch string
	n       int
}

// Diff implements twin.Differ.
func (p *patcher) Diff(from, to string) ([]twin.Change, error) {
	changes, err := p.subject.Diff(from, to)
	if err != nil || p.n > 2 {
		return changes, err
	}
	p.n++
	return changes, p.check(layerOf(from), layerOf(to), changes)
}

// check applies a patch with git to a copy of from and compares with to.
func (p *patcher) check(from, to layers.Layer, changes []twin.Change) error {
	a, b, err := p.w.tree.Sides(from, to)
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	var list []patch.Change
	for _, c := range changes {
		list = append(list, patch.Change(c))
	}
	var text bytes.Buffer
	err = patch.Write(patch.View{V: a}, patch.View{V: b}, list, patch.Options{Binary: true}, func(f *patch.File) error {
		text.Write(f.Text)
		return nil
	})
	if err != nil {
		return err
	}
	dir := filepath.Join(p.scratch, fmt.Sprint("patch", p.n))
	if err := unpack(treeOf(a), patch.View{V: a}, dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if text.Len() > 0 && bytes.Contains(text.Bytes(), []byte("diff --git")) {
		cmd := exec.Command("git", "apply", "--unsafe-paths", "--whitespace=nowarn", "-p1", "-")
		cmd.Dir, cmd.Stdin = dir, &text
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir)
		saved := bytes.Clone(text.Bytes())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git apply: %w\n%s\nof\n%.3000q", err, out, saved)
		}
	}
	want, err := described(treeOf(b))
	if err != nil {
		return err
	}
	tree, err := fstree.Scan(dir)
	if err != nil {
		return err
	}
	got, err := described(tree)
	if err == nil && !slices.Equal(want, got) {
		err = fmt.Errorf("applied, the patch gives\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return err
}

// described is what git knows of a tree.
func described(t *fstree.Tree) ([]string, error) {
	var out []string
	for _, p := range t.Paths() {
		switch e := t.Entries[p]; {
		case e.Err != "":
			return nil, fmt.Errorf("%q: %s", p, e.Err)
		case e.Type() == 0o100000:
			out = append(out, fmt.Sprintf("%q %d %s", p, e.Mode&0o100, e.Hash))
		case e.Type() == 0o120000:
			out = append(out, fmt.Sprintf("%q -> %q", p, e.Target))
		}
	}
	return out, nil
}

// unpack makes the files of a tree in dir: their content, modes as git knows them, and links.
func unpack(t *fstree.Tree, side patch.View, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range t.Paths() {
		e, at := t.Entries[p], filepath.Join(dir, p)
		var err error
		switch e.Type() {
		case 0o040000:
			err = os.MkdirAll(at, 0o755)
		case 0o120000:
			err = os.Symlink(e.Target, at)
		case 0o100000:
			var b []byte
			if b, err = side.Read(p, e.Size); err == nil {
				err = os.WriteFile(at, b, 0o644|os.FileMode(e.Mode&0o100))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestPatches holds patches between states of random histories against the states: git apply makes one of the other.
func TestPatches(t *testing.T) {
	if out, err := exec.Command("git", "version").CombinedOutput(); err != nil {
		t.Skipf("no git: %v %s", err, out)
	}
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: 15}, "REWINDFS_TEST_CHECKS")
	w := newWorld(t, false)
	top := fstree.FastTemp(t)
	n := 0
	twin.Check(t, seq, twin.Steps(patched), func(tb twin.TB, steps []twin.Step) {
		n++
		scratch := filepath.Join(top, fmt.Sprint(n))
		if err := os.Mkdir(scratch, 0o755); err != nil {
			tb.Fatalf("%v", err)
		}
		defer os.RemoveAll(scratch)
		name, b, err := w.newBranch()
		if err != nil {
			tb.Fatalf("make a branch: %v", err)
		}
		s := &patcher{subject: &subject{target: target{b: b}, w: w, name: name}, scratch: scratch}
		r := twin.New(tb, s, twin.Options{Base: w.base, BaseRef: "0", Scratch: scratch, Every: 1000, AnyLine: true, At: fstree.Exact, Exact: fstree.Exact})
		defer r.Close()
		r.Do(steps)
	})
}
