package sandbox

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// notification is struct seccomp_notif: a system call that waits for our answer.
type notification struct {
	ID    uint64
	PID   uint32 // of the thread, as we see it
	Flags uint32
	NR    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	ID    uint64
	Val   int64
	Error int32
	Flags uint32
}

// Requests of linux/seccomp.h that x/sys has no names for.
const (
	notifIDValid  = 0x40082102
	notifSetFlags = 0x40082104
)

// serve lets every call go on that a filter tells of, after look has seen it, until nobody has the filter any more,
// or wake (-1 for none) can be read from. look may be nil.
func serve(listener, wake int, look func(*notification)) {
	runtime.LockOSThread() // one thread that sleeps in the kernel, and not the runtime's business
	defer runtime.UnlockOSThread()
	// Both sides take turns: the kernel should not look for another processor. Not known before Linux 6.6.
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), notifSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		switch {
		case poll[0].Revents&unix.POLLIN != 0:
		case poll[0].Revents != 0, poll[1].Revents != 0:
			return
		default:
			continue
		}
		var n notification
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err != nil {
			continue // whoever called has been ended, or a signal came
		}
		if look != nil {
			look(&n)
		}
		a := answer{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)) // it may have been ended meanwhile
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// valid reports whether the call still waits: if so, what was read of its process since was its own.
func (n *notification) valid(listener int) bool {
	return ioctl(listener, notifIDValid, unsafe.Pointer(&n.ID)) == nil
}

// RelayArg is the first argument of our own binary when it answers for processes that go on when we have ended, by ourselves or
// by a SIGKILL: without anybody to answer, the calls that a filter tells of would fail.
const RelayArg = "__sandbox-relay"

// Descriptors of such a process.
const (
	relayFD = 3 // the listener
	aliveFD = 4 // a pipe: its end of file is that of the process before us, which else sends what heir.stand does
)

// heirAfter is how long a command runs before it gets a process that answers for it should we be killed: a process costs more than
// most commands take, and whoever kills us has waited for longer.
const heirAfter = time.Second

// heir is who has a listener after us.
type heir struct {
	timer    *time.Timer // nil: there is none before our end
	mu       sync.Mutex
	listener int      // guarded by mu; -1 when we have left it
	alive    *os.File // guarded by mu; what its process waits for the end of, nil for no process
}

// start starts the process, unless there is one or nobody has the filter any more.
func (h *heir) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listener >= 0 && h.alive == nil && !abandoned(h.listener) {
		h.alive, _ = relay(h.listener) // without one, what is left running cannot write when we have ended
	}
}

// stand has the process answer (for true) while we are stopped.
func (h *heir) stand(in bool) {
	if in {
		h.start()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alive != nil {
		h.alive.Write([]byte{0}) // the process is in turn there and not there; one that is gone answers nobody
	}
}

// leave leaves the listener to the process.
func (h *heir) leave() {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.start()
	h.mu.Lock()
	defer h.mu.Unlock()
	unix.Close(h.listener)
	h.listener = -1
	if h.alive != nil {
		h.alive.Close()
	}
}

// abandoned reports whether nobody has the filter any more.
func abandoned(listener int) bool {
	poll := []unix.PollFd{{Fd: int32(listener)}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLHUP != 0
}

// relay starts a process that has the listener too. It answers from when alive is closed, which happens at our end at the latest, and
// lives as long as there is anybody to answer.
func relay(listener int) (alive *os.File, err error) {
	end, alive, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer end.Close()
	dup, err := unix.FcntlInt(uintptr(listener), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		alive.Close()
		return nil, err
	}
	f := os.NewFile(uintptr(dup), "listener")
	defer f.Close()
	cmd := self(RelayArg)
	cmd.ExtraFiles = []*os.File{relayFD - 3: f, aliveFD - 3: end}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_, release := holdKey()
	err = proctree.StartAside(cmd)
	release()
	if err != nil {
		alive.Close()
		return nil, err
	}
	return alive, cmd.Process.Release()
}

// takeOver is that process.
func takeOver() {
	poll := []unix.PollFd{{Fd: relayFD}, {Fd: aliveFD, Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
		if poll[0].Revents != 0 { // nobody has the filter any more
			return
		}
		if poll[1].Revents == 0 {
			continue
		}
		if !told() {
			break
		}
		if serve(relayFD, aliveFD, nil); !told() {
			break
		}
	}
	serve(relayFD, -1, nil)
}

// told takes what heir.stand has sent; false is the end of the process before us.
func told() bool {
	n, err := unix.Read(aliveFD, make([]byte, 1))
	return err == nil && n > 0
}
