package layers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// group calls fn for the versions of each key that starts with prefix, key by key and
// newest first. fn may keep no reference to them. none says which values mean that there is nothing.
func (c *collector) group(prefix []byte, none func(val []byte) bool, fn func(vs []version) error) error {
	for from := prefix; from != nil; {
		var vs []version
		var next []byte
		var bad error
		flush := func() {
			if len(vs) > 0 && bad == nil {
				bad = fn(vs)
			}
			vs = vs[:0]
		}
		err := c.t.db.Scan(prefix, from, func(k, v []byte) bool {
			if len(k) < layerLen {
				bad = fmt.Errorf("key %x: %w", k, ErrCorrupt)
				return false
			}
			if len(vs) > 0 && !bytes.Equal(bare(vs[0].key), bare(k)) {
				if flush(); bad != nil {
					return false
				}
				if c.batch.Len() >= spillAt { // not while scanning
					next = slices.Clone(k)
					return false
				}
			}
			vs = append(vs, version{layer: layerAt(k), key: slices.Clone(k), val: slices.Clone(v), none: none(v)})
			return true
		})
		if err = errors.Join(err, bad); err == nil {
			flush()
			err = bad
		}
		if err == nil {
			err = c.spill(spillAt - 1)
		}
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}

// layerLen is the length of the layer at the end of a versioned key (see package kv).
const layerLen = 8

func bare(k []byte) []byte { return k[:len(k)-layerLen] }

func layerAt(k []byte) Layer { return Layer(^binary.BigEndian.Uint64(k[len(k)-layerLen:])) }

// counted says, in a dry run, that a key has been looked at for another layer before the one
// of the version at, because it has a version there, too. Else that would not be there any more.
func (c *collector) counted(prefix, at []byte) (yes bool, err error) {
	if !c.o.DryRun {
		return false, nil
	}
	err = c.t.db.Scan(prefix, at, func(k, _ []byte) bool {
		yes = c.s.sizes[layerAt(k)] > 0 && !bytes.Equal(k, at)
		return !yes
	})
	return yes, err
}

// name removes versions of a name that nobody sees, and their entries in change indexes. at is the
// layer in whose index it was found.
func (c *collector) name(k NameKey, at Layer) error {
	lost, err := c.replaced(k, at)
	if err != nil {
		return err
	}
	prefix := kv.NamePrefix(uint64(k.Dir), k.Name)
	again, err := c.counted(prefix, kv.Name(uint64(k.Dir), k.Name, uint64(at)))
	if err == nil && !again {
		found := false
		err = c.group(prefix, isWhiteout, func(vs []version) error {
			c.s.sift(vs, true, func(Layer) bool { return true })
			if err := c.whiteouts(k, vs); err != nil {
				return err
			}
			for _, v := range vs {
				found = found || v.layer == at
				if v.drop {
					rec, _ := decodeName(v.layer, v.val) // whiteouts has done so before
					lost = append(lost, rec.ino)
					c.remove(v.key)
					c.remove(kv.ChangeName(uint64(v.layer), uint64(k.Dir), k.Name))
				}
			}
			return nil
		})
		if err == nil && !found && (c.s.gone[at] != nil || c.s.isLink(at)) {
			c.remove(kv.ChangeName(uint64(at), uint64(k.Dir), k.Name))
		}
	}
	for _, ino := range lost {
		if err == nil && ino != 0 {
			err = c.loser(ino, at)
		}
	}
	return err
}

func isWhiteout(v []byte) bool {
	rec, err := decodeName(0, v)
	return err == nil && rec.ino == 0
}

// replaced lists what a name led to in the layer below at, in whose index it is.
func (c *collector) replaced(k NameKey, at Layer) (lost []Ino, err error) {
	var bad error
	err = c.t.db.Scan(kv.NamePrefix(uint64(k.Dir), k.Name), kv.Name(uint64(k.Dir), k.Name, uint64(at)), func(key, v []byte) bool {
		l := layerAt(key)
		if l == at || !c.s.under(l, at) {
			return true
		}
		var rec nameRec
		rec, bad = decodeName(l, v)
		lost = append(lost, rec.ino)
		return false
	})
	return lost, errors.Join(err, bad)
}

// loser looks at an inode that lost a name. If it was the last one, no change index
// says so, but what had been changed of it before is not needed any more.
func (c *collector) loser(ino Ino, at Layer) error {
	if c.asked[ino] {
		return nil
	}
	if c.asked == nil {
		c.asked = map[Ino]bool{}
	}
	c.asked[ino] = true
	indexed := false
	err := c.t.db.Scan(kv.InodePrefix(uint64(ino)), nil, func(k, _ []byte) bool {
		indexed = c.s.sizes[layerAt(k)] > 0
		return !indexed
	})
	if err != nil || indexed { // it comes, or came, by way of an index
		return err
	}
	return c.inode(ino, at)
}

// whiteouts drops those that hide nothing: no version stays below them, and the
// base has nothing of that name. That is not looked up, because the base may have it again:
// it is known of a directory that is not in the base, and of a name that was made where
// nothing was. What the oldest version knows of this is handed on to the next one when it goes.
func (c *collector) whiteouts(k NameKey, vs []version) error {
	knows := map[*strand]bool{} // the versions dropped last in a strand knew it
	for i := len(vs) - 1; i >= 0; i-- {
		v := &vs[i]
		r := c.s.strands[v.layer]
		if r == nil {
			continue
		}
		rec, err := decodeName(v.layer, v.val)
		if err != nil {
			return fmt.Errorf("name %q: %w", k.Name, err)
		}
		nothing := rec.under == underNothing || r.knows(knows)
		switch {
		case v.drop:
			knows[r] = nothing
			continue
		case v.none && c.s.isLink(v.layer) && c.s.useless(vs, i):
			if v.drop = nothing; !nothing {
				based, err := c.inBase(k.Dir)
				if err != nil {
					return err
				}
				v.drop = !based
			}
			if v.drop {
				knows[r] = nothing
				continue
			}
		}
		if nothing && rec.under != underNothing {
			rec.under = underNothing
			c.batch.Put(v.key, rec.encode())
			c.thin(v.layer)
		}
		knows[r] = false
	}
	return nil
}

// knows looks at what was dropped right below in r or, when all was, in the links below.
func (r *strand) knows(dropped map[*strand]bool) bool {
	for at := r; at != nil && (at == r || !at.point); at = at.below {
		if known, any := dropped[at]; any {
			return known
		}
	}
	return false
}

// inBase reports whether a directory with records is one of the base.
func (c *collector) inBase(dir Ino) (bool, error) {
	if dir == RootIno {
		return true, nil
	}
	if c.dir != dir {
		o, err := c.t.anyOrigin(dir)
		if err != nil {
			return false, err
		}
		c.dir, c.inb = dir, o != nil
	}
	return c.inb, nil
}

// inodeSift is the sifting of one inode.
type inodeSift struct {
	*collector
	ino   Ino
	vs    []version // of the n/ record
	recs  []*inode  // decoded, like vs
	inUse bool      // without a name, perhaps: then it may get one again any time
	links bool      // versions in links may go: there are no bytes pending over them
	live  map[Layer]bool
	left  map[Layer]bool // layers that keep something of it
	lost  map[Layer]bool // layers that lose something of it
}

// inode removes what nobody sees of an inode, and its entries in change indexes.
func (c *collector) inode(ino Ino, at Layer) error {
	x := &inodeSift{collector: c, ino: ino, live: map[Layer]bool{}, left: map[Layer]bool{}, lost: map[Layer]bool{at: true}}
	again, err := c.counted(kv.InodePrefix(uint64(ino)), kv.Inode(uint64(ino), uint64(at)))
	if err != nil || again {
		return err
	}
	// In this order: an inode that has got a name again since has a newer version.
	if err := errors.Join(x.use(), x.load()); err != nil {
		return err
	}
	if x.isNewIn(at) {
		return nil
	}
	// What has no name, and what the names are, is read from n/ and r/ records: these go last.
	i := uint64(ino)
	err = c.group(kv.ExtentInoPrefix(i), isNoExtent, func(vs []version) error { return errors.Join(x.sift(vs), c.weigh(vs)) })
	if err == nil {
		err = c.group(kv.XattrInoPrefix(i), isUnset, x.sift)
	}
	if err == nil {
		err = c.group(kv.RNamePrefix(i), isUnset, x.sift)
	}
	if err != nil {
		return err
	}
	based := len(x.recs) > 0 && x.recs[0].origin != nil
	c.s.sift(x.vs, x.links, func(point Layer) bool { return based || x.isLive(point) })
	for _, v := range x.vs {
		x.note(v)
	}
	if err := x.dropPendings(); err != nil {
		return err
	}
	if x.inUse || !x.links { // look again next time
		for l := range x.left {
			if c.s.isLink(l) {
				c.hold[l] = true
			}
		}
	}
	return x.unindex()
}

func isNoExtent(v []byte) bool {
	d := dec{b: v}
	d.version(extentVersion, "extent")
	return d.u() == 0 && d.err == nil
}

func isUnset(v []byte) bool { return len(v) > 0 && v[0] == 0 }

// use finds out what forbids that versions go.
func (x *inodeSift) use() error {
	t := x.t
	t.mu.RLock()
	for _, b := range t.branches {
		_, orphan := b.orphans[x.ino]
		x.inUse = x.inUse || orphan
	}
	x.links = x.o.DryRun || !slices.ContainsFunc(t.pend[x.ino], func(p *pending) bool { return x.s.isLink(p.layer) })
	t.mu.RUnlock()
	for _, l := range x.s.idle {
		_, orphan, err := t.db.Get(kv.Orphan(uint64(l), uint64(x.ino)))
		if err != nil {
			return err
		}
		x.inUse = x.inUse || orphan
	}
	return nil
}

func (x *inodeSift) load() error {
	var bad error
	err := x.t.db.Scan(kv.InodePrefix(uint64(x.ino)), nil, func(k, v []byte) bool {
		var rec *inode
		if rec, bad = decodeInode(layerAt(k), v); bad != nil {
			return false
		}
		x.vs = append(x.vs, version{layer: rec.layer, key: slices.Clone(k)})
		x.recs = append(x.recs, rec)
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return fmt.Errorf("read the versions of inode %d: %w", x.ino, err)
	}
	return nil
}

// isNewIn reports whether a point made the inode, and nothing else is there of it: many
// are, and there is nothing to remove of them.
func (x *inodeSift) isNewIn(l Layer) bool {
	return len(x.vs) == 1 && x.recs[0].born == l && x.recs[0].layer == l && x.s.gone[l] == nil && !x.s.isLink(l)
}

// sift removes versions of one key that belongs to the inode.
func (x *inodeSift) sift(vs []version) error {
	x.s.sift(vs, x.links, x.isLive)
	if x.links {
		x.s.dropUseless(vs)
	}
	for _, v := range vs {
		x.note(v)
	}
	return x.err
}

func (x *inodeSift) note(v version) {
	if !v.drop {
		x.left[v.layer] = true
		return
	}
	x.lost[v.layer] = true
	x.remove(v.key)
}

// weigh counts the chunk bytes that lose their name with versions of one region.
func (c *collector) weigh(vs []version) error {
	if !slices.ContainsFunc(vs, func(v version) bool { return v.drop }) {
		return nil
	}
	named := map[uint64]bool{}
	for _, drop := range []bool{false, true} {
		for _, v := range vs {
			if v.drop != drop {
				continue
			}
			xs, err := decodeExtents(0, v.val)
			if err != nil {
				return err
			}
			for _, x := range xs {
				if x.kind == kindChunk && !named[short(x.hash)] {
					named[short(x.hash)] = true
					if drop {
						c.lose(v.layer, x.n)
					}
				}
			}
		}
	}
	return nil
}

// lose notes that n bytes of content go with a record of layer l.
func (c *collector) lose(l Layer, n int64) {
	c.loose += n
	if c.o.ByLayer != nil {
		c.o.ByLayer[l] += n
	}
}

// dropPendings removes what was pending in layers that go. In a dry run there may be
// such bytes in links, too: else they are in chunks by now.
func (x *inodeSift) dropPendings() error {
	return x.t.db.Scan(kv.PendingInoPrefix(uint64(x.ino)), nil, func(k, v []byte) bool {
		_, l, _, ok := kv.ParsePending(k)
		drop := ok && x.s.gone[Layer(l)] != nil
		for _, n := range x.vs {
			drop = drop || x.o.DryRun && n.drop && n.layer == Layer(l)
		}
		if drop {
			x.remove(slices.Clone(k))
			x.lose(Layer(l), int64(len(pendingData(v))))
		}
		return true
	})
}
