package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	return waitExit(fd, pid, limit)
}

// waitExit waits for process pid, of which fd is a pidfd.
func waitExit(fd, pid int, limit time.Duration) error {
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

// grace is how long a daemon that was cut off may take to end by itself; deathTime is
// how long the kernel may take to end one that was killed.
const (
	grace     = 3 * time.Second
	deathTime = 30 * time.Second
)

// EndHolder ends the daemon with process id pid that holds store, by SIGKILL if it
// does not end by itself within moments: the last resort against one that does not
// answer. Acknowledged writes survive it. killed is false when there was nothing to
// kill. A process that does not hold the store is refused and left alone.
func EndHolder(store string, pid int) (killed bool, err error) {
	if pid <= 0 {
		return false, fmt.Errorf("it is not known which process serves the store %s", store)
	}
	// The descriptor stands for the process that has the pid now, and for no later one:
	// who is checked below is who is hit, or nobody.
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the daemon (pid %d): %w", pid, err)
	}
	defer unix.Close(fd)
	switch holds, err := holdsStore(pid, store); {
	case errors.Is(err, fs.ErrNotExist): // it has just ended
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find out whether process %d serves the store %s: %w", pid, store, err)
	case !holds && dying(pid): // nothing can be seen of its descriptors any more
		return false, waitExit(fd, pid, deathTime)
	case !holds:
		return false, fmt.Errorf("process %d does not serve the store %s, so it is left alone", pid, store)
	}
	if err := waitExit(fd, pid, grace); !errors.Is(err, ErrStillRunning) {
		return false, err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("end the daemon (pid %d): %w", pid, err)
	}
	return true, waitExit(fd, pid, deathTime)
}

// holdsStore reports whether process pid has the lock of store.
func holdsStore(pid int, store string) (bool, error) {
	lock, err := os.Stat(filepath.Join(store, kvLock))
	if err != nil {
		return false, err
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return false, err
	}
	for _, e := range fds {
		// By name first: other files of the daemon may lie where stat hangs.
		fd := filepath.Join(proc, "fd", e.Name())
		if name, err := os.Readlink(fd); err != nil || !strings.HasSuffix(name, "/"+kvLock) {
			continue
		}
		if st, err := os.Stat(fd); err != nil || !os.SameFile(st, lock) {
			continue
		}
		// The locks that a descriptor holds are listed with it (proc_pid_fdinfo(5)).
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", e.Name()))
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(info)) {
			if strings.HasPrefix(line, "lock:") && strings.Contains(line, "FLOCK") {
				return true, nil
			}
		}
	}
	return false, nil
}

// maxAncestors ends the search on a machine where processes change too fast.
const maxAncestors = 100

// ancestors returns the processes that process pid descends from, as far as they
// can be seen.
func ancestors(pid int) map[int]bool {
	out := map[int]bool{}
	for len(out) < maxAncestors {
		var err error
		if pid, err = strconv.Atoi(statusOf(pid, "PPid")); err != nil || pid <= 0 {
			break
		}
		out[pid] = true
	}
	return out
}

// dying reports whether process pid has ended but for threads that are still on their way out.
func dying(pid int) bool { return strings.HasPrefix(statusOf(pid, "State"), "Z") }

// Stopped reports whether process pid is kept from running by SIGSTOP, Ctrl-Z or the like.
func Stopped(pid int) bool { return strings.HasPrefix(statusOf(pid, "State"), "T") }

// statusOf is what /proc says about a process, "" when there is none.
func statusOf(pid int, field string) string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), "\n"+field+":\t")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}
