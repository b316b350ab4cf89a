package kv

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// Get returns the value of key. The value is read-only and stays valid.
func (db *DB) Get(key []byte) (val []byte, ok bool, err error) {
	if !db.readers.enter() {
		return nil, false, ErrClosed
	}
	defer db.readers.leave()
	if err := db.fault("get"); err != nil {
		return nil, false, fmt.Errorf("reading key %q: %w", key, err)
	}
	db.mu.RLock()
	val, ok = db.active.get(key)
	for i := len(db.frozen) - 1; i >= 0 && !ok; i-- {
		val, ok = db.frozen[i].get(key)
	}
	db.mu.RUnlock()
	if ok {
		return val, val != nil, nil
	}
	if val, ok, err = db.base.get(key); err != nil {
		return nil, false, fmt.Errorf("reading key %q: %w", key, err)
	}
	return val, ok, nil
}

// Scan calls fn for the keys with prefix that are >= from (nil: the first),
// ascending, until fn returns false. k and v are read-only and valid during the
// call only. fn may read from the DB but not write to it.
//
// Everything applied before the Scan is seen; of what is applied meanwhile any
// part may be seen.
func (db *DB) Scan(prefix, from []byte, fn func(k, v []byte) bool) error {
	if !db.readers.enter() {
		return ErrClosed
	}
	defer db.readers.leave()
	if err := db.fault("scan"); err != nil {
		return fmt.Errorf("reading keys from %q: %w", prefix, err)
	}
	if bytes.Compare(from, prefix) < 0 {
		from = prefix
	}
	s := scanners.Get().(*scanner)
	defer s.release()
	s.start(db, str(prefix), from)
	if err := s.run(fn); err != nil {
		return fmt.Errorf("reading keys from %q: %w", prefix, err)
	}
	return nil
}

// Items read from a table at once: few for a start, as most scans are short.
const (
	firstRead = 8
	laterRead = 256
)

// cursor walks the items of one table in order, some at a time, so that no lock
// is held while the items are looked at.
type cursor struct {
	t     *table
	mu    *sync.RWMutex // guards t.keys
	items []item        // read and not yet consumed
	buf   []item        // what items is a part of
	more  bool          // t may have items behind
	first [firstRead]item
}

// head returns the next item, nil at the end.
func (c *cursor) head(prefix string) *item {
	if len(c.items) == 0 && c.more {
		// The least key behind the last one is that key and a zero byte.
		from := c.buf[len(c.buf)-1].key + "\x00"
		c.buf = make([]item, 0, laterRead)
		c.mu.RLock()
		c.read(prefix, from)
		c.mu.RUnlock()
	}
	if len(c.items) == 0 {
		return nil
	}
	return &c.items[0]
}

// read fills the empty buffer. The caller holds mu.
func (c *cursor) read(prefix, from string) {
	c.buf, c.more = c.t.collect(prefix, from, c.buf[:0])
	c.items = c.buf
}

// scanner merges the tables of one moment, newest first, and Badger. A table
// stays what it was after its flush, so a flush meanwhile changes nothing.
type scanner struct {
	prefix  string
	cursors [1 + maxFrozen]cursor
	n       int // cursors in use
	base    *base
	gen     *generation
	under   *badger.Iterator // nil: nothing there
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

func (s *scanner) start(db *DB, prefix string, from []byte) {
	s.prefix, s.n = prefix, 0
	db.mu.RLock()
	s.add(db.active, &db.mu, from)
	for i := len(db.frozen) - 1; i >= 0; i-- {
		s.add(db.frozen[i], &db.mu, from)
	}
	db.mu.RUnlock()
	s.base, s.gen = db.base, db.base.use()
	if !s.gen.empty {
		s.under = s.gen.txn.NewIterator(badger.IteratorOptions{Prefix: view(prefix)})
		s.under.Seek(from)
	}
}

func (s *scanner) add(t *table, mu *sync.RWMutex, from []byte) {
	c := &s.cursors[s.n]
	c.t, c.mu, c.buf = t, mu, c.first[:0]
	c.read(s.prefix, str(from))
	s.n++
}

func (s *scanner) release() {
	if s.under != nil {
		s.under.Close()
	}
	s.base.done(s.gen)
	for i := range s.cursors[:s.n] {
		s.cursors[i] = cursor{} // drop what the garbage collector may want
	}
	s.base, s.gen, s.under, s.n, s.prefix = nil, nil, nil, 0, ""
	scanners.Put(s)
}

func (s *scanner) run(fn func(k, v []byte) bool) error {
	for {
		it := s.least()
		var below []byte
		if s.under != nil && s.under.ValidForPrefix(view(s.prefix)) {
			below = s.under.Item().Key()
		}
		switch {
		case it == nil && below == nil:
			return nil
		case it == nil || below != nil && str(below) < it.key:
			more, err := s.fromBadger(fn)
			if err != nil || !more {
				return err
			}
			continue
		case str(below) == it.key:
			s.under.Next()
		}
		key, val := it.key, it.val
		s.skip(key)
		if val != nil && !fn(view(key), val) {
			return nil
		}
	}
}

// least returns the item with the least key, of the newest table that has it.
func (s *scanner) least() (least *item) {
	for i := range s.cursors[:s.n] {
		if it := s.cursors[i].head(s.prefix); it != nil && (least == nil || it.key < least.key) {
			least = it
		}
	}
	return least
}

// skip moves every table behind key.
func (s *scanner) skip(key string) {
	for i := range s.cursors[:s.n] {
		c := &s.cursors[i]
		if len(c.items) > 0 && c.items[0].key == key {
			c.items = c.items[1:]
		}
	}
}

func (s *scanner) fromBadger(fn func(k, v []byte) bool) (more bool, err error) {
	it := s.under.Item()
	err = it.Value(func(v []byte) error {
		more = fn(it.Key(), v)
		return nil
	})
	s.under.Next()
	return more, badgerErr(err)
}
