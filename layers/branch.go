package layers

import (
	"fmt"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// Branch is the view of a head: the open layer that takes writes, and all below.
type Branch struct {
	View
	name    string
	changed int64    // paths changed in the open layer
	dirty   bool     // the open layer holds at least one record
	ops     uint64   // operations since Open that changed something
	spared  struct { // what came into the open layer by a movement, and not by a program; also in the store, see metaSpared
		layer Layer
		ops   uint64 // as of then
		now   bool   // by the rules of now: after a restart there may be others
	}
	orphans map[Ino]Layer // inodes in use without a name, and the layer that took the last one
}

// Branch opens the branch called name. A new one starts as an empty layer on top of the base.
func (t *Tree) Branch(name string) (*Branch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.branches[name]; b != nil {
		return b, nil
	}
	v, ok, err := t.db.Get(kv.HeadKey(name))
	if err != nil {
		return nil, fmt.Errorf("open branch %q: %w", name, err)
	}
	var h headRec
	if ok {
		h, err = decodeHead(v)
		if err == nil && (t.layers[h.layer] == nil || t.layers[h.layer].sealed) {
			err = fmt.Errorf("its head %d is not an open layer: %w", h.layer, ErrCorrupt)
		}
	} else {
		h.layer, err = t.firstLayer(name)
	}
	if err != nil {
		return nil, fmt.Errorf("open branch %q: %w", name, err)
	}
	b := newBranch(name, t.newView(h.layer))
	for _, load := range []func() error{b.sweepOrphans, b.countChanges, b.loadSpared} {
		if err := load(); err != nil {
			return nil, fmt.Errorf("open branch %q: %w", name, err)
		}
	}
	if b.root.rec, err = b.visibleInode(RootIno); err != nil {
		return nil, fmt.Errorf("open branch %q: %w", name, err)
	}
	t.branches[name] = b
	return b, nil
}

// newBranch is a branch that nobody knows of yet.
func newBranch(name string, v *View) *Branch {
	b := &Branch{View: *v, name: name, orphans: map[Ino]Layer{}}
	b.branch = b
	return b
}

func (t *Tree) firstLayer(name string) (Layer, error) {
	var batch kv.Batch
	l := t.openLayer(&batch, name, BaseLayer, t.gen)
	if err := t.db.Apply(&batch); err != nil {
		return 0, err
	}
	t.layers[l] = onTop(BaseLayer, t.gen)
	t.nextLayer = l + 1
	return l, nil
}

// onTop is the record of a new open layer on top of parent, in a line of generation gen.
func onTop(parent Layer, gen uint64) *layerRec {
	rec := &layerRec{parent: parent}
	if parent == BaseLayer {
		rec.gen = gen
	}
	return rec
}

// openLayer adds to batch a new open layer on top of parent, in a line of generation
// gen, and makes it the head of branch.
func (t *Tree) openLayer(batch *kv.Batch, branch string, parent Layer, gen uint64) Layer {
	l := t.nextLayer
	batch.UseReserve()
	batch.Put(kv.LayerKey(uint64(l)), onTop(parent, gen).encode())
	batch.Put(kv.HeadKey(branch), headRec{layer: l}.encode())
	putCounter(batch, metaNextLayer, uint64(l)+1)
	return l
}

// sweepOrphans removes inodes that were in use without a name when the daemon ended.
func (b *Branch) sweepOrphans() error {
	var batch kv.Batch
	batch.UseReserve()
	var bad error
	err := b.t.db.Scan(kv.OrphanPrefix(), nil, func(k, _ []byte) bool {
		l, ino, ok := kv.ParseOrphan(k)
		if !ok {
			return true
		}
		if Layer(l) == b.layer {
			var rec *inode
			if rec, bad = b.visibleInode(Ino(ino)); bad != nil {
				return false
			}
			b.dropVersions(&batch, Ino(ino), rec)
			batch.Delete(slices.Clone(k))
		} else if rec := b.t.layers[Layer(l)]; rec == nil || rec.sealed {
			batch.Delete(slices.Clone(k)) // the layer is sealed: what it holds stays until gc
		}
		return true
	})
	if err != nil || bad != nil || batch.Len() == 0 {
		return errOr(err, bad)
	}
	return b.t.db.Apply(&batch)
}

// countChanges restores the counters of the open layer.
func (b *Branch) countChanges() error {
	_, names, err := b.t.changes([]Layer{b.layer}, func(kind byte) { b.dirty = true })
	if err != nil {
		return err
	}
	inos, _, err := b.t.changes([]Layer{b.layer}, nil)
	if err != nil {
		return err
	}
	named, err := b.named(names)
	if err != nil {
		return err
	}
	b.changed = int64(len(names))
	for ino := range inos {
		if !named[ino] {
			b.changed++
		}
	}
	return b.wantAgain(inos, names)
}

// scanPerName is how many records of a directory are read in one go for each name looked for, rather than
// looking for each name: about as many as one look-up costs.
const scanPerName = 32

// named returns the inodes that names lead to. The work grows with the names, not with what else is in their
// directories.
func (b *Branch) named(names map[NameKey]struct{}) (map[Ino]bool, error) {
	byDir := map[Ino][]string{}
	for k := range names {
		byDir[k.Dir] = append(byDir[k.Dir], k.Name)
	}
	out := map[Ino]bool{}
	for dir, names := range byDir {
		d := &dirState{}
		whole, err := b.scanNames(dir, d, scanPerName*len(names))
		for _, name := range names {
			if err != nil {
				return nil, err
			}
			e, ok := d.find(name)
			rec := e.nameRec
			if !ok && !whole {
				rec, ok, err = b.loadName(dir, name)
			}
			if ok {
				out[rec.ino] = true
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// changes reads the change index of layers: inodes with real changes and changed
// names. Pins and side effects are left out; each, if set, sees every record's kind.
func (t *Tree) changes(layers []Layer, each func(kind byte)) (map[Ino]struct{}, map[NameKey]struct{}, error) {
	inos, names := map[Ino]struct{}{}, map[NameKey]struct{}{}
	var bad error
	for _, l := range layers {
		if t.layers[l].given == givenBare {
			continue
		}
		err := t.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(k, v []byte) bool {
			_, isName, ino, name, ok := kv.ParseChange(k)
			if !ok || len(v) != 1 {
				bad = fmt.Errorf("change record %x: %w", k, ErrCorrupt)
				return false
			}
			if each != nil {
				each(v[0])
			}
			switch {
			case v[0] != changeReal:
			case isName:
				names[NameKey{Ino(ino), name}] = struct{}{}
			default:
				inos[Ino(ino)] = struct{}{}
			}
			return true
		})
		if err != nil || bad != nil {
			return nil, nil, fmt.Errorf("read changes of layer %d: %w", l, errOr(err, bad))
		}
	}
	return inos, names, nil
}

// metaSpared and the name of a branch are a counter: its open layer, as long as that holds only what a movement spared. The first
// operation in it deletes that; of another layer than the open one it says nothing.
const metaSpared = "spared/"

// loadSpared finds out whether the open layer holds only what a movement spared.
func (b *Branch) loadSpared() error {
	l, err := b.t.counter(metaSpared+b.name, 0)
	b.spared.layer, b.spared.ops, b.spared.now = Layer(l), b.ops, false
	return err
}

// onlySpared reports whether the open layer holds what a movement spared and nothing else.
func (b *Branch) onlySpared() bool { return b.spared.layer == b.layer && b.spared.ops == b.ops }

// untouched reports whether no program has changed anything in the open layer. The caller holds t.mu.
func (b *Branch) untouched() bool {
	return !b.dirty || b.onlySpared()
}

// Name is the branch's name.
func (b *Branch) Name() string { return b.name }

// HeadLayer is the open layer that takes writes.
func (b *Branch) HeadLayer() Layer {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	return b.layer
}

// Parent is the sealed layer under the head, or BaseLayer.
func (b *Branch) Parent() Layer {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	return b.t.layers[b.layer].parent
}

// Clean reports whether nothing at all was written into the open layer.
func (b *Branch) Clean() bool {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	return !b.dirty
}

// Ops counts the operations since Open that changed something.
func (b *Branch) Ops() uint64 {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	return b.ops
}

// Changed counts the paths changed in the open layer.
func (b *Branch) Changed() int64 {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	return b.changed
}

// Ancestor reports whether l lies in the line of what v shows. BaseLayer does.
func (v *View) Ancestor(l Layer) bool {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	return v.anc.has(l)
}

// Line lists the sealed layers under the head that can be moved to, newest first,
// BaseLayer not included.
func (b *Branch) Line() []Layer {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	var out []Layer
	for l := b.t.layers[b.layer].parent; l != BaseLayer; l = b.t.layers[l].parent {
		if b.t.held(l) != nil {
			out = append(out, l)
		}
	}
	return out
}

// Seal seals the head and opens a new one on top: work that does not depend on how
// much there is or has changed. extra, which may be nil, adds to the same batch;
// its error stops the whole.
func (b *Branch) Seal(extra func(*kv.Batch, Sealed) error) (Sealed, error) {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.now()
	old := b.layer
	s := Sealed{Layer: old, Parent: t.layers[old].parent, Open: t.nextLayer, Changed: b.changed, At: at}
	var batch kv.Batch
	sealed := b.sealHead(&batch, TimeOf(at))
	b.carryOrphans(&batch, b.anc)
	t.openLayer(&batch, b.name, old, b.base.gen)
	if extra != nil {
		if err := extra(&batch, s); err != nil {
			return Sealed{}, err
		}
	}
	if err := t.db.Apply(&batch); err != nil {
		return Sealed{}, fmt.Errorf("seal layer %d: %w", old, err)
	}
	t.layers[old] = sealed
	b.moveTo(s.Open, old, b.anc.grow(s.Open))
	return s, nil
}

// sealHead adds the head's record as a sealed layer to batch. Orphans are a matter
// of an open layer only.
func (b *Branch) sealHead(batch *kv.Batch, at Time) *layerRec {
	open := b.t.layers[b.layer]
	rec := &layerRec{parent: open.parent, gen: open.gen, merged: open.merged, sealed: true, changed: b.changed, at: at}
	batch.Put(kv.LayerKey(uint64(b.layer)), rec.encode())
	for ino := range b.orphans {
		batch.Delete(kv.Orphan(uint64(b.layer), uint64(ino)))
	}
	return rec
}

// carryOrphans marks the inodes in use that have no name under a head of ancestry
// anc: what is written to them goes to its open layer.
func (b *Branch) carryOrphans(batch *kv.Batch, anc ancestry) {
	for ino, l := range b.orphans {
		if anc.has(l) {
			batch.Put(kv.Orphan(uint64(b.t.nextLayer), uint64(ino)), nil)
		}
	}
}

// moveTo makes the new open layer the head, in memory.
func (b *Branch) moveTo(open, parent Layer, anc ancestry) {
	t := b.t
	t.layers[open] = onTop(parent, b.base.gen)
	t.nextLayer = open + 1
	b.layer, b.anc = open, anc
	b.changed, b.dirty = 0, false
}
