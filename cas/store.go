package cas

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

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

// Put stores data unless the store has it, and adds the index record to b. The
// chunk exists once b is applied. data may be used again when Put returns.
//
// Errors: kv.ErrNoSpace, ErrSize, and what the disk says; then b is as before.
func (s *Store) Put(b *kv.Batch, data []byte) (Hash, error) {
	if len(data) == 0 || len(data) > ChunkSize {
		return Hash{}, fmt.Errorf("%d bytes: %w", len(data), ErrSize)
	}
	h := HashOf(data)
	key := kv.Chunk(h[:])
	if _, ok, err := s.db.Get(key); err != nil || ok {
		return h, err
	}
	s.mu.Lock()
	at, ok := s.recent.at[h]
	s.mu.Unlock()
	if !ok {
		var err error
		if at, err = s.store(h, data); err != nil {
			return Hash{}, fmt.Errorf("storing a chunk: %w", err)
		}
	}
	b.Put(key, at.encode())
	return h, nil
}

// store writes the chunk to a pack. Puts at the same time get places of their own
// and write in parallel.
func (s *Store) store(h Hash, data []byte) (place, error) {
	size := int64(recHdrLen + len(data))
	if err := s.db.CheckSpace(size); err != nil {
		return place{}, err
	}
	p, off, err := s.allot(size)
	if err != nil {
		return place{}, err
	}
	hdr := recordHeader(h, len(data))
	if err = s.fault("pack.write"); err == nil {
		err = p.write(off, hdr, data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.writers--
	if err != nil {
		if p.tail == off+size {
			p.tail = off // nobody is behind us: the place can be had again
		}
		return place{}, spaceErr(fmt.Errorf("writing to pack %s: %w", packName(p.n), err))
	}
	at := place{p.n, off + recHdrLen, len(data)}
	s.dirty[p.n] = p
	p.unsynced = append(p.unsynced, written{h, at})
	s.recent.add(h, at)
	return at, nil
}

// allot gives the caller size bytes of a pack at off.
func (s *Store) allot(size int64) (p *pack, off int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, kv.ErrClosed
	}
	if s.cur == nil || s.cur.tail >= s.opts.packLimit {
		if err := s.fault("pack.create"); err != nil {
			return nil, 0, spaceErr(err)
		}
		next, err := createPack(s.dir, s.db.StoreID(), s.last+1)
		if err != nil {
			return nil, 0, err
		}
		if s.cur != nil {
			s.dirty[s.cur.n] = s.cur
		}
		s.cur, s.last = next, next.n
	}
	p, off = s.cur, s.cur.tail
	p.tail += size
	p.writers++
	return p, off, nil
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
