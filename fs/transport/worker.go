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
	active  int           // threads at most while none of them blocks
	max     int           // threads at most
	spin    time.Duration // how long to look out for the next request before sleeping, if that pays
	always  bool          // look out always
	generic bool          // no decoder of our own
	disable uint64        // capabilities not to negotiate
}

// One thread that reads serves one program, or several, with the fewest wake-ups;
// others join it when it cannot keep up or blocks.
func defaultTuning() tuning {
	return tuning{base: 1, active: min(runtime.NumCPU(), 8), max: 64, spin: 40 * time.Microsecond}
}

// What a worker does, in the low bits of its state.
const (
	parked    = 0 // nothing: it is between two requests, or waits to be called
	reading   = 1 // waits for a request; it may have one already
	handling  = 2 // has one that it has not answered
	stateBits = 2
	stateMask = 1<<stateBits - 1
)

// enter notes what w does now. Only w itself calls it.
func (w *worker) enter(state uint64) { w.state.Store(w.state.Load()&^stateMask | state) }

// worker is one thread that takes requests.
type worker struct {
	c       *Conn
	mem     []byte // mapped, so that untouched parts cost no memory
	in, out []byte // its halves
	inLen   int    // of the request in in
	extra   bool   // called in by the supervisor, or by a worker that cannot keep up
	fast    int    // a clone of the descriptor that does not block, or -1
	from    int    // where the last request came from; the answer goes there
	streak  int    // requests in a row that were there already
	pace    pace
	state   atomic.Uint64 // what it does, below stateBits, and how many requests it has answered
	iov     [2][1][]byte  // what HandleRequest gets, kept to spare an allocation
}

func newWorker(c *Conn) (*worker, error) {
	mem, err := unix.Mmap(-1, 0, 2*bufSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map request buffers: %w", err)
	}
	w := &worker{c: c, mem: mem, in: mem[:bufSize:bufSize], out: mem[bufSize:], fast: cloneFD(c.fd)}
	w.pace = pace{limit: c.tune.spin, spin: c.tune.always, fixed: c.tune.always}
	return w, nil
}

func (w *worker) free() {
	if w.fast >= 0 {
		unix.Close(w.fast)
	}
	unix.Munmap(w.mem)
}

// cloneFD opens another descriptor for the connection of fd: one that does not
// block. Where /dev/fuse is only open to fusermount3 there is none, and -1 comes back.
func cloneFD(conn int) int {
	fd, err := unix.Open(devFuse, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	const ioctlClone = 0x8004e500 // FUSE_DEV_IOC_CLONE
	if err := unix.IoctlSetPointerInt(fd, ioctlClone, conn); err != nil {
		unix.Close(fd)
		return -1
	}
	return fd
}

// look takes a request if there is one. The system call is a raw one: it does not sleep.
func (w *worker) look() (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(w.fast), uintptr(unsafe.Pointer(&w.in[0])), uintptr(len(w.in)))
	if errno != 0 {
		return 0, errno
	}
	w.from = w.fast
	return int(n), nil
}

// next waits for a request and returns its length.
func (w *worker) next() (int, error) {
	if w.fast >= 0 {
		n, err := w.look()
		if err != unix.EAGAIN {
			w.streak++
			return n, err
		}
		w.streak = 0
		if d := w.pace.lookout(); d > 0 {
			for start := time.Now(); time.Since(start) < d; {
				if n, err := w.look(); err != unix.EAGAIN {
					return n, err
				}
			}
		}
	}
	w.from = w.c.fd
	return unix.Read(w.c.fd, w.in)
}

// reply writes n bytes of w.out to the kernel. Not by a raw system call: the kernel may
// drop the last reference to an inode here, and then wait for other requests.
func (w *worker) reply(n int) {
	switch _, err := unix.Write(w.from, w.out[:n]); err {
	case nil, unix.ENOENT, unix.ENODEV: // the last two: the request is gone, or the mount is
	default:
		w.c.log.Error("the kernel refused a reply", "op", opName(w.header().Opcode), "bytes", n, "error", err)
	}
}

// take counts w among the readers until it has a request. It returns the
// request's length, or 0 when the connection has ended.
func (w *worker) take() int {
	c := w.c
	for {
		c.reading.Add(1)
		w.enter(reading)
		n, err := w.next()
		last := c.reading.Add(-1) == 0
		switch err {
		case nil:
			w.enter(handling)
			c.begun.Add(1)
			w.pace.arrived(time.Now())
			if last {
				c.nobodyReads(w)
			}
			return n
		case unix.EINTR, unix.EAGAIN, unix.ENOENT, unix.EIO, unix.E2BIG:
			// One request was interrupted or did not fit: it has been answered by the kernel.
		default:
			if err != unix.ENODEV && err != unix.ECONNABORTED {
				c.log.Error("cannot read requests any more", "error", err)
			}
			c.end()
			return 0
		}
	}
}

// serveBase is the life of a base worker, on a thread of its own: the goroutine
// scheduler is not to come between the kernel's wake-up and the answer.
func (w *worker) serveBase() {
	defer w.c.left(w)
	runtime.LockOSThread()
	for n := w.take(); n > 0; n = w.take() {
		w.serve(n)
		w.c.answered(w)
	}
}

// extraLinger is how long an extra worker waits to be called again.
const extraLinger = 10 * time.Second

// serveExtra is the life of a worker that helps out: it reads while nobody else does.
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
		w.streak = 0
		w.enter(parked)
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
