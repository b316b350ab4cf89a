package layers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// What package archive needs of a tree beyond what a kernel asks for: which objects may
// differ between two layers, and looking at them by their numbers.

// Touched lists, in order, the inodes and the names of which the layers between two have a record, of
// whatever kind: nothing else can differ between the views of the two. ErrNoLayer.
func (t *Tree) Touched(from, to Layer) ([]Ino, []NameKey, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, l := range []Layer{from, to} {
		if l != BaseLayer && t.held(l) == nil {
			return nil, nil, fmt.Errorf("layer %d: %w", l, ErrNoLayer)
		}
	}
	inos, names := map[Ino]struct{}{}, map[NameKey]struct{}{}
	var bad error
	for _, l := range t.between(from, to) {
		err := t.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(k, _ []byte) bool {
			_, isName, ino, name, ok := kv.ParseChange(k)
			switch {
			case !ok:
				bad = fmt.Errorf("change record %x: %w", k, ErrCorrupt)
			case isName:
				names[NameKey{Ino(ino), name}] = struct{}{}
			default:
				inos[Ino(ino)] = struct{}{}
			}
			return ok
		})
		if err = errors.Join(err, bad); err != nil {
			return nil, nil, fmt.Errorf("read changes of layer %d: %w", l, err)
		}
	}
	keys := slices.SortedFunc(maps.Keys(names), func(a, b NameKey) int {
		return cmp.Or(cmp.Compare(a.Dir, b.Dir), cmp.Compare(a.Name, b.Name))
	})
	return slices.Sorted(maps.Keys(inos)), keys, nil
}

// Acquire adds a reference to an inode that the caller knows by its number only. It finds what has a record
// in some layer, also when the last name of it is gone: the caller knows whether it has one. ESTALE.
func (v *View) Acquire(ino Ino) (Attr, error) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	if v.stale {
		return Attr{}, fmt.Errorf("layer %d: %w", v.layer, ErrNoLayer)
	}
	n, err := v.find(ino)
	if err != nil {
		return Attr{}, err
	}
	a, err := v.attr(n)
	if err != nil {
		v.drop(n)
		return Attr{}, err
	}
	n.refs++
	return a, nil
}

// SameBytes reports whether the records say that a range of a file reads the same in a as in b,
// without reading it. false means that nobody knows. a shows an older layer of the same line as b, both hold a
// reference to ino, and the range lies within the file in both.
func SameBytes(a, b *View, ino Ino, lo, hi int64) (bool, error) {
	t := a.t
	t.mu.RLock()
	defer t.mu.RUnlock()
	x, err := a.get(ino)
	if err != nil {
		return false, err
	}
	y, err := b.get(ino)
	if err != nil {
		return false, err
	}
	for _, p := range b.visiblePending(ino) {
		if a.anc.has(p.layer) {
			continue // in both; and what is pending lies over all that is not
		}
		for _, s := range p.segs {
			if s.off < hi && s.end() > lo {
				return false, nil
			}
		}
	}
	l, err := a.stored(x, lo, hi)
	if err != nil {
		return false, err
	}
	m, err := b.stored(y, lo, hi)
	if err != nil || l.hi != hi || m.hi != hi || !slices.Equal(l.exts, m.exts) {
		return false, err
	}
	if l.baseEnd() != m.baseEnd() || l.baseEnd() > lo && l.path != m.path {
		return false, nil
	}
	if x.rec == nil && y.rec != nil && y.rec.origin != nil {
		return b.base.driftOf(y.rec) == "", nil
	}
	return true, nil
}

// baseEnd is where the bytes of the base end in a layout, or something at or below its start if it has none.
func (l *layout) baseEnd() int64 {
	if l.path == "" {
		return 0
	}
	return min(l.limit, l.hi)
}

// Chunk reads the whole chunk of n bytes with this hash. ErrCorrupt if there is none.
func (t *Tree) Chunk(h [32]byte, n int) ([]byte, error) {
	p := make([]byte, n)
	if err := t.chunks.ReadAt(h, p, 0); err != nil {
		return nil, fmt.Errorf("read chunk %x of %d bytes: %w", h[:8], n, err)
	}
	return p, nil
}

// Publish gives the branch another name, under which it is found from now on. extra is as for Fork; Target is the layer
// under the head. ErrBranchExists.
func (b *Branch) Publish(name string, extra func(*kv.Batch, Forked) error) error {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok, err := t.db.Get(kv.HeadKey(name)); err != nil {
		return fmt.Errorf("publish branch %q: %w", name, err)
	} else if ok {
		return fmt.Errorf("branch %q: %w", name, ErrBranchExists)
	}
	var batch kv.Batch
	batch.UseReserve()
	batch.Delete(kv.HeadKey(b.name))
	batch.Put(kv.HeadKey(name), headRec{layer: b.layer}.encode())
	if extra != nil {
		if err := extra(&batch, Forked{Target: t.layers[b.layer].parent, Open: b.layer, At: t.now()}); err != nil {
			return err
		}
	}
	if err := t.db.Apply(&batch); err != nil {
		return fmt.Errorf("publish branch %q: %w", name, err)
	}
	delete(t.branches, b.name)
	b.name = name
	t.branches[name] = b
	return nil
}
