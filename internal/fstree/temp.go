package fstree

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// FastTemp makes a temporary directory in memory where the machine has a tmpfs
// at /dev/shm, else an ordinary one. It goes when the test ends.
func FastTemp(t testing.TB) string {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < 1<<30 {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "rewindfs-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}
