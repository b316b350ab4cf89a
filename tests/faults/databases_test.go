package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// badgerOptions are small files, so that tables are written and logs change while it works.
func badgerOptions(dir string) badger.Options {
	return badger.DefaultOptions(dir).WithLoggingLevel(badger.ERROR).WithSyncWrites(true).
		WithMemTableSize(1 << 20).WithValueLogFileSize(2 << 20).WithValueThreshold(256).WithNumCompactors(2).WithBaseTableSize(256 << 10)
}

// Badger writes its logs through shared mappings. A checkpoint has them as of one instant: after a rollback it opens, and has
// every transaction that was committed before the checkpoint was asked for.
func TestBadgerAtCheckpoints(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: mounttest.Empty})
	dir := m.Path("badger")
	key := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	value := func(n uint64) []byte { return fmt.Append(make([]byte, n%600), n) }

	db, err := badger.Open(badgerOptions(dir))
	ok(t, err)
	var committed atomic.Uint64
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := db.Update(func(txn *badger.Txn) error { return txn.Set(key(n), value(n)) }); err != nil {
				done <- err
				return
			}
			committed.Store(n)
		}
	}()
	const checkpoints = 12
	var before [checkpoints]uint64
	for i := range before {
		at := committed.Load()
		mounttest.WaitFor(t, "transactions", func() bool { return committed.Load() > at+20 || len(done) > 0 })
		before[i] = committed.Load()
		m.Checkpoint(fmt.Sprint("c", i))
	}
	close(stop)
	ok(t, errors.Join(<-done, db.Close()))

	for i := checkpoints - 1; i >= 0; i-- {
		m.Rollback(fmt.Sprint("c", i))
		db, err := badger.Open(badgerOptions(dir))
		if err != nil {
			t.Fatalf("checkpoint %d: %v", i, err)
		}
		ok(t, db.View(func(txn *badger.Txn) error {
			n := uint64(1)
			for ; ; n++ {
				item, err := txn.Get(key(n))
				if errors.Is(err, badger.ErrKeyNotFound) {
					break
				}
				if err != nil {
					return fmt.Errorf("transaction %d: %w", n, err)
				}
				if err := item.Value(func(v []byte) error {
					if string(v) != string(value(n)) {
						return io.ErrUnexpectedEOF
					}
					return nil
				}); err != nil {
					return fmt.Errorf("value of transaction %d: %w", n, err)
				}
			}
			if n-1 < before[i] {
				t.Errorf("checkpoint %d has %d transactions; %d were committed before it", i, n-1, before[i])
			}
			return nil
		}))
		ok(t, db.Close())
	}
}
