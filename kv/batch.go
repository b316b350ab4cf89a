package kv

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
)

// Limits of a key and of a value, in bytes. Larger things belong into chunks.
const (
	MaxKey   = 4 << 10
	MaxValue = 512 << 10
)

// noValue is what a put without a value stores: nil means "deleted" in a table.
var noValue = []byte{}

// op is one change. A nil val deletes the key.
type op struct{ key, val []byte }

// Batch collects puts and deletes that Apply makes visible together; of two for
// one key the later one counts. The zero Batch is ready for use. A Batch is for
// one goroutine at a time.
type Batch struct {
	ops     []op
	reserve bool
}

// Put sets key to value. It takes ownership of both slices.
func (b *Batch) Put(key, value []byte) {
	if value == nil {
		value = noValue
	}
	b.ops = append(b.ops, op{key, value})
}

// Delete removes key, present or not. It takes ownership of the slice.
func (b *Batch) Delete(key []byte) { b.ops = append(b.ops, op{key, nil}) }

// Len is the number of puts and deletes.
func (b *Batch) Len() int { return len(b.ops) }

// UseReserve lets the batch into the space that is kept for getting out of a
// full disk: deletes, rollback, the daemon's own bookkeeping.
func (b *Batch) UseReserve() { b.reserve = true }

// Reset empties the batch for another use.
func (b *Batch) Reset() {
	clear(b.ops)
	b.ops, b.reserve = b.ops[:0], false
}

// Append adds all of other's puts and deletes behind b's own; other may not be
// applied itself afterwards.
func (b *Batch) Append(other *Batch) {
	b.ops = append(b.ops, other.ops...)
	b.reserve = b.reserve || other.reserve
}

// Ops yields the puts and deletes in order; a delete has a nil value.
func (b *Batch) Ops() iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		for _, o := range b.ops {
			if !yield(o.key, o.val) {
				return
			}
		}
	}
}

// check finds what Badger could not take later, when nobody could be told.
func (b *Batch) check() error {
	for _, o := range b.ops {
		if len(o.key) == 0 || len(o.key) > MaxKey || len(o.val) > MaxValue {
			return fmt.Errorf("key of %d bytes (limit %d), value of %d bytes (limit %d): %w",
				len(o.key), MaxKey, len(o.val), MaxValue, ErrTooBig)
		}
	}
	return nil
}

// A batch in the log: uvarint count, then for each op uvarint key length, key,
// uvarint value length + 1 (0: delete), value.

// encodedSize is the length of what encode appends, in bytes, or a little more.
func (b *Batch) encodedSize() int {
	n := binary.MaxVarintLen32
	for i := range b.ops {
		n += len(b.ops[i].key) + len(b.ops[i].val) + 2 + 4
	}
	return n
}

func (b *Batch) encode(p []byte) []byte {
	p = binary.AppendUvarint(slices.Grow(p, b.encodedSize()), uint64(len(b.ops)))
	for _, o := range b.ops {
		p = append(binary.AppendUvarint(p, uint64(len(o.key))), o.key...)
		if o.val == nil {
			p = append(p, 0)
			continue
		}
		p = append(binary.AppendUvarint(p, uint64(len(o.val))+1), o.val...)
	}
	return p
}

// decodeBatch calls fn for the ops in p, with slices of p.
func decodeBatch(p []byte, fn func(key, val []byte)) error {
	count, p, ok := cutUvarint(p)
	for ; ok && count > 0; count-- {
		var key, val []byte
		var n uint64
		if n, p, ok = cutUvarint(p); !ok || n == 0 || n > uint64(len(p)) {
			return errBadBatch
		}
		key, p = p[:n:n], p[n:]
		if n, p, ok = cutUvarint(p); !ok || n > uint64(len(p))+1 {
			return errBadBatch
		}
		if n > 0 {
			val, p = p[:n-1:n-1], p[n-1:]
		}
		fn(key, val)
	}
	if !ok || len(p) != 0 {
		return errBadBatch
	}
	return nil
}

func cutUvarint(p []byte) (n uint64, rest []byte, ok bool) {
	n, l := binary.Uvarint(p)
	if l <= 0 {
		return 0, p, false
	}
	return n, p[l:], true
}
