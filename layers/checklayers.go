package layers

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// layers checks the tree of layers, and makes c.t and c.s of it.
func (c *checker) layers() error {
	recs := map[Layer]*layerRec{}
	bad := map[Layer]string{}
	err := c.scan(kv.LayerPrefix(), func(k, v []byte) error {
		l, ok := kv.ParseLayerKey(k)
		rec, err := decodeLayer(v)
		switch {
		case !ok || l == 0:
			c.found(Finding{Kind: "layer", What: fmt.Sprintf("the key %q is none of a layer", k)}, c.remove(k))
		case err != nil:
			bad[Layer(l)] = "its record does not decode"
		default:
			recs[Layer(l)] = &rec
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, l := range c.o.Needed {
		if recs[l] == nil && bad[l] == "" && l != BaseLayer {
			bad[l] = "it has no record, and is named"
		}
	}
	heads, err := c.heads(recs, bad)
	if err != nil {
		return err
	}
	for _, l := range slices.Sorted(maps.Keys(bad)) {
		c.rebuild(l, recs, heads, bad[l])
	}
	c.chains(recs, heads)
	c.t = bareTree(c.db, c.chunks, recs)
	c.s = c.t.shape(nil)
	c.st.Layers = int64(len(recs))
	return c.counters(recs)
}

// heads reads the branches.
func (c *checker) heads(recs map[Layer]*layerRec, bad map[Layer]string) (map[Layer]string, error) {
	heads, seen := map[Layer]string{}, map[string]bool{}
	put := func(name string, l Layer) func() {
		return c.offline(func() {
			c.batch.Put(kv.HeadKey(name), headRec{layer: l}.encode())
			heads[l] = name
		})
	}
	err := c.scan(kv.HeadPrefix(), func(k, v []byte) error {
		name, _ := kv.ParseHeadKey(k)
		seen[name] = true
		h, err := decodeHead(v)
		was, known := c.o.Branches[name]
		rec := recs[h.layer]
		switch {
		case err == nil && rec != nil && !rec.sealed && rec.given == givenNot:
			heads[h.layer] = name
		case known && recs[was] != nil && !recs[was].sealed:
			c.found(Finding{Kind: "head", What: fmt.Sprintf("the head of branch %q is damaged; the operation log says that it is layer %d", name, was)}, put(name, was))
		case err == nil && rec == nil:
			heads[h.layer] = name
			if bad[h.layer] == "" {
				bad[h.layer] = "it has no record, and is the head of branch " + name
			}
		default:
			c.found(Finding{Kind: "head", What: fmt.Sprintf("the head of branch %q is damaged, and nothing tells what it was", name), Lost: true}, nil)
		}
		return nil
	})
	for name, l := range c.o.Branches {
		if !seen[name] && recs[l] != nil && !recs[l].sealed {
			c.found(Finding{Kind: "head", What: fmt.Sprintf("branch %q has no head; the operation log says that it is layer %d", name, l)}, put(name, l))
		}
	}
	return heads, err
}

// rebuild makes the record of a layer anew from what others know of it.
func (c *checker) rebuild(l Layer, recs map[Layer]*layerRec, heads map[Layer]string, what string) {
	f := Finding{Kind: "layer", What: fmt.Sprintf("layer %d: %s", l, what), Layers: []Layer{l}}
	if c.o.Known == nil {
		c.broken = true
		c.found(f, nil)
		return
	}
	parent, at, ok := c.o.Known(l)
	_, open := heads[l]
	if !ok || parent >= l || parent == BaseLayer && c.hasGenerations() {
		c.broken, f.Lost = true, true
		f.What += "; nothing tells what was below it"
		c.found(f, nil)
		return
	}
	rec := &layerRec{parent: parent, sealed: !open}
	if rec.sealed {
		rec.at = at
		_ = c.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(_, _ []byte) bool { rec.changed++; return true })
	}
	fix := c.offline(func() {
		c.batch.Put(kv.LayerKey(uint64(l)), rec.encode())
		recs[l] = rec
	})
	c.broken = c.broken || fix == nil || !c.o.Repair
	c.found(f, fix)
}

// hasGenerations reports whether there were commits: then a root layer's generation cannot be told.
func (c *checker) hasGenerations() bool {
	_, ok, err := c.db.Get(kv.Meta(metaBaseGen))
	return ok || err != nil
}

// chains checks that every layer stands on layers, and takes those that do not out of recs.
func (c *checker) chains(recs map[Layer]*layerRec, heads map[Layer]string) {
	for _, l := range slices.Sorted(maps.Keys(recs)) {
		rec := recs[l]
		p := recs[rec.parent]
		switch _, head := heads[l]; {
		case rec.parent >= l || rec.parent != BaseLayer && p == nil:
			c.broken = true
			c.found(Finding{Kind: "layer", What: fmt.Sprintf("layer %d stands on layer %d, which is not there", l, rec.parent), Layers: []Layer{l}, Lost: true}, nil)
			delete(recs, l)
		case p != nil && (!p.sealed || p.given == givenAll && rec.given != givenAll):
			c.found(Finding{Kind: "layer", What: fmt.Sprintf("layer %d stands on layer %d, which is open or on its way out", l, rec.parent), Layers: []Layer{l}}, nil)
		case !rec.sealed && !head && rec.given != givenAll:
			c.found(Finding{Kind: "layer", What: fmt.Sprintf("layer %d is open, and the head of no branch", l), Layers: []Layer{l}}, c.offline(func() {
				sealed := *rec
				sealed.sealed = true
				c.batch.Put(kv.LayerKey(uint64(l)), sealed.encode())
				recs[l] = &sealed
			}))
		}
	}
}

// counters checks that no number is given twice.
func (c *checker) counters(recs map[Layer]*layerRec) error {
	var top, own, sourced, mapped uint64
	for l := range recs {
		top = max(top, uint64(l))
	}
	for _, prefix := range [][]byte{kv.InodesPrefix(), kv.ExtentsPrefix()} {
		err := c.db.Scan(prefix, nil, func(k, _ []byte) bool {
			if len(k) < 10 {
				return true
			}
			switch i := binary.BigEndian.Uint64(k[2:]); {
			case Ino(i) >= firstMapped:
				mapped = max(mapped, i)
			case Ino(i) >= firstSourced:
				sourced = max(sourced, i)
			case Ino(i) >= firstOwnIno:
				own = max(own, i)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	for _, n := range []struct {
		name string
		used uint64
	}{{metaNextLayer, top}, {metaNextIno, own}, {metaNextSourced, sourced}, {metaNextMapped, mapped}} {
		v, ok, err := c.db.Get(kv.Meta(n.name))
		if err != nil {
			return err
		}
		if n.used != 0 && (!ok || len(v) != 8 || binary.BigEndian.Uint64(v) <= n.used) {
			c.found(Finding{Kind: "counter", What: fmt.Sprintf("the counter %s would give number %d again", n.name, n.used)},
				c.offline(func() { putCounter(&c.batch, n.name, n.used+1) }))
		}
	}
	return nil
}
