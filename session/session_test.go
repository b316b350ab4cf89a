package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/layers"
)

// fakeMount plays the kernel: it shows nothing, and remembers what it was told.
type fakeMount struct {
	mu      sync.Mutex
	busy    []Process
	moves   []string
	changed int
	ended   chan struct{}
	once    sync.Once
	broken  error         // of Barrier
	slow    chan struct{} // Unmount returns when it is closed, after the mount has ended; nil: at once
	shown   bool          // in another mount namespace: it does not end when it is unmounted here
}

func newFakeMount() *fakeMount { return &fakeMount{ended: make(chan struct{})} }

func (m *fakeMount) note(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moves = append(m.moves, what)
}

func (m *fakeMount) setBusy(ps ...Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = ps
}

func (m *fakeMount) Barrier(context.Context) error { m.note("barrier"); return m.broken }
func (m *fakeMount) Freeze() func()                { m.note("freeze"); return func() { m.note("thaw") } }
func (m *fakeMount) Swapped(layers.Moved)          { m.note("swapped") }
func (m *fakeMount) Notify(layers.Moved) error     { m.note("notify"); return nil }
func (m *fakeMount) Changing(layers.Ino)           {}

func (m *fakeMount) Changed(layers.Ino, []layers.NameKey) error {
	m.note("changed")
	return nil
}

func (m *fakeMount) Unmount(lazy bool) error {
	m.mu.Lock()
	busy := len(m.busy) > 0
	m.mu.Unlock()
	if busy && !lazy {
		return fmt.Errorf("unmount: %w", syscall.EBUSY)
	}
	if busy {
		return nil // detached; it ends when nobody uses it any more
	}
	if m.shown {
		return nil
	}
	m.end()
	if m.slow != nil {
		<-m.slow
	}
	return nil
}

func (m *fakeMount) end() { m.once.Do(func() { close(m.ended) }) }

func (m *fakeMount) Abort() error                { m.end(); return nil }
func (m *fakeMount) Wait()                       { <-m.ended }
func (m *fakeMount) Counters() map[string]uint64 { return map[string]uint64{"LOOKUP": 3} }
func (m *fakeMount) Busy() []Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy
}

// rig is a served session on a fake mount.
type rig struct {
	*control.Client
	s     *Session
	m     *fakeMount
	o     Options
	stop  func() error // as a signal does
	force chan struct{}
	done  chan error

	mu     sync.Mutex
	forks  map[string]*fakeMount // guarded by mu: of the other branches
	noFork error                 // of mounting one
}

// on is a client for a branch.
func (r *rig) on(branch string) *rig {
	return &rig{Client: &control.Client{Socket: r.Client.Socket, Branch: branch}, s: r.s, o: r.o}
}

func (r *rig) fork(t *testing.T, ref, branch string) *control.Forked {
	t.Helper()
	f, err := r.Fork(t.Context(), control.ForkRequest{Ref: ref, Branch: branch})
	if err != nil {
		t.Fatalf("fork %s at %q: %v", branch, ref, err)
	}
	return f
}

func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// options is a base with a few files and a place for everything.
func options(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	base := filepath.Join(dir, "proj")
	if err := os.MkdirAll(filepath.Join(base, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a.txt": "base a\n", "sub/b.txt": "base b\n"} {
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return Options{Base: base, StateRoot: filepath.Join(dir, "state"), Version: "test"}
}

func start(t *testing.T, o Options) *rig {
	t.Helper()
	r, err := tryStart(t, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryStart(t *testing.T, o Options) (*rig, error) {
	t.Helper()
	m := newFakeMount()
	r := &rig{m: m, force: make(chan struct{}), done: make(chan error, 1), forks: map[string]*fakeMount{}}
	o.Mount = func(s *Session) (Mount, error) {
		if !s.isFork() {
			return m, nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.forks[s.o.Branch] = newFakeMount()
		return r.forks[s.o.Branch], r.noFork
	}
	if o.Logger == nil {
		o.Logger = testLogger(t)
	}
	s, err := Open(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.s, r.o = s, s.o
	r.Client = &control.Client{Socket: filepath.Join(s.o.Store, control.SocketName)}
	go func() { r.done <- s.Serve(ctx, r.force) }()
	r.stop = sync.OnceValue(func() error {
		r.Client.Close()
		cancel()
		return <-r.done
	})
	t.Cleanup(func() {
		m.setBusy()
		r.mu.Lock()
		for _, f := range r.forks {
			f.setBusy()
			f.end()
		}
		r.mu.Unlock()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r, nil
}

func (r *rig) write(t *testing.T, path, text string) {
	t.Helper()
	if _, err := r.WriteFile(t.Context(), path, strings.NewReader(text)); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

func (r *rig) read(ref, path string) (string, error) {
	body, _, err := r.ReadFile(context.Background(), ref, path)
	if err != nil {
		return "", err
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	return string(b), err
}

func (r *rig) want(t *testing.T, ref, path, text string) {
	t.Helper()
	got, err := r.read(ref, path)
	if err != nil || got != text {
		t.Fatalf("%s:%s is %q, %v; want %q", ref, path, got, err, text)
	}
}

func (r *rig) wantNone(t *testing.T, path string) {
	t.Helper()
	if got, err := r.read("", path); control.CodeOf(err) != control.CodeBadPath {
		t.Fatalf("%s should not be there: %q, %v", path, got, err)
	}
}

func (r *rig) checkpoint(t *testing.T, label string) *control.Checkpoint {
	t.Helper()
	c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label})
	if err != nil {
		t.Fatalf("checkpoint %q: %v", label, err)
	}
	return c
}

func (r *rig) rollback(t *testing.T, ref string) *control.Rollback {
	t.Helper()
	res, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: ref})
	if err != nil {
		t.Fatalf("rollback %q: %v", ref, err)
	}
	return res
}

func (r *rig) labels(t *testing.T, all bool) []string {
	t.Helper()
	l, err := r.Log(t.Context(), control.LogRequest{All: all})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range l.Checkpoints {
		out = append(out, c.Label)
	}
	return out
}

func wantCode(t *testing.T, err error, code control.Code) {
	t.Helper()
	if err == nil || control.CodeOf(err) != code {
		t.Fatalf("got %v (%s), want %s", err, control.CodeOf(err), code)
	}
}

func TestTheMainJob(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "a.txt", "one\n")
	c := r.checkpoint(t, "stable")
	if c.ChangedPaths != 1 || c.Layer == 0 || c.ID == "" || c.Conversation.State != "none" || c.EngineUS < 0 {
		t.Fatalf("checkpoint: %+v", c)
	}
	r.write(t, "a.txt", "two, and longer\n")
	r.write(t, "new.txt", "new\n")

	res := r.rollback(t, "stable")
	if res.Checkpoint != "stable" || res.CheckpointID != c.ID || res.Layer != c.Layer || res.ChangedPaths < 2 || res.Noop {
		t.Fatalf("rollback: %+v", res)
	}
	r.want(t, "", "a.txt", "one\n")
	r.wantNone(t, "new.txt")

	if res, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil || res.ChangedPaths < 2 || res.Checkpoint != "" {
		t.Fatalf("undo: %+v, %v", res, err)
	}
	r.want(t, "", "a.txt", "two, and longer\n")
	r.want(t, "", "new.txt", "new\n")
	if _, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "a.txt", "one\n")

	r.rollback(t, "base")
	r.want(t, "", "a.txt", "base a\n")
	r.want(t, c.ID, "a.txt", "one\n")
	if b, err := os.ReadFile(filepath.Join(o.Base, "a.txt")); err != nil || string(b) != "base a\n" {
		t.Fatalf("the base was written: %q, %v", b, err)
	}
}

func TestHeadMovesInOrder(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "x", "1")
	r.checkpoint(t, "c")
	r.write(t, "x", "2")
	r.m.mu.Lock()
	r.m.moves = nil
	r.m.mu.Unlock()
	r.rollback(t, "c")
	if got := fmt.Sprint(r.m.moves); got != "[barrier freeze swapped thaw notify]" {
		t.Fatalf("the mount was told %s", got)
	}
}

func TestWhoAsksIsNotBusy(t *testing.T) {
	r := start(t, options(t))
	r.checkpoint(t, "c")
	me := Process{PID: os.Getpid(), Command: "rewindfs rollback c"}
	other := Process{PID: 1 << 30, Command: "sh", Uses: []string{"cwd"}}
	// Who called it is no news either, unless it has a file open.
	for uses, want := range map[string]string{"cwd": "[]", "root": "[]", "cwd root": "[]", "open:x": "[open:x]", "cwd open:x mapped:y": "[open:x mapped:y]"} {
		r.m.setBusy(Process{PID: os.Getppid(), Command: "timeout 10 rewindfs rollback c", Uses: strings.Fields(uses)}, other, me)
		for _, dry := range []bool{true, false} {
			r.write(t, "x", "1")
			res, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "c", DryRun: dry})
			if err != nil {
				t.Fatal(err)
			}
			got := "[]"
			if len(res.Busy) > 1 && res.Busy[0].PID == os.Getppid() {
				got = fmt.Sprint(res.Busy[0].Uses)
				res.Busy = res.Busy[1:]
			}
			if got != want || len(res.Busy) != 1 || res.Busy[0].PID != other.PID {
				t.Errorf("the caller with %q, dry run %v: %s and %+v", uses, dry, got, res.Busy)
			}
		}
	}
	r.m.setBusy()
}

func TestBarrierFailureChangesNothing(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "x", "1")
	r.checkpoint(t, "c")
	r.write(t, "x", "2")
	r.m.broken = errors.New("stuck")
	label := "d"
	if _, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label}); err == nil {
		t.Fatal("a checkpoint without its data was made")
	}
	if _, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "c"}); err == nil {
		t.Fatal("rolled back without a barrier")
	}
	r.m.broken = nil
	if got := fmt.Sprint(r.labels(t, true)); got != "[c]" {
		t.Fatalf("checkpoints: %s", got)
	}
	r.want(t, "", "x", "2")
}

func TestLabels(t *testing.T) {
	r := start(t, options(t))
	one := r.checkpoint(t, "one")
	r.checkpoint(t, "two")
	for label, code := range map[string]control.Code{
		"one": control.CodeDuplicateLabel, "two": control.CodeDuplicateLabel, "": control.CodeBadLabel,
		one.ID: control.CodeDuplicateLabel, strings.ToLower(one.ID[:20]): control.CodeDuplicateLabel, "@": control.CodeBadLabel,
		"@x": control.CodeBadLabel, "base": control.CodeBadLabel, "a/../b": control.CodeBadLabel,
	} {
		_, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label})
		wantCode(t, err, code)
	}
	_, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Message: strings.Repeat("x", 100<<10)})
	wantCode(t, err, control.CodeBadRequest)
	if got := fmt.Sprint(r.labels(t, true)); got != "[two one]" {
		t.Fatalf("checkpoints: %s", got)
	}
	r.rollback(t, "one")
	r.checkpoint(t, "two") // free again
	if got := fmt.Sprint(r.labels(t, false)); got != "[two one]" {
		t.Fatalf("checkpoints: %s", got)
	}
	if got := fmt.Sprint(r.labels(t, true)); got != "[two two one]" {
		t.Fatalf("all checkpoints: %s", got)
	}
}

func TestAfterARollback(t *testing.T) {
	o := options(t)
	began, asked := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), atomic.Int64{}
	o.Now = func() time.Time { return began.Add(time.Duration(asked.Add(1))) } // so ids begin alike
	r := start(t, o)
	for i := 1; i <= 4; i++ {
		r.write(t, "n", fmt.Sprint(i))
		r.checkpoint(t, fmt.Sprint(i))
	}
	dry, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "2", DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(dry.Dropped) != 2 || dry.Dropped[0].Label != "4" || !dry.DryRun || len(dry.Changes) != 1 || dry.Changes[0].Path != "n" {
		t.Fatalf("dry run: %+v", dry)
	}
	r.want(t, "", "n", "4")
	four, err := r.Log(t.Context(), control.LogRequest{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	res := r.rollback(t, "2")
	if len(res.Dropped) != 2 || res.Dropped[1].Label != "3" {
		t.Fatalf("dropped: %+v", res.Dropped)
	}
	r.want(t, "latest", "n", "2")
	r.want(t, "@{1}", "n", "1")
	if res := r.rollback(t, "2"); !res.Noop || res.ChangedPaths != 0 {
		t.Fatalf("a second rollback: %+v", res)
	}
	_, err = r.Rollback(t.Context(), control.RollbackRequest{Ref: "4"})
	wantCode(t, err, control.CodeUnknownCheckpoint)
	_, err = r.Rollback(t.Context(), control.RollbackRequest{Ref: four.Checkpoints[0].ID[:8]})
	wantCode(t, err, control.CodeAmbiguousCheckpoint)
	// Forward again, by its id: what leaves the line now is nothing.
	dry, err = r.Rollback(t.Context(), control.RollbackRequest{Ref: four.Checkpoints[0].ID, DryRun: true})
	if err != nil || len(dry.Dropped) != 0 || dry.Noop {
		t.Fatalf("dry run forward: %+v, %v", dry, err)
	}
	if res = r.rollback(t, four.Checkpoints[0].ID); res.Checkpoint != "4" || len(res.Dropped) != 0 {
		t.Fatalf("forward: %+v", res)
	}
	r.want(t, "", "n", "4")
	if got := fmt.Sprint(r.labels(t, false)); got != "[4 3 2 1]" {
		t.Fatalf("checkpoints: %s", got)
	}
}

func TestSurvivesRestart(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "a.txt", "one\n")
	c := r.checkpoint(t, "c")
	r.write(t, "a.txt", "two\n")
	r.rollback(t, "base")
	r.write(t, "other", "o")
	before, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Status(t.Context()); !errors.Is(err, control.ErrNoDaemon) {
		t.Fatalf("after stopping: %v", err)
	}
	r = start(t, o)
	after, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Generation != before.Generation+1 || after.ChangedPaths != before.ChangedPaths || after.Undo != 1 {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	r.want(t, "", "other", "o")
	r.want(t, c.ID, "a.txt", "one\n")
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "a.txt", "two\n")
	// A call made for the daemon before is refused.
	old := before.Generation
	_, err = r.Rollback(t.Context(), control.RollbackRequest{Carried: control.Carried{Generation: &old}, Ref: "c"})
	wantCode(t, err, control.CodeStaleGeneration)
	r.want(t, "", "a.txt", "two\n")
}

// Calls of all kinds at once: nothing deadlocks, every checkpoint is there once.
func TestManyAtOnce(t *testing.T) {
	r := start(t, options(t))
	const workers, each = 4, 15
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				label := fmt.Sprintf("w%d/%d", w, i)
				if _, err := r.WriteFile(context.Background(), label[:2], strings.NewReader(label)); err != nil {
					t.Error(err)
				}
				if _, err := r.Checkpoint(context.Background(), control.CheckpointRequest{Label: &label}); err != nil {
					t.Error(err)
				}
				if _, err := r.Status(context.Background()); err != nil {
					t.Error(err)
				}
				if _, err := r.Log(context.Background(), control.LogRequest{}); err != nil {
					t.Error(err)
				}
				if _, err := r.Rollback(context.Background(), control.RollbackRequest{Ref: "latest", DryRun: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := len(r.labels(t, false)); got != workers*each {
		t.Fatalf("%d checkpoints, want %d", got, workers*each)
	}
}

func TestDurable(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "x", "1")
	if _, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Durable: true}); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
