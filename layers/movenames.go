package layers

import (
	"slices"

	"golang.org/x/sys/unix"
)

// movedName is a name of a directory in use that has a record between the heads.
type movedName struct {
	NameKey
	dir  *node
	old  nameRec // what the old head saw of it
	had  bool    // it saw a record
	base bool    // without one it showed what is in the base
	now  Ino     // what the name leads to in the new head, 0 for nothing
}

// compareNames brings the directories in use in line, adds the names that lead
// elsewhere than before to m, and returns their directories. A node to which none
// leads any more is gone: the last name leaves no trace in an inode's record, so
// only the names can tell.
func (mv *move) compareNames() (listings map[Ino]bool, err error) {
	b := mv.b
	listings = map[Ino]bool{}
	moved := len(mv.inos)
	for i := range mv.names {
		k := &mv.names[i]
		was, err := mv.lead(k)
		if err != nil {
			return nil, err
		}
		if was == k.now {
			continue
		}
		mv.tell(k.NameKey)
		listings[k.Dir] = true
		// What lost or got a name may have no record that says so.
		mv.inos = append(mv.inos, was, k.now)
		if n := b.nodes[was]; n != nil {
			mv.doubt = append(mv.doubt, n)
		}
		if n := b.nodes[k.now]; n != nil && !n.gone && !n.dead && n.refs > 0 && b.typeOf(n) == unix.S_IFDIR {
			mv.elsewhere = append(mv.elsewhere, n)
		}
		if n := b.nodes[k.now]; n != nil && n.gone {
			if err := mv.reload(n); err != nil {
				return nil, err
			}
			n.gone = false
		}
	}
	if len(mv.inos) > moved {
		slices.Sort(mv.inos)
		mv.inos = slices.Compact(mv.inos)
	}
	if len(mv.doubt) == 0 {
		return listings, nil
	}
	linked := map[Ino]bool{RootIno: true}
	for i := range mv.names {
		linked[mv.names[i].now] = true
	}
	away := false // the names in directories not in use are in linked, too
	for _, n := range mv.doubt {
		if n.gone || linked[n.ino] || mv.named(n) {
			continue
		}
		if !away {
			away = true
			for _, k := range mv.away {
				linked[mv.leads(k)] = true
			}
		}
		n.gone = !linked[n.ino]
	}
	return listings, nil
}

// maxDirs bounds Moved.Dirs: each costs a look-up.
const maxDirs = 1000

// dirPaths completes m.Dirs.
func (mv *move) dirPaths() {
	for _, n := range mv.elsewhere[:min(len(mv.elsewhere), maxDirs)] {
		if p, err := mv.b.pathOf(n); err == nil {
			mv.m.Dirs = append(mv.m.Dirs, p)
		}
	}
}

// lead finds out what the name k led to, and sets what it leads to now.
func (mv *move) lead(k *movedName) (was Ino, err error) {
	b := mv.b
	rec, has := nameRec{}, false
	if k.dir.rec != nil {
		if rec, has, err = b.loadName(k.Dir, k.Name); err != nil {
			return 0, err
		}
	}
	if d := k.dir.dir; d != nil {
		b.unlist1(k.dir)
		if has {
			d.set(k.Name, rec)
		} else if d.names != nil {
			d.remove(k.Name)
		}
	}
	base := k.dir.inb && !k.dir.orphan && !k.dir.gone
	has = has && !k.dir.gone
	switch {
	case k.had && has:
		was, k.now = k.old.ino, rec.ino
	case k.had:
		was = k.old.ino
		if base {
			k.now, err = mv.under(k, k.old)
			mv.place(k)
		}
	case has:
		k.now = rec.ino
		if k.base {
			was, err = mv.under(k, rec)
		}
	case base != k.base:
		var ino Ino
		if ino, err = mv.inBase(k); base {
			k.now = ino
			mv.place(k)
		} else {
			was = ino
		}
	}
	return was, err
}

// place notes where in the base the node is that k leads to without a record: with
// one, its path may have been all that was known.
func (mv *move) place(k *movedName) {
	if n := mv.b.nodes[k.now]; n != nil && n.rec == nil && (n.bdir != k.dir || n.bname != k.Name) {
		mv.b.place(n, k.dir, k.Name)
	}
}

// under returns what a name shows in a head that has no record of it, given the
// record that another has.
func (mv *move) under(k *movedName, rec nameRec) (Ino, error) {
	switch rec.under {
	case underPin:
		return rec.ino, nil
	case underNothing:
		return 0, nil
	}
	return mv.inBase(k)
}

// inBase returns what the base has under a name, 0 for nothing.
func (mv *move) inBase(k *movedName) (Ino, error) { return mv.baseIno(k.dir, k.Name) }

func (mv *move) baseIno(dir *node, name string) (Ino, error) {
	p := join(dir.path(), name)
	st, err := mv.b.base.stat(p)
	if err != nil {
		return 0, nil // it went away, or its directory did: nothing is there
	}
	return mv.b.t.inoOf(p, &st)
}

// leads returns what a name leads to in the new head, 0 for nothing.
func (mv *move) leads(k NameKey) Ino {
	b := mv.b
	dn, err := b.find(k.Dir)
	if err != nil || dn.gone {
		return 0
	}
	defer b.drop(dn)
	// One record: loading all names of a directory not in use for each of its names would be quadratic.
	switch rec, ok, err := b.record(dn, k.Name); {
	case err != nil:
		return 0
	case ok:
		return rec.ino
	case !dn.inb || dn.orphan:
		return 0
	}
	ino, err := mv.baseIno(dn, k.Name)
	if err != nil {
		return 0
	}
	return ino
}

// named reports whether one of the names known of n, which need not have changed,
// leads to it.
func (mv *move) named(n *node) bool {
	keys, err := mv.b.namesOf(n)
	if err != nil {
		return false
	}
	if slices.ContainsFunc(keys, func(k NameKey) bool { return mv.leads(k) == n.ino }) {
		return true
	}
	// Of a base file with several names, some may be unknown.
	return n.rec != nil && n.rec.nlink > 1 && n.rec.mode&unix.S_IFMT != unix.S_IFDIR
}
