package layers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// MoveHead seals the head and puts a new one on top of target, which is any sealed
// layer of the same generation of the base (else ErrGeneration), or BaseLayer: the base
// as of that generation. Its work is that of the changes between the two; no byte is
// copied. extra is as for Seal. swapped, which may be nil, runs while the tree is
// still locked: whoever reads afterwards sees the new head. With touch, files that
// differ get the present time as mtime and ctime, for tools that only look for
// something newer.
func (b *Branch) MoveHead(target Layer, touch bool, extra func(*kv.Batch, Moved) error, swapped func(Moved)) (Moved, error) {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		m, wait, err := b.moveHead(target, touch, extra, swapped)
		if len(wait) == 0 {
			return m, err
		}
		t.mu.Unlock()
		for _, p := range wait {
			err = errors.Join(err, t.cut(p))
		}
		t.mu.Lock()
		if err != nil {
			return Moved{}, fmt.Errorf("store what was written to kept paths: %w", err)
		}
	}
}

// moveHead is MoveHead with the tree locked. What must be cut before, it returns, and nothing else is done.
func (b *Branch) moveHead(target Layer, touch bool, extra func(*kv.Batch, Moved) error, swapped func(Moved)) (Moved, []*pending, error) {
	t := b.t
	if rec := t.held(target); target != BaseLayer && (rec == nil || !rec.sealed) {
		return Moved{}, nil, fmt.Errorf("move head to layer %d: %w", target, ErrNoLayer)
	}
	if gen := t.genOf(t.ancestry(target)); target != BaseLayer && gen != b.base.gen {
		return Moved{}, nil, fmt.Errorf("move head to layer %d, which is built on generation %d of the base and the head on %d: %w", target, gen, b.base.gen, ErrGeneration)
	}
	at := t.now()
	m := Moved{From: b.layer, Target: target, Open: t.nextLayer, At: at, Untouched: b.untouched()}
	if m.Untouched && (!b.dirty || b.spared.now) && t.layers[b.layer].parent == target {
		m.Open, m.Noop = b.layer, true
		return m, nil, nil
	}
	mv := &move{b: b, m: &m}
	inos, names, err := mv.differing()
	if err != nil {
		return Moved{}, nil, err
	}
	var wait []*pending
	if mv.spared, wait, err = b.spareIn(&m, inos, names); err != nil || len(wait) > 0 {
		return Moved{}, wait, err
	}
	if err := mv.before(mv.spared.add(inos, names)); err != nil {
		return Moved{}, nil, err
	}
	var batch kv.Batch
	sealed := b.sealHead(&batch, TimeOf(at))
	anc := t.ancestry(target).grow(m.Open)
	b.carryOrphans(&batch, anc)
	t.openLayer(&batch, b.name, target, b.base.gen)
	if mv.spared != nil {
		batch.Append(&mv.spared.batch)
		putCounter(&batch, metaSpared+b.name, uint64(m.Open))
	}
	if extra != nil {
		if err := extra(&batch, m); err != nil {
			return Moved{}, nil, err
		}
	}
	if err := t.db.Apply(&batch); err != nil {
		return Moved{}, nil, fmt.Errorf("move head to layer %d: %w", target, err)
	}
	t.layers[m.From] = sealed
	b.moveTo(m.Open, target, anc)
	mv.spared.follow(b)
	if mv.spared != nil {
		m.Spared = mv.spared.count
	}
	if err := mv.after(); err != nil {
		return Moved{}, nil, fmt.Errorf("the head moved to layer %d, but what is in memory cannot follow: %w", target, err)
	}
	if touch { // an error of it comes after the fact: the head has moved
		err = mv.touch()
	}
	if swapped != nil {
		swapped(m)
	}
	return m, nil, err
}

// move brings memory from one head to another, and finds out what of it the kernel
// may know and must be told. Records that only pin a name, or copy a directory up
// as it was, change nothing that shows: the kernel is not told of them, because
// dropping a name takes the paths of programs that work below it along.
//
// What is not in memory is not looked at, and the base only where no record says
// what it shows: this is what keeps a move at microseconds per change.
type move struct {
	b      *Branch
	m      *Moved
	spared *spared              // nil for nothing
	inos   []Ino                // inodes with records in the layers between the heads, ascending
	names  []movedName          // names likewise, of directories in use
	away   []NameKey            // and of other directories, of which nobody has entries in use
	dirs   map[Ino]Attr         // directories in use, as the old head showed them
	told   map[NameKey]struct{} // what m.Names holds
	// doubt are the nodes that may have no name in the new head: they lost one, or had none.
	doubt []*node
	// elsewhere are the directories in use that got another name or parent.
	elsewhere []*node
}

// before looks at the old head. It fills m with what it is sure of.
func (mv *move) before(inos []change[Ino], names []change[NameKey]) (err error) {
	b := mv.b
	mv.dirs, mv.told = map[Ino]Attr{}, make(map[NameKey]struct{}, len(inos))
	mv.names = make([]movedName, 0, len(names))
	for _, c := range names {
		k := movedName{NameKey: c.key, dir: b.nodes[c.key.Dir]}
		if k.dir == nil {
			mv.away = append(mv.away, c.key)
			if k.old, k.had, err = b.loadName(k.Dir, k.Name); err != nil {
				return err
			}
			if n := b.nodes[k.old.ino]; k.had && n != nil {
				mv.doubt = append(mv.doubt, n)
			}
			continue
		}
		if !k.dir.gone {
			k.base = k.dir.inb && !k.dir.orphan
			if k.old, k.had, err = b.record(k.dir, k.Name); err != nil {
				return err
			}
		}
		mv.names = append(mv.names, k)
	}
	mv.inos = make([]Ino, len(inos))
	for i, c := range inos {
		mv.inos[i] = c.key
		n := b.nodes[c.key]
		if n == nil {
			continue
		}
		if b.typeOf(n) == unix.S_IFDIR {
			n.dead = n.dead || n.orphan
			if a, err := b.attr(n); err == nil {
				mv.dirs[n.ino] = a
			}
		}
	}
	return mv.fileNames()
}

// change is a key that the layers between the heads changed. It shows unless all
// that they have of it are pins and side effects.
type change[K any] struct {
	key   K
	shows bool
}

// differing collects the inodes and names that the layers between the heads
// changed, in order, and estimates how many paths that makes.
func (mv *move) differing() (inos []change[Ino], names []change[NameKey], err error) {
	b := mv.b
	layers := b.t.between(mv.m.From, mv.m.Target)
	var bad error
	for _, l := range layers {
		if b.t.layers[l].given == givenBare {
			continue
		}
		err := b.t.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(k, v []byte) bool {
			_, isName, ino, name, ok := kv.ParseChange(k)
			if !ok || len(v) != 1 {
				bad = fmt.Errorf("change record %x: %w", k, ErrCorrupt)
				return false
			}
			if isName {
				names = append(names, change[NameKey]{NameKey{Ino(ino), name}, v[0] == changeReal})
			} else {
				inos = append(inos, change[Ino]{Ino(ino), v[0] == changeReal})
			}
			return true
		})
		if err != nil || bad != nil {
			return nil, nil, fmt.Errorf("read changes of layer %d: %w", l, errOr(err, bad))
		}
	}
	for ino := range b.orphans { // a deleted base file left no record of its inode
		inos = append(inos, change[Ino]{key: ino})
	}
	inos, names = uniteInodes(inos), uniteNames(names)
	return inos, names, mv.count(layers, inos, names)
}

func uniteInodes(all []change[Ino]) []change[Ino] { return unite(all, cmp.Compare[Ino]) }

func uniteNames(all []change[NameKey]) []change[NameKey] {
	return unite(all, func(x, y NameKey) int { return cmp.Or(cmp.Compare(x.Dir, y.Dir), strings.Compare(x.Name, y.Name)) })
}

// unite sorts changes and makes one of those of the same key.
func unite[K comparable](all []change[K], less func(x, y K) int) []change[K] {
	slices.SortFunc(all, func(x, y change[K]) int { return less(x.key, y.key) })
	out := all[:0]
	for _, c := range all {
		if n := len(out); n > 0 && out[n-1].key == c.key {
			out[n-1].shows = out[n-1].shows || c.shows
		} else {
			out = append(out, c)
		}
	}
	return out
}

// count estimates how many paths differ, as Branch.Changed does: changed names,
// and changed inodes that were not made, and so named, in the layers between.
func (mv *move) count(layers []Layer, inos []change[Ino], names []change[NameKey]) error {
	b := mv.b
	between := make(map[Layer]bool, len(layers))
	for _, l := range layers {
		between[l] = true
	}
	for _, c := range names {
		if c.shows {
			mv.m.Changed++
		}
	}
	for _, c := range inos {
		if !c.shows {
			continue
		}
		if !c.key.ofBase() { // no layer made what is of the base
			var rec *inode
			var err error
			if n := b.nodes[c.key]; n != nil && n.refs > 0 {
				rec = n.rec
			} else if rec, err = b.visibleInode(c.key); err != nil {
				return err
			}
			if rec == nil || between[rec.born] {
				continue
			}
		}
		mv.m.Changed++
	}
	return nil
}

// fileNames tells of the known names of what is no directory.
func (mv *move) fileNames() error {
	b := mv.b
	for _, ino := range mv.inos {
		n := b.nodes[ino]
		if n == nil || n.gone || n.orphan || b.typeOf(n) == unix.S_IFDIR || mv.spared.stays(ino) {
			continue
		}
		keys, err := b.namesOf(n)
		if err != nil {
			return err
		}
		for k := range b.links[ino] {
			if dn := b.nodes[k.Dir]; dn == nil {
				continue
			} else if rec, ok, err := b.record(dn, k.Name); err != nil {
				return err
			} else if !ok || rec.ino == ino { // else it is the name of something else by now
				keys = append(keys, k)
			}
		}
		for _, k := range keys {
			mv.tell(k)
		}
	}
	return nil
}

// tell adds a name to m, once, if the kernel may know it: it has no name in a
// directory that it does not refer to.
func (mv *move) tell(k NameKey) {
	dn := mv.b.nodes[k.Dir]
	if dn == nil || dn.refs == 0 && dn != mv.b.root {
		return
	}
	if _, ok := mv.told[k]; !ok {
		mv.told[k] = struct{}{}
		mv.m.Names = append(mv.m.Names, k)
	}
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
	maps.DeleteFunc(b.orphans, func(_ Ino, l Layer) bool { return !b.anc.has(l) })
	listings, err := mv.compareNames()
	if err != nil {
		return err
	}
	for _, ino := range mv.inos {
		n := b.nodes[ino]
		if n == nil || n.refs == 0 && n != b.root {
			continue // the kernel does not know it
		}
		mv.placeDir(n)
		if mv.spared.stays(ino) && !n.gone && !listings[ino] {
			continue // all that the kernel knows of it is true
		}
		if was, dir := mv.dirs[ino]; dir && !listings[ino] && !n.gone && !n.dead {
			if now, err := b.attr(n); err == nil && now == was {
				continue
			}
		}
		mv.m.Inos = append(mv.m.Inos, ino)
		if !n.gone && (n.dead && !n.orphan || b.typeOf(n) == unix.S_IFREG) {
			mv.m.Renew = append(mv.m.Renew, ino)
			n.dead = false
		}
	}
	mv.dirPaths()
	return mv.fileNames()
}

// reload looks a node in use up again. Of a directory the names stay what they
// are, except for those that compareNames goes through.
func (mv *move) reload(n *node) error {
	b := mv.b
	if l, ok := b.orphans[n.ino]; ok && b.anc.has(l) {
		// It has no name here either. What was written to it since is gone.
		n.gone = n.rec.layer != BaseLayer && !b.anc.has(n.rec.layer)
		return nil
	}
	if n.gone || n.orphan {
		mv.doubt = append(mv.doubt, n)
	}
	old := n.rec
	rec, err := mv.visible(n)
	if err != nil {
		return err
	}
	n.rec, n.orphan = rec, false
	if old != nil {
		n.typ = old.mode & unix.S_IFMT
		if old.origin != nil && !n.inb {
			n.bname, n.inb = old.origin.path, true
		}
	}
	n.gone = rec == nil && !n.inb
	if rec == nil { // neither has it names then
		b.forgetDir(n)
	} else {
		b.unlist1(n)
	}
	return nil
}

// placeDir finds the place in the base of a directory in use that has just lost its
// record, which said what its parent is, when that is not in use.
func (mv *move) placeDir(n *node) {
	b := mv.b
	if n.rec != nil || n.bdir != nil || !n.inb || n.gone || n == b.root || b.typeOf(n) != unix.S_IFDIR {
		return
	}
	dir, name := split(n.bname)
	if dn, err := b.nodeAt(dir); err == nil {
		b.place(n, dn, name)
	}
}

// visible is visibleInode for a node that still has its record of the old head: for
// what the layers up to the target cannot hold, the store need not be asked.
func (mv *move) visible(n *node) (*inode, error) {
	b := mv.b
	if mv.spared.has(n.ino) {
		return b.visibleInode(n.ino)
	}
	if old := n.rec; old != nil && old.origin == nil && !b.t.mixed && !b.anc.has(old.born) {
		return nil, nil // it had not been made yet
	}
	if first, ok := b.t.copied[n.ino]; n.ino.ofBase() && (!ok || mv.m.Target < first) {
		return nil, nil // it was as in the base; the open layer is empty
	}
	return b.visibleInode(n.ino)
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
		if !mv.spared.stays(ino) {
			touch(b.find(ino))
		}
	}
	keys := mv.away
	for i := range mv.names {
		keys = append(keys, mv.names[i].NameKey)
	}
	for _, k := range keys {
		dn, err := b.find(k.Dir)
		if err != nil || dn.gone {
			continue
		}
		n, _, err := b.child(dn, k.Name)
		if err == nil && mv.spared.stays(n.ino) {
			continue
		}
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
		return v.withRecord(ino, rec), nil
	}
	o, err := v.t.anyOrigin(ino)
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, unix.ESTALE
	}
	n, err := v.inBaseAs(ino, o.path)
	if err == nil {
		return n, nil
	}
	paths, bad := v.t.originPaths(ino)
	for _, p := range paths {
		if n, err := v.inBaseAs(ino, p); err == nil {
			return n, nil
		}
	}
	return nil, errOr(bad, err)
}

// inBaseAs returns the node of the base object at p, if it is inode ino in this
// generation of the base.
func (v *View) inBaseAs(ino Ino, p string) (*node, error) {
	n, err := v.nodeAt(p)
	if err != nil || n.ino == ino {
		return n, err
	}
	v.drop(n)
	return nil, unix.ESTALE
}
