package mounttest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Timeout bounds each command of the CLI.
const Timeout = 60 * time.Second

// Options choose how New mounts.
type Options struct {
	Fill  func(dir string) error // makes the base's content; nil: fstree.MakeBase
	Args  []string               // more arguments of mount
	Env   []string               // more environment of every command
	Store string                 // "": below the test's directory
	Lazy  bool                   // do not mount yet
	// Loose leaves the base alone: the test changes it on purpose.
	Loose bool
	// As runs every command as that user; 0 is the user that runs the test.
	As uint32
}

// Mount is a base and its mount.
type Mount struct {
	T     testing.TB
	Top   string // holds all the others
	Base  string
	Dir   string // the mount point
	Store string
	opt   Options
	guard *Guard
	ended bool
}

// New makes a base and mounts it.
func New(t testing.TB, opt Options) *Mount {
	t.Helper()
	top, err := os.MkdirTemp("", "rewindfs-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &Mount{T: t, Top: top, Base: filepath.Join(top, "base"), Dir: filepath.Join(top, "mnt"), Store: opt.Store, opt: opt}
	if m.Store == "" {
		m.Store = filepath.Join(top, "store")
	}
	t.Cleanup(m.Close)
	for _, d := range []string{m.Base, m.Dir, filepath.Join(top, "state"), filepath.Join(top, "run")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fill := opt.Fill
	if fill == nil {
		fill = fstree.MakeBase
	}
	if err := fill(m.Base); err != nil {
		t.Fatal(err)
	}
	if opt.As != 0 {
		if err := chownAll(top, int(opt.As)); err != nil {
			t.Fatal(err)
		}
	}
	if !opt.Loose {
		m.guard = NewGuard(t, m.Base)
	}
	if !opt.Lazy {
		m.Mount()
	}
	return m
}

// Empty is an Options.Fill that makes nothing.
func Empty(string) error { return nil }

func chownAll(top string, id int) error {
	return filepath.WalkDir(top, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, id, id)
	})
}

// Mount mounts, again after an Unmount or a Kill.
func (m *Mount) Mount(args ...string) {
	m.T.Helper()
	m.OK(append(append([]string{"mount", m.Base, m.Dir, "--store", m.Store}, m.opt.Args...), args...)...)
	if _, ok := mountMinor(m.Dir); !ok {
		m.T.Fatalf("mount said it was done, but %s is no mount point", m.Dir)
	}
}

// Fork makes and mounts a branch that begins at a reference, and returns its mount. It goes with m.
func (m *Mount) Fork(ref, branch string) *Mount {
	m.T.Helper()
	f := *m
	f.Dir = filepath.Join(m.Top, "mnt "+branch)
	m.OK("fork", ref, f.Dir, "--branch", branch)
	return &f
}

// Unmount unmounts and waits for the daemon to be gone.
func (m *Mount) Unmount() {
	m.T.Helper()
	pid := m.PID()
	m.OK("unmount")
	if _, ok := mountMinor(m.Dir); ok {
		m.T.Fatalf("unmount said it was done, but %s is mounted", m.Dir)
	}
	WaitGone(m.T, pid)
}

// Remount unmounts and mounts.
func (m *Mount) Remount() {
	m.T.Helper()
	m.Unmount()
	m.Mount()
}

// PID is the daemon's process id.
func (m *Mount) PID() int {
	m.T.Helper()
	var s struct{ PID int }
	m.JSON(&s, "status")
	if s.PID <= 1 {
		m.T.Fatalf("status gives pid %d", s.PID)
	}
	return s.PID
}

// Kill ends the daemon with SIGKILL and waits until it is gone.
func (m *Mount) Kill(pid int) {
	m.T.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		m.T.Fatalf("kill the daemon: %v", err)
	}
	WaitGone(m.T, pid)
}

// Path is a path in the mount.
func (m *Mount) Path(elem ...string) string {
	return filepath.Join(append([]string{m.Dir}, elem...)...)
}

// Snapshot describes the tree in the mount.
func (m *Mount) Snapshot() *fstree.Tree {
	m.T.Helper()
	return Snapshot(m.T, m.Dir)
}

// Checkpoint makes a checkpoint and returns its id.
func (m *Mount) Checkpoint(label string) string {
	m.T.Helper()
	var c struct{ ID string }
	m.JSON(&c, "checkpoint", label)
	if c.ID == "" {
		m.T.Fatalf("checkpoint %q has no id", label)
	}
	return c.ID
}

// Rollback rolls back to a reference.
func (m *Mount) Rollback(ref string, args ...string) {
	m.T.Helper()
	m.OK(append([]string{"rollback", ref}, args...)...)
}

// JSON runs a command with --json and decodes its data.
func (m *Mount) JSON(data any, args ...string) {
	m.T.Helper()
	r := m.Run(append([]string{"--json"}, args...)...)
	if r.Code != 0 {
		m.T.Fatalf("%s", r)
	}
	if err := r.Data(data); err != nil {
		m.T.Fatalf("%v\n%s", err, r)
	}
}

// Data decodes the data of a reply to --json.
func (r *Result) Data(data any) error {
	var reply struct {
		Success bool
		Data    json.RawMessage
		Error   string
	}
	if err := json.Unmarshal([]byte(r.Stdout), &reply); err != nil {
		return fmt.Errorf("the output is not one JSON object: %w", err)
	}
	if !reply.Success {
		return fmt.Errorf("exit code %d, but success is false: %s", r.Code, reply.Error)
	}
	if err := json.Unmarshal(reply.Data, data); err != nil {
		return fmt.Errorf("decode data: %w", err)
	}
	return nil
}

// Snapshot describes the tree under dir.
func Snapshot(t testing.TB, dir string) *fstree.Tree {
	t.Helper()
	tree, err := fstree.Scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// Same fails the test if two trees differ.
func Same(t testing.TB, want, got *fstree.Tree, f fstree.Fields, wantName, gotName string) {
	t.Helper()
	diffs := fstree.Diff(want, got, f, wantName, gotName)
	for i, d := range diffs {
		if i == 30 {
			t.Errorf("... and %d more", len(diffs)-i)
			return
		}
		t.Error(d)
	}
}
