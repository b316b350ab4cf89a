package bench

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// onTree is the part that the rows on the project's tree share.
type onTree struct{}

func (onTree) Base(ctx context.Context, e *Env) (*fixture, error) {
	t, err := projectTree(ctx, e)
	if err != nil {
		return nil, err
	}
	e.Report.Tree = t.about
	return t.fixture, nil
}

// grepWarm searches the whole tree for something that is not there.
type grepWarm struct{ onTree }

func (grepWarm) Spec() Spec {
	return Spec{ID: "grep", Title: "grep -r, warm", Warm: 2, Needs: []string{"grep"}, Limits: []Limit{atMost(1.10, Native)}}
}

func (grepWarm) Run(ctx context.Context, p *Place) error {
	return grepAll(ctx, p.Root)
}

func grepAll(ctx context.Context, dir string) error {
	c := command{args: []string{"grep", "-r", "--exclude-dir=.git", "no such text is in this tree", dir}, env: []string{"LC_ALL=C"}, ok: []int{1}}
	return c.run(ctx)
}

// walkWarm reads every file with calls of our own: no program to start, no pattern to match.
type walkWarm struct{ onTree }

func (walkWarm) Spec() Spec {
	return Spec{ID: "walk", Title: "walk, stat and read all files, warm", Warm: 2, Limits: []Limit{atMost(1.10, Native)}}
}

func (walkWarm) Run(ctx context.Context, p *Place) error {
	_, err := readTree(ctx, p.Root)
	return err
}

// readTree reads all regular files below dir and counts their bytes.
func readTree(ctx context.Context, dir string) (n int64, err error) {
	buf := make([]byte, 256<<10)
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		if _, err := os.Lstat(p); err != nil {
			return err
		}
		m, err := readFile(p, buf)
		n += m
		return err
	})
	if err != nil {
		return n, fmt.Errorf("read the tree: %w", err)
	}
	return n, nil
}

// readFile reads a file to its end.
func readFile(name string, buf []byte) (n int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		m, err := f.Read(buf)
		n += int64(m)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// grepCold reads the tree with nothing in the kernel's caches.
type grepCold struct{ onTree }

func (grepCold) Spec() Spec {
	return Spec{ID: "grep-cold", Title: "grep -r, cold", Cold: true, Needs: []string{"grep"}, Limits: []Limit{atMost(1.5, Overlayfs)},
		Note: "The kernel's caches are emptied before every run (drop_caches 3): pages, names and inodes, those of the FUSE mounts as well as those of the disk. A daemon keeps what it has in its own memory."}
}

func (grepCold) Run(ctx context.Context, p *Place) error {
	return grepAll(ctx, p.Root)
}

// gitStatus asks git what has changed: nothing.
type gitStatus struct{ onTree }

func (gitStatus) Spec() Spec {
	return Spec{ID: "git-status", Title: "git status, warm", Warm: 2, Needs: []string{"git"}, Limits: []Limit{atMost(1.10, Native)}}
}

func (gitStatus) Base(ctx context.Context, e *Env) (*fixture, error) {
	t, err := projectTree(ctx, e)
	if err != nil {
		return nil, err
	}
	if !t.git {
		return nil, skipf("the tree is no git work tree")
	}
	return t.fixture, nil
}

// Run lets git write a refreshed index on systems where that stays in the upper
// layer; the native tree is never written.
func (gitStatus) Run(ctx context.Context, p *Place) error {
	args := []string{"status", "--porcelain"}
	if p.System == Native {
		args = append([]string{"--no-optional-locks"}, args...)
	}
	return git(p.Root, args...).run(ctx)
}

// noopBuild runs a Go build that has nothing to do.
type noopBuild struct{ onTree }

func (noopBuild) Spec() Spec {
	return Spec{ID: "go-build", Title: "no-op go build, warm", Warm: 2, Needs: []string{"go"}, Limits: []Limit{atMost(1.10, Native)},
		Note: "The build cache lies outside of the tree, on the bare disk, for all systems."}
}

func (noopBuild) Base(ctx context.Context, e *Env) (*fixture, error) {
	t, err := projectTree(ctx, e)
	if err != nil {
		return nil, err
	}
	if t.build == nil {
		return nil, skipf("the tree is no Go module and no Go toolchain")
	}
	return t.fixture, nil
}

func (noopBuild) Run(ctx context.Context, p *Place) error {
	t, err := projectTree(ctx, p.Env)
	if err != nil {
		return err
	}
	tool := "go"
	if t.build.tool != "" {
		tool = filepath.Join(p.Root, t.build.tool)
	}
	cache := filepath.Join(p.Env.Work, "go-cache") // one for all, so that only the first run compiles
	c := command{dir: filepath.Join(p.Root, t.build.dir), args: append([]string{tool}, t.build.args...),
		env: append([]string{"GOCACHE=" + cache, "GOTOOLCHAIN=local", "GOPROXY=off", "GOROOT="}, t.build.env...)}
	return c.run(ctx)
}
