package layers

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// giveUp marks every layer that is in nobody's way any more, in the store and in
// memory. A dry run gets the shape that the tree would have afterwards, and no mark is made.
func (t *Tree) giveUp(keep []Layer, o *CollectOptions, st *CollectStats) (*shape, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	marks, err := t.plan(keep)
	if err != nil {
		return nil, err
	}
	for l := range marks {
		if t.held(l) != nil {
			st.GivenUp++
		}
	}
	if o.DryRun {
		return t.shape(marks), nil
	}
	return nil, t.mark(marks, o.Extra)
}

// plan says what becomes of which layer when only keep, the heads, and the layers
// right under the heads can be looked at any longer. The last are kept because the open layer
// above may take back what it wrote over a version of theirs. The caller holds t.mu.
func (t *Tree) plan(keep []Layer) (map[Layer]givenUp, error) {
	points, err := t.heads()
	if err != nil {
		return nil, err
	}
	for _, l := range keep {
		if l == BaseLayer {
			continue
		}
		if t.held(l) == nil {
			return nil, fmt.Errorf("keep layer %d: %w", l, ErrNoLayer)
		}
		points[l] = true
	}
	kept := make(map[Layer]bool, len(t.layers))
	for l := range points {
		for l != BaseLayer && !kept[l] {
			kept[l] = true
			l = t.layers[l].parent
		}
	}
	marks := map[Layer]givenUp{}
	for l, rec := range t.layers {
		switch {
		case !kept[l]:
			marks[l] = givenAll
			// What only the lines that go have seen of the layers below them goes, too.
			p := rec.parent
			if kept[p] && t.layers[p].given > givenNew {
				marks[p] = givenNew
			}
		case !points[l] && rec.given == givenNot:
			marks[l] = givenNew
		}
	}
	return marks, nil
}

// heads lists the layers that can be looked at whatever is kept: the head of every
// branch, in use or not, and what is right under it. The caller holds t.mu.
func (t *Tree) heads() (map[Layer]bool, error) {
	points := map[Layer]bool{}
	var bad error
	err := t.db.Scan(kv.HeadPrefix(), nil, func(k, v []byte) bool {
		h, err := decodeHead(v)
		if err == nil && t.held(h.layer) == nil {
			err = fmt.Errorf("head %x is layer %d, which is not there: %w", k, h.layer, ErrCorrupt)
		}
		if bad = err; bad != nil {
			return false
		}
		points[h.layer] = true
		if p := t.layers[h.layer].parent; p != BaseLayer {
			points[p] = true
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("list the heads: %w", err)
	}
	return points, nil
}

// markBatch is how many layers one batch marks.
const markBatch = 4096

// mark makes it so. Layers with larger numbers come first, so that whatever a crash
// leaves, no layer that stays has a parent that goes. The caller holds t.mu.
func (t *Tree) mark(marks map[Layer]givenUp, extra func(*kv.Batch, []Layer) error) error {
	if len(marks) > 0 {
		t.marked++
	}
	order := slices.Sorted(maps.Keys(marks))
	slices.Reverse(order)
	for part := range slices.Chunk(order, markBatch) {
		var b kv.Batch
		b.UseReserve()
		var gone []Layer
		for _, l := range part {
			rec := *t.layers[l]
			if rec.given == givenNot {
				gone = append(gone, l)
			}
			rec.given = marks[l]
			b.Put(kv.LayerKey(uint64(l)), rec.encode())
		}
		if extra != nil && len(gone) > 0 {
			if err := extra(&b, gone); err != nil {
				return err
			}
		}
		if err := t.db.Apply(&b); err != nil {
			return fmt.Errorf("give up %d layers: %w", len(part), err)
		}
		t.takeMarks(part, marks)
	}
	return nil
}

// takeMarks brings memory in line with marks that are in the store.
func (t *Tree) takeMarks(part []Layer, marks map[Layer]givenUp) {
	for _, l := range part {
		rec := *t.layers[l]
		rec.given = marks[l]
		if rec.given == givenAll {
			delete(t.layers, l)
			delete(t.ancestries, l)
			t.doomed[l] = &rec
		} else {
			t.layers[l] = &rec
		}
	}
	for v := range t.views {
		if v.layer != BaseLayer && t.held(v.layer) == nil {
			v.stale = true
		}
	}
	for _, list := range maps.Clone(t.pend) {
		for _, p := range slices.Clone(list) {
			if t.doomed[p.layer] != nil {
				t.dropPending(p) // its records go with the layer's
			}
		}
	}
}

// unmark notes that what nobody sees of the links that s had to look at is gone, but for those
// in hold, which are to be looked at again. So are all if layers have been given up since.
func (t *Tree) unmark(s *shape, hold map[Layer]bool) error {
	next := map[Layer]givenUp{}
	for l := range hold {
		next[l] = givenNew
	}
	for l := range s.fresh {
		if hold[l] {
			continue
		}
		next[l] = givenBare
		err := t.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(_, _ []byte) bool { next[l] = givenLink; return false })
		if err != nil {
			return fmt.Errorf("look for changes of layer %d: %w", l, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.marked != s.marked {
		return nil
	}
	for part := range slices.Chunk(slices.Sorted(maps.Keys(next)), markBatch) {
		var b kv.Batch
		b.UseReserve()
		recs := make(map[Layer]*layerRec, len(part))
		for _, l := range part {
			rec := *t.layers[l]
			if rec.given == next[l] {
				continue
			}
			rec.given = next[l]
			recs[l] = &rec
			b.Put(kv.LayerKey(uint64(l)), rec.encode())
		}
		if err := t.db.Apply(&b); err != nil {
			return fmt.Errorf("note that %d layers are thinned out: %w", len(part), err)
		}
		maps.Copy(t.layers, recs)
	}
	return nil
}
