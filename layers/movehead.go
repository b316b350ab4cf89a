package layers

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

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
	anc := t.ancestry(target).grow(m.Open)
	b.carryOrphans(&batch, anc)
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
	b.moveTo(m.Open, target, anc)
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
		if l, ok := b.orphans[ino]; ok && b.anc.has(l) {
			// It has no name here either. What was written to it since is gone.
			n.gone = n.rec.layer != BaseLayer && !b.anc.has(n.rec.layer)
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
	maps.DeleteFunc(b.orphans, func(ino Ino, l Layer) bool { return !b.anc.has(l) })
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
