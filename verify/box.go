package verify

import (
	"syscall"
	"time"
)

// box holds the processes that a verifier starts. It is used by one goroutine at a time.
type box interface {
	name() string
	// prepare is called before the command is started.
	prepare(*syscall.SysProcAttr)
	// started tells the command's pid, which is also its session's and its group's, and stays
	// its own until close.
	started(pid int)
	// members lists the processes that run; a command that has ended but is not reaped does not.
	members() []int
	// signal sends to all members. Those that came meanwhile may be missed.
	signal(syscall.Signal)
	close()
}

// stop ends all processes in b: those that are there are asked to go, and after the grace period
// made to. It returns how many there were at first, and which remained.
func stop(b box, grace time.Duration) (ended int, survivors []int) {
	ended = len(b.members())
	if ended == 0 {
		return 0, nil
	}
	b.signal(syscall.SIGTERM)
	b.signal(syscall.SIGCONT) // one that is stopped would not notice
	if len(awaitGone(b, grace, nil)) == 0 {
		return ended, nil
	}
	survivors = awaitGone(b, killWait, func() { b.signal(syscall.SIGKILL) })
	return ended, survivors
}

// awaitGone waits until b is empty, calling again (which may be nil) before each
// look, and returns who is left at the end of the time. There is no event
// that tells of the end of processes which are not our children, so it looks now and then.
func awaitGone(b box, most time.Duration, again func()) []int {
	deadline := time.Now().Add(most)
	wait := time.Millisecond
	for {
		if again != nil {
			again()
		}
		left := b.members()
		// Twice, because a list of processes is not made in one instant.
		if len(left) == 0 {
			left = b.members()
		}
		rest := time.Until(deadline)
		if len(left) == 0 || rest <= 0 {
			return left
		}
		time.Sleep(min(wait, rest))
		wait = min(2*wait, 50*time.Millisecond)
	}
}
