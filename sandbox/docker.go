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
	"time"

	"golang.org/x/sys/unix"
)

// runMark is the variable by whose value the processes of one command are known, in the container and outside of it.
const runMark = "REWINDFS_RUN"

// begin is what runs in the container in front of the command: it notes that the command has begun, and, when there is a
// time limit, has it ended from within should nobody outside be left to do it.
const begin = `: >"` + markDir + `/$REWINDFS_RUN"
if [ "$1" != 0 ]; then
	(REWINDFS_WATCH=$REWINDFS_RUN REWINDFS_RUN= sh -c 'sleep "$1"; grep -q "REWINDFS_RUN=$REWINDFS_WATCH" "/proc/$2/environ" && kill -KILL -- "-$2"' sh "$1" $$ &) </dev/null >/dev/null 2>&1
fi
shift
exec "$@"`

// watchMark is the variable that marks the process which ends a command from within the container.
const watchMark = "REWINDFS_WATCH"

// watchSlack is how much longer than necessary that process waits: the time is up outside first.
const watchSlack = 10 * time.Second

// dockerRun is one command in the container of the session.
type dockerRun struct {
	container *container
	mark      string // value of runMark
	cmd       *exec.Cmd
	watched   bool
}

// newDockerRun prepares s.Argv to be run in the container of the session, which it starts when it does not run.
func newDockerRun(ctx context.Context, s *Spec) (*dockerRun, error) {
	c, err := openContainer(ctx, s)
	if err != nil {
		return nil, err
	}
	dir, ok := seenAt(s, s.Dir)
	if !ok && slices.Contains(s.Rules.Allow, s.Dir) {
		dir, ok = s.Dir, true
	}
	if !ok {
		return nil, failed(nil, "cd into the project, "+s.Project, "the container shows nothing of the directory %s", s.Dir)
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	r := &dockerRun{container: c, mark: rand.Text(), watched: s.Timeout > 0}
	args := []string{"exec", "--interactive"}
	if isTerminal(s.Stdin) && isTerminal(s.Stdout) {
		args = append(args, "--tty")
	}
	args = append(args, "--workdir", dir, "--env", runMark+"="+r.mark)
	for _, v := range passEnv(s) {
		args = append(args, "--env", v)
	}
	limit := 0
	if r.watched {
		limit = int((s.Timeout + s.Grace + watchSlack + time.Second - 1) / time.Second)
	}
	args = append(args, c.name, "sh", "-c", begin, "rewindfs", strconv.Itoa(limit))
	// Not bound to ctx: how it is ended is Run's business.
	r.cmd = exec.Command(c.engine.CLI, append(args, s.Argv...)...)
	r.cmd.Dir = "/"
	return r, nil
}

func isTerminal(f *os.File) bool {
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// passed are the variables that a container gets from the environment, besides those that the user names: what the terminal and the
// language are. Paths and the like of the host mean nothing in it.
func passed(name string) bool {
	return slices.Contains([]string{"TERM", "COLORTERM", "NO_COLOR", "LANG", "LANGUAGE", "TZ", "CI", "SOURCE_DATE_EPOCH"}, name) || strings.HasPrefix(name, "LC_")
}

// passEnv returns the values of --env: what the command gets of s.Env. What is in our own environment, too, stands there by its name
// only, so that no secret is in a list of processes.
func passEnv(s *Spec) []string {
	own := os.Environ()
	var out []string
	for _, v := range s.Env {
		name, _, ok := strings.Cut(v, "=")
		switch {
		case !ok || !passed(name) && !slices.Contains(s.Rules.Env, name):
		case slices.Contains(own, v):
			out = append(out, name)
		default:
			out = append(out, v)
		}
	}
	return out
}

// checkTime bounds each look at what has become of a command.
const checkTime = 20 * time.Second

// failure says why the command was not run, when it is the engine that has ended with this exit code; nil when the code is
// the command's own.
func (r *dockerRun) failure(code int) error {
	// Those of docker itself, and of the runtime: 255 when the connection broke.
	if !slices.Contains([]int{1, 125, 126, 127, 255}, code) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	c := r.container
	_, err := c.engine.do(ctx, "exec", c.name, "test", "-e", markDir+"/"+r.mark)
	var said *EngineError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &said) && said.Exit == 1 && said.Says == "":
		return failed(nil, "see what it says above", "%s did not start the command", c.engine.name())
	}
	running, lookErr := c.engine.do(ctx, "container", "inspect", "--format", "{{.State.Running}}", c.name)
	switch {
	case saysAny(lookErr, saysGone...) || lookErr == nil && running != "true":
		return failed(nil, "run it again: a new one is started", "the container of the session has ended while the command ran")
	case lookErr != nil:
		return c.explain(lookErr)
	}
	return nil // no process can be started in it at the moment: the command had all of them
}

// marked lists the processes of this machine whose environment has the variable name with the value of this run.
func (r *dockerRun) marked(name string) []int { return withEnv(fmt.Sprintf("%s=%s", name, r.mark)) }
