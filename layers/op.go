package layers

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// op gathers what one operation changes and then makes it so: one batch, first in
// kv, then in memory. Nothing is changed when commit is not reached or fails.
// The caller holds t.mu from newOp to the end of commit.
type op struct {
	b      *Branch
	t      *Tree
	now    Time
	batch  kv.Batch
	recs   []*stagedRec
	names  []stagedName
	ghosts []*stagedRec // records in memory only: of base objects that lose their last name
	count  int64        // change of the number of changed paths
	then   []func()

	// Of an operation on many objects, where to find things among the above; nil in others.
	recOf   map[*node]*stagedRec
	ghostOf map[*node]*stagedRec
	nameAt  map[NameKey]int
	named   map[Ino]struct{} // what gets a name, pins left out
}

// large makes o one that can touch many objects.
func (o *op) large() *op {
	o.recOf, o.ghostOf = map[*node]*stagedRec{}, map[*node]*stagedRec{}
	o.nameAt, o.named = map[NameKey]int{}, map[Ino]struct{}{}
	return o
}

// recStaged returns the next record of n, nil if o has none.
func (o *op) recStaged(n *node) *stagedRec {
	if o.recOf != nil {
		return o.recOf[n]
	}
	for _, s := range o.recs {
		if s.n == n {
			return s
		}
	}
	return nil
}

func (o *op) addRec(s *stagedRec) {
	o.recs = append(o.recs, s)
	if o.recOf != nil {
		o.recOf[s.n] = s
	}
}

func (o *op) addGhost(s *stagedRec) {
	o.ghosts = append(o.ghosts, s)
	if o.ghostOf != nil {
		o.ghostOf[s.n] = s
	}
}

// ghostStaged returns the ghost of n, nil if o has none.
func (o *op) ghostStaged(n *node) *stagedRec {
	if o.ghostOf != nil {
		return o.ghostOf[n]
	}
	for _, g := range o.ghosts {
		if g.n == n {
			return g
		}
	}
	return nil
}

func (o *op) addName(s stagedName) {
	if o.nameAt != nil {
		o.nameAt[NameKey{s.dir.ino, s.name}] = len(o.names)
		if s.rec.under != underPin {
			o.named[s.rec.ino] = struct{}{}
		}
	}
	o.names = append(o.names, s)
}

// stagedRec is the next record of n. real says that more changes than what a
// change of names brings along: times and link counts.
type stagedRec struct {
	n    *node
	rec  *inode
	real bool
}

type stagedName struct {
	dir  *node
	name string
	rec  nameRec
	gone bool // the record goes; else it is rec
}

func (b *Branch) newOp() *op {
	return &op{b: b, t: b.t, now: TimeOf(b.t.now())}
}

// rec returns the record of n that the operation may change, copying n up when
// it has none.
func (o *op) rec(n *node) (*inode, error) {
	s, err := o.stage(n)
	if err != nil {
		return nil, err
	}
	s.real = true
	return s.rec, nil
}

func (o *op) stage(n *node) (*stagedRec, error) {
	if s := o.recStaged(n); s != nil {
		return s, nil
	}
	if n.rec == nil {
		return o.copyUp(n)
	}
	rec := *n.rec
	s := &stagedRec{n: n, rec: &rec}
	o.addRec(s)
	return s, nil
}

// touch moves a directory's times because its entries change, and its link count by links.
func (o *op) touch(dir *node, links int) error {
	s, err := o.stage(dir)
	if err != nil {
		return err
	}
	s.rec.mtime, s.rec.ctime = o.now, o.now
	if s.rec.nlink >= 2 { // file systems that do not count subdirectories say 1
		s.rec.nlink = uint32(max(2, int64(s.rec.nlink)+int64(links)))
	}
	return nil
}

// fresh stages the record of a new inode.
func (o *op) fresh(mode, rdev uint32, c Cred) *stagedRec {
	n := &node{ino: o.t.own.take(&o.batch)}
	rec := &inode{
		born: o.b.layer, mode: mode, nlink: 1, uid: c.UID, gid: c.GID, rdev: rdev,
		atime: o.now, mtime: o.now, ctime: o.now, btime: o.now,
	}
	for name, val := range c.Xattrs {
		o.putXattr(n.ino, rec, name, val)
	}
	s := &stagedRec{n: n, rec: rec, real: true}
	o.addRec(s)
	o.then = append(o.then, func() {
		o.b.nodes[n.ino] = n
		n.refs++
	})
	return s
}

// copyUp stages a record for a node that is as it is in the base, and pins its
// name and those of the directories above it, so that the record stays attached
// to this object whatever happens to inode numbers in the base.
func (o *op) copyUp(n *node) (*stagedRec, error) {
	v := &o.b.View
	p := n.path()
	st, err := v.statBase(n)
	if err != nil {
		return nil, fmt.Errorf("copy up %q: %w", p, err)
	}
	if n.mark != 0 && n.mark != st.mark() && !st.isDir() {
		// Whoever changes it has seen another state, and has the kernel's cache of that:
		// an append would go to the old end. Not to be mixed; the next try sees this one.
		v.look(n, &st)
		return nil, fmt.Errorf("copy up %q, which has changed in the base: %w", p, unix.ESTALE)
	}
	if ino, err := o.t.inoOf(p, &st); n != v.root && (err != nil || ino != n.ino) {
		if err == nil {
			err = unix.ESTALE // another object took the name in the base
			o.t.drifted(n.ino, v.replaced(n, &st))
		}
		return nil, fmt.Errorf("copy up %q: %w", p, err)
	}
	rec, err := v.base.record(p, &st)
	if err != nil {
		return nil, err
	}
	if err := o.copyXattrs(n.ino, rec, p); err != nil {
		return nil, err
	}
	s := &stagedRec{n: n, rec: rec}
	o.addRec(s)
	if n == v.root {
		return s, nil
	}
	return s, o.pin(n, s)
}

func (o *op) copyXattrs(ino Ino, rec *inode, p string) error {
	xs, err := o.b.base.xattrs(p)
	if err != nil {
		return fmt.Errorf("copy up extended attributes of %q: %w", p, err)
	}
	for name, val := range xs {
		rec.flags |= flagXattrs
		o.batch.Put(kv.Xattr(uint64(ino), name, uint64(o.b.layer)), xattrValue(val))
	}
	return nil
}

// pin records the name of a base node that gets a record.
func (o *op) pin(n *node, s *stagedRec) error {
	v := &o.b.View
	if n.bdir == nil { // known by its whole path only
		dir, name := split(n.bname)
		dn, err := v.nodeAt(dir)
		if err != nil {
			return fmt.Errorf("find directory of %q: %w", n.bname, err)
		}
		v.place(n, dn, name)
	}
	dn := n.bdir
	if _, err := o.stage(dn); err != nil {
		return err
	}
	s.rec.parent, s.rec.name = dn.ino, n.bname
	d, err := v.dirOf(dn)
	if err != nil {
		return err
	}
	if _, ok := d.find(n.bname); ok {
		return nil
	}
	o.addName(stagedName{dir: dn, name: n.bname, rec: nameRec{
		layer: o.b.layer, ino: n.ino, typ: s.rec.mode & unix.S_IFMT, under: underPin,
	}})
	o.batch.Put(kv.ChangeName(uint64(o.b.layer), uint64(dn.ino), n.bname), []byte{changePin})
	if s.rec.nlink > 1 && s.rec.mode&unix.S_IFMT != unix.S_IFDIR {
		s.rec.flags |= flagNames
		o.batch.Put(kv.RName(uint64(n.ino), uint64(dn.ino), n.bname, uint64(o.b.layer)), []byte{1})
	}
	return nil
}

// Values of the change index.
const (
	changeReal  = 0
	changeQuiet = 1 // an inode: times and link count of a directory
	changePin   = 2 // a name: recorded, not changed
)

// setName makes name in dir mean the inode of s, in place of over, nil for nothing.
func (o *op) setName(dir *node, name string, s *stagedRec, over *node) error {
	d, err := o.b.dirOf(dir)
	if err != nil {
		return err
	}
	r := nameRec{layer: o.b.layer, ino: s.n.ino, typ: s.rec.mode & unix.S_IFMT, under: underSomething}
	e, ok := o.staged(dir, name)
	if !ok {
		var de dirent
		de, ok = d.find(name)
		e = de.nameRec
	}
	counted := false
	switch {
	case !ok && over == nil:
		r.under = underNothing
	case !ok:
	case e.layer == o.b.layer && e.under == underPin:
	case e.layer == o.b.layer:
		r.under, counted = e.under, true
	case e.ino == 0:
		r.under = underWhiteout
	}
	if !counted {
		o.count++
	}
	if r.under != underNothing {
		r.was = o.was(e, ok, over)
	}
	o.addName(stagedName{dir: dir, name: name, rec: r})
	o.batch.Put(kv.ChangeName(uint64(o.b.layer), uint64(dir.ino), name), []byte{changeReal})
	if s.rec.has(flagNames) {
		o.batch.Put(kv.RName(uint64(s.n.ino), uint64(dir.ino), name, uint64(o.b.layer)), []byte{1})
	}
	s.rec.parent, s.rec.name = dir.ino, name
	return nil
}

// staged returns the record this operation already made for a name.
func (o *op) staged(dir *node, name string) (nameRec, bool) {
	if o.nameAt != nil {
		i, ok := o.nameAt[NameKey{dir.ino, name}]
		if !ok || o.names[i].gone {
			return nameRec{}, false
		}
		return o.names[i].rec, true
	}
	for i := len(o.names) - 1; i >= 0; i-- {
		if s := o.names[i]; s.dir == dir && s.name == name && !s.gone {
			return s.rec, true
		}
	}
	return nameRec{}, false
}

// dropName takes name, which shows n, out of dir.
func (o *op) dropName(dir *node, name string, n *node, hasNames bool) error {
	d, err := o.b.dirOf(dir)
	if err != nil {
		return err
	}
	layer := uint64(o.b.layer)
	key := kv.Name(uint64(dir.ino), name, layer)
	change := kv.ChangeName(layer, uint64(dir.ino), name)
	if hasNames {
		o.unName(n.ino, dir.ino, name)
	}
	e, ok := o.staged(dir, name)
	if !ok {
		var de dirent
		de, ok = d.find(name)
		e = de.nameRec
	}
	if ok && e.layer == o.b.layer && (e.under == underNothing || e.under == underWhiteout) {
		o.count--
		o.batch.Delete(key)
		o.batch.Delete(change)
		if e.under == underWhiteout { // the older layer's whiteout shows again
			o.then = append(o.then, func() { d.set(name, nameRec{was: e.was}) })
		}
		o.addName(stagedName{dir: dir, name: name, gone: true})
		return nil
	}
	if !ok || e.layer != o.b.layer || e.under == underPin {
		o.count++
	}
	o.addName(stagedName{dir: dir, name: name, rec: nameRec{layer: o.b.layer, under: underSomething, was: o.was(e, ok, n)}})
	o.batch.Put(change, []byte{changeReal})
	return nil
}

// hasNames reports whether n's names are recorded one by one.
func (o *op) hasNames(n *node) bool {
	if s := o.recStaged(n); s != nil {
		return s.rec.has(flagNames)
	}
	return n.rec != nil && n.rec.has(flagNames)
}

// unName records that an inode of several names lost this one.
func (o *op) unName(ino, dir Ino, name string) {
	o.batch.Put(kv.RName(uint64(ino), uint64(dir), name, uint64(o.b.layer)), []byte{0})
}

// commit applies the operation.
func (o *op) commit() error {
	o.encodeAll()
	if o.batch.Len() > 0 {
		if o.b.onlySpared() {
			o.batch.Delete(kv.Meta(metaSpared + o.b.name))
		}
		if err := o.t.db.Apply(&o.batch); err != nil {
			return o.failed(err)
		}
		o.b.dirty = true
		o.b.ops++
	}
	o.wantOriginals()
	for _, s := range o.recs {
		s.n.rec = s.rec
	}
	for _, s := range o.names {
		d, err := o.b.dirOf(s.dir)
		if err != nil { // it was loaded when the name was staged
			return err
		}
		if s.gone {
			d.remove(s.name)
		} else {
			d.set(s.name, s.rec)
		}
	}
	for _, f := range o.then {
		f()
	}
	o.b.changed += o.count
	return nil
}

// unreserve forgets inode numbers that a batch which does not come was to reserve.
func (o *op) unreserve() {
	for _, c := range []*inoCounter{&o.t.own, &o.t.sourced} {
		c.limit = c.next
	}
}

// encodeAll adds all that is staged to the batch.
func (o *op) encodeAll() {
	for _, s := range o.recs {
		o.encode(s)
	}
	for _, s := range o.names {
		if !s.gone {
			o.batch.Put(kv.Name(uint64(s.dir.ino), s.name, uint64(s.rec.layer)), s.rec.encode())
		}
	}
}

// failed turns an error of kv into the caller's errno where it has one.
func (o *op) failed(err error) error {
	o.unreserve()
	if errors.Is(err, unix.ENOSPC) {
		return unix.ENOSPC
	}
	return fmt.Errorf("record operation: %w", err)
}

// encode adds the record of s, and what belongs to it, to the batch.
func (o *op) encode(s *stagedRec) {
	ino, layer := uint64(s.n.ino), uint64(o.b.layer)
	quiet := !s.real
	first := s.n.rec == nil || s.n.rec.layer != o.b.layer
	if !first && !s.n.rec.has(flagQuiet) {
		quiet = false
	}
	if quiet {
		s.rec.flags |= flagQuiet
	} else {
		s.rec.flags &^= flagQuiet
	}
	wasCounted := !first && !s.n.rec.has(flagQuiet)
	if first || (!quiet && !wasCounted) {
		change := byte(changeReal)
		if quiet {
			change = changeQuiet
		}
		o.batch.Put(kv.ChangeInode(layer, ino), []byte{change})
	}
	if !quiet && !wasCounted && s.rec.born != o.b.layer && !o.renamed(s.n.ino) {
		o.count++
	}
	s.rec.layer = o.b.layer
	o.batch.Put(kv.Inode(ino, layer), s.rec.encode())
	if first && s.rec.origin != nil {
		o.then = append(o.then, func() {
			if l, ok := o.t.copied[s.n.ino]; !ok || o.b.layer < l {
				o.t.copied[s.n.ino] = o.b.layer
			}
			from := s.rec.origin
			o.t.origins[s.n.ino] = o.t.originID(from.path, from.ino, from.btime)
		})
	}
	if s.rec.nlink == 0 && !s.n.orphan {
		o.orphan(s.n)
	} else if s.n.orphan && s.rec.nlink == 0 && first {
		o.batch.Put(kv.Orphan(layer, ino), nil)
	} else if s.n.orphan && s.rec.nlink > 0 { // linked again
		o.batch.Delete(kv.Orphan(layer, ino))
		o.then = append(o.then, func() {
			s.n.orphan = false
			delete(o.b.orphans, s.n.ino)
		})
	}
}

// renamed reports whether the operation also changes a name of ino: then the name is what counts.
func (o *op) renamed(ino Ino) bool {
	if o.named != nil {
		_, ok := o.named[ino]
		return ok
	}
	for _, s := range o.names {
		if s.rec.ino == ino && s.rec.under != underPin {
			return true
		}
	}
	return false
}

// orphan marks n as an inode without a name.
func (o *op) orphan(n *node) {
	o.batch.Put(kv.Orphan(uint64(o.b.layer), uint64(n.ino)), nil)
	o.then = append(o.then, func() {
		n.orphan = true
		o.b.orphans[n.ino] = o.b.layer
	})
}
