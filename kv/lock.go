package kv

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lockName = "lock"

// lockStore takes the lock of the store in dir and writes our process id and the
// machine's boot id into it. It returns the boot id that the last holder wrote:
// if that is not ours, the machine may have lost power under the store.
func lockStore(dir string) (f *os.File, lastBoot string, err error) {
	path := filepath.Join(dir, lockName)
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, "", fmt.Errorf("opening the store's lock: %w", spaceErr(err))
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		f.Close()
		return nil, "", fmt.Errorf("reading the store's lock: %w", err)
	}
	pid, lastBoot := parseLock(string(text))
	err = retryIntr(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		f.Close()
		return nil, "", &InUseError{Dir: dir, PID: pid}
	}
	if err != nil {
		f.Close()
		return nil, "", fmt.Errorf("locking the store in %s: %w", dir, err)
	}
	// One write of one page over the old one: there is always a whole text, also
	// on a full disk. The length is fixed, so nothing of the old one stays.
	line := fmt.Sprintf("%-10d %-40s\n", os.Getpid(), bootID())
	if _, err := f.WriteAt([]byte(line), 0); err != nil {
		f.Close()
		return nil, "", fmt.Errorf("writing the store's lock: %w", spaceErr(err))
	}
	return f, lastBoot, nil
}

// Hold keeps the store in dir, which need not be whole, from being opened until release is called. A
// store that is open is an InUseError; one without a lock file is nobody's.
func Hold(dir string) (release func(), err error) {
	if _, err := os.Stat(filepath.Join(dir, lockName)); err != nil {
		return func() {}, nil
	}
	f, _, err := lockStore(dir)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

func parseLock(text string) (pid int, boot string) {
	fields := strings.Fields(text)
	if len(fields) > 0 {
		pid, _ = strconv.Atoi(fields[0])
	}
	if len(fields) > 1 {
		boot = fields[1]
	}
	return pid, boot
}

// bootID names this run of the kernel; "" where it has no name.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
