package layers

import (
	"fmt"

	"github.com/rewindfs/rewindfs/kv"
)

// Sparing. Some paths (Options.Spare: caches, logs) take no part in movements of the head: they stay as they were in the
// head that is left. A movement then is a merge in small (merge.go), of that head into the target and of these paths alone, whose records
// are in the new open layer from its start, in the batch of the movement:
//
//   - a kept path is after the movement as it was before, in every respect, or not there if it was not;
//   - all else is as in the target. That comes first: where the target has something that is not kept at a kept path, or
//     no directory above it, that is what is there. A directory above that the target does not have stays for what is kept in it;
//   - what lost or got a kept name since the target by a move, or has a name that is not kept besides, is not kept.
//
// Work: the changes between the two, once more, to find those that are about kept paths; then those.

// spared is what a movement keeps.
type spared struct {
	batch  kv.Batch
	inos   map[Ino]bool // that have records in the new layer
	names  []NameKey    // likewise
	copied []Ino        // those of inos that are of the base
	stay   map[Ino]bool // that are afterwards what they were before
	count  int64        // paths that differ from the target
}

// sparer looks for what is to be kept.
type sparer struct {
	*mergeFind
	keep    func(path string, dir bool) bool
	paths   [3]map[Ino]*string    // of directories; nil where they are not there
	reached map[*mergeObject]bool // directories that reach has looked at
}

// spareIn plans what a movement keeps that passes over changed inodes and names. Bytes that are pending have to be cut
// first: then it returns them. If the base changes above what is to be kept, so that it cannot be found, the movement
// comes first, and keeps nothing. The caller holds t.mu.
func (b *Branch) spareIn(m *Moved, changed []change[Ino], renamed []change[NameKey]) (*spared, []*pending, error) {
	if b.t.spare == nil {
		return nil, nil, nil
	}
	kp, wait, err := b.planSpared(m, changed, renamed)
	if err != nil && notThere(err) == nil {
		b.t.base.forget() // descriptors may be of directories that are gone
		kp, wait, err = b.planSpared(m, changed, renamed)
	}
	if err != nil && notThere(err) == nil {
		b.t.log.Warn("the base has changed above kept paths: they are as in the target now, and as they were in the layer that was left",
			"target", m.Target, "left", m.From, "err", err)
		return nil, nil, nil
	}
	return kp, wait, err
}

func (b *Branch) planSpared(m *Moved, changed []change[Ino], renamed []change[NameKey]) (*spared, []*pending, error) {
	k, err := b.newSparer(m.Target)
	if err != nil {
		return nil, nil, err
	}
	names, err := k.keptNames(renamed)
	if err != nil {
		return nil, nil, err
	}
	inos, err := k.keptInodes(changed)
	if err != nil || len(inos)+len(names) == 0 {
		return nil, nil, err
	}
	var wait []*pending
	for ino := range inos {
		for _, v := range k.v[atOurs:] {
			wait = append(wait, v.visiblePending(ino)...)
		}
	}
	if len(wait) > 0 {
		return nil, wait, nil
	}
	if err := k.compareAll(inos, names); err != nil {
		return nil, nil, err
	}
	kp, err := k.stage(b, m)
	if err != nil {
		return nil, nil, fmt.Errorf("keep paths as they are: %w", err)
	}
	return kp, nil, nil
}

func (b *Branch) newSparer(target Layer) (*sparer, error) {
	t := b.t
	head, to := t.newView(b.layer), t.newView(target)
	k := &sparer{mergeFind: newMergeFind(t, [3]*View{to, to, head}), keep: t.spare, reached: map[*mergeObject]bool{}}
	k.goes = k.removed
	for i := range k.showing {
		k.showing[i], k.paths[i] = map[*node]bool{}, map[Ino]*string{}
	}
	for _, v := range []*View{head, to} {
		v.base, v.keep = b.base, true
		var err error
		if v.root.rec, err = v.visibleInode(RootIno); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// keptNames picks those of names that are about something kept in the head or in the target, and adds those of the directories above
// that the target does not have.
func (k *sparer) keptNames(names []change[NameKey]) (map[NameKey]struct{}, error) {
	out := map[NameKey]struct{}{}
	for _, c := range names {
		is, err := k.about(c.key)
		if err != nil {
			return nil, err
		}
		for key := c.key; is; {
			out[key] = struct{}{}
			to, err := k.v[atOurs].find(key.Dir)
			if err == nil && !to.gone && k.shows(atOurs, to) {
				break
			}
			dn, err := k.v[atTheirs].find(key.Dir)
			if err != nil || dn.gone || dn.ino == RootIno || !k.shows(atTheirs, dn) {
				break
			}
			keys, err := k.v[atTheirs].namesOf(dn)
			if err != nil || len(keys) == 0 {
				return nil, err
			}
			key = keys[0]
		}
	}
	return out, nil
}

// keptInodes picks those of inos that have, or may have, a kept name in the head.
func (k *sparer) keptInodes(inos []change[Ino]) (map[Ino]struct{}, error) {
	out := map[Ino]struct{}{}
	for _, c := range inos {
		rec, err := k.v[atTheirs].visibleInode(c.key)
		if err != nil {
			return nil, err
		}
		if rec != nil && !rec.has(flagNames) {
			if may, err := k.mayKeep(atTheirs, NameKey{rec.parent, rec.name}); err != nil || !may {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		n, err := k.v[atTheirs].find(c.key)
		is := false
		if err == nil && !n.gone {
			var host uint64
			if host, err = k.v[atTheirs].severalInBase(n); host != 0 {
				is = true // all names are looked for later
			} else if err == nil {
				is, err = k.anyName(atTheirs, n, true)
			}
		}
		if notThere(err) != nil {
			return nil, err
		}
		if is {
			out[c.key] = struct{}{}
		}
	}
	return out, nil
}

// about reports whether a name is kept in the head or in the target.
func (k *sparer) about(key NameKey) (bool, error) {
	for _, side := range []int{atTheirs, atOurs} {
		if may, err := k.mayKeep(side, key); err != nil || !may {
			if err != nil {
				return false, err
			}
			continue
		}
		dn, err := k.v[side].find(key.Dir)
		var n *node
		if err == nil && !dn.gone {
			n, _, err = k.v[side].child(dn, key.Name)
		}
		if err == nil && n != nil {
			var is bool
			if is, err = k.isKept(side, key, n); is {
				return true, nil
			}
		}
		if notThere(err) != nil {
			return false, err
		}
	}
	return false, nil
}

// pathOf returns the path of a directory on a side, nil where it is not there.
func (k *sparer) pathOf(side int, dir Ino) (*string, error) {
	p, known := k.paths[side][dir]
	if known {
		return p, nil
	}
	dn, err := k.v[side].find(dir)
	if err == nil && !dn.gone && k.shows(side, dn) {
		var at string
		if at, err = k.v[side].pathOf(dn); err == nil {
			p = &at
		}
	}
	if notThere(err) != nil {
		return nil, err
	}
	k.paths[side][dir] = p
	return p, nil
}

// mayKeep reports whether a name is kept on a side if it leads to something of the right type: most names are told by
// that alone, and nothing has to be looked up.
func (k *sparer) mayKeep(side int, key NameKey) (bool, error) {
	p, err := k.pathOf(side, key.Dir)
	if err != nil || p == nil {
		return false, err
	}
	at := join(*p, key.Name)
	return k.keep(at, false) || k.keep(at, true), nil
}

// isKept reports whether a name that leads to n on a side is kept there.
func (k *sparer) isKept(side int, key NameKey, n *node) (bool, error) {
	p, err := k.pathOf(side, key.Dir)
	if err != nil || p == nil {
		return false, err
	}
	dir, err := k.v[side].isDir(n)
	return err == nil && k.keep(join(*p, key.Name), dir), notThere(err)
}

// anyName reports whether n has a name on a side that is kept, or one that is not.
func (k *sparer) anyName(side int, n *node, kept bool) (bool, error) {
	if n.ino == RootIno {
		return !kept, nil
	}
	keys, err := k.keysOf(side, n)
	if err != nil {
		return false, err
	}
	for _, key := range keys {
		dn, err := k.v[side].find(key.Dir)
		if err == nil && !dn.gone && k.shows(side, dn) {
			c, _, cerr := k.v[side].child(dn, key.Name)
			if err = cerr; err == nil && c == n {
				is, err := k.isKept(side, key, n)
				if err != nil || is == kept {
					return err == nil, err
				}
			}
		}
		if notThere(err) != nil {
			return false, err
		}
	}
	return false, nil
}

// free reports whether x has on a side a name that is not kept: then it is not kept at all.
func (k *sparer) free(x *mergeObject, side int) (bool, error) {
	if !x.has(side) {
		return false, nil
	}
	return k.anyName(side, x.node[side], false)
}

// removed reports whether a directory of the target that the head does not have goes: it is kept, so it is not there.
func (k *sparer) removed(x *mergeObject) bool {
	is, err := k.anyName(atOurs, x.node[atOurs], true)
	return err == nil && is
}

// decide says what becomes of each name.
func (k *sparer) decide(names []*mergeName) error {
	for _, e := range names {
		head, to := e.leads[atTheirs], e.leads[atOurs]
		e.want = to
		keptHead, err := k.keptName(e, atTheirs, atOurs)
		if err != nil {
			return err
		}
		keptTo, err := k.keptName(e, atOurs, atTheirs)
		if err != nil {
			return err
		}
		switch {
		case keptHead && (to == nil || keptTo):
			e.want = head
		case keptTo && !keptHead && head != to:
			e.want = nil
		}
	}
	for _, e := range names {
		if e.want != nil && e.want != e.leads[atOurs] && !k.reach(e.dir) {
			e.want = e.leads[atOurs]
		}
	}
	for _, e := range names {
		if e.want == nil && e.leads[atOurs] != nil {
			e.leads[atOurs].goes()
		}
	}
	return nil
}

// goes takes all names out of a directory that has none itself any more.
func (x *mergeObject) goes() {
	if x.wanted() {
		return
	}
	for _, e := range x.names {
		if c := e.want; c != nil {
			e.want = nil
			c.goes()
		}
	}
}

// keptName reports whether what a name leads to on a side is kept: by that name, by the name that it would have
// in the directory as the other side has it, and by all other names that it has there.
func (k *sparer) keptName(e *mergeName, side, other int) (bool, error) {
	x := e.leads[side]
	if x == nil {
		return false, nil
	}
	is, err := k.isKept(side, NameKey{e.dir.node[side].ino, e.name}, x.node[side])
	if err == nil && is && e.dir.has(other) {
		is, err = k.isKept(other, NameKey{e.dir.node[other].ino, e.name}, x.node[side])
	}
	if err != nil || !is {
		return false, err
	}
	free, err := k.free(x, other)
	return !free, err
}

// reach sees to it that directory x is there after the movement, and reports whether it can be.
func (k *sparer) reach(x *mergeObject) bool {
	if x.has(atOurs) || x.wanted() {
		return true
	}
	if k.reached[x] {
		return false
	}
	k.reached[x] = true
	for _, e := range x.at {
		if e.leads[atTheirs] == x && e.leads[atOurs] == nil && k.reach(e.dir) {
			e.want = x
			return true
		}
	}
	return false
}

// wanted reports whether a changed name leads to x afterwards.
func (x *mergeObject) wanted() bool {
	for _, e := range x.at {
		if e.want == x {
			return true
		}
	}
	return false
}

// stage makes the records of what is kept, for the new layer of a movement.
func (k *sparer) stage(b *Branch, mv *Moved) (*spared, error) {
	t := k.t
	m := &Merge{Ours: mv.Target, Base: mv.Target, views: k.v, objects: k.objects}
	for _, x := range k.objects {
		for _, e := range x.names {
			m.names = append(m.names, e)
		}
	}
	if err := k.decide(m.names); err != nil {
		return nil, err
	}
	stay := map[Ino]bool{}
	for _, x := range k.objects {
		if err := k.take(x, stay); err != nil {
			return nil, err
		}
	}
	// A branch of its own, that nobody has anything of in memory, takes the operation.
	to := &View{t: t, layer: mv.Open, anc: t.ancestry(mv.Target).grow(mv.Open), base: b.base}
	scratch := newBranch(b.name, to.furnish())
	var err error
	if scratch.root.rec, err = scratch.visibleInode(RootIno); err != nil {
		return nil, err
	}
	a := &mergeApply{
		op: scratch.newOp().large(), m: m, nodes: map[*mergeObject]*node{}, old: map[*mergeObject]*node{},
		staged: map[*mergeObject]*stagedRec{}, several: map[*node]bool{}, told: map[NameKey]bool{}, exact: true,
	}
	a.batch.UseReserve() // going back must work on a full disk
	if err := a.stageAll(); err != nil {
		a.unreserve()
		return nil, err
	}
	a.encodeAll()
	for _, n := range a.gone { // nobody has what is in the target open
		a.batch.Delete(kv.Orphan(uint64(mv.Open), uint64(n.ino)))
	}
	out := &spared{batch: a.batch, stay: stay, count: a.op.count, inos: map[Ino]bool{}}
	for _, s := range a.recs {
		out.inos[s.n.ino] = true
		if s.rec.origin != nil {
			out.copied = append(out.copied, s.n.ino)
		}
	}
	for _, e := range a.op.names {
		out.names = append(out.names, NameKey{e.dir.ino, e.name})
	}
	return out, nil
}

// take decides whether x is as the head has it after the movement, and notes it in stay.
func (k *sparer) take(x *mergeObject, stay map[Ino]bool) error {
	if !x.has(atTheirs) {
		return nil
	}
	free, err := k.free(x, atOurs)
	if err != nil || free {
		return err
	}
	if !x.has(atOurs) {
		if x.wanted() {
			x.do.content = mergeTake
			stay[x.node[atTheirs].ino] = true
		}
		return nil
	}
	is, err := k.anyName(atTheirs, x.node[atTheirs], true)
	if err != nil || !is {
		return err
	}
	stay[x.node[atTheirs].ino] = true
	if x.node[atOurs].rec != nil && x.node[atTheirs].rec != nil && x.node[atOurs].rec.layer == x.node[atTheirs].rec.layer {
		return nil
	}
	x.do = mergeDo{content: mergeTake, attrs: true, attr: x.attr[atTheirs], mtime: true, xattrs: map[string][]byte{}}
	for name := range x.xattrs[atOurs] {
		x.do.xattrs[name] = nil
	}
	for name, val := range x.xattrs[atTheirs] {
		x.do.xattrs[name] = append([]byte{}, val...)
	}
	return nil
}

// add adds what the new layer has to what a movement changes.
func (kp *spared) add(inos []change[Ino], names []change[NameKey]) ([]change[Ino], []change[NameKey]) {
	if kp == nil {
		return inos, names
	}
	for ino := range kp.inos {
		inos = append(inos, change[Ino]{key: ino})
	}
	for _, k := range kp.names {
		names = append(names, change[NameKey]{key: k})
	}
	return uniteInodes(inos), uniteNames(names)
}

// has reports whether the new layer has a record of an inode.
func (kp *spared) has(ino Ino) bool { return kp != nil && kp.inos[ino] }

// stays reports whether an inode is after the movement what it was before.
func (kp *spared) stays(ino Ino) bool { return kp != nil && kp.stay[ino] }

// follow brings the branch in line: its new layer holds what was kept.
func (kp *spared) follow(b *Branch) {
	if kp == nil {
		return
	}
	b.dirty, b.changed = true, kp.count
	b.spared.layer, b.spared.ops = b.layer, b.ops
	for _, ino := range kp.copied {
		if l, ok := b.t.copied[ino]; !ok || b.layer < l {
			b.t.copied[ino] = b.layer
		}
	}
}
