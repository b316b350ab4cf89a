package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/fs/transport"
	"github.com/rewindfs/rewindfs/layers"
)

// CacheMode says when the daemon gets to see written bytes.
type CacheMode string

const (
	// Through passes each write on before write(2) returns.
	Through CacheMode = "through"
	// Writeback lets the kernel gather small writes; Barrier, fsync and close collect
	// them. The kernel is then the judge of a file's size and times while it knows the file. So
	// descriptors from before a rollback go on seeing the old size, writes through them
	// fail no sooner than fsync or close, and each close costs the next open a request.
	Writeback CacheMode = "writeback"
)

// Options configure a mount.
type Options struct {
	Mountpoint  string
	FSName      string    // the source shown in /proc/mounts: the base's path
	CacheMode   CacheMode // "": Through
	AllowOther  bool
	Debug       bool         // trace each request at slog.LevelDebug
	Logger      *slog.Logger // nil: slog.Default()
	Checkpoints Checkpoints  // what .rewind/checkpoints shows; nil: there is no .rewind
	StatfsDir   string       // statfs(2) shows the disk of this directory: the store's
}

// FS answers requests. It is a fuse.RawFileSystem.
type FS struct {
	tree        *layers.Tree
	branch      *layers.Branch
	log         *slog.Logger
	checkpoints Checkpoints
	statfsDir   string
	writeback   bool

	// gate is held for reading by whatever changes a file, from the check of its
	// node id on, and for writing while the head moves: so no write that was sent
	// for the old head is applied to the new one. It comes before Tree.mu.
	gate sync.RWMutex

	inc    incarnations
	views  views
	acls   aclCache
	noCaps inoSet // files known to have no capabilities: root's writes need not look each time
	setid  inoSet // files that the kernel was told are setuid or setgid
	mapped inoSet // files that cached writes came for, for flushMapped
	// resized are files that got another size behind the kernel's back, under a node id that it knew before. It may think that they end elsewhere, so
	// where appends to them go is for us to say. None is taken out: the kernel asks for a size only now and then.
	resized inoSet
	drifts  inoSet // base files that turned out to have changed, and of which nobody has voided the data at once

	cachedWrites atomic.Uint64 // dirty pages that the kernel sent, in requests
	// lost is the errno of a cached write that failed since the last barrier, 0 for none.
	// What belonged to a state that a rollback left is not lost.
	lost atomic.Uint32

	voider *voider
	syncer syncGroup
	wrote  atomic.Pointer[func()] // if set, by a test, called before a write is answered
}

var _ fuse.RawFileSystem = (*FS)(nil)

// Mount is a tree mounted on a directory.
type Mount struct {
	fs   *FS
	conn *transport.Conn
	log  *slog.Logger
}

// New makes a Mount of branch, which belongs to tree, at o.Mountpoint, and serves
// it until it is unmounted. Errors of the mount itself are *transport.MountError.
func New(tree *layers.Tree, branch *layers.Branch, o Options) (*Mount, error) {
	switch o.CacheMode {
	case "", Through, Writeback:
	default:
		return nil, fmt.Errorf("unknown cache mode %q: use %q or %q", o.CacheMode, Through, Writeback)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	f := &FS{
		tree: tree, branch: branch, log: o.Logger,
		checkpoints: o.Checkpoints, statfsDir: o.StatfsDir, writeback: o.CacheMode == Writeback,
	}
	f.noCaps.max, f.mapped.max, f.drifts.max = 1<<14, 1<<14, 1<<10
	f.voider = newVoider(o.Logger)
	conn, err := transport.Mount(o.Mountpoint, f, transport.Options{
		FSName: o.FSName, AllowOther: o.AllowOther, Writeback: f.writeback, Logger: o.Logger, Debug: o.Debug,
		Ready: f.voider.attach,
	})
	if err != nil {
		return nil, err
	}
	m := &Mount{fs: f, conn: conn, log: o.Logger}
	go f.voider.run()
	go func() {
		conn.Wait()
		f.voider.stop()
		f.views.closeAll()
	}()
	return m, nil
}

// Mountpoint is the absolute path of the mount.
func (m *Mount) Mountpoint() string { return m.conn.Mountpoint() }

// Dev is the st_dev of everything in the mount.
func (m *Mount) Dev() uint64 { return m.conn.Dev() }

// Unmount takes the mount away. In use, it is an error that wraps EBUSY, unless
// lazy, which detaches the mount and lets its users finish.
func (m *Mount) Unmount(lazy bool) error {
	err := m.conn.Unmount(lazy)
	// Whoever looks through /proc (lsof, another session's Busy) holds the mount for an
	// instant. There is nothing to wait on, and no user to name: try again for a second.
	for try := 0; try < 100 && errors.Is(err, unix.EBUSY) && len(m.Busy()) == 0; try++ {
		time.Sleep(10 * time.Millisecond)
		err = m.conn.Unmount(lazy)
	}
	return err
}

// Abort ends the connection: every request fails, waiting ones too. Unmount after it.
func (m *Mount) Abort() error { return m.conn.Abort() }

// Wait returns when the mount is gone and no request is being answered any more.
func (m *Mount) Wait() { m.conn.Wait() }

// Done is closed when Wait would return.
func (m *Mount) Done() <-chan struct{} { return m.conn.Done() }

// Counters returns the number of requests so far, by opcode name.
func (m *Mount) Counters() map[string]uint64 { return m.conn.Counters() }
