package sandbox

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// plainDevices are in a /dev of a command's own.
var plainDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// makeDev makes a /dev with these devices, terminals of its own, and shared memory of size bytes. Whatever else the host has there is gone.
func makeDev(at string, size int64) error {
	held := make([]int, len(plainDevices))
	for i, name := range plainDevices {
		var err error
		if held[i], err = clone(filepath.Join(at, name), false); err != nil {
			return fmt.Errorf("take hold of %s: %w", name, err)
		}
		defer unix.Close(held[i])
	}
	if err := mountTmpfs(at, 0o755, 1<<20); err != nil {
		return err
	}
	for i, name := range plainDevices {
		p := point{At: filepath.Join(at, name)}
		if err := p.place(held[i]); err != nil {
			return err
		}
		if err := unix.MoveMount(held[i], "", unix.AT_FDCWD, p.At, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join(at, dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("devpts", filepath.Join(at, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return err
	}
	if err := mountTmpfs(filepath.Join(at, "shm"), 0o1777, size); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(at, name)); err != nil {
			return err
		}
	}
	return nil
}
