package kv

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options of Open. The zero value is good.
type Options struct {
	Logger *slog.Logger // nil: silent
	// BeforeFlush runs before records become durable, in Sync and in a flush; it
	// must make durable whatever the records point at. It must not call the DB.
	BeforeFlush func() error
	// CheckReplay, if set, is asked about every put that Open finds in the log
	// after the machine may have lost power, unless a later batch of the log deletes
	// that key. An error says that the record points at something that is not there:
	// that batch and all behind it are given up, so that what is left is a prefix of
	// the batches.
	CheckReplay func(key, val []byte) error
	// Fault, for tests, is asked before each step ("log.write", "log.extend",
	// "log.sync", "log.recycle", "badger.flush", "get", "scan"); an error it returns is returned
	// as if the step had failed.
	Fault func(step string) error
	// ReserveBytes is the free space below which growing batches get ErrNoSpace.
	// 0: 64 MiB or an eighth of the disk, whichever is less. What the next flush
	// needs comes on top.
	ReserveBytes int64
	// FlushIdle is how long Apply must rest before what it wrote goes to Badger,
	// if that is worth while; 0: one second.
	FlushIdle time.Duration

	statfs func(dir string) (free, total int64, err error) // tests
	sizes  *sizes                                          // tests
}

const (
	logDir    = "log"
	badgerDir = "badger"

	maxTableKeys = 100_000
	maxFrozen    = 2
	defaultIdle  = time.Second
)

// DB is an open store. Its methods may be called by any goroutine at any time.
type DB struct {
	dir, logDir string
	opts        Options
	log         *slog.Logger
	id          storeID
	lock        *os.File
	sizes       sizes
	space       *space
	recovered   Recovery

	// syncMu is held while segments are made durable, recycled or closed, so
	// that one fdatasync serves all who wait. Taken before wmu.
	syncMu    sync.Mutex
	syncedSeq uint64 // syncMu: all records up to here are durable
	dirSynced uint64 // syncMu: first of the newest segment whose name is durable
	hook      atomic.Pointer[func() error]

	// wmu makes batches get their sequence number, their place in the log and
	// their place in the table in one order. Taken before mu.
	wmu      sync.Mutex
	flushed  *sync.Cond // wmu: signalled after every attempt to flush
	seg      *segment   // wmu: the last of active.segs
	nextSeq  uint64     // wmu
	buf      []byte     // wmu: the record being built
	flushErr error      // wmu: result of the last attempt to flush
	attempts uint64     // wmu: attempts to flush so far
	frozenN  uint64     // wmu: tables frozen so far
	doneN    uint64     // wmu: frozen tables that are in Badger
	closing  bool       // wmu
	lastUse  time.Time  // wmu: of Apply, or Open
	lastTry  time.Time  // wmu: of the last attempt to flush
	logFull  error      // wmu: result of the last attempt to extend the log
	noStep   time.Time  // wmu: when that was
	urgent   bool       // wmu: Flush waits, so try at once
	merging  bool       // wmu: a merge is under way; Close waits for it
	mergeErr error      // wmu: result of the last one

	// trimmed is set by TrimLog with wmu held, and taken back, with wmu held, when the log needs more than what that left it.
	trimmed atomic.Bool

	// spareMu guards the name of the spare segment: who makes a segment of it and
	// who makes a segment the spare exclude each other. Taken last.
	spareMu sync.Mutex

	// mu guards the tables for readers. Nothing slow is done under it.
	mu     sync.RWMutex
	active *table
	frozen []*table // oldest first; the slice is replaced, never changed

	base    *base
	readers gate
	kick    chan struct{} // wakes the flusher
	stop    chan struct{} // closed: the flusher ends
	stopped chan struct{} // closed by the flusher at its end
}

// Recovery tells what Open found in the log.
type Recovery struct {
	Batches int // replayed
	// Lost says that records were given up: a power cut or damage left a hole in
	// the log. What is there is a prefix of what was written; nothing that Sync
	// covered is missing after a mere power cut.
	Lost  bool
	Where string // of the hole
}

// Open opens the store in dir and makes it if dir is empty or missing. The
// directory must be on a local file system.
func Open(dir string, o Options) (_ *DB, err error) {
	db := &DB{
		dir: dir, logDir: filepath.Join(dir, logDir), opts: o, log: o.Logger,
		active: &table{},
		kick:   make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	if db.log == nil {
		db.log = slog.New(slog.DiscardHandler)
	}
	if db.opts.FlushIdle <= 0 {
		db.opts.FlushIdle = defaultIdle
	}
	db.flushed = sync.NewCond(&db.wmu)
	db.readers.init()
	db.SetBeforeFlush(o.BeforeFlush)
	defer func() {
		if err != nil {
			db.abandon()
		}
	}()
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	var lastBoot string
	if db.lock, lastBoot, err = lockStore(dir); err != nil {
		return nil, err
	}
	if db.id, err = openFormat(dir); err != nil {
		return nil, err
	}
	if err := db.openSpace(); err != nil {
		return nil, err
	}
	if err := makeDir(db.logDir); err != nil {
		return nil, err
	}
	if err := db.openLog(lastBoot); err != nil {
		return nil, err
	}
	if db.base, err = openBase(filepath.Join(dir, badgerDir), db.log); err != nil {
		return nil, err
	}
	db.space.owe(db.active.bytes)
	db.stockUp()
	db.lastUse = time.Now()
	go db.runFlusher()
	db.wake()
	return db, nil
}

// makeDir makes dir if need be and closes it to others, whatever the umask.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the store: %w", spaceErr(err))
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("closing the store to others: %w", err)
	}
	return nil
}

// openSpace looks at the disk.
func (db *DB) openSpace() error {
	stat := db.opts.statfs
	if stat == nil {
		stat = statfs
	}
	_, total, err := stat(db.dir)
	if err != nil {
		return err
	}
	db.sizes = sizesFor(total, db.opts.ReserveBytes)
	if db.opts.sizes != nil {
		db.sizes = *db.opts.sizes
	}
	db.space = &space{dir: db.dir, reserve: db.sizes.reserve, statfs: stat}
	return nil
}

// openLog replays the log into the active table and readies it for appending.
func (db *DB) openLog(lastBoot string) error {
	check := db.opts.CheckReplay
	if boot := bootID(); boot != "" && boot == lastBoot {
		check = nil // the page cache has had everything since
	}
	var deletes map[string]int
	if check != nil {
		var err error
		if deletes, err = lastDeletes(db.logDir, db.id); err != nil {
			return fmt.Errorf("recovering the store in %s: %w", db.dir, err)
		}
	}
	n := 0
	r, err := replayLog(db.logDir, db.id, func(payload []byte) error {
		n++
		return db.replayBatch(payload, func(k, v []byte) error {
			if check == nil || deletes[string(k)] > n {
				return nil
			}
			return check(k, v)
		})
	})
	if err != nil {
		return fmt.Errorf("recovering the store in %s: %w", db.dir, err)
	}
	db.recovered = Recovery{Batches: r.records, Lost: r.lost, Where: r.where}
	if r.lost {
		db.log.Error("store: the log has a hole; what came after it is lost (power cut, or damage)",
			"batches_kept", r.records, "hole", r.where)
	}
	db.active.segs = r.segs
	for _, s := range r.segs {
		db.active.bytes += s.tail
	}
	db.nextSeq = r.lastSeq + 1
	if len(r.segs) == 0 {
		db.nextSeq = max(db.nextSeq, 1)
		if db.seg, err = db.newSegment(); err == nil {
			db.active.segs = []*segment{db.seg}
		}
		return err
	}
	db.seg = r.segs[len(r.segs)-1]
	db.syncedSeq = db.seg.first - 1
	// From here on the records have another salt, so nothing that stands behind
	// the tail can ever be taken for one.
	salt := newSalt()
	rec := append(make([]byte, recHdrLen, recHdrLen+1+saltLen), recSalt)
	rec = append(rec, salt[:]...)
	if err := db.appendRecord(rec, true); err != nil {
		return err
	}
	db.seg.salt = saltCRC(salt)
	return nil
}

// replayBatch puts a batch of the log into the active table.
func (db *DB) replayBatch(payload []byte, check func(k, v []byte) error) error {
	var bad error
	err := decodeBatch(payload, func(k, v []byte) {
		if v != nil && bad == nil {
			bad = check(k, v)
		}
	})
	if err == nil && bad != nil {
		db.log.Error("store: the log points at bytes that are not on the disk", "err", bad)
		return errStopReplay
	}
	return decodeBatch(payload, db.active.set)
}

// SetBeforeFlush replaces Options.BeforeFlush; nil: none.
func (db *DB) SetBeforeFlush(f func() error) {
	if f == nil {
		f = func() error { return nil }
	}
	db.hook.Store(&f)
}

// Recovered tells what Open found in the log.
func (db *DB) Recovered() Recovery { return db.recovered }

// StoreID is a random number that the store got when it was made.
func (db *DB) StoreID() [16]byte { return db.id }

// CheckSpace returns ErrNoSpace when n more bytes would eat into the reserve,
// and counts them as used if not.
func (db *DB) CheckSpace(n int64) error { return db.space.claim(n) }

// SpaceLow tells whether the disk is so full that growing batches get ErrNoSpace, or
// soon will: less than twice the reserve is free.
func (db *DB) SpaceLow() (bool, error) { return db.space.low() }

// DiskBytes is what the files of the store's log and of Badger take on the disk,
// in bytes, including what is allocated ahead.
func (db *DB) DiskBytes() (int64, error) {
	logBytes, err := diskBytes(db.logDir)
	if err != nil {
		return 0, err
	}
	badgerBytes, err := diskBytes(filepath.Join(db.dir, badgerDir))
	return logBytes + badgerBytes, err
}

func (db *DB) fault(step string) error {
	if db.opts.Fault == nil {
		return nil
	}
	return db.opts.Fault(step)
}

// Close hands everything to Badger and closes the store. If that cannot be, for
// want of space say, everything stays in the log for the next Open, and Close
// says nothing of it but in the log: nothing is lost. Only the first call does
// something. Calls under way end with ErrClosed or in good order.
func (db *DB) Close() error {
	db.wmu.Lock()
	if db.closing {
		db.wmu.Unlock()
		return nil
	}
	db.closing = true
	db.flushed.Broadcast()
	db.wmu.Unlock()
	close(db.stop)
	<-db.stopped
	db.awaitMerge()
	db.readers.close()

	if err := db.finalFlush(); err != nil {
		db.log.Warn("store: closing with records left in the log, the next open has them", "err", err)
	}
	err := db.syncLog()
	db.abandon()
	return err
}

func (db *DB) awaitMerge() {
	db.wmu.Lock()
	defer db.wmu.Unlock()
	for db.merging {
		db.flushed.Wait()
	}
}

// abandon closes what is open, in whatever state.
func (db *DB) abandon() {
	if db.base != nil {
		db.base.close()
	}
	for _, t := range append(db.frozen, db.active) {
		for _, s := range t.segs {
			s.f.Close()
		}
	}
	if db.lock != nil {
		db.lock.Close()
	}
}

// gate counts the readers inside and lets none in once it is closed.
type gate struct {
	n     atomic.Int64 // readers inside, less gateClosed when closed
	empty chan struct{}
}

const gateClosed = 1 << 62

func (g *gate) init() { g.empty = make(chan struct{}, 1) }

// enter reports whether the gate is open; then leave must follow.
func (g *gate) enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == -gateClosed {
		select {
		case g.empty <- struct{}{}:
		default:
		}
	}
}

// close waits for the last reader to leave.
func (g *gate) close() {
	if g.n.Add(-gateClosed) != -gateClosed {
		<-g.empty
	}
}
