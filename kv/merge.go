package kv

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/y"
)

// mergeAt is the number of table files in level 0 that starts a merge; with half
// as many it starts where space is scarce, as that is how old versions go.
const mergeAt = 4

// maxFresh bounds level 0, in bytes: what it has more goes to the last level.
const maxFresh = 64 * mib

// levelFiles are the table files of the database.
type levelFiles struct {
	fresh, last           []badger.TableInfo
	freshBytes, lastBytes int64
}

func (g *generation) levels() (l levelFiles) {
	for _, t := range g.db.Tables() {
		if t.Level == 0 {
			l.fresh = append(l.fresh, t)
			l.freshBytes += int64(t.OnDiskSize)
		} else {
			l.last = append(l.last, t)
			l.lastBytes += int64(t.OnDiskSize)
		}
	}
	return l
}

// merge keeps the number of table files that a read must look at small. When
// level 0 has grown, its files become one, or part of the last level if that is
// not out of proportion. It writes new files and so needs room for them. Flushes
// may go on at the same time.
func (b *base) merge(sp *space) error {
	g := b.use()
	defer b.done(g)
	l := g.levels()
	down := l.freshBytes*8 >= l.lastBytes || l.freshBytes >= maxFresh
	need := l.freshBytes
	if down {
		need += l.lastBytes
	}
	at := mergeAt
	if down && sp.room(4*need+sp.reserve) != nil {
		at = mergeAt / 2
	}
	if len(l.fresh) < at || sp.room(need) != nil {
		return nil
	}
	if down {
		return b.mergeDown(g, l.fresh, l.last)
	}
	w := &tableWriter{b: b, level: 0}
	if err := errors.Join(w.gather(g), w.cut()); err != nil {
		w.drop()
		return fmt.Errorf("merging tables: %w", err)
	}
	return w.replace(l.fresh)
}

// compact merges level 0 into the last level whatever its size, for the sake of the
// disk: if that gains something, and there is room for what is to stay. With all set, it
// does so in any case, or fails for want of room.
func (b *base) compact(sp *space, all bool) error {
	g := b.use()
	defer b.done(g)
	l := g.levels()
	if len(l.fresh) == 0 && !all || len(l.fresh)+len(l.last) == 0 {
		return nil
	}
	had := l.freshBytes + l.lastBytes
	live := int64(float64(had) * liveShare(g))
	if all {
		if err := sp.room(live); err != nil {
			return err
		}
		return b.mergeDown(g, l.fresh, l.last)
	}
	if live > had-had/8 || sp.room(live) != nil {
		return nil
	}
	return b.mergeDown(g, l.fresh, l.last)
}

// itemBytes is what a table file has for an item besides key and value, about: two
// headers, the version, and its share of the index, less what it shares with other keys.
const itemBytes = 12

// liveShare is about which part of the table files the newest versions of all keys take, 0 to 1.
func liveShare(g *generation) float64 {
	it := g.txn.NewIterator(badger.IteratorOptions{AllVersions: true})
	defer it.Close()
	var live, all int64
	var key []byte
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		n := item.KeySize() + item.ValueSize() + itemBytes
		all += n
		if !bytes.Equal(item.Key(), key) { // the newest version
			key = item.KeyCopy(key)
			if !item.IsDeletedOrExpired() {
				live += n
			}
		}
	}
	return float64(live) / float64(max(all, 1))
}

// gather writes the newest versions in level 0, deletions too.
func (w *tableWriter) gather(g *generation) error {
	it := g.txn.NewIterator(badger.IteratorOptions{AllVersions: true, SinceTs: lastLevelTS + 1})
	defer it.Close()
	var key []byte
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		if bytes.Equal(item.Key(), key) {
			continue // an older version
		}
		key = item.KeyCopy(key)
		if err := w.addItem(item, item.Version()); err != nil {
			return err
		}
	}
	return nil
}

// mergeDown writes the last level anew where level 0 changed it.
func (b *base) mergeDown(g *generation, fresh, last []badger.TableInfo) error {
	slices.SortFunc(last, func(a, b badger.TableInfo) int { return bytes.Compare(a.Left, b.Left) })
	changed := g.txn.NewIterator(badger.IteratorOptions{AllVersions: true, SinceTs: lastLevelTS + 1})
	defer changed.Close()
	live := g.txn.NewIterator(badger.IteratorOptions{})
	defer live.Close()
	w := &tableWriter{b: b, level: lastLevel}
	gone := fresh
	var err error
	// A file's range reaches up to the next file, the first one's from the start.
	for i := 0; (i == 0 || i < len(last)) && err == nil; i++ {
		var from, to []byte
		if i > 0 {
			from = y.ParseKey(last[i].Left)
		}
		if i+1 < len(last) {
			to = y.ParseKey(last[i+1].Left)
		}
		if changed.Seek(from); len(last) > 0 && !before(changed, to) {
			err = w.cut() // the file stays as it is
			continue
		}
		if len(last) > 0 {
			gone = append(gone, last[i])
		}
		for live.Seek(from); before(live, to) && err == nil; live.Next() {
			err = w.addItem(live.Item(), lastLevelTS)
		}
	}
	if err = errors.Join(err, w.cut()); err != nil {
		w.drop()
		return fmt.Errorf("merging tables into the last level: %w", err)
	}
	return w.replace(gone)
}

// before tells whether it is at a key before to; nil: at any key.
func before(it *badger.Iterator, to []byte) bool {
	return it.Valid() && (to == nil || bytes.Compare(it.Item().Key(), to) < 0)
}

func (w *tableWriter) addItem(item *badger.Item, ts uint64) error {
	if item.IsDeletedOrExpired() {
		return w.add(item.Key(), nil, ts)
	}
	var err error
	verr := item.Value(func(v []byte) error {
		if v == nil {
			v = noValue
		}
		err = w.add(item.Key(), v, ts)
		return nil
	})
	if verr != nil {
		return badgerErr(verr)
	}
	return err
}
