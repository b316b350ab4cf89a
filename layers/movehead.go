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
	mv := &move{b: b, m: &m}
	if err := mv.before(); err != nil {
		return Moved{}, err
	}
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
	err := t.db.Apply(&batch)
	if err != nil {
		return Moved{}, fmt.Errorf("move head to layer %d: %w", target, err)
	}
	t.layers[m.From] = sealed
	b.moveTo(m.Open, target, anc)
	if err := mv.after(); err != nil {
		return Moved{}, fmt.Errorf("the head moved to layer %d, but what is in memory cannot follow: %w", target, err)
	}
	if touch { // an error of it comes after the fact: the head has moved
		err = mv.touch()
	}
	if swapped != nil {
		swapped(m)
	}
	return m, err
}

// move brings memory from one head to another, and finds out what of it the kernel
// may know and must be told. Records that only pin a name, or copy a directory up
// as it was, change nothing that shows: the kernel is not told of them, because
// dropping a name takes the paths of programs that work below it along.
type move struct {
	b     *Branch
	m     *Moved
	inos  []Ino     // inodes with records in the layers between the heads
	names []NameKey // names likewise
	led   map[NameKey]Ino
	known map[*node]bool // nodes in use to which a name led in the old head
	dirs  map[Ino]Attr   // directories in use, as the old head showed them
	// removed are the inodes in use that had no name in the old head.
	removed map[Ino]bool
}

// before looks at the old head. It fills m with what it is sure of.
func (mv *move) before() error {
	if err := mv.differing(); err != nil {
		return err
	}
	b := mv.b
	mv.led, mv.known, mv.dirs, mv.removed = map[NameKey]Ino{}, map[*node]bool{}, map[Ino]Attr{}, map[Ino]bool{}
	for _, k := range mv.names {
		dn := b.nodes[k.Dir]
		if dn == nil {
			continue // not in use: neither are its entries
		}
		mv.led[k] = 0
		n, _, err := b.child(dn, k.Name)
		if err != nil {
			continue
		}
		mv.led[k] = n.ino
		if n.refs > 0 || n.kids > 0 {
			mv.known[n] = true
		} else {
			b.drop(n)
		}
	}
	for _, ino := range mv.inos {
		n := b.nodes[ino]
		if n == nil {
			continue
		}
		mv.removed[ino] = n.orphan
		if a, err := b.attr(n); err == nil && a.IsDir() {
			mv.dirs[ino] = a
		}
	}
	return mv.fileNames()
}

// differing collects the keys that the layers between the heads changed.
func (mv *move) differing() error {
	b := mv.b
	inos := map[Ino]byte{}
	names := map[NameKey]byte{}
	layers := b.t.between(mv.m.From, mv.m.Target)
	var bad error
	for _, l := range layers {
		err := b.t.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(k, v []byte) bool {
			_, isName, ino, name, ok := kv.ParseChange(k)
			if !ok || len(v) != 1 {
				bad = fmt.Errorf("change record %x: %w", k, ErrCorrupt)
				return false
			}
			if isName {
				names[NameKey{Ino(ino), name}] |= shows(v[0])
			} else {
				inos[Ino(ino)] |= shows(v[0])
			}
			return true
		})
		if err != nil || bad != nil {
			return fmt.Errorf("read changes of layer %d: %w", l, errOr(err, bad))
		}
	}
	if err := mv.count(layers, inos, names); err != nil {
		return err
	}
	for ino := range b.orphans { // a deleted base file left no record of its inode
		inos[ino] |= 0
	}
	mv.inos = slices.Sorted(maps.Keys(inos))
	mv.names = slices.Collect(maps.Keys(names))
	return nil
}

// shows is 1 for a change that shows by itself, 0 for a pin or a side effect.
func shows(kind byte) byte {
	if kind == changeReal {
		return 1
	}
	return 0
}

// count estimates how many paths differ, as Branch.Changed does: changed names,
// and changed inodes that were not made, and so named, in the layers between.
func (mv *move) count(layers []Layer, inos map[Ino]byte, names map[NameKey]byte) error {
	between := make(map[Layer]bool, len(layers))
	for _, l := range layers {
		between[l] = true
	}
	for _, shown := range names {
		mv.m.Changed += int64(shown)
	}
	for ino, shown := range inos {
		if shown == 0 {
			continue
		}
		rec, err := mv.b.visibleInode(ino)
		if err != nil {
			return err
		}
		if rec == nil && ino >= firstOwnIno || rec != nil && between[rec.born] {
			continue
		}
		mv.m.Changed++
	}
	return nil
}

// fileNames adds the known names of what is no directory to m.
func (mv *move) fileNames() error {
	b := mv.b
	for _, ino := range mv.inos {
		n := b.nodes[ino]
		if n == nil || n.gone || n.orphan {
			continue
		}
		if dir, err := b.isDir(n); err != nil || dir {
			continue
		}
		for k := range b.links[ino] {
			mv.m.Names = append(mv.m.Names, k)
		}
		keys, err := b.namesOf(n)
		if err != nil {
			return err
		}
		mv.m.Names = append(mv.m.Names, keys...)
	}
	return nil
}

// after brings memory in line with the new head and completes m.
func (mv *move) after() error {
	b := mv.b
	for _, ino := range mv.inos {
		if n := b.nodes[ino]; n != nil {
			if err := mv.reload(n); err != nil {
				return err
			}
		}
	}
	for _, k := range mv.names {
		if n := b.nodes[k.Dir]; n != nil {
			n.dir = nil
		}
	}
	maps.DeleteFunc(b.orphans, func(_ Ino, l Layer) bool { return !b.anc.has(l) })
	listings := mv.compareNames()
	for _, ino := range mv.inos {
		n := b.nodes[ino]
		if n == nil {
			continue
		}
		if was, dir := mv.dirs[ino]; dir && !listings[ino] && !n.gone {
			if now, err := b.attr(n); err == nil && now == was {
				continue
			}
		}
		mv.m.Inos = append(mv.m.Inos, ino)
		if dir, err := b.isDir(n); err == nil && (dir && mv.removed[ino] && !n.orphan && !n.gone || !dir && b.regular(n)) {
			mv.m.Renew = append(mv.m.Renew, ino)
		}
	}
	return mv.fileNames()
}

// regular reports whether n is a regular file, as far as can be told.
func (v *View) regular(n *node) bool {
	if n.rec != nil {
		return n.rec.mode&unix.S_IFMT == unix.S_IFREG
	}
	a, err := v.attr(n)
	return err == nil && a.Mode&unix.S_IFMT == unix.S_IFREG
}

// reload looks a node in use up again.
func (mv *move) reload(n *node) error {
	b := mv.b
	if l, ok := b.orphans[n.ino]; ok && b.anc.has(l) {
		// It has no name here either. What was written to it since is gone.
		n.gone = n.rec.layer != BaseLayer && !b.anc.has(n.rec.layer)
		return nil
	}
	old := n.rec
	rec, err := b.visibleInode(n.ino)
	if err != nil {
		return err
	}
	n.rec, n.orphan, n.dir = rec, false, nil
	if old != nil && old.origin != nil && !n.inb {
		n.bname, n.inb = old.origin.path, true
	}
	n.gone = rec == nil && !n.inb
	return nil
}

// compareNames adds the names that lead elsewhere than before to m, and returns
// their directories. A node to which none leads any more is gone: the last name
// leaves no trace in an inode's record, so only the names can tell.
func (mv *move) compareNames() (listings map[Ino]bool) {
	b := mv.b
	listings = map[Ino]bool{}
	linked := map[*node]bool{}
	for _, k := range mv.names {
		was, used := mv.led[k]
		if !used && len(mv.known) == 0 {
			continue
		}
		now := Ino(0)
		if dn, err := b.find(k.Dir); err == nil && !dn.gone {
			if n, _, err := b.child(dn, k.Name); err == nil {
				now = n.ino
				linked[n] = true
				b.drop(n)
			}
			b.drop(dn)
		}
		if used && now != was {
			mv.m.Names = append(mv.m.Names, k)
			listings[k.Dir] = true
			// What lost or got a name may have no record that says so.
			mv.inos = append(mv.inos, was, now)
		}
	}
	slices.Sort(mv.inos)
	mv.inos = slices.Compact(mv.inos)
	for n := range mv.known {
		if !linked[n] && !mv.named(n) {
			n.gone = true
		}
	}
	return listings
}

// named reports whether a name that did not change leads to n.
func (mv *move) named(n *node) bool {
	b := mv.b
	keys, err := b.namesOf(n)
	if err != nil {
		return false
	}
	for _, k := range keys {
		dn, err := b.find(k.Dir)
		if err != nil || dn.gone {
			continue
		}
		c, _, err := b.child(dn, k.Name)
		if err == nil && c == n {
			return true
		}
	}
	// Of a base file with several names, some may be unknown.
	return n.rec != nil && n.rec.nlink > 1 && n.rec.mode&unix.S_IFMT != unix.S_IFDIR
}

// touch gives the files that differ and are here now the present time.
func (mv *move) touch() error {
	b := mv.b
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
	for _, ino := range mv.inos {
		touch(b.find(ino))
	}
	for _, k := range mv.names {
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
