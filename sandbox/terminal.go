package sandbox

import (
	"errors"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// terminal is the one that controls this process, if there is one. The command shares it with us, our session and our
// process group, as the commands of a pipeline do: Ctrl-C and Ctrl-Z reach all of them, once, a new window size does, and
// a shell that we run can make groups of its own. Left to be done is what a shell does for its own jobs.
type terminal struct {
	fd    int           // -1 for none
	group int           // our process group
	front bool          // it was the one in the foreground when the command was started
	modes *unix.Termios // of then
}

func openTerminal() *terminal {
	t := &terminal{fd: -1, group: unix.Getpgrp()}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return t
	}
	t.fd = fd
	if t.front = t.ours(); t.front {
		t.modes, _ = unix.IoctlGetTermios(fd, unix.TCGETS) // nil where it cannot be told
	}
	return t
}

func (t *terminal) close() {
	if t.fd >= 0 {
		unix.Close(t.fd)
	}
}

// ours says whether keys such as Ctrl-C send their signals to our process group.
func (t *terminal) ours() bool {
	if t.fd < 0 {
		return false
	}
	front, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && front == t.group
}

// suspend stops this process because the command was stopped, by a key or by itself, as editors do, so that whoever
// started us sees a stopped job. It returns when we go on: then it says true. Only the command decides what the key means, so we
// do not stop by ourselves.
func (t *terminal) suspend(pid int, stand func(bool)) bool {
	// Without a terminal there is no shell that would let us go on.
	if t.fd < 0 || !proctree.Stopped(pid) {
		return false
	}
	if stand != nil {
		stand(true)
		defer stand(false)
	}
	// To this thread, or it might run on for a while.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP) == nil
}

// restore puts the terminal right after the command: it may have left it to a process group that is gone and, when a
// signal ended it, in any mode. left are the processes that the command left running.
func (t *terminal) restore(killed bool, left []int) {
	if t.fd < 0 || !t.front || (t.ours() && !killed) || t.others(left) {
		return
	}
	// In the background, changing a terminal is answered with SIGTTOU.
	if !signal.Ignored(syscall.SIGTTOU) {
		signal.Ignore(syscall.SIGTTOU)
		defer signal.Reset(syscall.SIGTTOU)
	}
	// It is a courtesy: a terminal that has gone away needs none.
	if !t.ours() {
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.group)
	}
	if killed && t.modes != nil {
		_ = unix.IoctlSetTermios(t.fd, unix.TCSETSW, t.modes)
	}
}

// others says whether the terminal is in use by somebody who is neither of our process group nor in left: by a shell that has put us
// into the background, or another job of it. Taken from a shell, it would be the end of the shell: to read from it is an error then.
func (t *terminal) others(left []int) bool {
	front, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil || front == 0 { // 0: it is outside of our pid namespace
		return true
	}
	if front == t.group || errors.Is(unix.Kill(-front, 0), unix.ESRCH) {
		return false
	}
	running := proctree.Group(front)
	if len(running) == 0 {
		return errors.Is(unix.Kill(-front, 0), unix.EPERM) // another user's, which we may not even see
	}
	return slices.ContainsFunc(running, func(pid int) bool { return !slices.Contains(left, pid) })
}
