package kv

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// base is the Badger database below the log.
//
// Badger writes its files through mappings. A mapped page that the disk has no
// block for is SIGBUS and the end of the process, and no look at the free space
// before can rule that out while other processes write to the same disk. So
// Badger is only ever opened to read, which it does from mappings of files that
// are complete. The table files are made by us, with Badger's own table builder
// but with plain writes (tables.go), where a full disk is an error. They become
// part of the database all at once, when the list of its files is replaced; then it
// is opened anew, which takes a millisecond or two, and readers move over.
//
// Level 0 has what flushes wrote, newer files over older ones; the last level has
// one version of every key, in files that do not overlap (merge.go).
type base struct {
	dir        string
	log        *slog.Logger
	tableBytes int // where a file of the last level is full

	cur    atomic.Pointer[generation] // what new readers get
	closed sync.WaitGroup             // generations that still have readers

	nextID atomic.Uint64 // of the newest table file
	ts     uint64        // version of the last flush; only for the flusher

	mu     sync.Mutex  // one change of the database at a time
	tables []tableFile // mu: the files of the database
}

// generation is the database as it was between two changes.
type generation struct {
	db *badger.DB
	// txn reads the newest version of every key. What is newer than a reader's
	// view of the tables in memory is masked by them: they have every key that a
	// flush writes meanwhile.
	txn *badger.Txn
	// refs counts the readers, and one for being current. At 0 it is closed.
	refs  atomic.Int64
	empty bool // the database has no tables
}

// blockCache bounds the memory for blocks that reads have unpacked, in bytes.
// Measured with 200,000 records: one of a block that is in it takes 1.6 µs to get (from a table without compression
// 1.4 µs), one of a block that is not 4 µs (with zstd 10 µs).
const blockCache = 32 * mib

func badgerOptions(dir string, log *slog.Logger) badger.Options {
	return badger.DefaultOptions(dir).
		WithLogger(badgerLog{log}).
		WithReadOnly(true).
		WithBypassLockGuard(true). // the store has a lock of its own
		WithExternalMagic(badgerMagic).
		WithChecksumVerificationMode(options.NoVerification). // checkTables did it
		WithMetricsEnabled(false).
		WithDetectConflicts(false).
		WithNumCompactors(0).
		WithMemTableSize(8 * mib). // there is none, but Badger checks the number
		WithCompression(tablePack).
		WithBlockSize(blockSize).
		WithBlockCacheSize(blockCache).
		WithIndexCacheSize(0) // they are read in place
}

// openBase opens the database in dir and makes it if it is not there.
func openBase(dir string, log *slog.Logger) (*base, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	b := &base{dir: dir, log: log, tableBytes: tableBytes}
	var err error
	if b.tables, err = b.readTables(); err == nil {
		err = errors.Join(b.checkTables(), b.sweep())
	}
	if err != nil {
		return nil, fmt.Errorf("opening badger in %s: %w", dir, err)
	}
	g, err := b.open()
	if err != nil {
		return nil, err
	}
	b.cur.Store(g)
	b.ts = max(g.db.MaxVersion(), lastLevelTS+1)
	for _, t := range b.tables {
		b.nextID.Store(max(b.nextID.Load(), t.id))
	}
	return b, nil
}

// sweep removes what a crash left of files that never became part of the database.
func (b *base) sweep() error {
	left, err := filepath.Glob(filepath.Join(b.dir, "*"+newExt))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// open opens the database that the list of tables describes.
func (b *base) open() (*generation, error) {
	if err := b.writeManifest(); err != nil {
		return nil, err
	}
	db, err := badger.OpenManaged(badgerOptions(b.dir, b.log))
	if err != nil {
		return nil, fmt.Errorf("opening badger in %s: %w", b.dir, badgerErr(err))
	}
	if n := len(db.Tables()); n != len(b.tables) {
		return nil, errors.Join(
			fmt.Errorf("badger in %s has %d of %d tables: %w", b.dir, n, len(b.tables), ErrCorrupt), db.Close())
	}
	g := &generation{db: db, txn: db.NewTransactionAt(math.MaxUint64, false), empty: len(b.tables) == 0}
	g.refs.Store(1)
	b.closed.Add(1)
	return g, nil
}

// use returns the current generation; done must follow.
func (b *base) use() *generation {
	for {
		g := b.cur.Load()
		for n := g.refs.Load(); n > 0; n = g.refs.Load() {
			if g.refs.CompareAndSwap(n, n+1) {
				return g
			}
		}
		// It has been replaced since, and was closed.
	}
}

func (b *base) done(g *generation) {
	if g.refs.Add(-1) > 0 {
		return
	}
	go func() { // a reader should not wait for this
		defer b.closed.Done()
		g.txn.Discard()
		if err := g.db.Close(); err != nil {
			b.log.Warn("store: closing badger", "err", err)
		}
	}()
}

func (b *base) get(key []byte) (val []byte, ok bool, err error) {
	g := b.use()
	defer b.done(g)
	if g.empty {
		return nil, false, nil
	}
	it, err := g.txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, false, nil
	}
	if err == nil {
		val, err = it.ValueCopy(nil)
	}
	if err != nil {
		return nil, false, badgerErr(err)
	}
	return val, true, nil
}

// close waits for the last reader and closes the database.
func (b *base) close() {
	b.done(b.cur.Load())
	b.closed.Wait()
}

// badgerLog sends Badger's messages to slog. What Badger calls information is
// of interest to nobody but its authors.
type badgerLog struct{ log *slog.Logger }

func (l badgerLog) Errorf(f string, a ...any) {
	l.log.Error("badger: " + strings.TrimSpace(fmt.Sprintf(f, a...)))
}

func (l badgerLog) Warningf(f string, a ...any) {
	if strings.Contains(f, "might be too small") || strings.HasPrefix(f, "Cache life") {
		return // the cache is as large as we want it; a look at all keys goes through it, too
	}
	l.log.Warn("badger: " + strings.TrimSpace(fmt.Sprintf(f, a...)))
}
func (badgerLog) Infof(string, ...any)  {}
func (badgerLog) Debugf(string, ...any) {}
