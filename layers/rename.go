package layers

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Rename moves oname in odir to nname in ndir. flags may hold unix.RENAME_NOREPLACE
// or unix.RENAME_EXCHANGE. Whatever is renamed, it is a matter of a few records: a
// directory of the base goes along with all that is in it.
// ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL.
func (b *Branch) Rename(odir Ino, oname string, ndir Ino, nname string, flags uint32) error {
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 || flags == unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE {
		return unix.EINVAL
	}
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	od, n, err := b.entry(odir, oname)
	if err != nil {
		return err
	}
	defer b.drop(n)
	nd, err := b.get(ndir)
	if err != nil {
		return err
	}
	if nd.orphan {
		return unix.ENOENT
	}
	over, _, err := b.child(nd, nname)
	switch {
	case errors.Is(err, unix.ENOENT):
		over = nil
	case err != nil:
		return err
	default:
		defer b.drop(over)
	}
	switch {
	case flags == unix.RENAME_EXCHANGE && over == nil:
		return unix.ENOENT
	case flags == unix.RENAME_NOREPLACE && over != nil:
		return unix.EEXIST
	case over == n:
		return nil // two names of one file, or a name onto itself
	case flags == unix.RENAME_EXCHANGE:
		return b.exchange(od, oname, n, nd, nname, over)
	}
	return b.move(od, oname, n, nd, nname, over)
}

func (b *Branch) move(od *node, oname string, n, nd *node, nname string, over *node) error {
	isDir, err := b.isDir(n)
	if err != nil {
		return err
	}
	if over != nil {
		if err := b.replaceable(isDir, over); err != nil {
			return err
		}
	}
	o := b.newOp()
	s, err := o.stage(n)
	if err != nil {
		return err
	}
	s.rec.ctime = o.now
	if over != nil {
		if err := o.unlink(over); err != nil {
			return err
		}
		if o.hasNames(over) {
			o.unName(over.ino, nd.ino, nname)
		}
	}
	if err := o.dropName(od, oname, n, s.rec.has(flagNames)); err != nil {
		return err
	}
	parent, hint := s.rec.parent, s.rec.name
	if err := o.setName(nd, nname, s, over); err != nil {
		return err
	}
	if s.rec.has(flagNames) && (parent != od.ino || hint != oname) {
		s.rec.parent, s.rec.name = parent, hint // another name than the one that moved
	}
	oldLinks, newLinks := 0, 0
	if isDir {
		oldLinks, newLinks = -1, 1
		if over != nil {
			newLinks = 0
		}
	}
	if od == nd {
		err = o.touch(od, oldLinks+newLinks)
	} else if err = o.touch(od, oldLinks); err == nil {
		err = o.touch(nd, newLinks)
	}
	if err != nil {
		return err
	}
	if over == nil {
		return o.commit()
	}
	return b.finish(o, over)
}

// replaceable says whether over may be replaced by a directory (or not).
func (b *Branch) replaceable(byDir bool, over *node) error {
	overDir, err := b.isDir(over)
	switch {
	case err != nil:
		return err
	case byDir && !overDir:
		return unix.ENOTDIR
	case !byDir && overDir:
		return unix.EISDIR
	case !overDir:
		return nil
	}
	empty, err := b.empty(over)
	if err != nil || empty {
		return err
	}
	return unix.ENOTEMPTY
}

func (b *Branch) exchange(ad *node, aname string, a, cd *node, cname string, c *node) error {
	o := b.newOp()
	as, err := o.stage(a)
	if err != nil {
		return err
	}
	cs, err := o.stage(c)
	if err != nil {
		return err
	}
	as.rec.ctime, cs.rec.ctime = o.now, o.now
	for _, x := range []struct {
		s    *stagedRec
		from *node
		name string
	}{{as, ad, aname}, {cs, cd, cname}} {
		if x.s.rec.has(flagNames) {
			o.unName(x.s.n.ino, x.from.ino, x.name)
		}
	}
	if err := o.setName(cd, cname, as, c); err != nil {
		return err
	}
	if err := o.setName(ad, aname, cs, a); err != nil {
		return err
	}
	links := 0 // how many subdirectories ad wins
	if as.rec.mode&unix.S_IFMT == unix.S_IFDIR {
		links--
	}
	if cs.rec.mode&unix.S_IFMT == unix.S_IFDIR {
		links++
	}
	if ad == cd {
		err = o.touch(ad, 0)
	} else if err = o.touch(ad, links); err == nil {
		err = o.touch(cd, -links)
	}
	if err != nil {
		return err
	}
	return o.commit()
}
