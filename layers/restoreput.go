package layers

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// planting makes what a Restore is to make, in one operation of a new layer.
type planting struct {
	*op
	r      *restoring
	names  []NameKey          // of which the kernel must be told
	inos   []Ino              // likewise
	groups map[Ino]*stagedRec // inodes of the target with several names -> what they became
	made   []*stagedRec       // the new inodes
	held   []*node            // looked at, to be dropped
}

// apply seals the head and makes what was planned in the layer on top, in one batch.
func (r *restoring) apply(res *Restored, extra func(*kv.Batch, Restored) error) error {
	b, t := r.b, r.t
	was := b.shift(res.Open)
	o := b.newOp().large()
	o.batch.UseReserve()
	sealed := was.seal(&o.batch, TimeOf(res.At))

	p := &planting{op: o, r: r, groups: map[Ino]*stagedRec{}}
	err := p.all()
	if err == nil {
		res.Names, res.Inos = p.names, p.inos
		if extra != nil {
			err = extra(&o.batch, *res)
		}
	}
	if err == nil {
		err = o.commit()
	}
	if err != nil {
		o.unreserve()
		was.back()
	} else {
		t.layers[was.layer], t.layers[res.Open] = sealed, onTop(was.layer, b.base.gen)
		t.nextLayer = res.Open + 1
	}
	for _, n := range p.held {
		if n.orphan && n.refs == 0 {
			t.reap(&b.View, n)
		}
		b.drop(n)
	}
	return err
}

func (p *planting) all() error {
	for _, at := range p.r.roots {
		if err := p.root(at); err != nil {
			return fmt.Errorf("%q: %w", join(at.dir, at.name), err)
		}
	}
	for q := range p.r.inPlace {
		if err := p.directory(q); err != nil {
			return fmt.Errorf("%q: %w", q, err)
		}
	}
	layer := uint64(p.b.layer)
	for _, s := range p.made {
		s.rec.layer = p.b.layer
		p.batch.Put(kv.Inode(uint64(s.n.ino), layer), s.rec.encode())
		p.batch.Put(kv.ChangeInode(layer, uint64(s.n.ino)), []byte{changeReal})
	}
	for _, s := range p.recs {
		p.inos = append(p.inos, s.n.ino)
	}
	slices.Sort(p.inos)
	p.inos = slices.Compact(p.inos)
	return nil
}

// at returns the node of the head at q, nil for nothing.
func (p *planting) at(q string) (*node, error) {
	n := p.b.root
	for name := ""; q != ""; {
		name, q, _ = strings.Cut(q, "/")
		c, _, err := p.b.child(n, name)
		if err != nil {
			return nil, notThere(err)
		}
		p.held = append(p.held, c)
		n = c
	}
	return n, nil
}

func (p *planting) root(at root) error {
	dn, err := p.at(at.dir)
	if err != nil {
		return err
	}
	over, err := p.at(join(at.dir, at.name))
	if err != nil {
		return err
	}
	links := 0
	if over != nil {
		dir, err := p.b.isDir(over)
		if err != nil {
			return err
		}
		if dir {
			links--
		}
	}
	var s *stagedRec
	if at.plant != nil {
		if s, err = p.plant(at.plant); err != nil {
			return err
		}
		if s.rec.mode&unix.S_IFMT == unix.S_IFDIR {
			links++
		}
	}
	hasNames := over != nil && p.hasNames(over)
	if over != nil {
		if err := p.remove(over); err != nil {
			return err
		}
		hasNames = hasNames || p.hasNames(over)
	}
	switch {
	case s == nil:
		err = p.dropName(dn, at.name, over, hasNames)
	default:
		if hasNames {
			p.unName(over.ino, dn.ino, at.name)
		}
		err = p.name(s, dn.ino, at.name, func() error { return p.setName(dn, at.name, s, over) })
	}
	if err != nil {
		return err
	}
	p.names = append(p.names, NameKey{dn.ino, at.name})
	return p.touch(dn, links)
}

// name gives s a name by set, and the record of one to each when it has several.
func (p *planting) name(s *stagedRec, dir Ino, name string, set func() error) error {
	parent, hint := s.rec.parent, s.rec.name
	several := parent != 0
	if several && !s.rec.has(flagNames) {
		s.rec.flags |= flagNames
		p.batch.Put(kv.RName(uint64(s.n.ino), uint64(parent), hint, uint64(p.b.layer)), []byte{1})
	}
	if err := set(); err != nil {
		return err
	}
	s.rec.parent, s.rec.name = dir, name
	if several {
		s.rec.parent, s.rec.name = parent, hint
	}
	return nil
}

// plant makes k and all below it, but for its name.
func (p *planting) plant(k *plant) (*stagedRec, error) {
	if k.link != "" {
		return p.link(k.link)
	}
	a, err := p.r.ref.attr(k.n)
	if err != nil {
		return nil, err
	}
	several := a.Nlink > 1 && !a.IsDir()
	if s := p.groups[k.n.ino]; several && s != nil {
		s.rec.nlink++
		return s, nil
	}
	s, err := p.copyOf(k.n, &a)
	if err != nil {
		return nil, err
	}
	if several {
		p.groups[k.n.ino] = s
	}
	if !a.IsDir() {
		return s, nil
	}
	subs := uint32(0)
	for _, c := range k.kids {
		cs, err := p.plant(c)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", c.name, err)
		}
		if cs.rec.mode&unix.S_IFMT == unix.S_IFDIR {
			subs++
		}
		if err := p.name(cs, s.n.ino, c.name, func() error { p.nameNew(cs, s.n.ino, c.name); return nil }); err != nil {
			return nil, err
		}
	}
	if s.rec.nlink = a.Nlink; k.part && a.Nlink >= 2 {
		s.rec.nlink = 2 + subs
	}
	return s, nil
}

// nameNew makes a name in a directory that is new, too.
func (p *planting) nameNew(s *stagedRec, dir Ino, name string) {
	layer := uint64(p.b.layer)
	rec := nameRec{layer: p.b.layer, ino: s.n.ino, typ: s.rec.mode & unix.S_IFMT, under: underNothing}
	p.batch.Put(kv.Name(uint64(dir), name, layer), rec.encode())
	p.batch.Put(kv.ChangeName(layer, uint64(dir), name), []byte{changeReal})
	if s.rec.has(flagNames) {
		p.batch.Put(kv.RName(uint64(s.n.ino), uint64(dir), name, layer), []byte{1})
	}
	p.count++
}

// link stages what the head has at q, which gets one more name.
func (p *planting) link(q string) (*stagedRec, error) {
	n, err := p.at(q)
	if err == nil && n == nil {
		err = unix.ESTALE
	}
	if err != nil {
		return nil, err
	}
	s, err := p.stage(n)
	if err != nil {
		return nil, err
	}
	s.rec.nlink++
	s.rec.ctime = p.now
	return s, nil
}

// copyOf makes a new inode after n of the target, which a describes. Its content is named, not copied.
func (p *planting) copyOf(n *node, a *Attr) (*stagedRec, error) {
	v := p.r.ref
	rec := &inode{
		born: p.b.layer, mode: a.Mode, nlink: 1, uid: a.UID, gid: a.GID, rdev: a.Rdev, size: a.Size,
		atime: a.Atime, mtime: a.Mtime, ctime: a.Ctime, btime: a.Btime,
	}
	var err error
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		rec.target, err = v.target(n)
	case unix.S_IFREG:
		if rec.source, rec.limit, err = v.contentOf(n); rec.limit == 0 {
			rec.source = nil
		}
		if n.rec != nil {
			rec.flags, rec.regions, rec.blocks = n.rec.flags&flagSparse, n.rec.regions, n.rec.blocks
		} else if a.Blocks*512 < a.Size {
			rec.flags, rec.blocks = flagSparse, a.Blocks
		}
	}
	if err != nil {
		return nil, err
	}
	from := &p.t.own
	if rec.source != nil {
		from = &p.t.sourced
	}
	s := &stagedRec{n: &node{ino: from.take(&p.batch)}, rec: rec, real: true}
	p.made = append(p.made, s)
	xs, err := v.attrs(n)
	if err != nil {
		return nil, err
	}
	for name, val := range xs {
		p.putXattr(s.n.ino, rec, name, val)
	}
	if rec.regions == 0 {
		return s, nil
	}
	return s, v.regions(n.ino, 0, rec.regions-1, func(region uint64, xs []extent) bool {
		if len(xs) > 0 {
			p.t.putRegion(&p.batch, s.n.ino, region, p.b.layer, xs)
		}
		return true
	})
}

// remove takes n, and all below it, out of the head, but for the name of n.
func (p *planting) remove(n *node) error {
	dir, err := p.b.isDir(n)
	if err != nil {
		return err
	}
	if dir {
		if err := p.empty(n); err != nil {
			return err
		}
	}
	known := n.refs > 0 || n.kids > 0
	if known {
		p.inos = append(p.inos, n.ino)
	}
	several := false
	if n.rec != nil {
		several = !dir && n.rec.nlink > 1
	} else {
		st, err := p.b.statBase(n)
		if err != nil {
			return err
		}
		several = !dir && st.nlink > 1
		if !known && !several && p.recStaged(n) == nil { // its name will say it all
			rec, err := p.ghost(n, &st)
			p.addGhost(&stagedRec{n: n, rec: rec})
			return err
		}
	}
	if !known && !several {
		return nil
	}
	if s := p.recStaged(n); s != nil && dir {
		p.encode(s) // the names below belong to it; unlink leaves the record of what has no name out
	}
	return p.unlink(n)
}

// empty removes everything in directory n.
func (p *planting) empty(n *node) error {
	d, err := p.b.dirOf(n)
	if err == nil {
		err = p.b.list(n, d, true)
	}
	if err != nil {
		return err
	}
	var names []string
	d.ascend(0, func(e dirent) bool { names = append(names, e.name); return true })
	if len(names) == 0 {
		return nil
	}
	if err := p.touch(n, 0); err != nil {
		return err
	}
	for _, name := range names {
		c, _, err := p.b.child(n, name)
		if err != nil {
			if notThere(err) == nil {
				continue // it went from the base meanwhile
			}
			return fmt.Errorf("%q: %w", name, err)
		}
		p.held = append(p.held, c)
		if err := p.remove(c); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if err := p.dropName(n, name, c, p.hasNames(c)); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if n.refs > 0 {
			p.names = append(p.names, NameKey{n.ino, name})
		}
	}
	return nil
}

// directory gives a directory of both states the attributes and times that it has in the target.
func (p *planting) directory(q string) error {
	n, err := p.at(q)
	if err != nil {
		return err
	}
	x, err := p.r.ref.at(q)
	if err != nil {
		return err
	}
	a, err := p.r.ref.attr(x)
	if err != nil {
		return err
	}
	want, err := p.r.ref.attrs(x)
	if err != nil {
		return err
	}
	have, err := p.b.attrs(n)
	if err != nil {
		return err
	}
	s, err := p.stage(n)
	if err != nil {
		return err
	}
	rec := s.rec
	if rec.mode != a.Mode || rec.uid != a.UID || rec.gid != a.GID {
		s.real = true
	}
	rec.mode, rec.uid, rec.gid = a.Mode, a.UID, a.GID
	rec.atime, rec.mtime, rec.ctime = a.Atime, a.Mtime, a.Ctime
	for name := range have {
		if _, ok := want[name]; !ok {
			p.dropXattr(n, rec, name)
			s.real = true
		}
	}
	for name, val := range want {
		if old, ok := have[name]; !ok || !bytes.Equal(old, val) {
			p.putXattr(n.ino, rec, name, val)
			s.real = true
		}
	}
	return nil
}
