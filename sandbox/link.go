package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// maxReport bounds a report, in bytes, and maxReason the Err in it: JSON may need six bytes for one.
const (
	maxReport = 16 << 10
	maxReason = 2000
)

// link is our end of the socket to a process that carries out a plan.
type link struct {
	file *os.File
	// listener is the descriptor of a seccomp filter that came with a report, or -1. Whoever takes it closes it.
	listener int
}

// newLink takes a blocking socket over.
func newLink(fd int) *link {
	return &link{file: os.NewFile(uintptr(fd), "link"), listener: -1}
}

func (l *link) close() { l.file.Close() }

// onTheWay is how long a process may be silent until somebody looks whether it was stopped on its way to becoming the command.
const onTheWay = 50 * time.Millisecond

// readFrom is read from a process, pid, that is not the command yet: Ctrl-Z is for the command, and stopped here it would wait
// for ever for us, and we for it.
func (l *link) readFrom(pid int) (report, error) {
	patience := unix.NsecToTimeval(onTheWay.Nanoseconds())
	// Without the bound it is as good as any other read.
	_ = unix.SetsockoptTimeval(int(l.file.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
	defer unix.SetsockoptTimeval(int(l.file.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
	for {
		r, err := l.read(0)
		if err == unix.EAGAIN && proctree.Stopped(pid) {
			// Stopped as the command that it has become meanwhile, it is to stay so; then there is an end of file by now.
			if r, err = l.read(unix.MSG_DONTWAIT); err == unix.EAGAIN {
				_ = unix.Kill(pid, unix.SIGCONT) // it is a child that nobody has reaped
			}
		}
		if err != unix.EAGAIN {
			return r, err
		}
	}
}

// read waits for a report. Any error, io.EOF most often, says that there will be no more.
func (l *link) read(flags int) (report, error) {
	var r report
	buf, oob := make([]byte, maxReport), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(int(l.file.Fd()), buf, oob, unix.MSG_CMSG_CLOEXEC|flags)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return r, err
		}
		if n == 0 {
			return r, io.EOF
		}
		l.take(oob[:oobn])
		return r, json.Unmarshal(buf[:n], &r)
	}
}

// take keeps a descriptor that came along.
func (l *link) take(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if l.listener < 0 {
				l.listener = fd
			} else {
				unix.Close(fd)
			}
		}
	}
}

// signal has the first process of a pid namespace, pid here, send a signal to its child.
func (l *link) signal(pid int, sig syscall.Signal) {
	if sig == unix.SIGCONT {
		_ = unix.Kill(pid, sig) // it must run to pass it on, see follow
	}
	_, _ = l.file.Write([]byte{byte(sig)}) // if it has ended there is nobody to be told
}

// follow goes on reading from the first process of a pid namespace. A process there can stop, but the first one cannot stop itself:
// we stop it for it, so that whoever waits for it sees the command stop. The function returned is for running.status.
func (l *link) follow(pid int) func(syscall.WaitStatus) syscall.WaitStatus {
	var ended atomic.Pointer[int]
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer l.close()
		for {
			r, err := l.read(0)
			if err != nil {
				return
			}
			// After a key that stops the whole group, us too, it may go on by now.
			if r.Stopped != 0 && childStopped(pid, r.Stopped) {
				unix.Kill(pid, unix.SIGSTOP)
			}
			if r.Ended != nil {
				ended.Store(r.Ended)
			}
		}
	}()
	return func(ws syscall.WaitStatus) syscall.WaitStatus {
		<-done
		if e := ended.Load(); e != nil {
			return syscall.WaitStatus(*e)
		}
		return ws
	}
}

// childStopped reports whether a child of a process, known by its number in the innermost pid namespace, is stopped. Where that cannot
// be told it is taken for stopped, as it was said to be.
func childStopped(pid, inner int) bool {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return true
	}
	for child := range strings.FieldsSeq(string(children)) {
		status, err := os.ReadFile("/proc/" + child + "/status")
		if err != nil {
			continue
		}
		var stopped, it bool
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			switch {
			case len(f) > 1 && f[0] == "State:":
				stopped = f[1] == "T"
			case len(f) > 1 && f[0] == "NSpid:":
				it = f[len(f)-1] == strconv.Itoa(inner)
			}
		}
		if it {
			return stopped
		}
	}
	return true
}
