package bench

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
)

// clone clones a repository of about 5,000 files, which lies on the bare disk, into
// the mount.
type clone struct{ loaded bool }

func (c clone) Spec() Spec {
	s := Spec{ID: "git-clone", Title: "git clone of 5,000 files, idle", Needs: []string{"git"}, Warm: 1, Writes: true, Room: 1 << 30,
		Limits: []Limit{atMost(3, Native), timesFaster(4, FuseOverlayfs)}}
	if c.loaded {
		s.ID, s.Title, s.Loaded = "git-clone-loaded", "git clone of 5,000 files, all processors busy", true
	}
	return s
}

func (clone) Base(ctx context.Context, e *Env) (*fixture, error) { return emptyBase(ctx, e) }

func (clone) Setup(ctx context.Context, p *Place, _ int) error {
	_, err := sourceRepo(ctx, p.Env)
	return err
}

func (c clone) Run(ctx context.Context, p *Place) error {
	repo, err := sourceRepo(ctx, p.Env)
	if err != nil {
		return err
	}
	return git(p.Root, "clone", "-q", "--no-hardlinks", repo.dir, p.fresh(c)).run(ctx)
}

// sourceRepo is a bare repository with one pack, made without writing a work tree.
func sourceRepo(ctx context.Context, e *Env) (*fixture, error) {
	return e.Fixture(ctx, "repository", func(ctx context.Context, dir string) error {
		if err := git(dir, "init", "-q", "--bare", "--initial-branch=main").run(ctx); err != nil {
			return err
		}
		if err := fastImport(ctx, dir, treeShape{Files: 5000, Bytes: 5000 * 10 << 10, Seed: 7}); err != nil {
			return err
		}
		return git(dir, "repack", "-q", "-a", "-d").run(ctx)
	})
}

// fastImport commits a generated tree to the repository at dir.
func fastImport(ctx context.Context, dir string, s treeShape) (err error) {
	g := git(dir, "fast-import", "--quiet")
	cmd := exec.CommandContext(ctx, g.args[0], g.args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), g.env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	ownGroup(cmd)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	w := bufio.NewWriter(pipe)
	writeImport(w, s)
	ferr := w.Flush()
	cerr := pipe.Close()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("git fast-import: %w%s", err, tail(stderr.String()))
	}
	if ferr != nil {
		return fmt.Errorf("git fast-import: %w", ferr)
	}
	return cerr
}

// writeImport writes one commit with the files of s. A write error shows at the
// caller's Flush.
func writeImport(w *bufio.Writer, s treeShape) {
	rng := rand.New(rand.NewPCG(s.Seed, 0x91f))
	words := makeWords(rng)
	mean := float64(s.Bytes) / float64(max(s.Files, 1))
	const who = "bench <bench@localhost> 1704067200 +0000"
	fmt.Fprintf(w, "commit refs/heads/main\nauthor %s\ncommitter %s\ndata 4\nbase\n", who, who)
	var buf []byte
	for i := range s.Files {
		buf = appendText(buf[:0], rng, words, int(rng.ExpFloat64()*mean))
		fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n", s.path(i), len(buf))
		_, _ = w.Write(buf) // Flush tells
		_ = w.WriteByte('\n')
	}
}
