package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// retryFlush is how long the flusher rests after a failure.
	retryFlush = time.Second
	// idleBytes of log are not worth a flush when Apply rests: that many are
	// replayed in no time.
	idleBytes = 2 * mib
	// spareSteps bounds the spare segment, in steps of allocation.
	spareSteps = 4
)

// runFlusher hands tables to Badger until the DB is closed. It is the only one
// who writes to Badger.
func (db *DB) runFlusher() {
	defer close(db.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-db.stop:
			return
		case <-db.kick:
		case <-timer.C:
		}
		timer.Stop()
		if wait := db.flushDue(); wait > 0 {
			timer.Reset(wait)
		}
	}
}

// flushDue flushes what waits, freezes an idle or full table before, and returns
// after how long to look again; 0: not before there is a kick.
func (db *DB) flushDue() time.Duration {
	for {
		db.wmu.Lock()
		var idle time.Duration
		n := db.active.keys.Len()
		if n > 0 && len(db.frozen) == 0 && (db.worthFlush() || db.full()) {
			idle = db.opts.FlushIdle - time.Since(db.lastUse)
			if idle <= 0 || db.full() {
				if err := db.rotate(); err != nil {
					db.noteFlush(err)
					db.wmu.Unlock()
					return retryFlush
				}
			}
		}
		waiting := len(db.frozen)
		closing := db.closing
		rest := time.Duration(0)
		if db.flushErr != nil && !db.urgent {
			rest = retryFlush - time.Since(db.lastTry)
		}
		db.urgent = false
		db.wmu.Unlock()
		if closing {
			return 0
		}
		if waiting > 0 && rest > 0 {
			return rest
		}
		if waiting == 0 {
			db.stockUp()
			return max(idle, 0)
		}
		if db.flushOldest() != nil {
			return retryFlush
		}
		db.startMerge()
	}
}

// startMerge lets the database be tidied up, next to the flusher.
func (db *DB) startMerge() {
	db.wmu.Lock()
	defer db.wmu.Unlock()
	if db.merging || db.closing {
		return
	}
	db.merging = true
	go func() { db.endMerge(db.base.merge(db.space)) }()
}

// endMerge notes that the merge under way has ended with err.
func (db *DB) endMerge(err error) {
	db.wmu.Lock()
	defer db.wmu.Unlock()
	if err != nil && db.mergeErr == nil {
		db.log.Warn("store: badger's tables are not merged", "err", err)
	}
	db.mergeErr = err
	db.merging = false
	db.flushed.Broadcast()
}

// Compact hands everything to Badger and makes it give the disk back what deleted and
// overwritten records take, as far as there is room for the files that this takes to
// write. It reads the whole index.
func (db *DB) Compact() error { return db.compact(false) }

func (db *DB) compact(all bool) error {
	ferr := db.Flush() // without room for it, there may be some afterwards
	db.wmu.Lock()
	for db.merging && !db.closing {
		db.flushed.Wait()
	}
	if db.closing {
		db.wmu.Unlock()
		return ErrClosed
	}
	db.merging = true
	db.wmu.Unlock()
	err := db.base.compact(db.space, all)
	db.endMerge(err)
	return errors.Join(ferr, err, db.trimSpare())
}

// TrimLog gives back what the log has allocated ahead, but for a part of a step, until something is written again: for a store
// at rest to take little more than what it holds. On a disk that is nearly full it does nothing: there the blocks are needed.
func (db *DB) TrimLog() error {
	if low, err := db.space.low(); err != nil || low {
		return err
	}
	db.wmu.Lock()
	defer db.wmu.Unlock()
	if db.closing {
		return ErrClosed
	}
	db.trimmed.Store(true)
	return errors.Join(db.seg.trim(db.seg.tail+db.step()), db.trimSpare())
}

// trimSpare leaves the spare segment one step: a burst of writes may have left it larger.
func (db *DB) trimSpare() error {
	db.spareMu.Lock()
	defer db.spareMu.Unlock()
	spare := filepath.Join(db.logDir, spareName)
	st, err := os.Lstat(spare)
	if err == nil && st.Size() > db.step() {
		err = os.Truncate(spare, db.step())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("shorten the spare log segment: %w", err)
	}
	return nil
}

// Scrub leaves no byte of a deleted or overwritten record in the files of the store: it writes Badger's tables anew, and
// zeros over what earlier uses of the log left in its segments. ErrNoSpace when there is no room for the tables.
func (db *DB) Scrub() error {
	if err := db.compact(true); err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	db.wmu.Lock()
	defer db.wmu.Unlock()
	err := db.seg.blank()
	db.spareMu.Lock()
	defer db.spareMu.Unlock()
	if rmErr := os.Remove(filepath.Join(db.logDir, spareName)); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	if err != nil {
		return fmt.Errorf("scrub the log: %w", spaceErr(err))
	}
	return nil
}

// stockUp allocates a spare log segment, if there is room: it gets the store
// through a full disk.
func (db *DB) stockUp() {
	db.spareMu.Lock()
	defer db.spareMu.Unlock()
	if err := db.space.stock(filepath.Join(db.logDir, spareName), db.step()); err != nil {
		db.log.Warn("store: no spare log segment", "err", err)
	}
}

// flushOldest hands the oldest frozen table to Badger and recycles its segments.
// When it fails, table and segments stay. Only the flusher, or Close after the
// flusher's end, may call it.
func (db *DB) flushOldest() error {
	db.mu.RLock()
	t := db.frozen[0]
	db.mu.RUnlock()
	err := db.flushTable(t)
	if err == nil {
		db.mu.Lock()
		db.frozen = append([]*table(nil), db.frozen[1:]...)
		db.mu.Unlock()
		db.recycle(t)
		db.space.owe(-t.bytes)
	}
	db.wmu.Lock()
	if err == nil {
		db.doneN++
	}
	db.noteFlush(err)
	db.wmu.Unlock()
	return err
}

// noteFlush records the result of an attempt to flush. The caller holds wmu.
func (db *DB) noteFlush(err error) {
	if err != nil && db.flushErr == nil {
		db.log.Warn("store: records stay in the log for now", "err", err)
	}
	if err == nil && db.flushErr != nil {
		db.log.Info("store: records go to badger again")
	}
	db.flushErr = err
	db.attempts++
	db.lastTry = time.Now()
	db.flushed.Broadcast()
}

func (db *DB) flushTable(t *table) error {
	// The log first: what a power cut leaves in Badger must be in the log too.
	if err := db.syncTable(t); err != nil {
		return err
	}
	if err := db.fault("badger.flush"); err != nil {
		return fmt.Errorf("handing records to badger: %w", spaceErr(err))
	}
	return db.base.write(t)
}

// syncTable makes the segments of t durable. One whose sync failed once is
// beyond trust; its records are made durable by Badger alone.
func (db *DB) syncTable(t *table) error {
	db.syncMu.Lock()
	defer db.syncMu.Unlock()
	if err := (*db.hook.Load())(); err != nil {
		return fmt.Errorf("before a flush: %w", err)
	}
	for _, s := range t.segs {
		if s.suspect {
			continue
		}
		if err := db.syncSegment(s); err != nil {
			return err
		}
	}
	return nil
}

// syncSegment makes s and its name durable. The caller holds syncMu.
func (db *DB) syncSegment(s *segment) error {
	if err := db.fault("log.sync"); err != nil {
		s.suspect = true
		return fmt.Errorf("syncing the log: %w", spaceErr(err))
	}
	if err := s.datasync(); err != nil {
		return err
	}
	if s.first > db.dirSynced {
		if err := syncDir(db.logDir); err != nil {
			return err
		}
		db.dirSynced = s.first
	}
	return nil
}

// recycle takes the segments of a flushed table out of the log. One of them is
// kept for its blocks. If that fails, the next Open replays them, harmlessly.
func (db *DB) recycle(t *table) {
	db.syncMu.Lock()
	defer db.syncMu.Unlock()
	db.spareMu.Lock()
	defer db.spareMu.Unlock()
	var errs []error
	for _, s := range t.segs {
		spare := filepath.Join(db.logDir, spareName)
		if _, err := os.Lstat(spare); err == nil {
			errs = append(errs, os.Remove(s.path))
		} else {
			// First out of the log, then shorter: a log whose older segment ends early
			// has a hole, and the next Open would give up all that came after it.
			err := os.Rename(s.path, spare)
			if err == nil {
				err = db.fault("log.recycle")
			}
			if keep := spareSteps * db.step(); err == nil && s.alloc > keep {
				err = s.f.Truncate(keep)
			}
			errs = append(errs, err)
		}
		errs = append(errs, s.f.Close())
	}
	errs = append(errs, syncDir(db.logDir))
	if err := errors.Join(errs...); err != nil {
		db.log.Warn("store: recycling a log segment", "err", err)
	}
}

// Sync makes every batch whose Apply had returned survive a power cut. Callers
// at the same time share one wait for the disk.
func (db *DB) Sync() error {
	db.wmu.Lock()
	if db.closing {
		db.wmu.Unlock()
		return ErrClosed
	}
	target := db.nextSeq - 1
	db.wmu.Unlock()

	db.syncMu.Lock()
	if db.syncedSeq >= target {
		db.syncMu.Unlock()
		return nil
	}
	suspect, err := db.syncAll()
	db.syncMu.Unlock()
	if err == nil && suspect {
		// The log cannot vouch for these records any more; Badger can.
		return db.Flush()
	}
	return err
}

// syncAll makes all segments durable, but for those it reports as suspect. The
// caller holds syncMu.
func (db *DB) syncAll() (suspect bool, err error) {
	if err := (*db.hook.Load())(); err != nil {
		return false, fmt.Errorf("before a sync: %w", err)
	}
	db.wmu.Lock()
	last := db.nextSeq - 1
	var segs []*segment
	db.mu.RLock()
	for _, t := range db.frozen {
		segs = append(segs, t.segs...)
	}
	db.mu.RUnlock()
	segs = append(segs, db.active.segs...)
	db.wmu.Unlock()
	for i, s := range segs {
		if i+1 < len(segs) && segs[i+1].first-1 <= db.syncedSeq {
			continue // no record in it is newer than the last sync
		}
		if s.suspect {
			suspect = true
			continue
		}
		if err := db.syncSegment(s); err != nil {
			return true, err
		}
	}
	if !suspect {
		db.syncedSeq = max(db.syncedSeq, last)
	}
	return suspect, nil
}

// syncLog is Sync for Close, when nobody else is there any more.
func (db *DB) syncLog() error {
	db.syncMu.Lock()
	defer db.syncMu.Unlock()
	if db.active.keys.Len() == 0 && len(db.frozen) == 0 {
		return nil
	}
	_, err := db.syncAll()
	return err
}

// Flush hands everything that was applied to Badger and waits for it.
func (db *DB) Flush() error {
	db.wmu.Lock()
	defer db.wmu.Unlock()
	for db.frozenN-db.doneN >= maxFrozen {
		if err := db.awaitFlush(db.doneN + 1); err != nil {
			return err
		}
	}
	if db.closing {
		return ErrClosed
	}
	if err := db.rotate(); err != nil {
		return err
	}
	return db.awaitFlush(db.frozenN)
}

// awaitFlush waits until the first n frozen tables are in Badger, or until an
// attempt to bring them there fails. The caller holds wmu.
func (db *DB) awaitFlush(n uint64) error {
	attempts := db.attempts
	for !db.closing && db.doneN < n {
		if db.attempts > attempts && db.flushErr != nil {
			return db.flushErr
		}
		db.urgent = true
		db.wake()
		db.flushed.Wait()
	}
	if db.closing {
		return ErrClosed
	}
	return nil
}

// finalFlush is Flush for Close, after the flusher's end.
func (db *DB) finalFlush() error {
	db.wmu.Lock()
	err := db.rotate()
	db.wmu.Unlock()
	if err != nil {
		return err
	}
	for len(db.frozen) > 0 {
		if err := db.flushOldest(); err != nil {
			return err
		}
	}
	return nil
}
