package transport

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tuning is what the benchmarks vary.
type tuning struct {
	base    int           // threads that always read
	max     int           // threads at most, extra ones included
	pin     bool          // tie each base thread to a processor
	clone   bool          // spin on a descriptor that does not block
	spin    time.Duration // how long a base thread looks for the next request before it sleeps
	generic bool          // no decoder of our own
	disable uint64        // capabilities not to negotiate
}

func defaultTuning() tuning {
	return tuning{base: max(2, min(runtime.NumCPU(), 8)), max: 64, pin: runtime.NumCPU() <= 8, spin: 20 * time.Microsecond}
}

// worker is one thread that takes requests.
type worker struct {
	c       *Conn
	mem     []byte        // mapped, so that untouched parts cost no memory
	in, out []byte        // its halves
	inLen   int           // of the request in in
	seq     atomic.Uint64 // odd from taking a request to having answered it
	extra   bool          // called in by the supervisor
	spin    time.Duration
	fast    int // a clone of the descriptor that does not block, or -1
	from    int // where the last request came from; the answer goes there
	poll    [1]unix.PollFd
	iov     [2][1][]byte // what HandleRequest gets, kept to spare an allocation
}

func newWorker(c *Conn) (*worker, error) {
	mem, err := unix.Mmap(-1, 0, 2*bufSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map request buffers: %w", err)
	}
	w := &worker{c: c, mem: mem, in: mem[:bufSize:bufSize], out: mem[bufSize:], fast: -1}
	w.poll[0] = unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN}
	return w, nil
}

func (w *worker) free() {
	if w.fast >= 0 {
		unix.Close(w.fast)
	}
	unix.Munmap(w.mem)
}

func (w *worker) cloneFD() {
	fd, err := unix.Open(devFuse, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	if err := unix.IoctlSetPointerInt(fd, 0x8004e500, w.c.fd); err != nil {
		unix.Close(fd)
		return
	}
	w.fast = fd
}

func rawRead(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}

// next waits for a request and returns its length.
func (w *worker) next() (int, error) {
	if w.spin > 0 {
		for start := time.Now(); ; {
			if w.fast >= 0 {
				n, errno := rawRead(w.fast, w.in)
				if errno == 0 {
					w.from = w.fast
					return n, nil
				}
				if errno != unix.EAGAIN {
					return 0, errno
				}
			} else {
				w.poll[0].Revents = 0
				n, _, _ := unix.RawSyscall(unix.SYS_POLL, uintptr(unsafe.Pointer(&w.poll[0])), 1, 0)
				if n > 0 {
					break
				}
			}
			if time.Since(start) > w.spin {
				break
			}
		}
	}
	w.from = w.c.fd
	return unix.Read(w.c.fd, w.in)
}

// reply writes n bytes of w.out to the kernel.
func (w *worker) reply(n int) {
	var errno unix.Errno
	if n <= 64<<10 {
		_, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(w.from), uintptr(unsafe.Pointer(&w.out[0])), uintptr(n))
	} else {
		_, _, errno = unix.Syscall(unix.SYS_WRITE, uintptr(w.from), uintptr(unsafe.Pointer(&w.out[0])), uintptr(n))
	}
	switch errno {
	case 0, unix.ENOENT, unix.ENODEV: // the last two: the request is gone, or the mount is
	default:
		w.c.log.Error("the kernel refused a reply", "op", opName(w.header().Opcode), "bytes", n, "err", errno)
	}
}

// take counts w among the readers until it has a request. It returns the
// request's length, or 0 when the connection has ended.
func (w *worker) take() int {
	c := w.c
	for {
		c.reading.Add(1)
		n, err := w.next()
		last := c.reading.Add(-1) == 0
		switch err {
		case nil:
			w.seq.Add(1)
			c.begun.Add(1)
			if last {
				c.nobodyReads(w.extra)
			}
			return n
		case unix.EINTR, unix.EAGAIN, unix.ENOENT, unix.EIO, unix.E2BIG:
			// One request was interrupted or did not fit: it has been answered by the kernel.
		default:
			if err != unix.ENODEV && err != unix.ECONNABORTED {
				c.log.Error("cannot read requests any more", "err", err)
			}
			c.end()
			return 0
		}
	}
}

// serveBase is the life of a base worker, on a thread of its own.
func (w *worker) serveBase(cpu int) {
	defer w.c.left(w)
	// Never unlocked: a thread tied to a processor must not serve other goroutines later.
	runtime.LockOSThread()
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			w.c.log.Debug("cannot tie a thread to its processor", "cpu", cpu, "err", err)
		}
	}
	w.spin = w.c.tune.spin
	if w.c.tune.clone {
		w.cloneFD()
	}
	for n := w.take(); n > 0; n = w.take() {
		w.serve(n)
		w.c.answered(w)
	}
}

// extraLinger is how long an extra worker waits to be called again.
const extraLinger = 10 * time.Second

// serveExtra is the life of a worker that helps out while the others block.
func (w *worker) serveExtra() {
	c := w.c
	defer c.left(w)
	timer := time.NewTimer(extraLinger)
	defer timer.Stop()
	for {
		for c.reading.Load() == 0 {
			n := w.take()
			if n == 0 {
				return
			}
			w.serve(n)
			c.answered(w)
		}
		timer.Reset(extraLinger)
		select {
		case <-c.call:
		case <-c.ended:
			return
		case <-timer.C:
			return
		}
	}
}
