package kv

import (
	"unsafe"

	"github.com/tidwall/btree"
)

// table holds the newest value of each key that its log segments changed. A nil
// value says that the key is deleted, whatever older tables and Badger hold.
type table struct {
	// keys is guarded by DB.mu while the table is active, and never changes
	// after that. Keys and values are immutable.
	keys btree.Map[string, []byte]
	// segs are the log segments that hold the table's records, oldest first.
	// Guarded by DB.wmu while the table is active.
	segs []*segment
	// bytes counts the log records, in bytes. Guarded by DB.wmu.
	bytes int64
}

// str views b, which nobody changes any more, as a string.
func str(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// view is for handing such a string out as bytes again, read-only.
func view(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

func (t *table) set(key, val []byte) { t.keys.Set(str(key), val) }

func (t *table) get(key []byte) (val []byte, ok bool) { return t.keys.Get(str(key)) }

// item is one key of a table; a nil val is a deletion.
type item struct {
	key string
	val []byte
}

// collect appends the items from key `from` on that start with prefix to buf,
// until buf is full. more says that there may be others behind.
func (t *table) collect(prefix, from string, buf []item) (out []item, more bool) {
	t.keys.Ascend(from, func(k string, v []byte) bool {
		if len(k) < len(prefix) || k[:len(prefix)] != prefix {
			return false
		}
		if len(buf) == cap(buf) {
			more = true
			return false
		}
		buf = append(buf, item{k, v})
		return true
	})
	return buf, more
}
