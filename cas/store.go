package cas

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// ChunkSize is the largest chunk, in bytes.
const ChunkSize = 128 << 10

// ErrCorrupt says that a chunk's bytes are not what its hash says, or not there.
// It also is kv.ErrCorrupt.
var ErrCorrupt = fmt.Errorf("chunk is damaged: %w", kv.ErrCorrupt)

// ErrSize is returned by Put for an empty chunk and for one beyond ChunkSize.
var ErrSize = errors.New("chunk is empty or too large")

// Hash is the BLAKE3 digest of a chunk.
type Hash [32]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// HashOf returns the hash of data.
func HashOf(data []byte) Hash { return blake3.Sum256(data) }

// Options of Open. The zero value is good.
type Options struct {
	Logger *slog.Logger // nil: silent
	// Fault, for tests, is asked before each step ("pack.create", "pack.write",
	// "pack.sync", "pack.read"); an error it returns is returned as if the step
	// had failed.
	Fault func(step string) error

	packLimit int64 // tests
}

// Store is an open chunk store. Its methods may be called by any goroutine.
type Store struct {
	dir   string
	db    *kv.DB
	opts  Options
	log   *slog.Logger
	cache *cache

	// sweeps counts what Garbage.Drop did. Written with mu held.
	sweeps atomic.Uint64

	// syncMu is held while packs are made durable, so that callers share the
	// wait. Taken before mu.
	syncMu sync.Mutex

	mu     sync.Mutex       // guards what follows; no I/O but opening files under it
	cur    *pack            // takes new records; nil before the first
	last   uint32           // number of the newest pack
	dirty  map[uint32]*pack // what the next Sync looks at: written to, or done with
	recent *recent
	files  files
	closed bool
}

// packDir is where the packs of a store in dir are.
func packDir(dir string) string { return filepath.Join(dir, "packs") }

// Open opens the chunk store in dir, whose index is in db, and makes it if it is
// not there. The caller must give Sync to db as its BeforeFlush hook.
func Open(dir string, db *kv.DB, o Options) (*Store, error) {
	s := &Store{
		dir: packDir(dir), db: db, opts: o, log: o.Logger,
		cache: newCache(), recent: newRecent(), dirty: map[uint32]*pack{},
	}
	s.files = files{dir: s.dir, open: map[uint32]*os.File{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.opts.packLimit == 0 {
		s.opts.packLimit = packLimit
	}
	err := os.MkdirAll(s.dir, 0o700)
	if err == nil {
		err = os.Chmod(s.dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the chunk store: %w", spaceErr(err))
	}
	if s.cur, s.last, err = lastPack(s.dir, db.StoreID()); err != nil {
		return nil, fmt.Errorf("opening the chunk store in %s: %w", dir, err)
	}
	return s, nil
}

// Close makes everything durable and closes the store. It does not close the kv.DB.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	err := s.Sync()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files.close()
	if s.cur != nil {
		err = errors.Join(err, s.cur.f.Close())
		s.cur = nil
	}
	return err
}

// DiskBytes is what the packs take on the disk, in bytes.
func (s *Store) DiskBytes() (sum int64, err error) {
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, fmt.Errorf("measuring the packs: %w", err)
	}
	for _, n := range names {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(s.dir, n.Name()), &st); err == nil {
			sum += st.Blocks * 512
		}
	}
	return sum, nil
}

func (s *Store) fault(step string) error {
	if s.opts.Fault == nil {
		return nil
	}
	return s.opts.Fault(step)
}
