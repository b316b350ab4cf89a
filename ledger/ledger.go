package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultMaxFile is how large a file of lines gets, in bytes, if nothing else is asked for.
const DefaultMaxFile = 16 << 20

var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the ledger is closed")
	// ErrInUse is returned when another process appends.
	ErrInUse = errors.New("another process appends to the ledger")
)

// Options are what Open can be told. The zero value is good.
type Options struct {
	Now     func() time.Time // nil: time.Now
	MaxFile int64            // bytes after which the next file is begun; 0: DefaultMaxFile
	// Expect must be in the ledger, or the ledger is recorded as damaged: a head that the caller kept elsewhere. Open only
	// looks at the end, so one further back is Verify's business. Keep heads from Sync (or Synced): others may be
	// ahead of the ledger after a power cut.
	Expect Head
	// BootID tells one start of the machine from another. Empty: the kernel's.
	BootID string

	writeAt func(f *os.File, b []byte, off int64) (int, error) // for tests; nil: File.WriteAt
}

func (o *Options) complete() error {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxFile == 0 {
		o.MaxFile = DefaultMaxFile
	}
	if o.MaxFile < 0 {
		return fmt.Errorf("open the ledger: files of %d bytes", o.MaxFile)
	}
	if o.writeAt == nil {
		o.writeAt = (*os.File).WriteAt
	}
	if o.BootID == "" {
		// Without /proc all starts look the same: then a power cut is reported as damage, never the reverse.
		if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
			o.BootID = strings.TrimSpace(string(b))
		}
	}
	for _, c := range o.BootID {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '-' || len(o.BootID) > maxBoot {
			return fmt.Errorf("open the ledger: the boot id %q is not one", o.BootID)
		}
	}
	return nil
}

// Ledger appends to the ledger of a store. Its methods may be called concurrently.
type Ledger struct {
	dir     string
	o       Options
	genesis Hash
	lock    *os.File // the directory, locked as long as the ledger is open
	found   []Finding

	syncing sync.Mutex // one Sync at a time

	queueMu sync.Mutex
	queue   []*entry // guarded by queueMu: events waiting for whoever writes next

	writing  sync.Mutex // guards all below
	closed   bool
	head     headRecord // the last line and what goes with it
	durable  Head       // the last line known to be on the disk
	headFile *os.File
	headErr  error // the head file is behind, since this

	file      *os.File // nil: cur is to be opened before the next write
	cur       int      // number of the file that is written to
	off       int64    // where in it the next line goes
	allocated int64    // up to where it has blocks
	cut       bool     // what is behind off is of no use, and is cut off before the next write
	rotateAt  int64    // after a failure: no other try before the file has this size
	notes     []*entry // what is to be written before anything else
	noteErr   error    // why notes could not be written
	buf, hbuf []byte
}

// Open opens the ledger in dir for appending, and begins it when there is none. There
// may be one per directory at a time, in whatever process (ErrInUse). It looks at the end of
// the ledger, repairs what a crash left, and records what it found, see Found; damage is no
// error. A full disk is none either: then the next Append fails.
func Open(dir, storeID string, o Options) (opened *Ledger, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := &Ledger{dir: dir, o: o, genesis: genesis(storeID)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.release())
		}
	}()
	if err := l.lockDir(); err != nil {
		return nil, err
	}
	x := examiner{dir: dir, genesis: l.genesis, boot: o.BootID, expect: o.Expect}
	r, err := x.examine()
	if err != nil {
		return nil, err
	}
	l.cur, l.off, l.cut = r.cur, r.off, r.cut
	l.head = headRecord{tip: r.last, synced: r.synced, op: r.op, open: true, boot: o.BootID}
	if r.synced == r.last.Seq {
		l.durable = r.last.Head
	}
	for _, n := range r.notes {
		l.found = append(l.found, n.finding())
		e, err := newEntry(n.event())
		if err != nil {
			return nil, err
		}
		e.repair = n.repair
		l.notes = append(l.notes, e)
	}
	if err := l.openHead(x.head == nil); err != nil {
		return nil, err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if len(l.notes) > 0 {
		// The old head stays as evidence until the notes are written. If that fails now,
		// the next Append tries it again, and says why it cannot.
		l.writeGroup(nil)
		return l, nil
	}
	l.writeHead()
	if l.headErr != nil {
		return nil, l.headErr
	}
	return l, nil
}

func (l *Ledger) lockDir() error {
	if err := os.Mkdir(l.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the ledger's directory: %w", err)
	}
	d, err := os.OpenFile(l.dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the ledger: %w", err)
	}
	l.lock = d
	if err := d.Chmod(0o700); err != nil {
		return fmt.Errorf("protect the ledger: %w", err)
	}
	switch err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("open the ledger %s: %w", l.dir, ErrInUse)
	case err != nil:
		return fmt.Errorf("lock the ledger: %w", err)
	}
	return nil
}

// openHead opens the head file; one that is not there or no file, it makes.
func (l *Ledger) openHead(lost bool) error {
	path := filepath.Join(l.dir, headName)
	f, err := openRegular(path, os.O_RDWR)
	if missing(err) && lost {
		content := l.head.encode(nil, l.genesis)
		if len(l.notes) > 0 {
			content = make([]byte, headSize) // of no use, until it is recorded that it was lost
		}
		if err := createHead(l.dir, content); err != nil {
			return err
		}
		if err := l.lock.Sync(); err != nil {
			return fmt.Errorf("begin the ledger: %w", err)
		}
		f, err = openRegular(path, os.O_RDWR)
	}
	if err != nil {
		return fmt.Errorf("open the ledger's head: %w", err)
	}
	l.headFile = f
	if lost { // it may have been longer
		if err := f.Truncate(headSize); err != nil {
			return fmt.Errorf("open the ledger's head: %w", err)
		}
	}
	return nil
}

// Found is what Open repaired or found wrong, for the daemon's log. All of it is,
// or will be with the next Append, in the ledger.
func (l *Ledger) Found() []Finding { return l.found }

// Head is the last line.
func (l *Ledger) Head() Head {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.head.Head
}

// Synced is the last line that is known to be on the disk, a head that is good to keep
// elsewhere. It is zero when none is known yet; Sync finds one.
func (l *Ledger) Synced() Head {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.durable
}

// LastOp is the highest Event.Op in the ledger. An operation of the journal with a
// higher number is not recorded yet: the daemon was killed between the two.
func (l *Ledger) LastOp() uint64 {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.head.op
}

// Close puts all on the disk and ends the ledger. Only a ledger that was closed is
// known to have no lines but those that its head covers.
func (l *Ledger) Close() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	_, err := l.sync()
	if errors.Is(err, ErrClosed) {
		return err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.closed = true
	if err == nil && len(l.notes) == 0 && l.head.synced == l.head.Seq {
		err = l.seal()
	}
	return errors.Join(err, l.release())
}

// seal marks the ledger as closed. Preconditions: all is written and synced.
func (l *Ledger) seal() error {
	if err := l.repairTail(); err != nil {
		return err
	}
	if l.cur > l.head.file {
		// Begun, and nothing could be written into it.
		err := os.Remove(filepath.Join(l.dir, fileName(l.cur)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("close the ledger: %w", err)
		}
	}
	l.head.open = false
	if l.writeHead(); l.headErr != nil {
		return l.headErr
	}
	if err := l.headFile.Sync(); err != nil {
		return fmt.Errorf("put the ledger's head on the disk: %w", err)
	}
	return nil
}

// release closes what is open.
func (l *Ledger) release() error {
	var errs []error
	for _, f := range []*os.File{l.file, l.headFile, l.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	l.file, l.headFile, l.lock = nil, nil, nil
	return errors.Join(errs...)
}

// noSpace reports whether err says that the disk is full.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
