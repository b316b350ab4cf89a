package apply

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// placed says what a commit put at a path.
type placed struct {
	n       uint64 // of the commit
	none    bool   // nothing
	putBack bool   // an undo put back what was there before: it is for all whose base is of generation gen or older
	gen     uint64
	merged  bool   // it has what the user did on the host, by a merge: it is ours only for who has that, too
	direct  bool   // what it took the place of is the user's, and was merged: so is what an undo puts back
	over    bool   // what it took the place of is the user's, and nobody had that: so is what an undo puts back
	branch  string // of the checkpoint
	layer   uint64
	host    mark   // what the host said of it afterwards; a zero ctime was not looked at
	want    mark   // what the checkpoint said of it, as far as it may reach the host
	sum     []byte // of a regular file's content
	xattrs  []byte // sum of the extended attributes
}

// mark is what tells one state of an object from another.
type mark struct {
	ino                 layers.Ino
	mode, uid, gid      uint32
	size                int64
	mtime, ctime, btime layers.Time
}

func markOf(a *layers.Attr) mark {
	m := mark{ino: a.Ino, mode: a.Mode, uid: a.UID, gid: a.GID, mtime: a.Mtime, ctime: a.Ctime, btime: a.Btime}
	if !isDir(a) {
		m.size = a.Size
	}
	return m
}

const placedVersion = 1

const (
	placedNone = 1 << iota
	placedBack
	placedMerged
	placedDirect
	placedOver
)

func (r *placed) encode(path string) []byte {
	flags := byte(0)
	if r.none {
		flags |= placedNone
	}
	if r.putBack {
		flags |= placedBack
	}
	if r.merged {
		flags |= placedMerged
	}
	if r.direct {
		flags |= placedDirect
	}
	if r.over {
		flags |= placedOver
	}
	b := []byte{placedVersion, flags}
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	if !kv.PlacedHashed(path) {
		path = ""
	}
	str(path)
	str(r.branch)
	b = binary.AppendUvarint(binary.AppendUvarint(b, r.layer), r.gen)
	if r.none {
		return b
	}
	for _, m := range []*mark{&r.host, &r.want} {
		for _, n := range []uint64{uint64(m.ino), uint64(m.mode), uint64(m.uid), uint64(m.gid), uint64(m.size)} {
			b = binary.AppendUvarint(b, n)
		}
		for _, t := range []layers.Time{m.mtime, m.ctime, m.btime} {
			b = binary.AppendUvarint(binary.AppendVarint(b, t.Sec), uint64(t.Nsec))
		}
	}
	str(string(r.sum))
	str(string(r.xattrs))
	return b
}

var errDamaged = errors.New("record of a commit is damaged")

// decodePlaced undoes encode; path is that of the key, or of the record if the key has only its hash.
func decodePlaced(n uint64, path string, v []byte) (r *placed, at string, err error) {
	if len(v) < 2 || v[0] != placedVersion {
		return nil, "", errDamaged
	}
	r = &placed{n: n, none: v[1]&placedNone != 0, putBack: v[1]&placedBack != 0, merged: v[1]&placedMerged != 0, direct: v[1]&placedDirect != 0, over: v[1]&placedOver != 0}
	b, ok := v[2:], true
	num := func() uint64 {
		n, l := binary.Uvarint(b)
		if ok = ok && l > 0; ok {
			b = b[l:]
		}
		return n
	}
	str := func() string {
		n := num()
		if ok = ok && n <= uint64(len(b)); !ok {
			return ""
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	if long := str(); long != "" {
		path = long
	}
	r.branch, r.layer, r.gen = str(), num(), num()
	if !r.none {
		for _, m := range []*mark{&r.host, &r.want} {
			m.ino, m.mode, m.uid, m.gid, m.size = layers.Ino(num()), uint32(num()), uint32(num()), uint32(num()), int64(num())
			for _, t := range []*layers.Time{&m.mtime, &m.ctime, &m.btime} {
				sec, l := binary.Varint(b)
				if ok = ok && l > 0; ok {
					b = b[l:]
				}
				*t = layers.Time{Sec: sec, Nsec: uint32(num())}
			}
		}
		r.sum, r.xattrs = []byte(str()), []byte(str())
	}
	if !ok || len(b) > 0 {
		return nil, "", errDamaged
	}
	return r, path, nil
}

// eachPlaced calls fn for what commits put below a target, the newest first for each path.
func eachPlaced(db *kv.DB, target string, fn func(path string, r *placed) error) error {
	return scanPlaced(db, kv.PlacedPrefix(target), fn)
}

// placedAt lists what commits put at a path, the newest first.
func placedAt(db *kv.DB, target, path string) (all []*placed, err error) {
	err = scanPlaced(db, kv.PlacedAt(target, path), func(_ string, r *placed) error {
		all = append(all, r)
		return nil
	})
	return all, err
}

func scanPlaced(db *kv.DB, prefix []byte, fn func(path string, r *placed) error) error {
	var bad error
	err := db.Scan(prefix, nil, func(k, v []byte) bool {
		_, path, n, ok := kv.ParsePlaced(k)
		if !ok {
			bad = errDamaged
			return false
		}
		var r *placed
		if r, path, bad = decodePlaced(n, path, v); bad == nil {
			bad = fn(path, r)
		}
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return fmt.Errorf("read what earlier commits did: %w", err)
	}
	return nil
}

// batchOps is how many records go into one batch.
const batchOps = 4096

// writer gathers records and applies them in parts.
type writer struct {
	db   *kv.DB
	hook func(call, name string) error
	b    kv.Batch
}

func (w *writer) put(key, value []byte) error { w.b.Put(key, value); return w.flushAt(batchOps) }
func (w *writer) delete(key []byte) error     { w.b.Delete(key); return w.flushAt(batchOps) }

// flushAt applies what has been gathered if it is at least n records.
func (w *writer) flushAt(n int) error {
	if w.b.Len() < n || w.b.Len() == 0 {
		return nil
	}
	return applyBatch(w.db, w.hook, &w.b)
}

// applyBatch applies b and empties it.
func applyBatch(db *kv.DB, hook func(call, name string) error, b *kv.Batch) error {
	if hook != nil {
		if err := hook("apply", ""); err != nil {
			return err
		}
	}
	b.UseReserve()
	err := db.Apply(b)
	*b = kv.Batch{}
	return err
}

// dropPlaced deletes what commit n noted below a target.
func (w *writer) dropPlaced(target string, n uint64) error {
	return w.dropPrefix(kv.PlacedPrefix(target), func(k []byte) bool {
		_, _, at, ok := kv.ParsePlaced(k)
		return ok && at == n
	})
}

// dropPrefix deletes all records whose keys begin with prefix and of which gone says so.
func (w *writer) dropPrefix(prefix []byte, gone func(k []byte) bool) error {
	for from := prefix; from != nil; {
		var keys [][]byte
		var next []byte
		err := w.db.Scan(prefix, from, func(k, _ []byte) bool {
			if len(keys) == batchOps {
				next = slices.Clone(k)
				return false
			}
			if gone(k) {
				keys = append(keys, slices.Clone(k))
			}
			return true
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			w.b.Delete(k)
		}
		if err := w.flushAt(1); err != nil {
			return err
		}
		from = next
	}
	return nil
}
