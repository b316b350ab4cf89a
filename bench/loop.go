package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// loopDisk is a file system in a file, for what the disk at hand cannot do.
type loopDisk struct {
	mnt   string
	close func() error
}

// newBtrfs makes a btrfs of at most size bytes; the file grows as it fills.
func newBtrfs(ctx context.Context, e *Env, size int64) (*loopDisk, error) {
	switch {
	case !e.Root:
		return nil, skipf("only root can mount a btrfs in a file")
	case !have("mkfs.btrfs"):
		return nil, skipf("mkfs.btrfs is not installed (Debian and Ubuntu: apt install btrfs-progs)")
	}
	if err := e.Room(size); err != nil {
		return nil, err
	}
	dir, err := e.Dir("btrfs")
	if err != nil {
		return nil, err
	}
	image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	if err := mkdir(mnt); err != nil {
		return nil, err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(image, max(size, 512<<20)); err != nil {
		return nil, err
	}
	if err := (command{args: []string{"mkfs.btrfs", "-q", "-m", "single", image}}).run(ctx); err != nil {
		return nil, err
	}
	if err := (command{args: []string{"mount", "-t", "btrfs", "-o", "loop", image, mnt}}).run(ctx); err != nil {
		return nil, skipf("no btrfs can be mounted here: %v", err)
	}
	d := &loopDisk{mnt: mnt}
	d.close = e.Defer(func() error { return errors.Join(unmount(mnt), removeAll(dir)) })
	return d, nil
}

// used is what is taken of the file system, everything written out.
func (d *loopDisk) used() (int64, error) {
	syncDisk(d.mnt)
	var st unix.Statfs_t
	if err := unix.Statfs(d.mnt, &st); err != nil {
		return 0, err
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

// canReflink reports whether files in dir can share blocks.
func canReflink(dir string) bool {
	a, err := os.CreateTemp(dir, "reflink")
	if err != nil {
		return false
	}
	defer os.Remove(a.Name())
	defer a.Close()
	b, err := os.CreateTemp(dir, "reflink")
	if err != nil {
		return false
	}
	defer os.Remove(b.Name())
	defer b.Close()
	if _, err := a.Write(make([]byte, 4096)); err != nil {
		return false
	}
	return unix.IoctlFileClone(int(b.Fd()), int(a.Fd())) == nil
}
