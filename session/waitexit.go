package session

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStillRunning is returned when a process did not end in time.
var ErrStillRunning = errors.New("still running")

// WaitExit waits until process pid has ended; ErrStillRunning after limit.
func WaitExit(pid int, limit time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(limit)
	for {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case n > 0:
			return nil
		case left == 0:
			return fmt.Errorf("process %d: %w", pid, ErrStillRunning)
		}
	}
}
