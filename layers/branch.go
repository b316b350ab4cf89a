package layers

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Branch is the view of a head: the open layer that takes writes, and all below.
type Branch struct {
	View
	name    string
	changed int64         // paths changed in the open layer
	dirty   bool          // the open layer holds at least one record
	orphans map[Ino]*node // inodes without a name that the kernel still refers to
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
	b := &Branch{View: *t.newView(h.layer), name: name, orphans: map[Ino]*node{}}
	b.branch = b
	for _, load := range []func() error{b.sweepOrphans, b.countChanges} {
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

func (t *Tree) firstLayer(name string) (Layer, error) {
	var batch kv.Batch
	l := t.openLayer(&batch, name, BaseLayer)
	if err := t.db.Apply(&batch); err != nil {
		return 0, err
	}
	t.layers[l] = &layerRec{parent: BaseLayer}
	t.nextLayer = l + 1
	return l, nil
}

// openLayer adds to batch a new open layer on top of parent and makes it the head of branch.
func (t *Tree) openLayer(batch *kv.Batch, branch string, parent Layer) Layer {
	l := t.nextLayer
	batch.UseReserve()
	batch.Put(kv.LayerKey(uint64(l)), layerRec{parent: parent}.encode())
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
	named := map[Ino]bool{}
	for k := range names {
		d := &dirState{}
		if err := b.loadNames(k.Dir, d); err != nil {
			return err
		}
		if e, ok := d.find(k.Name); ok {
			named[e.ino] = true
		}
	}
	b.changed = int64(len(names))
	for ino := range inos {
		if !named[ino] {
			b.changed++
		}
	}
	return nil
}

// changes reads the change index of layers: inodes with real changes and changed
// names. Pins and side effects are left out; each, if set, sees every record's kind.
func (t *Tree) changes(layers []Layer, each func(kind byte)) (map[Ino]struct{}, map[NameKey]struct{}, error) {
	inos, names := map[Ino]struct{}{}, map[NameKey]struct{}{}
	var bad error
	for _, l := range layers {
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

// Changed counts the paths changed in the open layer.
func (b *Branch) Changed() int64 {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	return b.changed
}

// Ancestor reports whether l lies in the line of the head. BaseLayer does.
func (b *Branch) Ancestor(l Layer) bool {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	return b.anc.has(l)
}

// Line lists the sealed layers under the head, newest first, BaseLayer not included.
func (b *Branch) Line() []Layer {
	b.t.mu.RLock()
	defer b.t.mu.RUnlock()
	var out []Layer
	for l := b.t.layers[b.layer].parent; l != BaseLayer; l = b.t.layers[l].parent {
		out = append(out, l)
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
	for ino := range b.orphans { // still in use: whatever is written to them goes to the next layer
		batch.Put(kv.Orphan(uint64(t.nextLayer), uint64(ino)), nil)
	}
	t.openLayer(&batch, b.name, old)
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
	rec := &layerRec{parent: b.t.layers[b.layer].parent, sealed: true, changed: b.changed, at: at}
	batch.Put(kv.LayerKey(uint64(b.layer)), rec.encode())
	for ino := range b.orphans {
		batch.Delete(kv.Orphan(uint64(b.layer), uint64(ino)))
	}
	return rec
}

// moveTo makes the new open layer the head, in memory.
func (b *Branch) moveTo(open, parent Layer, anc ancestry) {
	t := b.t
	t.layers[open] = &layerRec{parent: parent}
	t.nextLayer = open + 1
	b.layer, b.anc = open, anc
	b.changed, b.dirty = 0, false
}

// MoveHead seals the head and puts a new one on top of target, which is any sealed
// layer or BaseLayer. Its work is that of the changes between the two; no byte is
// copied. extra is as for Seal. swapped, which may be nil, runs while the tree is
// still locked: whoever reads afterwards sees the new head. With touch, files that
// differ get the present time as mtime and ctime, for tools that only look for
// something newer.
func (b *Branch) MoveHead(target Layer, touch bool, extra func(*kv.Batch, Moved) error, swapped func(Moved)) (Moved, error) {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if rec := t.layers[target]; target != BaseLayer && (rec == nil || !rec.sealed) {
		return Moved{}, fmt.Errorf("move head to layer %d: %w", target, ErrNoLayer)
	}
	at := t.now()
	m := Moved{From: b.layer, Target: target, Open: t.nextLayer, At: at}
	if !b.dirty && t.layers[b.layer].parent == target {
		m.Open, m.Noop = b.layer, true
		return m, nil
	}
	if err := b.differing(&m); err != nil {
		return Moved{}, err
	}
	known := b.known(m.Names)
	var batch kv.Batch
	sealed := b.sealHead(&batch, TimeOf(at))
	t.openLayer(&batch, b.name, target)
	if extra != nil {
		if err := extra(&batch, m); err != nil {
			return Moved{}, err
		}
	}
	if err := t.db.Apply(&batch); err != nil {
		return Moved{}, fmt.Errorf("move head to layer %d: %w", target, err)
	}
	t.layers[m.From] = sealed
	b.moveTo(m.Open, target, t.ancestry(target).grow(m.Open))
	if err := b.refresh(&m, known); err != nil {
		return Moved{}, err
	}
	if touch {
		if err := b.touchAll(&m); err != nil {
			return Moved{}, err
		}
	}
	if swapped != nil {
		swapped(m)
	}
	return m, nil
}

// differing fills m with the names and inodes that may differ.
func (b *Branch) differing(m *Moved) error {
	inos := map[Ino]struct{}{}
	names := map[NameKey]struct{}{}
	var bad error
	for _, l := range b.t.between(m.From, m.Target) {
		err := b.t.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(k, v []byte) bool {
			_, isName, ino, name, ok := kv.ParseChange(k)
			if !ok {
				bad = fmt.Errorf("change record %x: %w", k, ErrCorrupt)
				return false
			}
			if isName {
				names[NameKey{Ino(ino), name}] = struct{}{}
			} else {
				inos[Ino(ino)] = struct{}{}
			}
			return true
		})
		if err != nil || bad != nil {
			return fmt.Errorf("read changes of layer %d: %w", l, errOr(err, bad))
		}
	}
	for ino := range b.orphans { // a deleted base file left no record of its inode
		inos[ino] = struct{}{}
	}
	m.Inos = slices.Sorted(maps.Keys(inos))
	m.Names = slices.Collect(maps.Keys(names))
	return b.fileNames(m)
}

// fileNames adds the known names of the regular files in m that the kernel may know.
func (b *Branch) fileNames(m *Moved) error {
	for _, ino := range m.Inos {
		for k := range b.links[ino] {
			m.Names = append(m.Names, k)
		}
		n := b.nodes[ino]
		switch {
		case n == nil || n.gone || n.orphan:
		case n.rec == nil && n.bdir != nil:
			m.Names = append(m.Names, NameKey{n.bdir.ino, n.bname})
		case n.rec != nil && n.rec.mode&unix.S_IFMT == unix.S_IFREG:
			keys, err := b.namesOf(n)
			if err != nil {
				return err
			}
			m.Names = append(m.Names, keys...)
		}
	}
	return nil
}

// known returns the nodes in use that names lead to.
func (b *Branch) known(names []NameKey) map[*node]bool {
	out := map[*node]bool{}
	for _, k := range names {
		dn := b.nodes[k.Dir]
		if dn == nil {
			continue
		}
		n, _, err := b.child(dn, k.Name)
		switch {
		case err != nil: // nothing there, or nothing to be seen: then there is no node in use either
		case n.refs > 0 || n.kids > 0:
			out[n] = true
		default:
			b.drop(n)
		}
	}
	return out
}

// bury marks those of known, which are nodes that a changed name led to in the old
// head, to which no name leads in the new one. The last name leaves no trace in an
// inode's record, so only the names can tell.
func (b *Branch) bury(names []NameKey, known map[*node]bool) {
	if len(known) == 0 {
		return
	}
	linked := map[*node]bool{}
	for _, k := range names {
		dn, err := b.find(k.Dir)
		if err != nil || dn.gone {
			continue
		}
		if n, _, err := b.child(dn, k.Name); err == nil {
			linked[n] = true
			defer b.drop(n)
		}
		defer b.drop(dn)
	}
	for n := range known {
		several := n.rec != nil && n.rec.nlink > 1 && n.rec.mode&unix.S_IFMT != unix.S_IFDIR
		if !linked[n] && !several {
			n.gone = true
		}
	}
}

// refresh brings what is in memory in line with the new head.
func (b *Branch) refresh(m *Moved, known map[*node]bool) error {
	for _, ino := range m.Inos {
		n := b.nodes[ino]
		if n == nil {
			continue
		}
		old := n.rec
		rec, err := b.visibleInode(ino)
		if err != nil {
			return fmt.Errorf("the head moved, but an inode cannot be read: %w", err)
		}
		n.rec, n.orphan, n.dir = rec, false, nil
		if old != nil && old.origin != nil && !n.inb {
			n.bname, n.inb = old.origin.path, true
		}
		n.gone = rec == nil && !n.inb
	}
	for _, k := range m.Names {
		if n := b.nodes[k.Dir]; n != nil {
			n.dir = nil
		}
	}
	b.orphans = map[Ino]*node{}
	b.bury(m.Names, known)
	return b.fileNames(m)
}

// touchAll gives the files that differ and are here now the present time.
func (b *Branch) touchAll(m *Moved) error {
	o := b.newOp()
	o.batch.UseReserve()
	touch := func(n *node, err error) {
		if err != nil || n == nil || n.gone {
			return // not in this head, or gone from the base
		}
		o.then = append(o.then, func() { b.drop(n) })
		if d, err := b.isDir(n); err != nil || d {
			return
		}
		if rec, err := o.rec(n); err == nil {
			rec.mtime, rec.ctime = o.now, o.now
		}
	}
	for _, ino := range m.Inos {
		touch(b.find(ino))
	}
	for _, k := range m.Names {
		dn, err := b.find(k.Dir)
		if err != nil || dn.gone {
			continue
		}
		n, _, err := b.child(dn, k.Name)
		touch(n, err)
	}
	if err := o.commit(); err != nil {
		return fmt.Errorf("touch what came back: %w", err)
	}
	return nil
}

// find returns the node of an inode that the caller may hold no reference to; it
// may be unreferenced itself.
func (v *View) find(ino Ino) (*node, error) {
	if n := v.nodes[ino]; n != nil {
		return n, nil
	}
	rec, err := v.visibleInode(ino)
	if err != nil {
		return nil, err
	}
	if rec != nil {
		return v.recorded(ino)
	}
	o, err := v.t.anyOrigin(ino)
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, unix.ESTALE
	}
	return v.nodeAt(o.path)
}
