package fs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// TestMain lets the test binary be a program that uses the mount: a test must not
// have files of its own daemon's mount mapped or be looked at by its scans.
func TestMain(m *testing.M) {
	if role := os.Getenv("REWINDFS_ROLE"); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	unix.Umask(0) // as session does
	if os.Geteuid() == 0 {
		// Distributions ship it this way; on a bare machine it may be for root only.
		if err := os.Chmod("/dev/fuse", 0o666); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(m.Run())
}

// rig is a tree over a base directory, mounted.
type rig struct {
	t                testing.TB
	base, store, mnt string
	tree             *layers.Tree
	branch           *layers.Branch
	m                *Mount
	mu               sync.Mutex
	points           map[string]layers.Layer // guarded by mu
}

// drifted is told of changed base files, as a session is.
func (r *rig) drifted(ino layers.Ino, name *layers.NameKey) { r.m.Drifted(ino, name) }

// newRig mounts a base that fill, which may be nil, has filled.
func newRig(t testing.TB, fill func(base string), opts ...func(*Options)) *rig {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	dir := t.TempDir()
	r := &rig{t: t, base: filepath.Join(dir, "base"), store: filepath.Join(dir, "store"), mnt: filepath.Join(dir, "mnt"),
		points: map[string]layers.Layer{}}
	for _, d := range []string{r.base, r.store, r.mnt} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for d := dir; d != "/" && strings.HasPrefix(d, os.TempDir()) && d != os.TempDir(); d = filepath.Dir(d) {
		os.Chmod(d, 0o755) // other users shall get there
	}
	if fill != nil {
		fill(r.base)
	}
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	db, err := kv.Open(r.store, kv.Options{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	chunks, err := cas.Open(r.store, db, cas.Options{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { chunks.Close() })
	base, err := layers.OpenBase(r.base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { base.Close() })
	if r.tree, err = layers.Open(db, chunks, base, layers.Options{Logger: log, Drifted: r.drifted}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.tree.Close() })
	if r.branch, err = r.tree.Branch("main"); err != nil {
		t.Fatal(err)
	}
	o := Options{Mountpoint: r.mnt, FSName: r.base, AllowOther: true, Logger: log, Checkpoints: r, StatfsDir: r.store}
	for _, f := range opts {
		f(&o)
	}
	if r.m, err = New(r.tree, r.branch, o); err != nil {
		t.Fatal(err)
	}
	// Go's scheduler asks of every file it opens whether it can be polled, and holds up
	// everything for the answer, which is to come from this process. Once the kernel
	// has learnt that there is no POLL it answers itself.
	r.start("poller", r.mnt).stop()
	// Whatever hangs, the mount does not outlive the test.
	guard := time.AfterFunc(2*time.Minute, func() { r.m.Abort() })
	t.Cleanup(func() {
		guard.Stop()
		if err := r.m.Unmount(false); err != nil {
			t.Errorf("%v; in use by %v", err, r.m.Busy())
			r.m.Abort()
			r.m.Unmount(true)
		}
		r.m.Wait()
	})
	return r
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (r *rig) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for n := range r.points {
		out = append(out, n)
	}
	return out
}

func (r *rig) Lookup(name string) (layers.Layer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.points[name]
	return l, ok
}

// label gives a layer a label; layer 0 takes the label away.
func (r *rig) label(name string, l layers.Layer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points[name] = l
	if l == 0 {
		delete(r.points, name)
	}
}

func (r *rig) layer(name string) layers.Layer {
	l, ok := r.Lookup(name)
	if !ok {
		r.t.Fatalf("no checkpoint %q", name)
	}
	return l
}

// checkpoint seals the head, as session does.
func (r *rig) checkpoint(label string) {
	r.t.Helper()
	if err := r.m.Barrier(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	s, err := r.branch.Seal(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.label(label, s.Layer)
}

// rollback moves the head, as session does.
func (r *rig) rollback(label string) layers.Moved {
	r.t.Helper()
	if err := r.m.Barrier(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	return r.move(label)
}

// move is rollback without the barrier.
func (r *rig) move(label string) layers.Moved {
	r.t.Helper()
	thaw := r.m.Freeze()
	mv, err := r.branch.MoveHead(r.layer(label), false, nil, r.m.Swapped)
	thaw()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.m.Notify(mv); err != nil {
		r.t.Fatal(err)
	}
	return mv
}

func (r *rig) path(p string) string { return filepath.Join(r.mnt, p) }

func (r *rig) write(p, content string) {
	r.t.Helper()
	if err := os.WriteFile(r.path(p), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) want(p, content string) {
	r.t.Helper()
	b, err := os.ReadFile(r.path(p))
	if err != nil || string(b) != content {
		r.t.Errorf("%s holds %d bytes %.60q, %v; want %q", p, len(b), b, err, content)
	}
}

func (r *rig) wantGone(p string) {
	r.t.Helper()
	if _, err := os.Lstat(r.path(p)); !os.IsNotExist(err) {
		r.t.Errorf("%s: %v; want it gone", p, err)
	}
}

// sh runs a script in the mount as uid (0: as the test) and returns its output.
func (r *rig) sh(uid int, script string) string {
	r.t.Helper()
	out, err := r.trySh(uid, script)
	if err != nil {
		r.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return out
}

func (r *rig) trySh(uid int, script string) (string, error) {
	// Not with cmd.Dir: between fork and exec the child would wait for us, and the
	// Go runtime may be waiting for the child with everything stopped.
	cmd := exec.Command("sh", "-euc", `cd "$0"; `+script, r.mnt)
	cmd.Dir = "/"
	if uid != 0 {
		cmd.SysProcAttr = credential(uid)
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// helper is another process of this test binary, in a role.
type helper struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

// start runs a role; it is killed when the test ends.
func (r *rig) start(role string, args ...string) *helper {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "REWINDFS_ROLE="+role)
	cmd.Stderr = os.Stderr
	h := &helper{t: r.t, cmd: cmd}
	var err error
	if h.in, err = cmd.StdinPipe(); err != nil {
		r.t.Fatal(err)
	}
	if h.out, err = cmd.StdoutPipe(); err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(h.stop)
	if got := h.answer(role); got != "ready" {
		r.t.Fatalf("%s says %q", role, got)
	}
	return h
}

func (h *helper) stop() {
	h.in.Close()
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

// ask sends one line and returns the line that comes back.
func (h *helper) ask(line string) string {
	h.t.Helper()
	if _, err := fmt.Fprintln(h.in, line); err != nil {
		h.t.Fatal(err)
	}
	return h.answer(line)
}

func (h *helper) answer(to string) string {
	h.t.Helper()
	var b [1]byte
	var out strings.Builder
	for {
		if _, err := h.out.Read(b[:]); err != nil {
			h.t.Fatalf("%s: %v", to, err)
		}
		if b[0] == '\n' {
			return out.String()
		}
		out.WriteByte(b[0])
	}
}

// eventually waits for what the kernel does in its own time.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (f *FS) openViews() int {
	f.views.mu.Lock()
	defer f.views.mu.Unlock()
	return len(f.views.byNum)
}
