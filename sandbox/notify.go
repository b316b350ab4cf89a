package sandbox

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
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

// RelayArg is the first argument of our own binary when it answers for processes that a command has left running: without
// anybody to answer, the calls that a filter tells of would fail.
const RelayArg = "__sandbox-relay"

// relayFD is the listener.
const relayFD = 3

// relay leaves a listener to a process of its own, which lives as long as there is anybody to answer.
func relay(listener int) error {
	cmd := self()
	cmd.Args[1] = RelayArg
	f := os.NewFile(uintptr(listener), "listener")
	defer f.Close()
	cmd.ExtraFiles = []*os.File{relayFD - 3: f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// abandoned reports whether nobody has the filter any more.
func abandoned(listener int) bool {
	poll := []unix.PollFd{{Fd: int32(listener)}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLHUP != 0
}
