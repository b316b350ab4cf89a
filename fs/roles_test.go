package fs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// roles are what the test binary does as another process.
var roles = map[string]func(args []string) error{"holder": holder, "dweller": dweller, "poller": poller}

func credential(uid int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
}

const scattered = 40 << 20 // bytes of the mapping that "scatter" makes

// holder holds one file open and mapped, and does with it what it is told on
// standard input: one command a line, one answer a line.
func holder(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var mem []byte
	answer := func(err error, ok string) string {
		if err != nil {
			return err.(syscall.Errno).Error()
		}
		return ok
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		cmd, arg, _ := strings.Cut(lines.Text(), " ")
		out := ""
		switch cmd {
		case "read":
			buf := make([]byte, 100)
			n, err := unix.Pread(fd, buf, 0)
			out = answer(err, string(buf[:max(n, 0)]))
		case "write":
			_, err := unix.Pwrite(fd, []byte(arg), 0)
			out = answer(err, "ok")
		case "append":
			if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err == nil {
				_, err = unix.Write(fd, []byte(arg+"\n"))
			}
			out, err = answer(err, "ok"), nil
		case "hammer": // writes until it must not any more
			for i := 0; err == nil; i++ {
				_, err = unix.Pwrite(fd, fmt.Appendf(nil, "%08d", i), int64(i%1000)*8)
			}
			out, err = answer(err, ""), nil
		case "truncate":
			out = answer(unix.Ftruncate(fd, 0), "ok")
		case "chmod":
			out = answer(unix.Fchmod(fd, 0o600), "ok")
		case "fsync":
			out = answer(unix.Fsync(fd), "ok")
		case "stat":
			var st unix.Stat_t
			err := unix.Fstat(fd, &st)
			out = answer(err, fmt.Sprint("size ", st.Size, " nlink ", st.Nlink))
		case "map":
			mem, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			out = answer(err, "ok")
		case "scatter": // dirties every other page of a large mapping
			var big []byte
			big, err = unix.Mmap(fd, 0, scattered, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			for i := 0; err == nil && i < scattered; i += 8192 {
				big[i] = arg[0]
			}
			out, err = answer(err, "ok"), nil
		case "unmap":
			out = answer(unix.Munmap(mem), "ok")
		case "mread":
			out = string(bytes.TrimRight(mem[:100], "\x00"))
		case "mwrite":
			copy(mem, arg)
			out = "ok"
		case "msync":
			out = answer(unix.Msync(mem, unix.MS_SYNC), "ok")
		default:
			return fmt.Errorf("unknown command %q", cmd)
		}
		fmt.Println(out)
	}
	return nil
}

// poller polls a file in the mount.
func poller(args []string) error {
	fd, err := unix.Open(args[0], unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err != nil {
		return err
	}
	fmt.Println("ready")
	return nil
}

// dweller has its working directory in the mount.
func dweller(args []string) error {
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	dir, err := os.Open(".")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		out, err := "", error(nil)
		switch lines.Text() {
		case "list":
			if _, err = dir.Seek(0, 0); err == nil {
				var names []string
				names, err = dir.Readdirnames(-1)
				out = strings.Join(names, " ")
			}
		case "cwd":
			buf := make([]byte, 4096)
			var n int
			n, err = unix.Getcwd(buf)
			out = strings.TrimRight(string(buf[:max(n, 0)]), "\x00")
		case "up":
			err, out = os.Chdir("/"), "ok"
		}
		if err != nil {
			var e syscall.Errno
			if !errors.As(err, &e) {
				return err
			}
			out = e.Error()
		}
		fmt.Println(out)
	}
	return nil
}

type statData struct {
	Ino, Size            uint64
	Mode, Nlink          uint32
	Sec, Nsec, CSec, CNs int64
}

func lstat(t testing.TB, path string) statData {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return statData{st.Ino, uint64(st.Size), st.Mode, uint32(st.Nlink), st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec}
}
