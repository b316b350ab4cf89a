package layersdiff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
)

// hostLine is what somebody on the host writes to a file while a commit is about it.
const hostLine = "a line of the host\n"

// race is one moment of a commit at which somebody writes, in one way.
type race struct {
	op   fsops.Op // what the mount did to the file
	when string
	how  string
	kill int // how many calls later the daemon is killed, -1: never
}

const (
	inFront = "in front of the swap"
	after   = "after it"
	back    = "in front of its taking back"
	renewed = "to what was brought, while it is taken back" // opened in between
)

// TestApplyRaces has somebody write to a file on the host at each moment of a commit that replaces, removes or makes it, by each way there is, and has the
// daemon killed at different calls after that. What he wrote is at its path after the next start, or in a file beside that the error names.
func TestApplyRaces(t *testing.T) {
	ops := map[string]fsops.Op{
		"replaced": {Kind: fsops.Append, Path: "b", Len: 10, Seed: 1},
		"removed":  {Kind: fsops.Unlink, Path: "b"},
		"made":     {Kind: fsops.Create, Path: "new", Mode: 0o644, Len: 10, Seed: 1},
	}
	for name, op := range ops {
		for _, when := range []string{inFront, after, back, renewed} {
			for _, how := range []string{"append", "open", "open and shut", "other file", "truncate", "move away"} {
				if when == back && strings.HasPrefix(how, "open") && name != "made" {
					continue // who has it open then is noticed before
				}
				for _, kill := range []int{-1, 1} {
					r := race{op, when, how, kill}
					t.Run(fmt.Sprintf("%s, %s, %s, killed %d", name, when, how, kill), func(t *testing.T) {
						t.Parallel()
						r.run(t)
					})
				}
			}
		}
	}
}

func (r race) run(t *testing.T) {
	top := fstree.FastTemp(t)
	base := filepath.Join(top, "base")
	s := newApplied(failer{t}, filepath.Join(top, "s"), base)
	defer func() { s.close() }()
	s.change(r.op)
	at := filepath.Join(base, r.op.Path)
	w := &hostWriter{race: r, at: at}
	if r.when != renewed {
		s.must(w.open())
	}
	defer w.held.Close()
	a := s.applier()
	a.StopAt(w.hook)
	sealed, err := s.target.b.Seal(nil)
	s.must(err)
	c, err := a.PlanBase(context.Background(), apply.Request{Layer: sealed.Layer, Branch: "main"}, apply.Record{})
	s.must(err)
	said := fmt.Sprint(c.Do(context.Background(), nil, nil))
	c.Close()
	if r.kill >= 0 {
		s.must(s.w.reopen())
	}
	_, err = s.applier().Recover(nil)
	s.must(err)
	if !w.done {
		t.Fatalf("nobody wrote: %s", said)
	}
	found := false
	names, err := os.ReadDir(base)
	s.must(err)
	for _, n := range names {
		if !n.Type().IsRegular() {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(base, n.Name()))
		if !strings.Contains(string(text), hostLine) {
			continue
		}
		found = true
		if own := n.Name() == r.op.Path || n.Name() == r.op.Path+".moved"; !own && r.kill < 0 && !strings.Contains(said, n.Name()) {
			t.Errorf("it is in %s, and nobody says so: %s", n.Name(), said)
		}
	}
	if !found {
		t.Errorf("what was written on the host is lost: %s", said)
	}
}

// hostWriter writes once, at a moment.
type hostWriter struct {
	race
	at       string
	held     *os.File
	mu       sync.Mutex
	swapping bool // the next rename is that of a step
	failed   bool // all steps are made, and are taken back
	done     bool
	left     int // calls until the kill
}

// open opens the file as somebody who writes to it later.
func (w *hostWriter) open() (err error) {
	if strings.HasPrefix(w.how, "open") {
		w.held, err = os.OpenFile(w.at, os.O_WRONLY|os.O_APPEND, 0)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return err
}

func (w *hostWriter) hook(call, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		if w.kill >= 0 && w.left >= w.kill {
			return errKilled
		}
		w.left++
		return nil
	}
	now := false
	switch call {
	case "rename":
		now = w.when == inFront || w.failed
		w.swapping = true
	case "syncfs":
		if !w.swapping {
			break
		}
		now = w.when == after
		if w.when == back || w.when == renewed {
			w.failed = true
			if w.when == renewed {
				if err := w.open(); err != nil {
					return err
				}
			}
			return unix.EIO
		}
	}
	if !now {
		return nil
	}
	w.done = true
	return w.write()
}

func (w *hostWriter) write() error {
	var err error
	switch w.how {
	case "other file":
		return errors.Join(os.WriteFile(w.at+".new", []byte(hostLine), 0o644), os.Rename(w.at+".new", w.at))
	case "truncate":
		return os.WriteFile(w.at, []byte(hostLine), 0o644)
	case "move away":
		if err := os.Rename(w.at, w.at+".moved"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		w.at += ".moved"
	}
	f := w.held
	if f == nil {
		if f, err = os.OpenFile(w.at, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644); err != nil {
			return err
		}
		defer f.Close()
	}
	_, err = f.WriteString(hostLine)
	if w.how == "open and shut" {
		err = errors.Join(err, f.Close())
	}
	return err
}

// A file that a program has open for writing is not taken from it, unless that was asked for: then it is said. Nor is a directory in which somebody
// stands, and makes something.
func TestApplyOpenFiles(t *testing.T) {
	top := fstree.FastTemp(t)
	base := filepath.Join(top, "base")
	s := newApplied(failer{t}, filepath.Join(top, "s"), base)
	defer s.close()
	s.must(os.MkdirAll(filepath.Join(base, "gone/deep"), 0o755))
	s.must(os.WriteFile(filepath.Join(base, "gone/deep/f"), []byte("f\n"), 0o644))
	s.change(fsops.Op{Kind: fsops.RemoveAll, Path: "gone"})
	do := func(r apply.Request, hook func(call, name string) error) (string, []string) {
		t.Helper()
		a := s.applier()
		a.StopAt(hook)
		sealed, err := s.target.b.Seal(nil)
		s.must(err)
		r.Layer, r.Branch = sealed.Layer, "main"
		c, err := a.PlanBase(context.Background(), r, apply.Record{})
		s.must(err)
		defer c.Close()
		err = c.Do(context.Background(), nil, nil)
		if race := new(apply.ConflictError); err != nil && !errors.As(err, &race) {
			t.Fatal(err)
		}
		return fmt.Sprint(err), c.Notes
	}
	quiet := func(string, string) error { return nil }
	inDir, err := unix.Open(filepath.Join(base, "gone/deep"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	s.must(err)
	defer unix.Close(inDir)
	syncs := 0
	said, _ := do(apply.Request{}, func(call, _ string) error {
		if call != "syncfs" {
			return nil
		}
		if syncs++; syncs != 2 {
			return nil
		}
		fd, err := unix.Openat(inDir, "made", unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		return errors.Join(err, unix.Close(fd))
	})
	if _, err := os.Stat(filepath.Join(base, "gone/deep/made")); err != nil || !strings.Contains(said, "changed on the host") {
		t.Fatalf("a file that was made in a directory while that was removed: %v; %s", err, said)
	}
	s.must(os.Remove(filepath.Join(base, "gone/deep/made")))

	held, err := os.OpenFile(filepath.Join(base, "gone/deep/f"), os.O_RDWR, 0)
	s.must(err)
	shared, err := unix.Mmap(int(held.Fd()), 0, 2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	s.must(err)
	s.must(held.Close())
	if said, _ = do(apply.Request{}, quiet); !strings.Contains(said, "open for writing") {
		t.Errorf("a file that is mapped, below a directory that is removed: %s", said)
	}
	s.must(os.WriteFile(filepath.Join(base, "gone/deep/f"), []byte("f\n"), 0o644))
	shared[0] = 'g'
	if text, err := os.ReadFile(filepath.Join(base, "gone/deep/f")); string(text) != "g\n" {
		t.Errorf("it has %q: %v", text, err)
	}
	said, notes := do(apply.Request{OnConflict: apply.Ours}, quiet)
	if len(notes) != 1 || !strings.Contains(notes[0], `"gone": a program on the host has it open for writing`) {
		t.Errorf("removed all the same: %s, notes %q", said, notes)
	}
	s.must(unix.Munmap(shared))
	if left, err := filepath.Glob(filepath.Join(base, "*rewindfs*")); err != nil || len(left) > 0 {
		t.Errorf("%q are left: %v", left, err)
	}
}
