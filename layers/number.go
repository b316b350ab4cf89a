package layers

import (
	"fmt"

	"github.com/rewindfs/rewindfs/kv"
)

// The inode numbers of a tree, by whom they are given. They have InoBits bits.
//
//	            .. 2^40-1  by the base's own file system
//	firstOwnIno .. 2^47-1  by a counter of ours, to objects made in the tree
//	firstMapped .. 2^48-1  by another counter, to base objects that cannot keep theirs
const (
	firstOwnIno Ino = 1 << 40
	firstMapped Ino = 1 << 47

	// InoBits is the width of an Ino: the bits above are free for node ids.
	InoBits = 48
)

// ofBase reports whether i is the number of an object that the base has or had.
func (i Ino) ofBase() bool { return i < firstOwnIno || i >= firstMapped }

// inoStride is how many inode numbers are reserved in the store at a time: a crash skips at most that many.
const inoStride = 1 << 12

// inoCounter gives out inode numbers. Guarded by Tree.mu.
type inoCounter struct {
	key   string // of the meta record
	next  Ino    // next number to give out
	limit Ino    // numbers below are reserved in the store
}

// take gives out a number, reserving more in b when it must. The caller holds the tree's mu.
func (c *inoCounter) take(b *kv.Batch) Ino {
	if c.next >= c.limit {
		c.limit = c.next + inoStride
		putCounter(b, c.key, uint64(c.limit))
	}
	c.next++
	return c.next - 1
}

// inoOf gives the base object st at path p its inode number: its own, unless that
// is too large, of another device, or taken by a different object that was copied up or
// that older generations of the base go on showing.
func (t *Tree) inoOf(p string, st *baseStat) (Ino, error) {
	if st.given != 0 {
		return st.given, nil
	}
	ino := Ino(st.ino)
	if st.dev == t.base.dev && ino > RootIno && ino < firstOwnIno && !t.kept.Load().taken(ino, p, st) {
		if _, ok := t.copied[ino]; !ok {
			return ino, nil
		}
		o, err := t.anyOrigin(ino)
		if err != nil {
			return 0, err
		}
		if o == nil || o.is(p, st) {
			return ino, nil
		}
	}
	return t.mappedIno(p, st)
}

// is reports whether st at path p is the object of o. A hard link of it is.
func (o *origin) is(p string, st *baseStat) bool {
	return o.ino == st.ino && o.btime == st.btime && (o.path == p || (!st.isDir() && st.nlink > 1))
}

// mappedIno returns the number recorded for the object at p, recording one if need
// be. The names of an object with several share it.
func (t *Tree) mappedIno(p string, st *baseStat) (Ino, error) {
	keys := [][]byte{kv.BaseIno(p)}
	if st.nlink > 1 && !st.isDir() {
		keys = append(keys, kv.BaseLink(st.dev, st.ino))
	}
	ino := Ino(0)
	var missing [][]byte
	for _, key := range keys {
		v, _, err := t.db.Get(key)
		if err != nil {
			return 0, err
		}
		if known, ok := mappedTo(v, st); !ok {
			missing = append(missing, key)
		} else if ino == 0 {
			ino = known
		}
	}
	if len(missing) == 0 {
		return ino, nil
	}
	var b kv.Batch
	b.UseReserve()
	if ino == 0 {
		ino = t.mapped.take(&b)
	}
	var e enc
	e.u(uint64(ino))
	e.u(st.ino)
	e.time(st.btime)
	for _, key := range missing {
		b.Put(key, e.b)
	}
	if err := t.db.Apply(&b); err != nil {
		return 0, fmt.Errorf("record inode number of base object %q: %w", p, err)
	}
	return ino, nil
}

// mappedTo reads a record of mappedIno, which says nothing if it is of another object than st.
func mappedTo(v []byte, st *baseStat) (Ino, bool) {
	d := dec{b: v}
	ino, same := Ino(d.u()), d.u() == st.ino && d.time() == st.btime
	if d.err != nil || !same {
		return 0, false
	}
	return ino, true
}
