package layers

import (
	"fmt"
	"hash/maphash"

	"github.com/rewindfs/rewindfs/kv"
)

// The inode numbers of a tree, by whom they are given. They have InoBits bits.
//
//	            .. 2^40-1  by the base's own file system
//	firstOwnIno .. 2^46-1  by a counter of ours, to objects made in the tree
//	firstSourced .. 2^47-1 by another one, to files made in the tree with content of the base:
//	                       so those that depend on the base are found without a look at all
//	firstMapped .. 2^48-1  by a third one, to base objects that cannot keep theirs
const (
	firstOwnIno  Ino = 1 << 40
	firstSourced Ino = 1 << 46
	firstMapped  Ino = 1 << 47

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
	if st.dev == 0 && ino > RootIno && ino < firstOwnIno {
		if _, shared := t.shared[ino]; shared { // whoever once got another one keeps it
			if known, _, err := t.mapping(p, st); err != nil || known != 0 {
				return known, err
			}
		}
		free, err := t.free(ino, p, st)
		if err != nil || free {
			return ino, err
		}
	}
	return t.mappedIno(p, st)
}

// free reports whether st at path p may have the number ino, which is the host's.
func (t *Tree) free(ino Ino, p string, st *baseStat) (bool, error) {
	if mine, known := t.kept.Load().whose(ino, p, st); known {
		return mine, nil
	}
	if _, ok := t.copied[ino]; !ok {
		return true, nil
	}
	id := t.originID(p, st.ino, st.btime)
	if known, ok := t.origins[ino]; ok && known == id {
		return true, nil
	}
	o, err := t.anyOrigin(ino)
	if err != nil || o == nil || !o.is(p, st) {
		return err == nil && o == nil, err
	}
	if o.path == p {
		t.origins[ino] = id
	}
	return true, nil
}

// originID condenses what origin.is compares, with a seed of this process: nobody can make two that collide.
func (t *Tree) originID(path string, ino uint64, btime Time) uint64 {
	return maphash.Comparable(t.seed, struct {
		path  string
		ino   uint64
		btime Time
	}{path, ino, btime})
}

// is reports whether st at path p is the object of o. A hard link of it is.
func (o *origin) is(p string, st *baseStat) bool {
	return o.ino == st.ino && o.btime == st.btime && (o.path == p || (!st.isDir() && st.nlink > 1))
}

// mapping returns the number recorded for the object at p, 0 for none, and the keys
// under which it still is to be recorded. The names of an object with several share it.
func (t *Tree) mapping(p string, st *baseStat) (ino Ino, missing [][]byte, err error) {
	keys := [][]byte{kv.BaseIno(p)}
	if st.nlink > 1 && !st.isDir() {
		keys = append(keys, kv.BaseLink(st.dev, st.ino))
	}
	for _, key := range keys {
		v, _, err := t.db.Get(key)
		if err != nil {
			return 0, nil, err
		}
		if known, ok := mappedTo(v, st); !ok {
			missing = append(missing, key)
		} else if ino == 0 {
			ino = known
		}
	}
	return ino, missing, nil
}

// mappedIno returns the number recorded for the object at p, recording one if need be.
func (t *Tree) mappedIno(p string, st *baseStat) (Ino, error) {
	ino, missing, err := t.mapping(p, st)
	if err != nil || len(missing) == 0 {
		return ino, err
	}
	var b kv.Batch
	b.UseReserve()
	if ino == 0 {
		ino = t.mapped.take(&b)
	}
	host := Ino(st.ino)
	if st.dev == 0 && host < firstOwnIno {
		b.Put(kv.BaseShared(st.ino), nil)
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
	if st.dev == 0 && host < firstOwnIno {
		t.shared[host] = struct{}{}
	}
	return ino, nil
}

// loadShared reads which numbers of the host were kept from some object that had them.
func (t *Tree) loadShared() error {
	return t.db.Scan(kv.BaseSharedPrefix(), nil, func(k, _ []byte) bool {
		if ino, ok := kv.ParseBaseShared(k); ok {
			t.shared[Ino(ino)] = struct{}{}
		}
		return true
	})
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
