package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// rewindfsSystem is the binary under test, with a store of its own for every mount.
type rewindfsSystem struct{ writeback bool }

func (s rewindfsSystem) Name() string {
	if s.writeback {
		return Writeback
	}
	return Rewindfs
}

func (s rewindfsSystem) Mount(ctx context.Context, e *Env, f *fixture, _ bool) (*Mount, error) {
	mode := "through"
	if s.writeback {
		mode = "writeback"
	}
	ses, err := newSession(ctx, e, f.dir, mode)
	if err != nil {
		return nil, err
	}
	return &Mount{Root: ses.mnt, pid: ses.pid, abort: ses.abort, close: ses.close, stored: ses.storedAtRest}, nil
}

// session is a rewindfs session that nobody else knows: its store, its sockets and
// its list of sessions lie in the working directory.
type session struct {
	env        *Env
	base       string
	cache      string
	dir        string
	mnt, store string
	pid        int
	ctl        *control.Client
	close      func() error
}

// newSession mounts base.
func newSession(ctx context.Context, e *Env, base, cache string) (*session, error) {
	dir, err := e.Dir("rw") // short: the path of a unix socket has at most 107 bytes
	if err != nil {
		return nil, err
	}
	s := &session{env: e, base: base, cache: cache, dir: dir,
		mnt: filepath.Join(dir, "mnt"), store: filepath.Join(dir, "store")}
	if err := os.Mkdir(s.mnt, 0o755); err != nil {
		return nil, fmt.Errorf("make the mount point: %w", err)
	}
	s.close = e.Defer(func() error { return errors.Join(s.unmount(), removeAll(dir)) })
	if err := s.mount(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// call runs a rewindfs command and decodes the data of its answer into out, which may be nil.
func (s *session) call(ctx context.Context, out any, args ...string) error {
	b, err := command{args: append([]string{s.env.binary}, args...), env: s.environ()}.output(ctx)
	var reply struct {
		Success bool            `json:"success"`
		Data    json.RawMessage `json:"data"`
		Error   string          `json:"error"`
	}
	if jerr := json.Unmarshal(b, &reply); jerr != nil {
		return errors.Join(fmt.Errorf("rewindfs %s: its answer is no JSON: %w", args[0], jerr), err)
	}
	if !reply.Success || err != nil {
		return errors.Join(fmt.Errorf("rewindfs %s: %s", args[0], reply.Error), err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(reply.Data, out); err != nil {
		return fmt.Errorf("rewindfs %s: read its answer: %w", args[0], err)
	}
	return nil
}

// environ keeps the session apart from the user's own ones.
func (s *session) environ() []string {
	return []string{"XDG_STATE_HOME=" + filepath.Join(s.dir, "state"), "XDG_RUNTIME_DIR=" + filepath.Join(s.dir, "run"), "REWINDFS_SESSION="}
}

func (s *session) mount(ctx context.Context) error {
	if err := s.call(ctx, nil, "mount", s.base, s.mnt, "--store", s.store, "--cache", s.cache, "--json", "--quiet"); err != nil {
		return err
	}
	st, err := s.status(ctx)
	s.pid = st.PID
	return err
}

// unmount ends the daemon, by force when it must; a session that is not mounted is left alone.
func (s *session) unmount() error {
	if !isMountPoint(s.mnt) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.client().Close()
	err := s.call(ctx, nil, "unmount", "--session", s.mnt, "--json", "--quiet")
	if err == nil {
		err = s.gone(ctx)
	}
	if err != nil || isMountPoint(s.mnt) {
		s.abort()
		return errors.Join(err, unmount(s.mnt))
	}
	return nil
}

// abort breaks the mount and kills the daemon.
func (s *session) abort() {
	forceUnmount(s.mnt)
	if s.alive() {
		if p, err := os.FindProcess(s.pid); err == nil {
			_ = p.Kill() // it may have ended meanwhile
		}
	}
}

// alive reports whether the daemon of this session runs. A process that got its
// number later is told apart by the program it runs.
func (s *session) alive() bool {
	if s.pid <= 1 {
		return false
	}
	exe, err := os.Readlink("/proc/" + strconv.Itoa(s.pid) + "/exe")
	return err == nil && exe == s.env.binary
}

// gone waits until the daemon has ended: it may flush for a moment after the unmount.
func (s *session) gone(ctx context.Context) error {
	for tick := time.NewTicker(2 * time.Millisecond); s.alive(); {
		select {
		case <-ctx.Done():
			tick.Stop()
			return fmt.Errorf("wait for the daemon %d to end: %w", s.pid, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// remount ends the daemon and starts another one on the same store.
func (s *session) remount(ctx context.Context) error {
	if err := s.unmount(); err != nil {
		return err
	}
	return s.mount(ctx)
}

// storedAtRest unmounts, so that nothing is on its way to the disk any more, and
// returns what the store takes more than one in which nothing ever happened.
func (s *session) storedAtRest(ctx context.Context) (int64, error) {
	if err := s.unmount(); err != nil {
		return 0, err
	}
	mine, err := diskUsage(s.store)
	if err != nil {
		return 0, err
	}
	empty, err := s.env.Fixture(ctx, "empty-store", func(ctx context.Context, dir string) error {
		base, err := emptyBase(ctx, s.env)
		if err != nil {
			return err
		}
		o, err := newSession(ctx, s.env, base.dir, s.cache)
		if err != nil {
			return err
		}
		return errors.Join(o.unmount(), copyTree(ctx, o.store, dir), o.close())
	})
	if err != nil {
		return 0, err
	}
	none, err := diskUsage(empty.dir)
	return mine - none, err
}

func (s *session) status(ctx context.Context) (control.Status, error) {
	var st control.Status
	err := s.call(ctx, &st, "status", "--session", s.mnt, "--json", "--quiet")
	return st, err
}

// moved is what a checkpoint or a rollback answers.
type moved struct {
	EngineUS     float64 `json:"engine_us"` // microseconds inside the daemon
	ChangedPaths int64   `json:"changed_paths"`
}

func (m moved) engine() float64 { return m.EngineUS / 1e6 }

// checkpoint runs the command and returns what the daemon measured and what the
// whole process took, both in seconds.
func (s *session) checkpoint(ctx context.Context, label string) (engine, whole float64, err error) {
	return s.timed(ctx, "checkpoint", label)
}

// rollback is checkpoint for a rollback to ref.
func (s *session) rollback(ctx context.Context, ref string) (engine, whole float64, err error) {
	return s.timed(ctx, "rollback", ref)
}

func (s *session) timed(ctx context.Context, verb, arg string) (engine, whole float64, err error) {
	var m moved
	start := time.Now()
	err = s.call(ctx, &m, verb, arg, "--session", s.mnt, "--json", "--quiet")
	return m.engine(), time.Since(start).Seconds(), err
}

// seal takes a checkpoint through the control socket, which saves starting a
// process; it is not timed.
func (s *session) seal(ctx context.Context, label string) error {
	_, err := s.client().Checkpoint(ctx, control.CheckpointRequest{Label: &label})
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", label, err)
	}
	return nil
}

func (s *session) client() *control.Client {
	if s.ctl == nil {
		s.ctl = &control.Client{Socket: filepath.Join(s.store, "control.sock")}
	}
	return s.ctl
}
