package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// runMark is the variable by whose value the processes of one command are known, in the container and outside of it.
const runMark = "REWINDFS_RUN"

// begin is what runs in the container in front of the command: it notes that the command has begun, and, when there is a
// time limit, has it ended from within should nobody outside be left to do it.
const begin = `: >"` + markDir + `/$REWINDFS_RUN"
if [ "$1" != 0 ]; then
	(REWINDFS_WATCH=$REWINDFS_RUN REWINDFS_RUN= $(command -v setsid) sh -c 'sleep "$1"; grep -q "REWINDFS_RUN=$REWINDFS_WATCH" "/proc/$2/environ" && kill -KILL -- "-$2"' sh "$1" $$ &) </dev/null >/dev/null 2>&1
fi
shift
exec "$@"`

// watchMark is the variable that marks the process which ends a command from within the container.
const watchMark = "REWINDFS_WATCH"

// watchSlack is how much longer than necessary that process waits: the time is up outside first.
const watchSlack = 10 * time.Second

// docker runs commands in the container of the session. A value is for one command.
type docker struct {
	mark      string // value of runMark
	container *container
}

func newDocker() *docker { return &docker{mark: rand.Text()} }

func (d *docker) tree() proctree.Tree { return proctree.Elsewhere(runMark + "=" + d.mark) }

// startTime bounds what is to be done in front of a command: a container is made in a second, on a busy machine in some.
const startTime = 2 * time.Minute

func (d *docker) start(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	dir, err := workdir(s)
	if err != nil {
		return nil, err
	}
	if d.container, err = openContainer(ctx, s); err != nil {
		return nil, err
	}
	if err := d.container.start(ctx); err != nil {
		return nil, err
	}
	cmd := exec.Command(d.container.engine.CLI, d.execArgs(s, dir)...)
	cmd.Dir = "/" // not the mount, which it would keep busy
	// A nil *os.File must not become an interface that is not nil.
	if s.Stdin != nil {
		cmd.Stdin = s.Stdin
	}
	if s.Stdout != nil {
		cmd.Stdout = s.Stdout
	}
	if s.Stderr != nil {
		cmd.Stderr = s.Stderr
	}
	// Keys would end the engine instead of the command, unless it has the terminal to itself. Who is in the background cannot
	// read from it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !isTerminal(s.Stdin)}
	prepare(cmd)
	if err := cmd.Start(); err != nil {
		return nil, failed(err, "", "start %s", d.container.engine.name())
	}
	return &running{
		cmd:    cmd,
		signal: d.signal,
		status: func(ws syscall.WaitStatus) syscall.WaitStatus { return ws },
		stop:   func() []Refusal { return nil },
		away:   &away{settle: func() { d.settle(cmd.Process.Pid) }, finish: func() { d.finish(s) }, verdict: d.verdict},
	}, nil
}

// workdir is the working directory as the container has it.
func workdir(s *Spec) (string, error) {
	if dir, ok := seenAt(s, s.Dir); ok {
		return dir, nil
	}
	for _, p := range s.Rules.Allow {
		if within(s.Dir, absolute(p, s)) {
			return s.Dir, nil
		}
	}
	return "", failed(nil, "cd into the project, "+s.Project, "the container shows nothing of the directory %s", s.Dir)
}

// execArgs are the arguments of the engine for the command of s.
func (d *docker) execArgs(s *Spec, dir string) []string {
	args := []string{"exec", "--interactive"}
	if isTerminal(s.Stdin) && isTerminal(s.Stdout) {
		args = append(args, "--tty")
	}
	args = append(args, "--workdir", dir, "--env", runMark+"="+d.mark)
	for _, v := range passEnv(s) {
		args = append(args, "--env", v)
	}
	limit := 0
	if s.Timeout > 0 {
		limit = int((s.Timeout + s.Grace + watchSlack + time.Second - 1) / time.Second)
	}
	args = append(args, d.container.name, "sh", "-c", begin, "rewindfs", strconv.Itoa(limit))
	return append(args, s.Argv...)
}

func isTerminal(f *os.File) bool {
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// passedIn are the variables that a container gets from the environment, besides those that the user names: what the terminal and the
// language are. Paths and the like of the host mean nothing in it.
func passedIn(name string) bool {
	return slices.Contains([]string{"TERM", "COLORTERM", "NO_COLOR", "LANG", "LANGUAGE", "TZ", "CI", "SOURCE_DATE_EPOCH", "REWINDFS_SESSION", "REWINDFS_GENERATION"}, name) || strings.HasPrefix(name, "LC_")
}

// passEnv returns the values of --env: what the command gets of s.Env. What is in our own environment, too, stands there by its name
// only, so that no secret is in a list of processes.
func passEnv(s *Spec) []string {
	own := os.Environ()
	let := func(name string) bool {
		return passedIn(name) || slices.ContainsFunc(s.Rules.Env, func(v string) bool { n, _, _ := strings.Cut(v, "="); return n == name })
	}
	var out []string
	for _, v := range setEnv(s.Env, s.Rules.Env...) {
		name, _, ok := strings.Cut(v, "=")
		switch {
		case !ok || !let(name):
		case slices.Contains(own, v):
			out = append(out, name)
		default:
			out = append(out, v)
		}
	}
	return out
}

// Bounds for what is done after a command: a look at what has become of it, and the end of the engine when the command has ended.
const (
	checkTime  = 20 * time.Second
	settleTime = 3 * time.Second
)

// settle has the engine with this pid end, whose command was ended. Where processes in the container cannot be seen from outside, or were
// too many, all that runs in it is ended with it.
func (d *docker) settle(pid int) {
	if awaitEnd(pid, settleTime) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	proctree.Apart(func() {
		_ = d.container.remove(ctx) // what remains then is the session's, which tries again
	})
	if !awaitEnd(pid, settleTime) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it is our child, and not reaped
	}
}

// awaitEnd waits for the end of process pid, and says whether it came in time.
func awaitEnd(pid int, limit time.Duration) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	for deadline := time.Now().Add(limit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(deadline), 0).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// finish ends what is not to outlive the engine that stood for the command: the command itself, when the engine was ended by a
// signal, and what watches over its time. What the command has left running is left.
func (d *docker) finish(s *Spec) {
	tree := d.tree()
	defer tree.Close()
	if s.Timeout > 0 {
		watch := proctree.Elsewhere(watchMark + "=" + d.mark)
		defer watch.Close()
		watch.Signal(syscall.SIGKILL)
	}
	if slices.ContainsFunc(tree.Members(), startedFromOutside) {
		proctree.Stop(tree, s.Grace)
	}
}

// signal sends a signal to the command; what keys send, to its process group.
func (d *docker) signal(sig syscall.Signal) {
	tree := d.tree()
	defer tree.Close()
	for _, pid := range tree.Members() {
		if !startedFromOutside(pid) {
			continue
		}
		if sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGHUP {
			if syscall.Kill(-pid, sig) == nil { // it leads one, where the runtime makes a session for it, as most do
				continue
			}
		}
		_ = syscall.Kill(pid, sig) // one that has ended gets none
	}
}

// startedFromOutside reports whether the parent of a process in a container is not in it: so it is with the first process of a command.
func startedFromOutside(pid int) bool {
	status := func(pid, field string) []string {
		b, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			return nil
		}
		_, rest, _ := strings.Cut(string(b), "\n"+field+":")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.Fields(line)
	}
	own := strconv.Itoa(pid)
	parent := status(own, "PPid")
	return len(parent) == 1 && len(status(parent[0], "NSpid")) < len(status(own, "NSpid"))
}

// verdict says why the command has not run, when it is the engine that has ended with this exit code; nil when the code is
// the command's own.
func (d *docker) verdict(code int) (err error) {
	// Those of docker itself, and of the runtime; 255 when the connection broke.
	if !slices.Contains([]int{1, 125, 126, 127, 255}, code) {
		return nil
	}
	proctree.Apart(func() { err = d.check() })
	return err
}

// check finds out whether the command has begun.
func (d *docker) check() error {
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	c := d.container
	_, err := c.engine.do(ctx, "exec", c.name, "test", "-e", markDir+"/"+d.mark)
	var said *EngineError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &said) && said.Exit == 1 && said.Says == "":
		return failed(nil, "see above what it says", "%s did not start the command", c.engine.name())
	}
	running, err := c.engine.do(ctx, "container", "inspect", "--format", "{{.State.Running}}", c.name)
	switch {
	case saysAny(err, saysGone...) || err == nil && running != "true":
		return failed(nil, "run it again: a new one is started", "the container of the session has ended while the command ran")
	case err != nil:
		return c.explain(err)
	}
	return nil // nothing can be started in it at the moment: the command has begun, and uses all that may be used
}

// failed makes an *Error. err may be nil.
func failed(err error, do, format string, args ...any) error {
	what := fmt.Errorf(format, args...)
	if err != nil {
		what = fmt.Errorf("%w: %w", what, err)
	}
	return &Error{ExitCode: ExitSandbox, Do: do, Err: fmt.Errorf("sandbox %s: %w", Docker, what)}
}
