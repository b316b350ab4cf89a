package layers

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// mergeApply makes a decided merge one operation on the head.
type mergeApply struct {
	*op
	m       *Merge
	texts   map[*mergeObject]*stored
	nodes   map[*mergeObject]*node      // what each object is in the head after the merge
	old     map[*mergeObject]*node      // and what it was before, if it was there
	staged  map[*mergeObject]*stagedRec // the records of objects that get one
	several map[*node]bool              // of what loses names: they are recorded one by one
	gone    []*node                     // what loses its last name
	exact   bool                        // what is taken is to be as it is in theirs in every respect, times and all
	moved   Moved
	told    map[NameKey]bool
}

func (b *Branch) applyMerge(m *Merge, texts map[*mergeObject]*stored, extra func(*kv.Batch, Moved) error, swapped func(Moved)) (Moved, error) {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.dirty || t.layers[b.layer].parent != m.Ours || b.stale {
		return Moved{}, ErrMoved
	}
	if m.stale() {
		return Moved{}, fmt.Errorf("merge layer %d: %w", m.Theirs, ErrNoLayer)
	}
	for _, st := range texts {
		if t.void(st) {
			return Moved{}, errVoid
		}
	}
	a := &mergeApply{
		op: b.newOp().large(), m: m, texts: texts, nodes: map[*mergeObject]*node{}, old: map[*mergeObject]*node{},
		staged: map[*mergeObject]*stagedRec{}, several: map[*node]bool{}, told: map[NameKey]bool{},
	}
	a.moved = Moved{From: m.Ours, Target: m.Ours, Open: b.layer, At: t.now()}
	err := a.stageAll()
	if err == nil {
		rec := *t.layers[b.layer]
		rec.merged = m.Theirs
		a.batch.Put(kv.LayerKey(uint64(b.layer)), rec.encode())
		a.then = append(a.then, func() { t.layers[b.layer], t.mixed = &rec, true })
		a.moved.Changed = int64(len(m.Changes))
		if extra != nil {
			err = extra(&a.batch, a.moved)
		}
	}
	if err == nil {
		err = a.commit()
	}
	if err != nil {
		a.gone = nil
		a.dropNodes()
		return Moved{}, fmt.Errorf("merge layer %d: %w", m.Theirs, err)
	}
	err = a.tellKernel() // an error of it comes after the fact
	if swapped != nil {
		swapped(a.moved)
	}
	a.dropNodes()
	return a.moved, err
}

// stageAll stages what becomes of the objects themselves, then their link counts, then their names.
func (a *mergeApply) stageAll() error {
	for _, x := range a.m.objects {
		if err := a.find(x); err != nil {
			return fmt.Errorf("find what is to be merged: %w", err)
		}
	}
	for _, x := range a.m.objects {
		if err := a.object(x); err != nil {
			return err
		}
	}
	for _, x := range a.m.objects {
		if err := a.links(x); err != nil {
			return err
		}
	}
	for _, e := range a.m.names {
		if err := a.name(e); err != nil {
			return fmt.Errorf("merge name %q: %w", e.name, err)
		}
	}
	a.dirTimes()
	return nil
}

// find finds the nodes of x in the head, by the way from the root that ours shows.
func (a *mergeApply) find(x *mergeObject) error {
	if !x.has(atOurs) {
		return nil
	}
	v := a.m.views[atOurs]
	var keys []NameKey
	for _, e := range x.at {
		if e.leads[atOurs] == x {
			keys = append(keys, NameKey{e.dir.node[atOurs].ino, e.name})
		}
	}
	if len(keys) == 0 {
		known, err := v.namesOf(x.node[atOurs])
		if err != nil {
			return err
		}
		keys = known
	}
	if x.node[atOurs].ino == RootIno {
		a.old[x] = a.b.root
		return nil
	}
	for _, k := range keys {
		n, err := a.lead(v, k)
		if err == nil && n.ino == x.node[atOurs].ino {
			a.old[x] = n
			return nil
		}
		if notThere(err) != nil {
			return err
		}
	}
	n, err := a.b.find(x.node[atOurs].ino) // a base file with names that nobody has looked up
	a.old[x] = n
	return err
}

// lead returns what the name k of v leads to in the head.
func (a *mergeApply) lead(v *View, k NameKey) (*node, error) {
	dir, err := v.find(k.Dir)
	if err != nil {
		return nil, err
	}
	p, err := v.pathOf(dir)
	if err != nil {
		return nil, err
	}
	return a.b.walkTo(join(p, k.Name))
}

// object stages what x becomes itself.
func (a *mergeApply) object(x *mergeObject) error {
	old := a.old[x]
	theirs := x.node[atTheirs]
	switch {
	case a.exact && old == nil && !x.wanted():
		return nil
	case !a.exact && (theirs == nil || old == nil) && x.has(atBase):
		return nil // one side removed it, and there is no conflict
	case theirs == nil, old != nil && !x.do.any():
		a.nodes[x] = old
		return nil
	case old != nil && (x.do.content != mergeTake || old.ino == theirs.ino):
		return a.change(x, old)
	}
	return a.bring(x)
}

// change stages the changes of an object that keeps its inode.
func (a *mergeApply) change(x *mergeObject, n *node) error {
	a.nodes[x] = n
	if x.isDir() && !x.do.attrs && len(x.do.xattrs) == 0 {
		return nil // its mtime goes with its names
	}
	rec, err := a.rec(n)
	if err != nil {
		return err
	}
	rec.ctime = a.now
	switch x.do.content {
	case mergeTake:
		rec.mtime = a.now
		if err := a.takeContent(x, n, rec); err != nil {
			return err
		}
	case mergeText:
		rec.mtime = a.now
		if err := a.putText(x, n, rec); err != nil {
			return err
		}
	}
	for name, val := range x.do.xattrs {
		if val == nil {
			a.batch.Put(kv.Xattr(uint64(n.ino), name, uint64(a.b.layer)), xattrGone)
		} else {
			a.putXattr(n.ino, rec, name, val)
		}
	}
	a.attributes(x, rec)
	if a.exact {
		return a.times(x, rec)
	}
	return nil
}

// theirRec is the record of x in theirs, made up where it is as in the base.
func (a *mergeApply) theirRec(x *mergeObject) (*inode, error) {
	n := x.node[atTheirs]
	if n.rec != nil {
		return n.rec, nil
	}
	v := a.m.views[atTheirs]
	st, err := v.statBase(n)
	if err != nil {
		return nil, err
	}
	return v.base.record(n.path(), &st)
}

// times gives the record of x all times that it has in theirs.
func (a *mergeApply) times(x *mergeObject, rec *inode) error {
	theirs, err := a.theirRec(x)
	if err == nil {
		rec.atime, rec.mtime, rec.ctime, rec.btime = theirs.atime, theirs.mtime, theirs.ctime, theirs.btime
	}
	return err
}

// attributes gives a record what was decided of mode, owner and mtime.
func (a *mergeApply) attributes(x *mergeObject, rec *inode) {
	if x.do.attrs {
		rec.mode = rec.mode&unix.S_IFMT | x.do.attr.Mode&^unix.S_IFMT
		rec.uid, rec.gid = x.do.attr.UID, x.do.attr.GID
	}
	if x.do.mtime {
		rec.mtime = x.do.attr.Mtime
	}
}

// bring stages an object of theirs that is not here, under its own inode number. It gets its names after.
func (a *mergeApply) bring(x *mergeObject) error {
	theirs := x.node[atTheirs]
	as, err := a.theirRec(x)
	if err != nil {
		return err
	}
	rec := *as
	rec.nlink = 0
	if rec.origin == nil {
		rec.born = a.b.layer
	}
	if !a.exact {
		rec.ctime = a.now
	}
	rec.flags &^= flagNames | flagQuiet
	n := &node{ino: theirs.ino}
	if rec.origin != nil {
		n.bname, n.inb = rec.origin.path, true
	}
	if x.isDir() {
		rec.nlink = 2
		n.dir = &dirState{}
		if err := a.b.loadNames(n.ino, n.dir); err != nil {
			return err
		}
	}
	if err := a.takeRegions(n.ino, &rec, &rec); err != nil {
		return err
	}
	a.setXattrs(x, n, &rec)
	a.attributes(x, &rec)
	if x.has(atOurs) {
		rec.mode = rec.mode&unix.S_IFMT | x.do.attr.Mode&^unix.S_IFMT
		rec.uid, rec.gid = x.do.attr.UID, x.do.attr.GID
	}
	s := &stagedRec{n: n, rec: &rec, real: true}
	a.addRec(s)
	a.nodes[x], a.staged[x] = n, s
	a.then = append(a.then, func() { a.install(n) })
	return a.clear(x, n)
}

// clear hides what a directory that comes would show of its own, as of the base, and what theirs has not.
func (a *mergeApply) clear(x *mergeObject, n *node) error {
	if !x.isDir() {
		return nil
	}
	var names []string
	if err := a.b.eachName(n, func(name string) { names = append(names, name) }); err != nil {
		return err
	}
	for _, name := range names {
		if e := x.names[name]; e != nil && e.want != nil {
			continue
		}
		c, _, err := a.b.child(n, name)
		if err != nil {
			if notThere(err) == nil {
				continue // the base has changed since it was listed
			}
			return err
		}
		if err := a.dropName(n, name, c, a.hasNames(c)); err != nil {
			return err
		}
	}
	return nil
}

// install puts the node of an object that was brought in the place of one that the kernel may still know
// from an earlier merge that was taken back.
func (a *mergeApply) install(n *node) {
	old := a.b.nodes[n.ino]
	if old == nil {
		return // the next lookup makes one
	}
	n.refs = old.refs
	delete(a.b.orphans, n.ino)
	a.b.forgetDir(old)
	if a.b.nodes[n.ino] = n; old.bdir != nil {
		old.bdir.kids--
	}
}

// setXattrs gives what comes under its own inode number the extended attributes that were decided: what ours
// has, with the changes, or all that theirs has.
func (a *mergeApply) setXattrs(x *mergeObject, n *node, rec *inode) {
	want := maps.Clone(x.xattrs[atTheirs])
	if x.has(atOurs) {
		want = maps.Clone(x.xattrs[atOurs])
		for name, val := range x.do.xattrs {
			if delete(want, name); val != nil {
				want[name] = val
			}
		}
	}
	rec.flags &^= flagXattrs
	for name, val := range want {
		a.putXattr(n.ino, rec, name, val)
	}
}

// regionsOf reads all extents of an inode that v sees.
func (v *View) regionsOf(ino Ino, count uint64) (map[uint64][]extent, error) {
	out := map[uint64][]extent{}
	if count == 0 {
		return out, nil
	}
	err := v.regions(ino, 0, count-1, func(region uint64, xs []extent) bool { out[region] = xs; return true })
	return out, err
}

// takeRegions gives an inode the extents that it has in theirs: pieces are shared, no byte is copied. rec is its record here.
func (a *mergeApply) takeRegions(ino Ino, rec, theirs *inode) error {
	rec.regions = max(rec.regions, theirs.regions)
	had, err := a.b.regionsOf(ino, rec.regions)
	if err != nil {
		return err
	}
	has, err := a.m.views[atTheirs].regionsOf(ino, theirs.regions)
	if err != nil {
		return err
	}
	for region := range had {
		if _, ok := has[region]; !ok {
			has[region] = nil
		}
	}
	for region, xs := range has {
		if !slices.Equal(xs, had[region]) {
			a.t.putRegion(&a.batch, ino, region, a.b.layer, xs)
		}
	}
	return nil
}

// takeContent gives n, of which theirs is another version, their content.
func (a *mergeApply) takeContent(x *mergeObject, n *node, rec *inode) error {
	theirs, err := a.theirRec(x)
	if err != nil {
		return err
	}
	if err := a.takeRegions(n.ino, rec, theirs); err != nil {
		return err
	}
	rec.size, rec.limit, rec.source, rec.blocks = theirs.size, theirs.limit, theirs.source, theirs.blocks
	rec.flags = rec.flags&^flagSparse | theirs.flags&flagSparse
	return nil
}

// putText gives n merged content.
func (a *mergeApply) putText(x *mergeObject, n *node, rec *inode) error {
	return a.putContent(n, rec, a.texts[x], int64(len(x.do.text)))
}

// putContent gives n new content of size bytes, which st has. Behind its end there may be regions of a time when it was larger,
// which are named one by one: a file can have been of 8 EiB. Nothing is pending of it.
func (o *op) putContent(n *node, rec *inode, st *stored, size int64) error {
	had, err := o.b.regionsOf(n.ino, rec.regions)
	if err != nil {
		return err
	}
	o.batch.Append(&st.index)
	regions := uint64((size + regionSize - 1) / regionSize)
	for region := range regions {
		lo := int64(region) * regionSize
		o.t.putRegion(&o.batch, n.ino, region, o.b.layer, slice(st.exts, lo, lo+regionSize))
	}
	for region, xs := range had {
		if region >= regions && len(xs) > 0 {
			o.t.putRegion(&o.batch, n.ino, region, o.b.layer, nil)
		}
	}
	rec.regions = max(rec.regions, regions)
	rec.size, rec.limit, rec.source, rec.blocks = size, 0, nil, 0
	rec.flags &^= flagSparse
	return nil
}
