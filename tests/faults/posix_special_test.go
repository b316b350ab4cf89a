package faults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPosixFlock(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "lock"), "") }, func(t *testing.T, d string) {
		a, b := open(t, j(d, "lock"), os.O_RDONLY), open(t, j(d, "lock"), os.O_RDWR)
		ok(t, unix.Flock(int(a.Fd()), unix.LOCK_EX))
		wantErr(t, unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		put(t, j(d, "lock"), "written while locked") // copy-up
		c := open(t, j(d, "lock"), os.O_RDONLY)
		wantErr(t, unix.Flock(int(c.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		a.Close()
		ok(t, unix.Flock(int(c.Fd()), unix.LOCK_SH|unix.LOCK_NB))
		ok(t, unix.Flock(int(b.Fd()), unix.LOCK_SH|unix.LOCK_NB))
		ok(t, unix.Flock(int(b.Fd()), unix.LOCK_UN))
		ok(t, unix.Flock(int(c.Fd()), unix.LOCK_UN))
		// Released when the holder dies.
		sh := child(t, d)
		is(t, "lock by another process", sh.run("exec 9<lock; flock -n 9 && echo got"), "got")
		wantErr(t, unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		sh.stop()
		ok(t, unix.Flock(int(b.Fd()), unix.LOCK_EX))
	})
}

func TestPosixRecordLocks(t *testing.T) {
	const script = `
import fcntl, os, sys
f = open("lock", "r+")
def lock(kind, start, n, nb=True):
    fcntl.lockf(f, kind | (fcntl.LOCK_NB if nb else 0), n, start)
for line in sys.stdin:
    a = line.split()
    try:
        if a[0] == "ex": lock(fcntl.LOCK_EX, int(a[1]), int(a[2]))
        if a[0] == "sh": lock(fcntl.LOCK_SH, int(a[1]), int(a[2]))
        if a[0] == "un": lock(fcntl.LOCK_UN, int(a[1]), int(a[2]), False)
        print("ok", flush=True)
    except OSError as e:
        print(e.errno, flush=True)
`
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "lock"), strings.Repeat("x", 100)) }, func(t *testing.T, d string) {
		other := startScript(t, d, script)
		f := open(t, j(d, "lock"), os.O_RDWR)
		set := func(typ int16, start, n int64, cmd int) error {
			l := unix.Flock_t{Type: typ, Start: start, Len: n}
			return unix.FcntlFlock(f.Fd(), cmd, &l)
		}
		is(t, "other locks 0-10", other.ask("ex 0 10"), "ok")
		if err := set(unix.F_WRLCK, 5, 10, unix.F_SETLK); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			t.Errorf("overlapping lock: %v", err)
		}
		ok(t, set(unix.F_WRLCK, 10, 10, unix.F_SETLK))
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 5}
		ok(t, unix.FcntlFlock(f.Fd(), unix.F_GETLK, &l))
		if l.Type != unix.F_WRLCK || int(l.Pid) != other.pid() || l.Start != 0 || l.Len != 10 {
			t.Errorf("F_GETLK says %+v, the holder is %d with 0+10", l, other.pid())
		}
		put(t, j(d, "lock"), strings.Repeat("y", 100)) // copy-up; closes a descriptor of ours: POSIX drops our locks
		is(t, "other locks what we lost", other.ask("ex 10 10"), "ok")
		is(t, "other unlocks", other.ask("un 0 100"), "ok")
		// Open file description locks stay over a close of another descriptor.
		ok(t, set(unix.F_WRLCK, 0, 0, unix.F_OFD_SETLK))
		put(t, j(d, "lock"), strings.Repeat("z", 100))
		if got := other.ask("sh 0 1"); got != "11" && got != "13" {
			t.Errorf("lock against an OFD lock: %s", got)
		}
		ok(t, set(unix.F_UNLCK, 0, 0, unix.F_OFD_SETLK))
		// Plain contention is no deadlock.
		is(t, "other locks all", other.ask("ex 0 100"), "ok")
		done := make(chan error, 1)
		go func() { done <- set(unix.F_WRLCK, 0, 1, unix.F_SETLKW) }()
		other.stop() // its death gives the lock free
		ok(t, <-done)
	})
}

func TestPosixUnixSockets(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, unix.Mknod(j(d, "stale"), unix.S_IFSOCK|0o600, 0))
	}, func(t *testing.T, d string) {
		serve := func(path string) {
			t.Helper()
			l, err := net.Listen("unix", path)
			ok(t, err)
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					_, _ = c.Write([]byte("hello"))
					c.Close()
				}
			}()
			c, err := net.Dial("unix", path)
			ok(t, err)
			p := make([]byte, 5)
			_, err = c.Read(p)
			ok(t, err)
			is(t, "what the socket carries", string(p), "hello")
		}
		serve(j(d, "new"))
		is(t, "type of the stale socket", stat(t, j(d, "stale")).Mode&unix.S_IFMT, unix.S_IFSOCK)
		_, err := net.Dial("unix", j(d, "stale"))
		wantErr(t, err, unix.ECONNREFUSED)
		ok(t, os.Remove(j(d, "stale")))
		serve(j(d, "stale"))
	})
}

func TestPosixFifosAndDevices(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { ok(t, unix.Mkfifo(j(d, "fifo"), 0o600)) }, func(t *testing.T, d string) {
		// None of these may open the FIFO: that would hang.
		ok(t, unix.Chmod(j(d, "fifo"), 0o644))
		ok(t, os.Chtimes(j(d, "fifo"), t0, t0))
		ok(t, unix.Rename(j(d, "fifo"), j(d, "moved")))
		ok(t, os.Link(j(d, "moved"), j(d, "fifo")))
		st := stat(t, j(d, "fifo"))
		is(t, "type", st.Mode, unix.S_IFIFO|0o644)
		is(t, "nlink", int(st.Nlink), 2)
		r, err := os.OpenFile(j(d, "fifo"), os.O_RDWR, 0)
		ok(t, err)
		defer r.Close()
		w, err := os.OpenFile(j(d, "moved"), os.O_WRONLY, 0)
		ok(t, err)
		_, err = w.WriteString("through")
		ok(t, err)
		w.Close()
		p := make([]byte, 7)
		_, err = r.Read(p)
		ok(t, err)
		is(t, "what the FIFO carries", string(p), "through")
		if os.Getuid() == 0 {
			ok(t, unix.Mknod(j(d, "char"), unix.S_IFCHR|0o600, 0)) // overlayfs' whiteout
			is(t, "type of c 0 0", stat(t, j(d, "char")).Mode&unix.S_IFMT, unix.S_IFCHR)
			listed(t, d, "char", "fifo", "moved")
			ok(t, unix.Mknod(j(d, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
			is(t, "rdev", stat(t, j(d, "null")).Rdev, unix.Mkdev(1, 3))
		}
	})
}

func TestPosixXattrs(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "f"), "x")
		ok(t, unix.Setxattr(j(d, "f"), "user.base", []byte("from the base"), 0))
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
	}, func(t *testing.T, d string) {
		list := func(n string) string {
			buf := make([]byte, 1000)
			n2, err := unix.Listxattr(j(d, n), buf)
			ok(t, err)
			return strings.Trim(strings.ReplaceAll(string(buf[:n2]), "\x00", " "), " ")
		}
		value := func(n, k string) string {
			buf := make([]byte, 70000)
			n2, err := unix.Getxattr(j(d, n), k, buf)
			ok(t, err)
			return string(buf[:n2])
		}
		is(t, "value", value("f", "user.base"), "from the base")
		for _, v := range []string{"", "v", "\x00\x01\xff", strings.Repeat("long", 900)} {
			ok(t, unix.Setxattr(j(d, "f"), "user.v", []byte(v), 0))
			is(t, "value", value("f", "user.v"), v)
			ok(t, unix.Setxattr(j(d, "dir"), "user.v", []byte(v), 0))
			is(t, "value", value("dir", "user.v"), v)
		}
		if l := list("f"); l != "user.base user.v" && l != "user.v user.base" {
			t.Errorf("names listed: %q", l)
		}
		wantErr(t, unix.Setxattr(j(d, "f"), "user.v", nil, unix.XATTR_CREATE), unix.EEXIST)
		wantErr(t, unix.Setxattr(j(d, "f"), "user.w", nil, unix.XATTR_REPLACE), unix.ENODATA)
		wantErr(t, unix.Setxattr(j(d, "f"), "user.", nil, 0), unix.EINVAL)
		wantErr(t, unix.Setxattr(j(d, "f"), "nobody.knows", nil, 0), unix.EOPNOTSUPP)
		wantErr(t, unix.Removexattr(j(d, "f"), "user.w"), unix.ENODATA)
		_, err := unix.Getxattr(j(d, "f"), "user.v", make([]byte, 5))
		wantErr(t, err, unix.ERANGE)
		ok(t, unix.Removexattr(j(d, "f"), "user.base"))
		is(t, "names listed", list("f"), "user.v")
		ok(t, os.Remove(j(d, "f")))
		put(t, j(d, "f"), "again")
		is(t, "names of a recreated file", list("f"), "")
		if os.Getuid() == 0 {
			ok(t, unix.Setxattr(j(d, "f"), "trusted.t", []byte("t"), 0))
			is(t, "trusted value", value("f", "trusted.t"), "t")
		}
	})
}

func TestPosixTextFileBusy(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	ok(t, err)
	prog, err := os.ReadFile(sleep)
	ok(t, err)
	everywhere(t, func(t *testing.T, d string) { ok(t, os.WriteFile(j(d, "p"), prog, 0o755)) }, func(t *testing.T, d string) {
		ok(t, os.WriteFile(j(d, "fresh"), prog, 0o755))
		ok(t, exec.Command(j(d, "fresh"), "0").Run()) // at once
		cmd := exec.Command(j(d, "p"), "1000")
		ok(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		_, err := os.OpenFile(j(d, "p"), os.O_WRONLY, 0)
		wantErr(t, err, unix.ETXTBSY)
		ok(t, os.WriteFile(j(d, "new"), append(prog, "more"...), 0o755))
		ok(t, unix.Rename(j(d, "new"), j(d, "p")))
		ok(t, exec.Command(j(d, "p"), "0").Run())
		ok(t, cmd.Process.Signal(unix.Signal(0)))
	})
}

func TestPosixStatfs(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { ok(t, os.MkdirAll(j(d, "a/b"), 0o755)) }, func(t *testing.T, d string) {
		var fs unix.Statfs_t
		ok(t, unix.Statfs(j(d, "a"), &fs))
		if fs.Blocks == 0 || fs.Bavail == 0 || fs.Bsize == 0 || fs.Bavail > fs.Blocks {
			t.Errorf("statfs: %+v", fs)
		}
		is(t, "longest name", fs.Namelen, 255)
		is(t, "st_dev", stat(t, j(d, "a/b")).Dev, stat(t, d).Dev)
	})
}

func TestPosixInotify(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), "x") }, func(t *testing.T, d string) {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK)
		ok(t, err)
		defer unix.Close(fd)
		_, err = unix.InotifyAddWatch(fd, d, unix.IN_ALL_EVENTS)
		ok(t, err)
		_, err = unix.InotifyAddWatch(fd, j(d, "f"), unix.IN_ALL_EVENTS)
		ok(t, err)
		seen := func(what string, mask uint32) {
			t.Helper()
			buf := make([]byte, 64<<10)
			var got uint32
			for {
				n, err := unix.Read(fd, buf)
				if err != nil || n == 0 {
					break
				}
				for b := buf[:n]; len(b) >= 16; {
					got |= uint32(b[4]) | uint32(b[5])<<8 | uint32(b[6])<<16 | uint32(b[7])<<24
					b = b[16+int(b[12])+int(b[13])<<8:]
				}
			}
			if got&mask != mask {
				t.Errorf("%s raised events %#x, want %#x", what, got, mask)
			}
		}
		ok(t, appendTo(j(d, "f")))
		seen("a write to a base file", unix.IN_MODIFY|unix.IN_CLOSE_WRITE|unix.IN_OPEN)
		ok(t, os.Chmod(j(d, "f"), 0o600))
		seen("chmod", unix.IN_ATTRIB)
		put(t, j(d, "g"), "")
		seen("create", unix.IN_CREATE)
		ok(t, unix.Rename(j(d, "g"), j(d, "h")))
		seen("rename", unix.IN_MOVED_FROM|unix.IN_MOVED_TO)
		ok(t, os.Remove(j(d, "f")))
		seen("unlink", unix.IN_DELETE)
	})
}

func TestPosixRootDirectory(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, unix.Chmod(d, 0o751))
		put(t, j(d, "f"), "")
	}, func(t *testing.T, d string) {
		listed(t, d, "f") // no control file shows
		if strings.HasSuffix(t.Name(), "/base") || strings.HasSuffix(t.Name(), "/sealed") {
			is(t, "mode of the root", stat(t, d).Mode&0o7777, 0o751)
		}
		ok(t, unix.Chmod(d, 0o1775))
		is(t, "mode", stat(t, d).Mode, unix.S_IFDIR|0o1775)
		ok(t, os.Chtimes(d, t0, t0))
		is(t, "mtime", stat(t, d).Mtim.Sec, t0.Unix())
		ok(t, unix.Setxattr(d, "user.root", []byte("r"), 0))
		if os.Getuid() == 0 {
			ok(t, os.Lchown(d, alice, bob))
			is(t, "owner", fmt.Sprint(stat(t, d).Uid, stat(t, d).Gid), fmt.Sprint(alice, bob))
		}
	})
}
