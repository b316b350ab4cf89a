package bench

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// fixture is a directory that workloads run on. It is the lower directory of every
// system, so nothing may write to it once it is made.
type fixture struct {
	dir    string
	copy   string // a second one for the native runs that write, once it is asked for
	err    error
	cancel func() error // removes both
}

// Fixture returns the directory called name, which build makes when it is asked for
// the first time.
func (e *Env) Fixture(ctx context.Context, name string, build func(ctx context.Context, dir string) error) (*fixture, error) {
	if f, ok := e.fixtures[name]; ok {
		return f, f.err
	}
	e.Progress.Step("making " + name)
	f := &fixture{}
	e.fixtures[name] = f
	dir, err := e.Dir("base-" + name)
	if err == nil {
		err = build(ctx, dir)
	}
	f.dir, f.err = dir, err
	return f, err
}

// native returns a copy of the fixture that a native run may write to.
func (e *Env) native(ctx context.Context, f *fixture) (string, error) {
	if f.copy != "" {
		return f.copy, nil
	}
	e.Progress.Step("copying the tree")
	size, err := diskUsage(f.dir)
	if err != nil {
		return "", err
	}
	if err := e.Room(size); err != nil {
		return "", err
	}
	dir, err := e.Dir("native")
	if err != nil {
		return "", err
	}
	if err := copyTree(ctx, f.dir, dir); err != nil {
		return "", err
	}
	f.copy = dir
	return dir, nil
}

// copyTree copies what lies in src into dst, which exists, with all attributes.
func copyTree(ctx context.Context, src, dst string) error {
	return command{args: []string{"cp", "-a", "--reflink=auto", src + "/.", dst}}.run(ctx)
}

// emptyBase is a base with nothing in it.
func emptyBase(ctx context.Context, e *Env) (*fixture, error) {
	return e.Fixture(ctx, "empty", func(context.Context, string) error { return nil })
}

// tree is the project that the tree rows work on.
type tree struct {
	*fixture
	about string // for the report
	git   bool   // it is a git work tree
	build *goBuild
}

// goBuild is a build that has nothing to do once it has run.
type goBuild struct {
	dir  string   // below the tree
	tool string   // below the tree, or "" for the one in $PATH
	args []string // of the go command
	env  []string
}

// projectTree is the user's directory, or a tree of the size asked for, or a copy of
// the Go toolchain (about 15,000 files), or, without one, a generated tree of that size.
func projectTree(ctx context.Context, e *Env) (*tree, error) {
	o := e.Opts
	if o.Dir != "" {
		return userTree(o.Dir)
	}
	goroot := goRoot(ctx)
	if o.Files > 0 || goroot == "" {
		n, bytes := o.treeSize()
		shape := treeShape{Files: n, Bytes: bytes, Seed: 1}
		f, err := e.Fixture(ctx, "tree", func(ctx context.Context, dir string) error {
			if err := e.Room(2*bytes + int64(n)*4096); err != nil {
				return err
			}
			if err := generateTree(ctx, dir, shape, func(int) {}); err != nil {
				return err
			}
			return commitAll(ctx, dir)
		})
		about := fmt.Sprintf("generated tree: %d files, %s", n, formatBytes(float64(bytes)))
		return &tree{fixture: f, about: about, git: have("git")}, err
	}
	return goTree(ctx, e, goroot)
}

// goTree is a copy of a Go toolchain, made a git work tree.
func goTree(ctx context.Context, e *Env, goroot string) (*tree, error) {
	var about string
	f, err := e.Fixture(ctx, "go-toolchain", func(ctx context.Context, dir string) error {
		if err := e.Room(2 << 30); err != nil {
			return err
		}
		if err := copyTree(ctx, goroot, dir); err != nil {
			return err
		}
		return commitAll(ctx, dir)
	})
	if err == nil {
		var n int
		if n, err = countFiles(f.dir); err == nil {
			about = fmt.Sprintf("a Go toolchain's tree: %d files", n)
		}
	}
	packages := []string{"std", "cmd/go"}
	if e.Opts.Quick {
		packages = []string{"net/http"}
	}
	b := &goBuild{tool: "bin/go", dir: "src", args: append([]string{"build"}, packages...)}
	return &tree{fixture: f, about: about, git: have("git"), build: b}, err
}

// userTree is a directory of the user's. It is used where it is, and never written.
func userTree(dir string) (*tree, error) {
	n, err := countFiles(dir)
	if err != nil {
		return nil, err
	}
	t := &tree{fixture: &fixture{dir: dir}, about: fmt.Sprintf("%s: %d files", dir, n)}
	if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
		t.git = have("git")
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
		t.build = &goBuild{args: []string{"build", "./..."}, env: []string{"GOFLAGS=-mod=readonly"}}
	}
	return t, nil
}

// commitAll makes dir a git work tree with everything committed and packed; without
// git it does nothing.
func commitAll(ctx context.Context, dir string) error {
	if !have("git") {
		return nil
	}
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "-A"}, {"commit", "-q", "-m", "base"}, {"repack", "-q", "-a", "-d"}, {"prune-packed", "-q"}, {"status", "--porcelain"},
	} {
		if err := git(dir, args...).run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// git is a git command that no configuration of the user's can change.
func git(dir string, args ...string) command {
	fixed := []string{"git", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.compression=1", "-c", "core.fsmonitor=false",
		"-c", "commit.gpgsign=false", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "safe.directory=*"}
	return command{dir: dir, args: append(fixed, args...), env: []string{
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C",
		"GIT_AUTHOR_DATE=2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2024-01-01T00:00:00Z",
	}}
}

// goRoot is where the Go toolchain in $PATH lives, or "".
func goRoot(ctx context.Context) string {
	out, err := command{args: []string{"go", "env", "GOROOT"}}.output(ctx)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// countFiles counts what is not a directory, the .git directory left out.
func countFiles(dir string) (n int, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case !d.IsDir():
			n++
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count the files of %s: %w", dir, err)
	}
	return n, nil
}
