package layers

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// count says how many changed names lead to x only before the merge, and how many only after it; where another inode
// takes the place of x, that is all of them.
func (a *mergeApply) count(x *mergeObject) (lost, gained int) {
	stays := a.old[x] == a.nodes[x]
	for _, e := range x.at {
		was, is := e.leads[atOurs] == x && a.old[x] != nil, e.want == x
		if was && !(is && stays) {
			lost++
		}
		if is && !(was && stays) {
			gained++
		}
	}
	return lost, gained
}

// links stages the link counts of x: before the names, which note what they were of.
func (a *mergeApply) links(x *mergeObject) error {
	old, now := a.old[x], a.nodes[x]
	lost, gained := a.count(x)
	switch {
	case lost == 0 && gained == 0:
		return nil
	case x.isDir() && gained == 0:
		return a.removeDir(x, old)
	case x.isDir():
		_, err := a.record(x)
		return err
	case old == now && gained >= lost || old == nil:
		return a.gain(x, gained, lost)
	case old != now && now != nil:
		if err := a.gain(x, gained, 0); err != nil {
			return err
		}
		gained = 0
	}
	return a.lose(old, lost-gained)
}

// gain gives a file more names.
func (a *mergeApply) gain(x *mergeObject, gained, lost int) error {
	s, err := a.record(x)
	if err != nil {
		return err
	}
	links := int(s.rec.nlink) + gained - lost
	if links > 1 && !s.rec.has(flagNames) {
		if s.rec.flags |= flagNames; s.rec.nlink > 0 {
			a.batch.Put(kv.RName(uint64(s.n.ino), uint64(s.rec.parent), s.rec.name, uint64(a.b.layer)), []byte{1})
		}
	}
	s.rec.nlink = uint32(links)
	return nil
}

// lose takes n names away from a file. The last one leaves it to those who have it open.
func (a *mergeApply) lose(n *node, names int) error {
	a.several[n] = names > 1
	for range names {
		a.several[n] = a.several[n] || a.hasNames(n)
		if err := a.unlink(n); err != nil {
			return err
		}
	}
	if a.recStaged(n) == nil {
		a.gone = append(a.gone, n)
	}
	return nil
}

// removeDir removes a directory. What its record is in the store says that its names went, as if they had gone before it.
func (a *mergeApply) removeDir(x *mergeObject, n *node) error {
	a.gone = append(a.gone, n)
	if len(x.names) == 0 {
		return a.unlink(n)
	}
	s, err := a.stage(n)
	if err != nil {
		return err
	}
	a.orphan(n)
	a.then = append(a.then, func() {
		rec := *s.rec
		rec.nlink = 0
		n.rec = &rec
	})
	return nil
}

// record returns the staged record of what x is after the merge.
func (a *mergeApply) record(x *mergeObject) (*stagedRec, error) {
	if s := a.staged[x]; s != nil {
		return s, nil
	}
	s, err := a.stage(a.nodes[x])
	if err == nil {
		if a.staged[x] = s; !a.exact {
			s.rec.ctime = a.now
		}
	}
	return s, err
}

// name stages what becomes of one name.
func (a *mergeApply) name(e *mergeName) error {
	var from, to *node
	if x := e.leads[atOurs]; x != nil {
		from = a.old[x]
	}
	if e.want != nil {
		to = a.nodes[e.want]
	}
	if from == to {
		return nil
	}
	dir := a.nodes[e.dir]
	if dir == nil { // it goes, and all in it
		dir = a.old[e.dir]
	}
	if dir == nil {
		return unix.ESTALE
	}
	links := 0
	if from != nil && e.leads[atOurs].isDir() {
		links--
	}
	if to != nil && e.want.isDir() {
		links++
	}
	if err := a.touch(dir, links); err != nil {
		return err
	}
	several := from != nil && (a.several[from] || a.hasNames(from))
	if to == nil {
		return a.dropName(dir, e.name, from, several)
	}
	if several {
		a.unName(from.ino, dir.ino, e.name)
	}
	s, err := a.record(e.want)
	if err != nil {
		return err
	}
	return a.setName(dir, e.name, s, from)
}

// dirTimes gives directories of which ours changed nothing the mtime that they have in theirs.
func (a *mergeApply) dirTimes() {
	for _, x := range a.m.objects {
		n := a.nodes[x]
		if !x.isDir() || n == nil {
			continue
		}
		s := a.recStaged(n)
		switch {
		case s == nil:
		case a.exact && x.has(atOurs) && !x.do.any(): // that names in it were kept is no change of it
			s.rec.mtime, s.rec.ctime = x.attr[atOurs].Mtime, x.attr[atOurs].Ctime
		case a.exact:
			s.rec.mtime, s.rec.ctime = x.attr[atTheirs].Mtime, x.attr[atTheirs].Ctime
		case x.do.mtime:
			s.rec.mtime = x.do.attr.Mtime
		case !x.has(atOurs):
			s.rec.mtime = x.attr[atTheirs].Mtime
		}
	}
}

// tellKernel completes what the kernel must be told of the merge.
func (a *mergeApply) tellKernel() error {
	b := a.b
	inos, renew := map[Ino]bool{}, map[Ino]bool{}
	known := func(n *node) bool { return n != nil && b.nodes[n.ino] == n && (n.refs > 0 || n == b.root) }
	for _, e := range a.m.names {
		dir := a.nodes[e.dir]
		if dir == nil {
			dir = a.old[e.dir]
		}
		if e.want == e.leads[atOurs] && !e.want.replaced(a) || !known(dir) {
			continue
		}
		a.tell(NameKey{dir.ino, e.name})
		inos[dir.ino] = true
	}
	for _, x := range a.m.objects {
		lost, gained := a.count(x)
		for _, n := range []*node{a.old[x], a.nodes[x]} {
			if !known(n) || !x.do.any() && lost+gained == 0 {
				continue
			}
			inos[n.ino] = true
			if n.orphan || x.do.content == mergeKeep {
				continue
			}
			renew[n.ino] = true
			keys, err := b.namesOf(n)
			if err != nil {
				return err
			}
			for k := range b.links[n.ino] {
				keys = append(keys, k)
			}
			for _, k := range keys {
				if known(b.nodes[k.Dir]) {
					a.tell(k)
				}
			}
		}
	}
	for ino := range inos {
		a.moved.Inos = append(a.moved.Inos, ino)
		if renew[ino] {
			a.moved.Renew = append(a.moved.Renew, ino)
		}
	}
	slices.Sort(a.moved.Inos)
	slices.Sort(a.moved.Renew)
	return nil
}

// replaced reports whether another inode takes the place of x.
func (x *mergeObject) replaced(a *mergeApply) bool {
	return x != nil && a.old[x] != nil && a.old[x] != a.nodes[x]
}

func (a *mergeApply) tell(k NameKey) {
	if !a.told[k] {
		a.told[k] = true
		a.moved.Names = append(a.moved.Names, k)
	}
}

// dropNodes gives up the nodes that were looked up, and what of the removed objects nobody has in use.
func (a *mergeApply) dropNodes() {
	for _, n := range a.gone {
		if n.orphan && n.refs == 0 && a.b.nodes[n.ino] == n {
			a.t.reap(&a.b.View, n)
		}
	}
	for _, x := range a.m.objects {
		for _, n := range []*node{a.old[x], a.nodes[x]} {
			if n != nil {
				a.b.drop(n)
			}
		}
	}
}

// walkTo returns what is at p, from the root on. The caller drops it.
func (v *View) walkTo(p string) (*node, error) {
	n := v.root
	if p == "" {
		return n, nil
	}
	for name := range strings.SplitSeq(p, "/") {
		c, _, err := v.child(n, name)
		if err != nil {
			return nil, err
		}
		n = c
	}
	return n, nil
}
