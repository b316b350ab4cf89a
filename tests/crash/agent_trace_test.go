package crash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ended is how a trace ended.
type ended struct {
	writes int   // seen
	err    error // why there was no trace; the process lives then
}

// storeWrites is what the store and the ledger are written by, and nothing else.
var storeWrites = []uint64{unix.SYS_PWRITE64}

// killAtWrite ends a process with SIGKILL in front of the n-th of certain system calls, from 0, or when limit is
// over. Between two such writes is little time, and what may go wrong there a kill by the clock would
// find once in many thousands. ready is called when the process is watched, doomed before it is killed.
// It returns when all threads of the process are gone, or were not watched after all.
func killAtWrite(pid int, calls []uint64, n int, limit time.Duration, ready, doomed func()) ended {
	result := make(chan ended)
	go func() {
		runtime.LockOSThread() // the tracer is a thread; it ends with this goroutine
		tr := &tracer{pid: pid, calls: calls, kill: n, doomed: doomed}
		err := tr.seize()
		ready()
		if err != nil {
			result <- ended{err: fmt.Errorf("trace process %d: %w", pid, err)}
			return
		}
		late := time.AfterFunc(limit, tr.end)
		err = tr.follow()
		late.Stop()
		result <- ended{tr.writes, err}
	}()
	return <-result
}

// tracer watches all threads of a process, by ptrace(2).
type tracer struct {
	pid    int
	calls  []uint64 // that count as writes
	kill   int      // before which write
	doomed func()
	writes int
}

const (
	getSyscallInfo = 0x420e // PTRACE_GET_SYSCALL_INFO
	syscallEntry   = 1      // PTRACE_SYSCALL_INFO_ENTRY
	syscallStop    = unix.SIGTRAP | 0x80
)

// syscallInfo begins as struct ptrace_syscall_info does.
type syscallInfo struct {
	op     uint8
	_      [3]byte
	_      uint32
	_, _   uint64
	number uint64
	_      [6]uint64
}

func ptrace(request, tid int, data uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func (tr *tracer) end() {
	tr.doomed()
	_ = unix.Kill(tr.pid, unix.SIGKILL) // it may be gone
}

// seize takes hold of every thread. Those that they start later come by themselves.
func (tr *tracer) seize() error {
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE
	have := map[int]bool{}
	for more := true; more; {
		more = false
		dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", tr.pid))
		if err != nil {
			return err
		}
		for _, d := range dirs {
			tid, err := strconv.Atoi(filepath.Base(d))
			if err != nil || have[tid] {
				continue
			}
			have[tid], more = true, true
			err = ptrace(unix.PTRACE_SEIZE, tid, options)
			if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EPERM) && len(have) > 1 {
				continue // it ended, or had come by itself
			}
			if err != nil {
				return err
			}
			if err := ptrace(unix.PTRACE_INTERRUPT, tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// follow lets the process run from system call to system call, up to its end.
func (tr *tracer) follow() error {
	for {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case !ws.Stopped():
			continue // a thread has ended
		}
		signal := uintptr(0)
		switch sig, event := ws.StopSignal(), int(ws)>>16; {
		case sig == syscallStop:
			tr.syscall(tid)
		case event == 0:
			signal = uintptr(sig) // on its way to the process
		}
		if err := ptrace(unix.PTRACE_SYSCALL, tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return os.NewSyscallError("ptrace", err)
		}
	}
}

// syscall looks at a thread that enters or leaves a system call.
func (tr *tracer) syscall(tid int) {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || info.op != syscallEntry || !slices.Contains(tr.calls, info.number) {
		return
	}
	if tr.writes == tr.kill {
		tr.end()
	}
	tr.writes++
}
