package layers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

// Branches stand side by side on layers that they share and that never change. Each has an
// open layer of its own, and memory of its own (a View): nothing of one can be seen
// from another, because no open layer is ever in another's ancestry.

// ErrBranchExists is returned for a name that a branch has already.
var ErrBranchExists = errors.New("there is such a branch already")

// Forked is the result of Fork: a branch whose head Open is an empty layer on top of Target.
type Forked struct {
	Target, Open Layer
	At           time.Time
}

// Fork makes and opens a branch of this name on top of target, which is any sealed layer or
// BaseLayer, which here is the base as it is now. Nothing is copied, and the work does not depend on the size of the tree or on
// what changed. extra is as for Seal. ErrBranchExists, ErrNoLayer.
func (t *Tree) Fork(name string, target Layer, extra func(*kv.Batch, Forked) error) (*Branch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rec := t.held(target); target != BaseLayer && (rec == nil || !rec.sealed) {
		return nil, fmt.Errorf("fork layer %d: %w", target, ErrNoLayer)
	}
	if _, ok, err := t.db.Get(kv.HeadKey(name)); err != nil {
		return nil, fmt.Errorf("make branch %q: %w", name, err)
	} else if ok {
		return nil, fmt.Errorf("branch %q: %w", name, ErrBranchExists)
	}
	f := Forked{Target: target, Open: t.nextLayer, At: t.now()}
	under := t.ancestry(target)
	anc, gen := under.grow(f.Open), t.genOf(under)
	b := newBranch(name, (&View{t: t, layer: f.Open, anc: anc, base: era{t, gen}}).furnish())
	var err error
	if b.root.rec, err = b.visibleInode(RootIno); err != nil {
		return nil, fmt.Errorf("make branch %q: %w", name, err)
	}
	var batch kv.Batch
	t.openLayer(&batch, name, target, gen)
	if extra != nil {
		if err := extra(&batch, f); err != nil {
			return nil, err
		}
	}
	if err := t.db.Apply(&batch); err != nil {
		return nil, fmt.Errorf("make branch %q: %w", name, err)
	}
	b.moveTo(f.Open, target, anc)
	t.branches[name] = b
	return b, nil
}

// Close forgets a branch that nobody shows any more: its methods answer ESTALE from now on.
// It stays in the store, and Tree.Branch opens it anew. The caller sees to it that
// nobody seals or moves the head meanwhile or afterwards.
func (b *Branch) Close() {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	b.close()
}

func (b *Branch) close() {
	if b.t.branches[b.name] == b {
		delete(b.t.branches, b.name)
	}
	for _, n := range b.nodes {
		b.unlist1(n)
	}
	b.nodes, b.links, b.root.dir, b.stale = map[Ino]*node{RootIno: b.root}, nil, nil, true
}

// Drop removes the branch from the store and closes it. Its head is sealed, and can be looked
// at until a collection gives it up. extra is as for Seal; there is no Open.
func (b *Branch) Drop(extra func(*kv.Batch, Sealed) error) (Sealed, error) {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.now()
	s := Sealed{Layer: b.layer, Parent: t.layers[b.layer].parent, Changed: b.changed, At: at}
	var batch kv.Batch
	batch.UseReserve()
	sealed := b.sealHead(&batch, TimeOf(at))
	batch.Delete(kv.HeadKey(b.name))
	batch.Delete(kv.Meta(metaSpared + b.name))
	if extra != nil {
		if err := extra(&batch, s); err != nil {
			return Sealed{}, err
		}
	}
	if err := t.db.Apply(&batch); err != nil {
		return Sealed{}, fmt.Errorf("drop branch %q: %w", b.name, err)
	}
	t.layers[s.Layer] = sealed
	b.close()
	return s, nil
}

// Head is a branch as the store has it: its open layer, and the sealed one, or BaseLayer, under it.
type Head struct {
	Branch        string
	Layer, Parent Layer
}

// Heads lists all branches by name, those that are not open too.
func (t *Tree) Heads() ([]Head, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []Head
	var bad error
	err := t.db.Scan(kv.HeadPrefix(), nil, func(k, v []byte) bool {
		name, ok := kv.ParseHeadKey(k)
		h, err := decodeHead(v)
		if err == nil && (!ok || t.layers[h.layer] == nil) {
			err = ErrCorrupt
		}
		if err != nil {
			bad = fmt.Errorf("head %x: %w", k, err)
			return false
		}
		out = append(out, Head{Branch: name, Layer: h.layer, Parent: t.layers[h.layer].parent})
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("list branches: %w", err)
	}
	return out, nil
}

// Line returns what tells whether a layer is l or below it. It needs no lock, and stays true. BaseLayer always is.
func (t *Tree) Line(l Layer) func(Layer) bool {
	t.mu.Lock() // ancestry remembers what it found
	defer t.mu.Unlock()
	return t.ancestry(l).has
}

// Under returns what lies under layer l; false when the store does not hold l, or it is BaseLayer.
func (t *Tree) Under(l Layer) (Layer, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	rec := t.layers[l]
	if rec == nil {
		return BaseLayer, false
	}
	return rec.parent, true
}

// Common returns the newest layer that both a and b are or have below them: where
// their lines part. BaseLayer if there is none.
func (t *Tree) Common(a, b Layer) Layer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for a != b { // a parent's number is always the smaller one
		if a < b {
			a, b = b, a
		}
		rec := t.layers[a]
		if rec == nil {
			return BaseLayer // it is not there any more
		}
		a = rec.parent
	}
	return a
}

// Forks lists, in order, the layers on which the lines of several branches part, and those that
// branches have merged, BaseLayer not included: a merge compares with them.
func (t *Tree) Forks() ([]Layer, error) {
	heads, err := t.Heads()
	if err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	seen, parts := map[Layer]bool{}, map[Layer]bool{}
	for _, h := range heads {
		l := h.Layer
		if t.layers[l] == nil {
			continue // dropped since
		}
		for ; l != BaseLayer && !seen[l]; l = t.layers[l].parent {
			seen[l] = true
		}
		if l != BaseLayer {
			parts[l] = true
		}
	}
	for _, l := range t.merges(heads) {
		parts[l] = true
	}
	return slices.Sorted(maps.Keys(parts)), nil
}
