package sandbox

import (
	"fmt"
	"os/exec"
	"syscall"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// backend starts the process that becomes the command.
type backend interface {
	// start starts the command and returns once it runs. Where nothing of it has run the error is an *Error.
	// prepare is called right before a process is started, and again where a first try shows that
	// the machine cannot do what was tried: it may set fields of cmd.SysProcAttr, which is not nil.
	start(s *Spec, prepare func(*exec.Cmd)) (*running, error)
}

// running is a command that has been started.
type running struct {
	// cmd has been started: its process is the command, or the first process of its box, without which nothing in the box goes on.
	cmd *exec.Cmd
	// signal sends a signal to the command alone, wherever it is. One that has ended gets none.
	signal func(syscall.Signal)
	// status is how the command ended, of how cmd did. To be called after cmd.Wait, before stop.
	status func(syscall.WaitStatus) syscall.WaitStatus
	// stop is called when cmd has ended; it gives back what was made for it, and returns the writes that were refused.
	stop func() []Refusal
	// stand is called with true before this process stops, and with false when it goes on: somebody else is to do meanwhile what
	// processes of the command wait for. It may be nil.
	stand func(bool)
	// away is set for a command whose processes are not those of cmd, which a daemon starts for it.
	away *away
	// notes are for Outcome.Notes.
	notes []string
}

// away is what is different about a command that a daemon runs: cmd stands for it, and passes on what goes in and comes out.
type away struct {
	// settle is called when all processes of the command should have ended: it makes sure that cmd does.
	settle func()
	// finish is called when cmd has ended: it ends the command, if that goes on all the same.
	finish func()
	// verdict is called then, unless a signal has ended cmd: it says why the command has not run, if that is what the exit code means.
	verdict func(exitCode int) error
}

// awayBackend is a backend of such commands.
type awayBackend interface {
	backend
	// tree finds the processes of the command that is started next.
	tree() proctree.Tree
}

// Exit codes for commands that did not run.
const (
	ExitSandbox       = 4   // the sandbox could not be made
	ExitNotExecutable = 126 // as shells have it
	ExitNotFound      = 127
)

// Error says why nothing of a command ran.
type Error struct {
	ExitCode int
	Do       string // what the user can do about it, "" where that goes without saying
	Err      error
}

func (e *Error) Error() string {
	if e.Do == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v; %s", e.Err, e.Do)
}

func (e *Error) Unwrap() error { return e.Err }
