package layers

import (
	"errors"

	"github.com/rewindfs/rewindfs/kv"
)

// isLive reports whether what belongs to the inode counts in the view of a point: a
// name leads to it there, or it got one again above. An error is kept in x.err.
func (x *inodeSift) isLive(point Layer) bool {
	live, ok := x.live[point]
	if !ok {
		var err error
		if live, err = x.reached(point); err != nil {
			x.err = errors.Join(x.err, err)
			return true
		}
		x.live[point] = live
	}
	return live
}

func (x *inodeSift) reached(point Layer) (bool, error) {
	if x.ino == RootIno || x.inUse {
		return true, nil
	}
	var rec *inode
	for i, v := range x.vs { // newest first
		if x.s.under(v.layer, point) {
			rec = x.recs[i]
			break
		}
		if x.s.under(point, v.layer) || x.s.strands[v.layer] == nil && x.s.gone[v.layer] == nil {
			return true, nil // a version above
		}
	}
	if rec == nil {
		return false, nil
	}
	if rec.has(flagLost) {
		return true, nil
	}
	if ino, err := x.leads(NameKey{rec.parent, rec.name}, point); err != nil || ino == x.ino {
		return err == nil, err
	}
	if !rec.has(flagNames) {
		return false, nil
	}
	if yes, err := x.named(point); err != nil || yes || rec.origin == nil {
		return yes, err
	}
	// Of a base file, names that nobody has looked at have no record.
	st, err := era{x.t, x.s.strands[point].gen}.stat(rec.origin.path)
	return err != nil || !rec.origin.is(rec.origin.path, &st) || st.nlink > 1, nil
}

// leads returns what a name leads to in the view of a point, 0 for nothing or what is in the base.
func (x *inodeSift) leads(k NameKey, point Layer) (ino Ino, err error) {
	var bad error
	err = x.t.db.Scan(kv.NamePrefix(uint64(k.Dir), k.Name), nil, func(key, v []byte) bool {
		l := layerAt(key)
		if !x.s.under(l, point) {
			return true
		}
		var rec nameRec
		rec, bad = decodeName(l, v)
		ino = rec.ino
		return false
	})
	return ino, errors.Join(err, bad)
}

// named reports whether one of the names that were recorded of the inode, in whatever
// version, leads to it in the view of a point.
func (x *inodeSift) named(point Layer) (yes bool, err error) {
	var last NameKey
	var bad error
	err = x.t.db.Scan(kv.RNamePrefix(uint64(x.ino)), nil, func(key, _ []byte) bool {
		_, dir, name, _, ok := kv.ParseRName(key)
		if k := (NameKey{Ino(dir), name}); ok && k != last {
			var ino Ino
			last = k
			ino, bad = x.leads(k, point)
			yes = ino == x.ino
		}
		return bad == nil && !yes
	})
	return yes, errors.Join(err, bad)
}

// unindex removes the entries of the inode in the change indexes of the layers that
// keep nothing of it. Where the inode still counts, layers above have the entry, too. Where
// it does not, because it has no name any more, the index has what became of its name.
func (x *inodeSift) unindex() error {
	newest := map[*strand]Layer{} // that has an n/ record, and so an entry
	for _, v := range x.vs {
		if r := x.s.strands[v.layer]; r != nil && !v.drop && newest[r] == 0 {
			newest[r] = v.layer
		}
	}
	for l := range x.lost {
		if x.left[l] || x.s.gone[l] == nil && !x.s.isLink(l) {
			continue
		}
		key := kv.ChangeInode(uint64(l), uint64(x.ino))
		kind, ok, err := x.t.db.Get(key)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		x.remove(key)
		if x.s.gone[l] != nil || len(kind) != 1 || kind[0] != changeReal {
			continue
		}
		for _, m := range x.s.strands[l].above(l, newest) {
			if err := x.makeReal(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// above lists the next layers above l, which is in r or below it, that have what newest
// tells, on the ways to all points.
func (r *strand) above(l Layer, newest map[*strand]Layer) (out []Layer) {
	if m := newest[r]; m > l {
		return []Layer{m}
	}
	if !r.point {
		for _, k := range r.kids {
			out = append(out, k.above(l, newest)...)
		}
	}
	return out
}

// makeReal makes an entry in a change index say that the inode itself changed, not
// only its times and link count.
func (x *inodeSift) makeReal(l Layer) error {
	key := kv.ChangeInode(uint64(l), uint64(x.ino))
	kind, _, err := x.t.db.Get(key)
	if err == nil && (len(kind) != 1 || kind[0] != changeReal) {
		x.batch.Put(key, []byte{changeReal})
	}
	return err
}
