package fstree

import (
	"os"
	"path/filepath"
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

// HighInodes returns a read-only view of dir in which every object has an inode
// number beyond 2^40: an overlayfs with xino, as others get from stacked or very
// large file systems. It skips t where that cannot be had.
func HighInodes(t testing.TB, dir string) string {
	t.Helper()
	m := filepath.Join(t.TempDir(), "high")
	upper := FastTemp(t) // numbers are only made unique if the parts are of several file systems
	if err := os.Mkdir(m, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", m, "overlay", unix.MS_RDONLY, "xino=on,lowerdir="+upper+":"+dir); err != nil {
		t.Skipf("no overlayfs to be had (%v)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", m, err)
		}
	})
	var st unix.Stat_t
	if err := unix.Lstat(m, &st); err != nil {
		t.Fatal(err)
	}
	if st.Ino < 1<<40 {
		t.Skipf("the overlayfs gives low inode numbers (%d)", st.Ino)
	}
	return m
}
