package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"golang.org/x/sys/unix"
)

// What Badger may use, in bytes. Its write-ahead file is as large as the
// memtable plus one transaction; a transaction is at most 15 % of the memtable
// and must hold the largest value.
const (
	memTableSize = 8 * mib
	memFileBytes = memTableSize + memTableSize/4

	// flushSpace is what a rotation of the memtable writes into new blocks: the
	// table file and the next write-ahead file.
	flushSpace = 2*memFileBytes + mib
	// compactAt is the number of tables in level 0 that starts a compaction.
	compactAt = 5
	// chunkBytes and chunkKeys bound what is handed over between two looks at
	// the free space.
	chunkBytes = 512 << 10
	chunkKeys  = 4096
	// entryCost bounds what an entry takes in the memtable besides key and value.
	entryCost = 160
)

// base is the Badger database below the log. Only the flusher writes to it.
//
// Badger writes through mappings: a mapped page without a block on a full disk is
// SIGBUS and the end of the process. So every write here is preceded by a look at
// the free space, the write-ahead files get their blocks ahead, and compaction
// never starts by itself (NumCompactors is 0) but only through compact.
type base struct {
	dir string
	db  *badger.DB
	// txn reads the newest version of every key. What is newer than the reader's
	// view is masked by the tables in memory, which hold every key that a flush
	// is writing.
	txn *badger.Txn

	// Only for the flusher:
	ts      uint64 // version of the last flush
	memFile string // newest write-ahead file
	memUsed int64  // upper bound of what memFile holds, in bytes
}

func badgerOptions(dir string, log *slog.Logger) badger.Options {
	return badger.DefaultOptions(dir).
		WithLogger(badgerLog{log}).
		WithMetricsEnabled(false).
		WithBypassLockGuard(true). // the store has a lock of its own
		WithExternalMagic(badgerMagic).
		WithSyncWrites(false).
		WithDetectConflicts(false).
		WithNumVersionsToKeep(1).
		WithNumCompactors(0).
		WithNumLevelZeroTables(compactAt - 1).
		WithNumLevelZeroTablesStall(math.MaxInt32).
		WithMemTableSize(memTableSize).
		WithNumMemtables(2).
		WithValueThreshold(mib). // all values stay in the tree
		WithValueLogFileSize(2 * mib).
		// Uncompressed blocks are read in place, without a cache to copy them to.
		WithCompression(options.None).
		WithBlockCacheSize(0).
		WithIndexCacheSize(0).
		// Badger's iterators end silently at a block that does not check, so
		// damage must be found when a table is opened, or never.
		WithChecksumVerificationMode(options.OnTableRead)
}

func openBase(dir string, log *slog.Logger) (*base, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating badger's directory: %w", spaceErr(err))
	}
	db, err := badger.OpenManaged(badgerOptions(dir, log))
	if err != nil {
		return nil, fmt.Errorf("opening badger in %s: %w", dir, badgerErr(err))
	}
	b := &base{dir: dir, db: db, ts: db.MaxVersion()}
	db.SetDiscardTs(b.ts)
	b.txn = db.NewTransactionAt(math.MaxUint64, false)
	if err := b.tidy(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// openNeeds is how many free bytes Badger needs to be opened: it turns old
// write-ahead files into tables and makes new ones.
func openNeeds(dir string) (int64, error) {
	need := int64(2 * mib)
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return need, nil
	}
	if err != nil {
		return 0, err
	}
	for _, n := range names {
		var st unix.Stat_t
		if strings.HasSuffix(n.Name(), memExt) && unix.Lstat(filepath.Join(dir, n.Name()), &st) == nil {
			need += min(st.Blocks*512, memFileBytes)
		}
	}
	return need, nil
}

const memExt = ".mem"

// tidy gives the newest write-ahead file its blocks and takes Badger's files
// away from everybody else, which Badger leaves to the umask.
func (b *base) tidy() error {
	names, err := os.ReadDir(b.dir)
	if err != nil {
		return fmt.Errorf("listing badger's files: %w", err)
	}
	newest := ""
	for _, n := range names {
		info, err := n.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking at badger's files: %w", err)
		}
		if info.Mode().Perm() != 0o600 {
			err := os.Chmod(filepath.Join(b.dir, n.Name()), 0o600)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("closing badger's files to others: %w", err)
			}
		}
		if strings.HasSuffix(n.Name(), memExt) && n.Name() > newest {
			newest = n.Name()
		}
	}
	if newest == b.memFile || newest == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(b.dir, newest), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening badger's write-ahead file: %w", err)
	}
	defer f.Close()
	if err := fallocate(f, 0, memFileBytes); err != nil {
		return fmt.Errorf("allocating badger's write-ahead file: %w", spaceErr(err))
	}
	b.memFile, b.memUsed = newest, 0
	return nil
}

func (b *base) get(key []byte) (val []byte, ok bool, err error) {
	it, err := b.txn.Get(key)
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

func (b *base) iterate(prefix []byte) *badger.Iterator {
	return b.txn.NewIterator(badger.IteratorOptions{Prefix: prefix})
}

// write hands the table over. room is asked for free bytes before they are used.
// After an error the table may be there in part: it must be written again.
func (b *base) write(t *table, room func(int64) error) error {
	ts := b.ts + 1
	wb := b.db.NewWriteBatchAt(ts)
	defer func() { wb.Cancel() }()
	var keys int
	var bytes int64
	next := func() error {
		err := wb.Flush()
		if err == nil {
			err = b.tidy() // a new write-ahead file begins at 0
			b.memUsed += bytes
			bytes, keys = 0, 0
		}
		wb = b.db.NewWriteBatchAt(ts)
		return err
	}
	var err error
	started := false
	t.keys.Scan(func(k string, v []byte) bool {
		if keys == 0 {
			if err = b.ready(room); err != nil {
				return false
			}
			started = true
		}
		if v != nil {
			err = wb.Set(view(k), v)
		} else if _, found, gerr := b.get(view(k)); gerr != nil {
			err = gerr
		} else if found {
			err = wb.Delete(view(k))
		}
		keys++
		bytes += int64(len(k)+len(v)) + entryCost
		if err == nil && (bytes >= chunkBytes || keys >= chunkKeys) {
			err = next()
		}
		return err == nil
	})
	if err == nil && keys > 0 {
		err = next()
	}
	if err != nil {
		return fmt.Errorf("handing records to badger: %w", badgerErr(err))
	}
	if started {
		b.ts = ts
		b.db.SetDiscardTs(ts)
	}
	return nil
}

// ready sees to it that the next chunk finds the blocks it needs.
func (b *base) ready(room func(int64) error) error {
	if err := b.tidy(); err != nil {
		return err
	}
	if b.memUsed+chunkBytes+MaxValue+MaxKey+entryCost < memTableSize {
		return nil // goes into blocks that are there
	}
	return room(flushSpace)
}

// sync makes all that was written survive a power cut. Badger's own Sync leaves
// out the write-ahead files that wait for their turn into a table.
func (b *base) sync() error {
	names, err := os.ReadDir(b.dir)
	if err != nil {
		return fmt.Errorf("listing badger's files: %w", err)
	}
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), memExt) {
			continue
		}
		err := syncFile(filepath.Join(b.dir, n.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // gone: it is a table now
			return fmt.Errorf("syncing badger's write-ahead file: %w", spaceErr(err))
		}
	}
	return syncDir(b.dir)
}

// syncFile makes path durable, also what was written to it through mappings.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// compact merges level 0 into the lower levels when it has grown and the disk
// has room for a second copy of everything.
func (b *base) compact(room func(int64) error) error {
	var all int64
	fresh := 0
	for _, t := range b.db.Tables() {
		all += int64(t.OnDiskSize)
		if t.Level == 0 {
			fresh++
		}
	}
	if fresh < compactAt || room(2*all+flushSpace) != nil {
		return nil
	}
	if err := b.db.Flatten(1); err != nil {
		return fmt.Errorf("compacting: %w", badgerErr(err))
	}
	return b.tidy()
}

// close ends Badger in good order, which writes the memtable to a table file.
func (b *base) close() error {
	b.txn.Discard()
	if err := b.db.Close(); err != nil {
		return fmt.Errorf("closing: %w", badgerErr(err))
	}
	// Close made files too.
	b.memFile = ""
	return b.chmod()
}

func (b *base) chmod() error {
	names, err := os.ReadDir(b.dir)
	for _, n := range names {
		err = errors.Join(err, os.Chmod(filepath.Join(b.dir, n.Name()), 0o600))
	}
	return err
}

// badgerLog sends Badger's messages to slog. What Badger calls information is
// of interest to nobody but its authors.
type badgerLog struct{ log *slog.Logger }

func (l badgerLog) Errorf(f string, a ...any) {
	l.log.Error("badger: " + strings.TrimSpace(fmt.Sprintf(f, a...)))
}

func (l badgerLog) Warningf(f string, a ...any) {
	l.log.Warn("badger: " + strings.TrimSpace(fmt.Sprintf(f, a...)))
}
func (badgerLog) Infof(string, ...any)  {}
func (badgerLog) Debugf(string, ...any) {}
