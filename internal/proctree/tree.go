// Package proctree finds all processes that a command has started, wherever they have gone, and ends
// them. How to start a command, and what to think of what it leaves behind, is its users' business.
package proctree

import (
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// KillWait bounds how long processes may take to go after SIGKILL.
const KillWait = 5 * time.Second

// Tree holds the processes that a command starts. It is used by one goroutine at a time.
type Tree interface {
	Name() string
	// prepare is called before the command is started.
	prepare(*syscall.SysProcAttr)
	// started tells the command's pid, which stays its own until Close.
	started(pid int)
	// Members lists the processes that run; a command that has ended but is not reaped does not.
	Members() []int
	// Signal sends to all members. Those that came meanwhile may be missed.
	Signal(syscall.Signal)
	Close()
}

// starting keeps a command from being taken for an orphan while it is not known yet: it is held from in front of its start until it
// is in commands, and while orphans are reaped.
var starting sync.Mutex

// Start starts cmd as the root of t, once.
func Start(t Tree, cmd *exec.Cmd) error {
	return StartBy(t, func(prepare func(*exec.Cmd)) (int, error) {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		prepare(cmd)
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
}

// StartBy is Start for a command that start starts: it calls prepare for each process that it tries, whose SysProcAttr
// is not nil, and returns the pid of the one that became the command.
func StartBy(t Tree, start func(prepare func(*exec.Cmd)) (int, error)) error {
	starting.Lock()
	defer starting.Unlock()
	pid, err := start(func(cmd *exec.Cmd) { t.prepare(cmd.SysProcAttr) })
	if err == nil {
		t.started(pid)
	}
	return err
}

// StartAside starts cmd as a child that is of no tree, also while others run and orphans are adopted. It is not reaped.
func StartAside(cmd *exec.Cmd) error {
	starting.Lock()
	defer starting.Unlock()
	err := cmd.Start()
	if err == nil {
		commands.Store(cmd.Process.Pid, true)
	}
	return err
}

// Apart runs fn, which may start children and wait for their end, in a process that adopts orphans: see Adopt.
func Apart(fn func()) {
	starting.Lock()
	defer starting.Unlock()
	fn()
}

// Stop ends all processes of t: those that are there are asked to go, and after the grace period
// made to. It returns how many there were at first, and which remained.
func Stop(t Tree, grace time.Duration) (ended int, survivors []int) {
	ended = len(t.Members())
	if ended == 0 {
		return 0, nil
	}
	t.Signal(syscall.SIGTERM)
	t.Signal(syscall.SIGCONT) // one that is stopped would not notice
	if len(awaitGone(t, grace, nil)) == 0 {
		return ended, nil
	}
	survivors = awaitGone(t, KillWait, func() { t.Signal(syscall.SIGKILL) })
	return ended, survivors
}

// awaitGone waits until t is empty, calling again (which may be nil) before each
// look, and returns who is left at the end of the time. There is no event
// that tells of the end of processes which are not our children, so it looks now and then.
func awaitGone(t Tree, most time.Duration, again func()) []int {
	deadline := time.Now().Add(most)
	wait := time.Millisecond
	for {
		if again != nil {
			again()
		}
		left := t.Members()
		// Twice, because a list of processes is not made in one instant.
		if len(left) == 0 {
			left = t.Members()
		}
		rest := time.Until(deadline)
		if len(left) == 0 || rest <= 0 {
			return left
		}
		time.Sleep(min(wait, rest))
		wait = min(2*wait, 50*time.Millisecond)
	}
}
