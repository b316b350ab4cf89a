package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

// registry finds the sessions of this user.
func registry() (*session.Registry, error) {
	root, err := session.StateRoot()
	if err != nil {
		return nil, err
	}
	return session.NewRegistry(root), nil
}

// choose picks the session that a command is about: the one said, else the one
// whose mount or base holds the working directory, else the only one running. A mount point
// says the branch, too, unless --branch does.
func (a *app) choose(ctx context.Context) (*session.Listed, error) {
	l, err := a.chooseMount(ctx)
	if err != nil || a.branch == "" {
		return l, err
	}
	b, _ := l.At(a.branch) // one that the record does not know of, the daemon may
	return &b, nil
}

func (a *app) chooseMount(ctx context.Context) (*session.Listed, error) {
	reg, err := registry()
	if err != nil {
		return nil, err
	}
	all, err := reg.Sessions()
	if err != nil {
		return nil, err
	}
	said := a.session
	if said == "" {
		said = os.Getenv("REWINDFS_SESSION")
	}
	if said != "" {
		return chooseSaid(ctx, all, said)
	}
	if cwd := workingDir(); cwd != "" {
		if l := holding(ctx, all, cwd); l != nil {
			return l, nil
		}
	}
	return onlyRunning(ctx, all)
}

// workingDir is the kernel's word for the working directory, "" where it is gone: no path is walked, so a mount that
// hangs does not hang us.
func workingDir() string {
	var buf [4096]byte
	if n, err := syscall.Getcwd(buf[:]); err == nil && n > 1 && buf[0] == '/' {
		return string(buf[:n-1])
	}
	return ""
}

// chooseSaid finds the session with a name, a store, a mount point or a base.
func chooseSaid(ctx context.Context, all []session.Listed, said string) (*session.Listed, error) {
	var match []session.Listed
	for _, l := range all {
		if l.Name == said {
			match = append(match, l)
		}
	}
	if len(match) == 0 {
		path, err := session.Canonical(said)
		if err != nil {
			path = said
		}
		for _, l := range all {
			switch f, isFork := forkAt(&l, path); {
			case path == l.Mountpoint || path == l.Base || path == l.Store:
				match = append(match, l)
			case isFork:
				match = append(match, f)
			}
		}
		// A path in a mount or base stands for it, a mere word does not: a mistyped name
		// must not lead to the session that the command happens to be called in.
		if len(match) == 0 && (strings.Contains(said, "/") || said == "." || said == "..") {
			if l := holding(ctx, all, path); l != nil {
				return l, nil
			}
		}
	}
	if len(match) > 1 {
		if live := running(ctx, match); len(live) > 0 {
			match = live
		}
	}
	switch len(match) {
	case 0:
		if err := unknownMount(said); err != nil {
			return nil, err
		}
		return nil, noSession("no session %s; %s", show(said), others(all))
	case 1:
		return &match[0], nil
	}
	return nil, noSession("several sessions are called %s: say which by its mount point: %s", show(said), places(match))
}

// holding finds the session whose mount or base is nearest above dir; a running one
// goes before others.
func holding(ctx context.Context, all []session.Listed, dir string) *session.Listed {
	var best *session.Listed
	depth, live := -1, false
	for i := range all {
		l := &all[i]
		od := max(holds(l.Mountpoint, dir), holds(l.Base, dir))
		f, fd := forkHolding(l, dir)
		d := max(od, fd)
		if d < 0 || d < depth {
			continue
		}
		runs := l.Record.State != session.StateUnmounted && l.Served(ctx)
		if d > depth || runs && !live {
			best, depth, live = l, d, runs
			if fd > od {
				best = &f
			}
		}
	}
	return best
}

// forkAt returns l as the session of the branch that is mounted at path.
func forkAt(l *session.Listed, path string) (session.Listed, bool) {
	for _, f := range l.Forks {
		if f.Mounted && f.Mountpoint == path {
			return l.At(f.Branch)
		}
	}
	return session.Listed{}, false
}

// forkHolding returns l as the session of the branch whose mount holds dir, and how deep that is; -1 for none.
func forkHolding(l *session.Listed, dir string) (session.Listed, int) {
	var best session.Listed
	depth := -1
	for _, f := range l.Forks {
		if d := holds(f.Mountpoint, dir); f.Mounted && d > depth {
			best, _ = l.At(f.Branch)
			depth = d
		}
	}
	return best, depth
}

// holds returns how deep outer is when dir lies in it, -1 otherwise.
func holds(outer, dir string) int {
	if outer == "" || dir != outer && !strings.HasPrefix(dir, strings.TrimSuffix(outer, "/")+"/") {
		return -1
	}
	return len(outer)
}

// running keeps the sessions with a daemon.
func running(ctx context.Context, all []session.Listed) []session.Listed {
	var out []session.Listed
	for _, l := range all {
		if l.Record.State != session.StateUnmounted && l.Served(ctx) {
			out = append(out, l)
		}
	}
	return out
}

func onlyRunning(ctx context.Context, all []session.Listed) (*session.Listed, error) {
	live := running(ctx, all)
	switch len(live) {
	case 1:
		return &live[0], nil
	case 0:
		return nil, noSession("no session is running here; %s", others(all))
	}
	return nil, noSession("several sessions are running: say which with -s: %s", places(live))
}

// others tells somebody without a session what to do.
func others(all []session.Listed) string {
	if len(all) == 0 {
		return "start one with: rewindfs mount DIR"
	}
	return "see what there is with: rewindfs list (start one with: rewindfs mount DIR)"
}

func places(all []session.Listed) string {
	var out []string
	for _, l := range all {
		out = append(out, fmt.Sprintf("%s (%s)", show(l.Name), show(l.Mountpoint)))
	}
	return strings.Join(out, ", ")
}

// unknownMount says what can be done about said, the mount point or base of a daemon that is not in the registry; nil: it is none.
func unknownMount(said string) error {
	path, err := session.Canonical(said)
	if err != nil {
		return nil
	}
	mounts, err := session.Mounts()
	if err != nil {
		return nil
	}
	for _, m := range mounts {
		if m.Path == path || m.Source == path {
			at := quoteArg(show(m.Path))
			return noSession("%s shows %s, but its store is not known here: it is another user's, or below another $XDG_STATE_HOME, or gone; end it with: umount %s (without root: fusermount3 -u %s)", show(m.Path), show(m.Source), at, at)
		}
	}
	return nil
}

func noSession(format string, args ...any) error {
	return &control.Error{Code: control.CodeNoSession, Message: fmt.Sprintf(format, args...)}
}

// answerWait is how long a daemon has to answer at all before a command gives up. What
// it is asked may then take longer.
const answerWait = 10 * time.Second

// connect returns a client for the chosen session.
func (a *app) connect(ctx context.Context) (*control.Client, error) {
	if a.client != nil {
		a.client.Generation, a.client.Branch = a.generation, a.branch
		return a.client, nil
	}
	l, err := a.choose(ctx)
	if err != nil {
		return nil, err
	}
	c := a.clientOf(l)
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	if err := c.Ping(ctx); errors.Is(err, context.DeadlineExceeded) {
		c.Close()
		return nil, errors.New(hangs(l))
	}
	return c, nil // other errors come with the call
}

func (a *app) clientOf(l *session.Listed) *control.Client {
	branch := ""
	if l.Fork {
		branch = l.Branch
	}
	return &control.Client{
		Socket:     l.Socket(),
		Branch:     branch,
		Generation: a.generation,
		Dial: func(ctx context.Context) (net.Conn, error) {
			c, err := control.Dial(ctx, l.Socket())
			if errors.Is(err, control.ErrNoDaemon) {
				return nil, notMounted(l)
			}
			return c, err
		},
	}
}

// remount is the command that brings a session back.
func remount(l *session.Listed) string {
	whole := l.Session()
	l = &whole
	cmd := "rewindfs mount " + quoteArg(show(l.Base))
	switch {
	case l.Over:
		cmd += " --over"
	case l.Mountpoint != l.Base+".rewind":
		cmd += " " + quoteArg(show(l.Mountpoint))
	}
	if root, err := session.StateRoot(); err != nil || session.DefaultStore(root, l.Base) != l.Store {
		cmd += " --store " + quoteArg(show(l.Store))
	}
	return cmd
}

// hangs says what to do about a daemon that does not answer.
func hangs(l *session.Listed) string {
	cut := "cut it off (what was written is safe) with: rewindfs unmount --force -s " + quoteArg(show(l.Name))
	if session.Stopped(l.PID) {
		return fmt.Sprintf("the daemon of session %s (pid %d) is stopped and does not answer: let it go on with: kill -CONT %d, or %s", show(l.Name), l.PID, l.PID, cut)
	}
	return fmt.Sprintf("the daemon of session %s (pid %d) does not answer: try again, or %s", show(l.Name), l.PID, cut)
}

// notMounted explains why nobody serves l.
func notMounted(l *session.Listed) error {
	if l.Record.State == session.StateUnmounted {
		return noSession("session %s is not mounted: start it with: %s", show(l.Name), remount(l))
	}
	return noSession("the daemon of session %s (pid %d) is gone; nothing acknowledged is lost: bring it back with: %s", show(l.Name), l.PID, remount(l))
}
