package fs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Warm, a workload asks the daemon nothing at all.
func TestWarmMakesNoRequest(t *testing.T) {
	r := newRig(t, func(base string) {
		for i := range 20 {
			os.MkdirAll(fmt.Sprintf("%s/d%d", base, i), 0o755)
			for j := range 20 {
				os.WriteFile(fmt.Sprintf("%s/d%d/f%d", base, i, j), []byte("some text"), 0o644)
			}
			os.Symlink("f0", fmt.Sprintf("%s/d%d/link", base, i))
		}
	})
	work := "grep -r nothing . || :; find . -type f | wc -l; cat d1/link; test ! -e absent; test ! -e d1/absent"
	r.sh(0, work)
	r.sh(0, work) // atimes are fetched once more
	before := r.m.Counters()
	r.sh(0, work)
	for op, n := range r.m.Counters() {
		if n != before[op] && op != "STATFS" { // find looks at the disk each time
			t.Errorf("%d more %s requests by a warm run", n-before[op], op)
		}
	}
	if before["LOOKUP"]+before["READDIRPLUS"] == 0 || before["READ"] == 0 {
		t.Errorf("counters look wrong: %v", before)
	}
	if before["OPEN"] > 1 || before["OPENDIR"] > 1 || before["FLUSH"] > 1 {
		t.Errorf("the kernel goes on asking what it was told not to: %v", before)
	}
}

func TestMmapMovesTimes(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "old")
	past := []unix.Timespec{{Sec: 1000}, {Sec: 1000}}
	if err := unix.UtimesNano(r.path("f"), past); err != nil {
		t.Fatal(err)
	}
	h := r.start("holder", r.path("f"))
	h.want("map", "ok")
	h.want("mwrite new", "ok")
	h.want("msync", "ok")
	eventually(t, "mtime moves after a write through a mapping", func() bool {
		return lstat(t, r.path("f")).Sec != 1000
	})
	h.want("read", "new")
	h.want("write xyz", "ok")
	h.want("mread", "xyz")
	h.stop()
	r.want("f", "xyz")
}

func TestUnlinkedOpen(t *testing.T) {
	r := newRig(t, func(base string) { os.WriteFile(filepath.Join(base, "b"), []byte("from the base"), 0o644) })
	r.write("f", "mine")
	for path, content := range map[string]string{"f": "mine", "b": "from the base"} {
		h := r.start("holder", r.path(path))
		os.Remove(r.path(path))
		r.write(path, "another")
		h.want("read", content)
		h.want("stat", fmt.Sprintf("size %d nlink 0", len(content)))
		h.want("write MINE", "ok")
		h.want("read", "MINE"+content[4:])
		r.want(path, "another")
		r.checkpoint("with an orphan " + path)
		h.want("write mine", "ok")
		h.stop()
	}
	// The same by rename.
	for _, path := range []string{"x", "y"} {
		r.write(path, path)
	}
	h := r.start("holder", r.path("x"))
	os.Rename(r.path("y"), r.path("x"))
	h.want("read", "x")
	h.want("stat", "size 1 nlink 0")
	r.want("x", "y")
	h.stop()
}

func TestReaddirWhileDeleting(t *testing.T) {
	const n = 3000
	r := newRig(t, func(base string) {
		os.Mkdir(filepath.Join(base, "d"), 0o755)
		for i := range n / 2 {
			os.WriteFile(fmt.Sprintf("%s/d/base%d", base, i), nil, 0o644)
		}
	})
	for i := range n / 2 {
		r.write(fmt.Sprintf("d/mine%d", i), "")
	}
	fd, err := unix.Open(r.path("d"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	seen := map[string]int{}
	buf := make([]byte, 1024)
	for {
		k, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		if k == 0 {
			break
		}
		var names []string
		_, _, names = unix.ParseDirent(buf[:k], -1, nil)
		for _, name := range names {
			seen[name]++
			if err := os.Remove(r.path("d/" + name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, k := range seen {
		if k != 1 {
			t.Errorf("%s came %d times", name, k)
		}
	}
	if len(seen) != n {
		t.Errorf("%d entries came, want %d", len(seen), n)
	}
	if err := os.Remove(r.path("d")); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	r := newRig(t, nil)
	longest := strings.Repeat("n", 255)
	for _, name := range []string{longest, ".wh.x", ".go-fuse-epoll-hack", "\xff\xfe", " ", "a\nb", "%2F", ".fuse_hidden0001"} {
		r.write(name, name)
		r.want(name, name)
		if err := os.Rename(r.path(name), r.path("t")); err != nil {
			t.Error(err)
		}
		if err := os.Rename(r.path("t"), r.path(name)); err != nil {
			t.Error(err)
		}
		if err := os.Link(r.path(name), r.path("h")); err != nil {
			t.Error(err)
		}
		os.Remove(r.path("h"))
		os.Remove(r.path(name))
		if err := os.Mkdir(r.path(name), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.Remove(r.path(name)); err != nil {
			t.Error(err)
		}
	}
	r.write("f", "x")
	long := r.path(longest + "n")
	for what, err := range map[string]error{
		"create": os.WriteFile(long, nil, 0o644), "mkdir": os.Mkdir(long, 0o755), "symlink": os.Symlink("x", long),
		"link": os.Link(r.path("f"), long), "rename": os.Rename(r.path("f"), long), "stat": unix.Lstat(long, &unix.Stat_t{}),
		"unlink": unix.Unlink(long), "rmdir": unix.Rmdir(long), "mknod": unix.Mknod(long, unix.S_IFIFO|0o600, 0),
	} {
		if !errors.Is(err, unix.ENAMETOOLONG) {
			t.Errorf("%s of a name of 256 bytes: %v", what, err)
		}
	}
}

func TestRenameFlags(t *testing.T) {
	r := newRig(t, func(base string) { os.WriteFile(filepath.Join(base, "gone"), nil, 0o644) })
	r.write("a", "a")
	r.write("b", "b")
	os.Remove(r.path("gone"))
	rename := func(from, to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, r.path(from), unix.AT_FDCWD, r.path(to), flags)
	}
	for _, c := range []struct {
		from, to string
		flags    uint
		want     error
	}{
		{"a", "b", unix.RENAME_NOREPLACE, unix.EEXIST},
		{"a", "gone", unix.RENAME_NOREPLACE, nil},
		{"gone", "a", 0, nil},
		{"a", "b", unix.RENAME_EXCHANGE, nil},
		{"a", "none", unix.RENAME_EXCHANGE, unix.ENOENT},
		{"a", "c", unix.RENAME_WHITEOUT, unix.EINVAL},
	} {
		if err := rename(c.from, c.to, c.flags); !errors.Is(err, c.want) {
			t.Errorf("rename %s to %s with flags %d: %v, want %v", c.from, c.to, c.flags, err, c.want)
		}
	}
	r.want("a", "b")
	r.want("b", "a")
}

func TestTmpfile(t *testing.T) {
	r := newRig(t, nil)
	fd, err := unix.Open(r.mnt, unix.O_TMPFILE|unix.O_RDWR, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink != 0 || st.Mode != unix.S_IFREG|0o640 {
		t.Errorf("nlink %d mode %o, %v", st.Nlink, st.Mode, err)
	}
	unix.Write(fd, []byte("nameless"))
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/thread-self/fd/", fd), unix.AT_FDCWD, r.path("named"), unix.AT_SYMLINK_FOLLOW); err != nil {
		t.Fatal(err)
	}
	r.want("named", "nameless")
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink != 1 {
		t.Errorf("nlink %d after linkat, %v", st.Nlink, err)
	}
}

// What the kernel must not conclude from one failure is that there is no such call.
func TestUnsupported(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "x")
	fd, err := unix.Open(r.path("f"), unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for range 2 {
		if _, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); !errors.Is(err, unix.ENOTTY) {
			t.Errorf("ioctl: %v, want ENOTTY", err)
		}
		if err := unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("fallocate: %v, want EOPNOTSUPP", err)
		}
	}
	if err := unix.Fallocate(fd, 0, 0, 8192); err != nil {
		t.Errorf("an ordinary fallocate after that: %v", err)
	}
}

func TestSparseAndCopy(t *testing.T) {
	r := newRig(t, func(base string) { os.WriteFile(filepath.Join(base, "b"), bytes.Repeat([]byte("base"), 1<<16), 0o644) })
	f, err := os.Create(r.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("end"), 1<<30); err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	if off, err := unix.Seek(fd, 0, unix.SEEK_DATA); err != nil || off == 0 || off > 1<<30 {
		t.Errorf("SEEK_DATA: %d, %v", off, err)
	}
	if off, err := unix.Seek(fd, 0, unix.SEEK_HOLE); err != nil || off != 0 {
		t.Errorf("SEEK_HOLE: %d, %v", off, err)
	}
	if _, err := unix.Seek(fd, 1<<31, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
		t.Errorf("SEEK_DATA past the end: %v", err)
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st); st.Blocks > 1024 {
		t.Errorf("%d blocks for three bytes", st.Blocks)
	}
	for _, src := range []string{"f", "b"} {
		r.sh(0, "cp --sparse=never --reflink=auto "+src+" copy; cmp "+src+" copy")
	}
	in, _ := os.Open(r.path("b"))
	defer in.Close()
	out, _ := os.Create(r.path("c"))
	defer out.Close()
	off := int64(4)
	n, err := unix.CopyFileRange(int(in.Fd()), &off, int(out.Fd()), nil, 8, 0)
	if n != 8 || err != nil {
		t.Errorf("copy_file_range: %d, %v", n, err)
	}
	r.want("c", "basebase")
	// Out of a checkpoint, which is another tree.
	r.checkpoint("one")
	old, err := os.Open(r.path(".rewind/checkpoints/one/b"))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	off = 0
	if n, err := unix.CopyFileRange(int(old.Fd()), &off, int(out.Fd()), nil, 4, 0); n != 4 || err != nil {
		t.Errorf("copy_file_range out of a checkpoint: %d, %v", n, err)
	}
	r.want("c", "basebasebase")
}

func TestStatfsAndTimes(t *testing.T) {
	r := newRig(t, nil)
	var s, disk unix.Statfs_t
	if err := errors.Join(unix.Statfs(r.mnt, &s), unix.Statfs(r.store, &disk)); err != nil {
		t.Fatal(err)
	}
	if s.Blocks != disk.Blocks || s.Namelen != 255 || s.Bsize != disk.Bsize {
		t.Errorf("statfs says %+v, the store's disk is %+v", s, disk)
	}
	r.write("f", "")
	for _, ts := range []unix.Timespec{{Sec: -1, Nsec: 999999999}, {Sec: 1 << 33, Nsec: 1}, {Sec: 0, Nsec: 123456789}} {
		if err := unix.UtimesNano(r.path("f"), []unix.Timespec{ts, ts}); err != nil {
			t.Fatal(err)
		}
		if st := lstat(t, r.path("f")); st.Sec != ts.Sec || st.Nsec != ts.Nsec {
			t.Errorf("mtime %d.%09d comes back as %d.%09d", ts.Sec, ts.Nsec, st.Sec, st.Nsec)
		}
	}
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, r.path("f"), 0, unix.STATX_BTIME, &x); err != nil || x.Mask&unix.STATX_BTIME == 0 || x.Btime.Sec == 0 {
		t.Errorf("birth time: %+v, %v", x.Btime, err)
	}
}

func TestErrno(t *testing.T) {
	for err, want := range map[error]unix.Errno{
		nil:                                    0,
		fmt.Errorf("read: %w", unix.ENOENT):    unix.ENOENT,
		unix.ENOSYS:                            unix.EIO,
		errors.New("whatever"):                 unix.EIO,
		fmt.Errorf("x: %w", layers.ErrNoLayer): unix.ESTALE,
		errors.Join(fmt.Errorf("x: %w", unix.ENOENT), layers.ErrCorrupt): unix.EIO,
		&os.PathError{Op: "open", Err: unix.EACCES}:                      unix.EACCES,
	} {
		if got := errno(err); got != want {
			t.Errorf("errno(%v) is %v, want %v", err, got, want)
		}
	}
}
