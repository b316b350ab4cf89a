package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// onEmpty is for rows that begin with an empty directory.
type onEmpty struct{}

func (onEmpty) Base(ctx context.Context, e *Env) (*fixture, error) { return emptyBase(ctx, e) }

// create makes many small files.
type create struct {
	onEmpty
	quick bool
}

func (c create) files() int {
	if c.quick {
		return 4000
	}
	return 20000
}

func (c create) Spec() Spec {
	return Spec{ID: "create", Title: fmt.Sprintf("create %s small files", formatCount(c.files())), Writes: true, Warm: 1,
		Limits: []Limit{timesFaster(2, FuseOverlayfs), atMost(3, Native)}}
}

func (c create) Run(ctx context.Context, p *Place) error {
	return createFiles(ctx, p.fresh(c), c.files())
}

// createFiles makes n files of 100 to 1,000 bytes, 100 in a directory.
func createFiles(ctx context.Context, dir string, n int) error {
	text := make([]byte, 1000)
	for i := range text {
		text[i] = byte('a' + i%23)
	}
	var sub string
	for i := range n {
		if i%100 == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			sub = filepath.Join(dir, fmt.Sprintf("d%04d", i/100))
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return fmt.Errorf("create files: %w", err)
			}
		}
		if err := createFile(fmt.Sprintf("%s/f%02d", sub, i%100), text[:100+(i*37)%900]); err != nil {
			return err
		}
	}
	return nil
}

// createFile does what a program must, and nothing more: open, write, close.
func createFile(name string, data []byte) error {
	fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	_, err = unix.Write(fd, data)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// untar unpacks a source tree.
type untar struct{ onEmpty }

func (untar) Spec() Spec {
	return Spec{ID: "untar", Title: "untar a source tree", Needs: []string{"tar"}, Writes: true, Warm: 1, Room: 2 << 30,
		Limits: []Limit{timesFaster(2, FuseOverlayfs), atMost(3, Native)}}
}

func (untar) Setup(ctx context.Context, p *Place, _ int) error {
	_, err := tarball(ctx, p.Env)
	return err
}

func (u untar) Before(_ context.Context, p *Place) error { return mkdir(p.fresh(u)) }

func (u untar) Run(ctx context.Context, p *Place) error { return unpack(ctx, p, p.fresh(u)) }

// remove deletes a tree that was unpacked before. It comes after all rows that make
// files, see Env.discard.
type remove struct{ onEmpty }

func (remove) Spec() Spec {
	s := untar{}.Spec()
	s.ID, s.Title, s.Needs, s.Warm = "rm", "rm -rf of an unpacked source tree", []string{"tar", "rm"}, 0
	return s
}

// Setup unpacks all trees that will be removed.
func (r remove) Setup(ctx context.Context, p *Place, runs int) error {
	for i := range runs {
		dir := p.nth(r, i)
		if err := firstError(mkdir(dir), unpack(ctx, p, dir)); err != nil {
			return err
		}
	}
	return nil
}

func (r remove) Run(ctx context.Context, p *Place) error {
	return command{args: []string{"rm", "-rf", p.fresh(r)}}.run(ctx)
}

// unpack unpacks the tar file into dir.
func unpack(ctx context.Context, p *Place, dir string) error {
	f, err := tarball(ctx, p.Env)
	if err != nil {
		return err
	}
	return command{args: []string{"tar", "-xf", filepath.Join(f.dir, "src.tar"), "-C", dir}}.run(ctx)
}

// tarball holds src.tar: the Go toolchain's sources (about 10,000 files), or a
// generated tree of that size.
func tarball(ctx context.Context, e *Env) (*fixture, error) {
	return e.Fixture(ctx, "tarball", func(ctx context.Context, dir string) error {
		src := ""
		if root := goRoot(ctx); root != "" {
			src = filepath.Join(root, "src")
		}
		if st, err := os.Stat(src); src == "" || err != nil || !st.IsDir() {
			var err error
			if src, err = e.Dir("tar-source"); err != nil {
				return err
			}
			if err := generateTree(ctx, src, treeShape{Files: 10000, Bytes: 80 << 20, Seed: 3}, func(int) {}); err != nil {
				return err
			}
		}
		return command{args: []string{"tar", "-cf", filepath.Join(dir, "src.tar"), "-C", src, "."}}.run(ctx)
	})
}

func mkdir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	return nil
}

// firstError returns the first of errs that is one.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
