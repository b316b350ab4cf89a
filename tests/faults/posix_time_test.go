package faults

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

func TestPosixTimestamps(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "f"), "x")
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		ok(t, os.Symlink("nowhere", j(d, "sym")))
		ok(t, unix.Mkfifo(j(d, "fifo"), 0o600))
	}, func(t *testing.T, d string) {
		for _, n := range []string{"f", "dir", "sym", "fifo"} {
			for _, sec := range []int64{-2000000, -1, 0, 1, 1 << 31, 1<<32 + 99, 1<<33 + 7} {
				ts := []unix.Timespec{{Sec: sec, Nsec: 1}, {Sec: sec + 1, Nsec: 999999999}}
				ok(t, unix.UtimesNanoAt(unix.AT_FDCWD, j(d, n), ts, unix.AT_SYMLINK_NOFOLLOW))
				st := stat(t, j(d, n))
				is(t, n+" atime", fstree.Time{Sec: st.Atim.Sec, Nsec: st.Atim.Nsec}, fstree.Time{Sec: sec, Nsec: 1})
				is(t, n+" mtime", mtime(st), fstree.Time{Sec: sec + 1, Nsec: 999999999})
			}
			before := stat(t, j(d, n))
			tick(t)
			omit := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: 5, Nsec: 5}}
			ok(t, unix.UtimesNanoAt(unix.AT_FDCWD, j(d, n), omit, unix.AT_SYMLINK_NOFOLLOW))
			st := stat(t, j(d, n))
			is(t, n+" atime with OMIT", st.Atim, before.Atim)
			is(t, n+" mtime", mtime(st), fstree.Time{Sec: 5, Nsec: 5})
			if ctime(st) == ctime(before) {
				t.Errorf("%s: utimensat did not move ctime", n)
			}
			now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
			ok(t, unix.UtimesNanoAt(unix.AT_FDCWD, j(d, n), now, unix.AT_SYMLINK_NOFOLLOW))
			st = stat(t, j(d, n))
			if age := time.Since(time.Unix(st.Atim.Sec, 0)); age > time.Hour || age < -time.Hour {
				t.Errorf("%s: UTIME_NOW set %v", n, st.Atim)
			}
			is(t, n+" mtime with OMIT", mtime(st), fstree.Time{Sec: 5, Nsec: 5})
		}
	})
}

// moves is which times of an object an operation must move.
type moves struct{ m, c bool }

func TestPosixWhichTimesMove(t *testing.T) {
	type step struct {
		name string
		do   func(d string) error
		want map[string]moves // of the objects named; all others stay
	}
	both, onlyC := moves{true, true}, moves{c: true}
	steps := []step{
		{"write", func(d string) error { return appendTo(j(d, "dir/f")) }, map[string]moves{"dir/f": both}},
		{"chmod", func(d string) error { return os.Chmod(j(d, "dir/f"), 0o600) }, map[string]moves{"dir/f": onlyC}},
		{"chmod dir", func(d string) error { return os.Chmod(j(d, "dir"), 0o700) }, map[string]moves{"dir": onlyC}},
		{"chown", func(d string) error { return os.Lchown(j(d, "dir/f"), os.Getuid(), os.Getgid()) }, map[string]moves{"dir/f": onlyC}},
		{"setxattr", func(d string) error { return unix.Setxattr(j(d, "dir/f"), "user.a", []byte("1"), 0) }, map[string]moves{"dir/f": onlyC}},
		{"removexattr", func(d string) error { return unix.Removexattr(j(d, "dir/f"), "user.a") }, map[string]moves{"dir/f": onlyC}},
		{"truncate", func(d string) error { return os.Truncate(j(d, "dir/f"), 1) }, map[string]moves{"dir/f": both}},
		{"open with O_TRUNC", func(d string) error { return os.WriteFile(j(d, "dir/g"), nil, 0) }, map[string]moves{"dir/g": both}},
		{"open with O_TRUNC of an empty file", func(d string) error { return os.WriteFile(j(d, "dir/g"), nil, 0) }, map[string]moves{"dir/g": both}},
		{"create", func(d string) error { return os.WriteFile(j(d, "dir/new"), nil, 0o644) }, map[string]moves{"dir": both}},
		{"mkdir", func(d string) error { return os.Mkdir(j(d, "dir/newdir"), 0o755) }, map[string]moves{"dir": both}},
		{"symlink", func(d string) error { return os.Symlink("x", j(d, "dir/newsym")) }, map[string]moves{"dir": both}},
		{"link", func(d string) error { return os.Link(j(d, "dir/f"), j(d, "other/l")) }, map[string]moves{"other": both, "dir/f": onlyC}},
		{"rename", func(d string) error { return unix.Rename(j(d, "dir/g"), j(d, "other/g")) }, map[string]moves{"dir": both, "other": both}},
		{"unlink one of two", func(d string) error { return os.Remove(j(d, "other/l")) }, map[string]moves{"other": both, "dir/f": onlyC}},
		{"rmdir", func(d string) error { return os.Remove(j(d, "dir/newdir")) }, map[string]moves{"dir": both}},
		{"read", func(d string) error { _, err := os.ReadFile(j(d, "dir/f")); return err }, nil},
		{"readdir", func(d string) error { _, err := os.ReadDir(j(d, "dir")); return err }, nil},
		{"readlink", func(d string) error { _, err := os.Readlink(j(d, "dir/newsym")); return err }, nil},
		{"failed create", func(d string) error { _ = os.Mkdir(j(d, "dir/f"), 0o755); return nil }, nil},
		{"failed unlink", func(d string) error { _ = unix.Unlink(j(d, "dir/nothing")); return nil }, nil},
		{"write of nothing", func(d string) error { return writeNothing(j(d, "dir/f")) }, nil},
	}
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		ok(t, os.Mkdir(j(d, "other"), 0o755))
		put(t, j(d, "dir/f"), "content")
		put(t, j(d, "dir/g"), "content")
	}, func(t *testing.T, d string) {
		for _, s := range steps {
			before, err := fstree.Scan(d)
			ok(t, err)
			tick(t)
			ok(t, s.do(d))
			after, err := fstree.Scan(d)
			ok(t, err)
			for p, b := range before.Entries {
				a := after.Entries[p]
				if a == nil || a.Ino != b.Ino {
					continue
				}
				got := moves{a.Mtime != b.Mtime, a.Ctime != b.Ctime}
				if want := s.want[p]; got != want {
					t.Errorf("%s: of %s moved %s, want %s", s.name, p, got, want)
				}
			}
		}
	})
}

func (m moves) String() string { return fmt.Sprintf("mtime:%v ctime:%v", m.m, m.c) }

func appendTo(p string) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString("more")
	return err
}

func writeNothing(p string) error {
	fd, err := unix.Open(p, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, nil)
	return err
}

func TestPosixWriteToBaseFileMovesNothingOfItsDirectories(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "a/b/c"), 0o751))
		put(t, j(d, "a/b/c/f"), "x")
	}, func(t *testing.T, d string) {
		var before []unix.Stat_t
		dirs := []string{"", "a", "a/b", "a/b/c"}
		for _, p := range dirs {
			before = append(before, stat(t, j(d, p)))
		}
		tick(t)
		ok(t, appendTo(j(d, "a/b/c/f")))
		ok(t, os.Chmod(j(d, "a/b/c/f"), 0o600))
		for i, p := range dirs {
			now := stat(t, j(d, p))
			is(t, "mtime of "+p, mtime(now), mtime(before[i]))
			is(t, "ctime of "+p, ctime(now), ctime(before[i]))
			is(t, "mode of "+p, now.Mode, before[i].Mode)
			is(t, "inode of "+p, now.Ino, before[i].Ino)
		}
	})
}
