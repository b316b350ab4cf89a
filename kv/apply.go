package kv

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"
)

// Apply makes the batch visible and safe against the death of the process, all
// of it or, with an error, nothing. Batches become visible in the order in which
// they got into the log. The batch may be Reset and used again afterwards.
//
// Errors: ErrNoSpace, ErrTooBig, ErrClosed, and what the disk says. After a
// failed Apply the DB is as it was before and can be used on.
func (db *DB) Apply(b *Batch) error {
	if len(b.ops) == 0 {
		return nil
	}
	if err := b.check(); err != nil {
		return err
	}
	db.wmu.Lock()
	defer db.wmu.Unlock()
	if err := db.makeRoom(b.reserve); err != nil {
		return err
	}
	rec := b.encode(append(append(db.buf[:0], make([]byte, recHdrLen)...), recBatch))
	if cap(rec) <= mib {
		db.buf = rec
	}
	if len(rec)-recHdrLen > maxPayload {
		return fmt.Errorf("batch of %d bytes: %w", len(rec), ErrTooBig)
	}
	if err := db.appendRecord(rec, b.reserve); err != nil {
		return err
	}
	db.mu.Lock()
	for _, o := range b.ops {
		db.active.set(o.key, o.val)
	}
	db.mu.Unlock()
	due := db.worthFlush()
	db.active.bytes += int64(len(rec))
	db.space.owe(int64(len(rec)))
	db.lastUse = time.Now()
	if !due && db.worthFlush() || db.full() {
		db.wake()
	}
	return nil
}

// full says that the active table should go to Badger. The caller holds wmu.
func (db *DB) full() bool {
	return db.active.bytes >= db.sizes.segment || db.active.keys.Len() >= maxTableKeys
}

// worthFlush says that the active table should go to Badger when Apply rests. The
// caller holds wmu.
func (db *DB) worthFlush() bool { return db.active.bytes >= min(idleBytes, db.sizes.segment/2) }

// makeRoom rotates a full table, and waits for the flusher when it is too far
// behind. It does not wait for a flusher that cannot get on: then the log takes
// what it has room for. The caller holds wmu.
func (db *DB) makeRoom(reserve bool) error {
	for {
		if db.closing {
			return ErrClosed
		}
		if !db.full() {
			return nil
		}
		if db.frozenN-db.doneN < maxFrozen {
			err := db.rotate()
			if errors.Is(err, ErrNoSpace) {
				return nil
			}
			return err
		}
		if db.flushErr != nil {
			if !reserve && db.active.bytes >= 4*db.sizes.segment {
				return fmt.Errorf("the store cannot write back: %w", db.flushErr)
			}
			return nil
		}
		db.flushed.Wait()
	}
}

// rotate freezes the active table and begins another one with a segment of its
// own. The caller holds wmu.
func (db *DB) rotate() error {
	if db.active.keys.Len() == 0 {
		return nil
	}
	s, err := db.newSegment()
	if err != nil {
		return err
	}
	db.mu.Lock()
	db.frozen = append(db.frozen[:len(db.frozen):len(db.frozen)], db.active)
	db.active = &table{segs: []*segment{s}}
	db.mu.Unlock()
	db.seg = s
	db.frozenN++
	db.wake()
	return nil
}

// newSegment makes a segment for the records from nextSeq on. The caller holds
// wmu, or is Open.
func (db *DB) newSegment() (*segment, error) {
	if err := db.fault("log.extend"); err != nil {
		return nil, fmt.Errorf("creating log segment: %w", spaceErr(err))
	}
	db.spareMu.Lock()
	defer db.spareMu.Unlock()
	return createSegment(db.logDir, db.id, db.nextSeq, db.step())
}

// appendRecord seals rec and writes it to the log. The caller holds wmu, or is Open.
func (db *DB) appendRecord(rec []byte, reserve bool) error {
	if err := db.reserveLog(int64(len(rec)), reserve, rec[recHdrLen] == recSalt); err != nil {
		return err
	}
	sealRecord(rec, db.seg.salt, db.nextSeq)
	if err := db.writeRecord(rec); err != nil {
		return err
	}
	db.nextSeq++
	return nil
}

// lastBytes at the end of the log's blocks are for Open, which must write a record
// also on a disk without a free block.
const lastBytes = 1024

// reserveLog gets blocks for n more bytes of log. A step is always ahead, so that
// deleting and rolling back work for a while even on a disk without a free block.
func (db *DB) reserveLog(n int64, reserve, opening bool) error {
	s := db.seg
	if !reserve {
		if err := db.space.claim(n); err != nil {
			return fmt.Errorf("writing to the store: %w", err)
		}
	}
	if s.tail+n+db.step()/2 <= s.alloc {
		return nil
	}
	db.trimmed.Store(false)
	err := db.logFull
	if err == nil || time.Since(db.noStep) > spaceAge { // an attempt that fails is slow
		err = db.extendLog(s.tail+n+db.step(), reserve)
		db.logFull, db.noStep = err, time.Now()
	}
	if s.tail+n+lastBytes <= s.alloc || opening && s.tail+n <= s.alloc {
		return nil // a later one will see about the blocks ahead
	}
	return err
}

func (db *DB) extendLog(size int64, reserve bool) error {
	if err := db.fault("log.extend"); err != nil {
		return fmt.Errorf("extending the log: %w", spaceErr(err))
	}
	err := db.space.roomForLog(size - db.seg.alloc)
	if err == nil {
		err = db.seg.extend(size)
	}
	if errors.Is(err, ErrNoSpace) && reserve && db.dropSpare() {
		db.log.Warn("store: disk is full, the log takes the blocks of the spare segment", "dir", db.dir)
		err = db.seg.extend(size - db.step()/2)
	}
	return err
}

// dropSpare gives the blocks of the spare segment back, if there is one.
func (db *DB) dropSpare() bool {
	db.spareMu.Lock()
	defer db.spareMu.Unlock()
	return os.Remove(filepath.Join(db.logDir, spareName)) == nil
}

// shortWrite is a fault of tests: only n bytes get to the file.
type shortWrite struct {
	n   int
	err error
}

func (e *shortWrite) Error() string { return fmt.Sprintf("short write of %d bytes: %v", e.n, e.err) }
func (e *shortWrite) Unwrap() error { return e.err }

func (db *DB) writeRecord(rec []byte) error {
	if err := db.fault("log.write"); err != nil {
		var short *shortWrite
		if errors.As(err, &short) {
			db.seg.f.WriteAt(rec[:min(short.n, len(rec))], db.seg.tail)
		}
		db.seg.wipe()
		return fmt.Errorf("writing to the log: %w", spaceErr(err))
	}
	return db.seg.append(rec)
}

func saltCRC(salt [saltLen]byte) uint32 { return crc32.Checksum(salt[:], crcTable) }

// wake tells the flusher to look around.
func (db *DB) wake() {
	select {
	case db.kick <- struct{}{}:
	default:
	}
}
