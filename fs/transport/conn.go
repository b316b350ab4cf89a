package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// maxIO is the largest READ and WRITE, in bytes.
	maxIO = 1 << 20
	// bufSize holds the largest request and the largest reply with their headers.
	bufSize = maxIO + 4096
)

// Options configure a mount.
type Options struct {
	FSName     string // the source shown in /proc/mounts
	AllowOther bool   // let other users in
	// Writeback has the kernel gather writes instead of passing each on before write(2) returns.
	Writeback bool
	Logger    *slog.Logger // nil: slog.Default()
	Debug     bool         // trace every request at slog.LevelDebug
	// Ready, if set, gets the connection before the first request is answered.
	Ready func(*Conn)

	tune *tuning // nil: as measured best
}

// Conn is one mounted file system and the threads that serve it.
type Conn struct {
	dir   string
	dev   uint64 // st_dev of the mount
	minor uint32 // FUSE protocol 7.minor of the kernel
	fs    fuse.RawFileSystem
	proto *fuse.ProtocolServer
	log   *slog.Logger
	debug bool
	tune  tuning

	counts  counters
	reading atomic.Int32  // workers that wait for a request or are about to
	begun   atomic.Uint64 // requests taken, ever
	awake   atomic.Bool   // the supervisor is ticking
	wake    chan struct{} // tells the supervisor, when it is not, that nobody reads
	call    chan struct{} // calls in a parked extra worker
	ended   chan struct{} // closed when the kernel has ended the connection
	done    chan struct{} // closed when the last worker is gone

	fdMu sync.RWMutex // held for reading by whoever but a worker uses fd
	fd   int          // closed, and -1, when the last worker is gone

	mu      sync.Mutex
	workers map[*worker]struct{} // guarded by mu: base and extra ones, parked ones included
	over    bool                 // guarded by mu: ended is closed

	answers sync.Cond    // with mu; told when a worker has answered, if waiting
	waiting atomic.Int32 // callers of Quiesce and Drain
}

// Mount mounts rawfs on dir and serves it until it is unmounted. It returns when
// the kernel has agreed on the protocol, so dir can be used at once.
func Mount(dir string, rawfs fuse.RawFileSystem, o Options) (*Conn, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, &MountError{BadMountpoint, dir, err}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	fd, err := openMount(abs, &o)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		dir: abs, fd: fd, fs: rawfs, log: o.Logger, debug: o.Debug,
		wake: make(chan struct{}, 1), call: make(chan struct{}), ended: make(chan struct{}), done: make(chan struct{}),
	}
	c.answers.L = &c.mu
	c.tune = defaultTuning()
	if o.tune != nil {
		c.tune = *o.tune
	}
	c.proto = fuse.NewProtocolServer(rawfs, mountOptions(&o, c.panicked))
	if err := c.handshake(); err != nil {
		unmount(abs, true)
		unix.Close(fd)
		return nil, &MountError{MountFailed, abs, err}
	}
	if o.Ready != nil {
		o.Ready(c)
	}
	if err := c.start(); err != nil {
		unmount(abs, true)
		unix.Close(fd)
		return nil, &MountError{MountFailed, abs, err}
	}
	return c, nil
}

// mountOptions chooses what we ask the kernel for. Some choices are what is left
// out: ATOMIC_O_TRUNC, which would hide a truncation in the OPEN that we never get;
// kernel-forwarded locks, which the kernel does better alone; and READDIRPLUS_AUTO, which on a
// cold walk over a tree goes back to plain listings and then asks for every name
// (20 % slower than always listing with attributes).
func mountOptions(o *Options, onPanic func(any) fuse.Status) *fuse.MountOptions {
	extra := uint64(fuse.CAP_NO_OPENDIR_SUPPORT | fuse.CAP_DONT_MASK | fuse.CAP_HANDLE_KILLPRIV_V2 |
		fuse.CAP_SETXATTR_EXT | fuse.CAP_ASYNC_DIO)
	if o.Writeback {
		extra |= fuse.CAP_WRITEBACK_CACHE
	}
	disabled := uint64(fuse.CAP_PASSTHROUGH)
	if o.tune != nil {
		disabled |= o.tune.disable
	}
	return &fuse.MountOptions{
		MaxWrite:                 maxIO,
		MaxBackground:            64,
		EnableAcl:                true,
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: true,
		ExtraCapabilities:        extra,
		DisabledCapabilities:     disabled,
		PanicHandler:             onPanic,
		Logger:                   slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
}

// handshake answers INIT, the first request of every connection.
func (c *Conn) handshake() error {
	w, err := newWorker(c)
	if err != nil {
		return err
	}
	defer w.free()
	n, err := w.next()
	if err != nil {
		return fmt.Errorf("read the first request: %w", err)
	}
	in := (*fuse.InitIn)(unsafe.Pointer(&w.in[0]))
	if in.Opcode != opInit {
		return fmt.Errorf("the first request is %s, not INIT", opName(in.Opcode))
	}
	c.minor = in.Minor
	c.counts.add(opInit)
	w.inLen = n
	if n = w.generic(); n == 0 {
		return errors.New("the kernel's FUSE protocol is too old")
	}
	w.reply(n)
	var st unix.Statx_t
	// The root's attributes are not known yet; DONT_SYNC keeps the kernel from asking us.
	if err := unix.Statx(unix.AT_FDCWD, c.dir, unix.AT_STATX_DONT_SYNC|unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return fmt.Errorf("find the device number of %s: %w", c.dir, err)
	}
	c.dev = unix.Mkdev(st.Dev_major, st.Dev_minor)
	return nil
}

// Mountpoint is the absolute path that was mounted on.
func (c *Conn) Mountpoint() string { return c.dir }

// Dev is the st_dev of everything in the mount.
func (c *Conn) Dev() uint64 { return c.dev }

// ProtocolMinor is y in the kernel's FUSE protocol version 7.y.
func (c *Conn) ProtocolMinor() uint32 { return c.minor }

// Counters returns the number of requests so far by opcode name.
func (c *Conn) Counters() map[string]uint64 { return c.counts.snapshot() }

// Done is closed when the connection has ended and no handler runs any more.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Wait returns when the connection has ended and no handler runs any more.
func (c *Conn) Wait() { <-c.done }

// Unmount takes the mount away. While it is in use that is EBUSY, unless lazy,
// which detaches it and lets its users finish.
func (c *Conn) Unmount(lazy bool) error { return unmount(c.dir, lazy) }

// Abort ends the connection at once: whoever waits for an answer gets ECONNABORTED. The mount
// itself stays until Unmount. Of a connection that has ended, nothing: its number may be another mount's by now.
func (c *Conn) Abort() error {
	select {
	case <-c.ended:
		return nil
	default:
	}
	path := "/sys/fs/fuse/connections/" + strconv.FormatUint(uint64(unix.Minor(c.dev)), 10) + "/abort"
	err := os.WriteFile(path, []byte("1"), 0)
	if err == nil {
		return nil
	}
	if ferr := unix.Unmount(c.dir, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW); ferr == nil || errors.Is(ferr, unix.EBUSY) {
		return nil // MNT_FORCE aborts, even when the mount is too busy to go
	}
	return fmt.Errorf("abort %s: %w", c.dir, err)
}

// panicked logs a handler's panic with its stack; the request answers EIO.
func (c *Conn) panicked(v any) fuse.Status {
	c.log.Error("panic in a file system handler", "panic", v, "stack", string(debug.Stack()))
	return fuse.EIO
}
