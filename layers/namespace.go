package layers

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// room returns directory dir if name can be made in it: it is a directory that
// still has a name, and has no such entry. shown is whether the base has one that
// a record must go on hiding.
func (b *Branch) room(dir Ino, name string) (dn *node, err error) {
	if dn, err = b.get(dir); err != nil {
		return nil, err
	}
	if dn.orphan {
		return nil, unix.ENOENT
	}
	n, _, err := b.child(dn, name)
	switch {
	case err == nil:
		b.drop(n)
		return nil, unix.EEXIST
	case errors.Is(err, unix.ENOENT):
		return dn, nil
	}
	return nil, err
}

// create runs the creation of one object: name in dir, set up by fill.
func (b *Branch) create(dir Ino, name string, mode, rdev uint32, c Cred, fill func(*inode)) (Attr, error) {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	dn, err := b.room(dir, name)
	if err != nil {
		return Attr{}, err
	}
	o := b.newOp()
	s := o.fresh(mode, rdev, c)
	links := 0
	if mode&unix.S_IFMT == unix.S_IFDIR {
		s.rec.nlink, links = 2, 1
	}
	if fill != nil {
		fill(s.rec)
	}
	if err := o.touch(dn, links); err != nil {
		return Attr{}, err
	}
	if err := o.setName(dn, name, s, nil); err != nil {
		return Attr{}, err
	}
	if err := o.commit(); err != nil {
		return Attr{}, err
	}
	return b.recAttr(s.n.ino, s.rec)
}

// Mknod makes a file that is no directory and no symbolic link; mode holds its
// type and permissions. EEXIST.
func (b *Branch) Mknod(dir Ino, name string, mode, rdev uint32, c Cred) (Attr, error) {
	if mode&unix.S_IFMT == 0 {
		mode |= unix.S_IFREG
	}
	return b.create(dir, name, mode, rdev, c, nil)
}

// Mkdir makes a directory. EEXIST.
func (b *Branch) Mkdir(dir Ino, name string, mode uint32, c Cred) (Attr, error) {
	return b.create(dir, name, unix.S_IFDIR|mode&0o7777, 0, c, func(r *inode) { r.size = 4096 })
}

// Symlink makes a symbolic link. EEXIST, ENAMETOOLONG.
func (b *Branch) Symlink(dir Ino, name, target string, c Cred) (Attr, error) {
	if len(target) >= unix.PathMax {
		return Attr{}, unix.ENAMETOOLONG
	}
	return b.create(dir, name, unix.S_IFLNK|0o777, 0, c, func(r *inode) {
		r.target, r.size = target, int64(len(target))
	})
}

// Tmpfile makes a regular file without a name in dir. Link gives it one.
func (b *Branch) Tmpfile(dir Ino, mode uint32, c Cred) (Attr, error) {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	if _, err := b.get(dir); err != nil {
		return Attr{}, err
	}
	o := b.newOp()
	s := o.fresh(unix.S_IFREG|mode&0o7777, 0, c)
	s.rec.nlink = 0
	if err := o.commit(); err != nil {
		return Attr{}, err
	}
	return b.recAttr(s.n.ino, s.rec)
}

// maxLinks is ext4's bound on the names of one file.
const maxLinks = 65000

// Link gives ino another name. EEXIST, EPERM for directories, EMLINK.
func (b *Branch) Link(ino, dir Ino, name string) (Attr, error) {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	n, err := b.get(ino)
	if err != nil {
		return Attr{}, err
	}
	dn, err := b.room(dir, name)
	if err != nil {
		return Attr{}, err
	}
	o := b.newOp()
	s, err := o.stage(n)
	switch {
	case err != nil:
		return Attr{}, err
	case s.rec.mode&unix.S_IFMT == unix.S_IFDIR:
		return Attr{}, unix.EPERM
	case s.rec.nlink >= maxLinks:
		return Attr{}, unix.EMLINK
	}
	if s.rec.nlink > 0 && !s.rec.has(flagNames) {
		s.rec.flags |= flagNames
		o.batch.Put(kv.RName(uint64(ino), uint64(s.rec.parent), s.rec.name, uint64(b.layer)), []byte{1})
	}
	s.rec.nlink++
	s.rec.ctime = o.now
	parent, hint := s.rec.parent, s.rec.name
	if err := o.setName(dn, name, s, nil); err != nil {
		return Attr{}, err
	}
	if s.rec.nlink > 1 {
		s.rec.parent, s.rec.name = parent, hint
	}
	if err := o.touch(dn, 0); err != nil {
		return Attr{}, err
	}
	if err := o.commit(); err != nil {
		return Attr{}, err
	}
	n.refs++
	return b.recAttr(ino, s.rec)
}

// Unlink removes the name of something that is no directory. ENOENT, EISDIR.
func (b *Branch) Unlink(dir Ino, name string) error {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	dn, n, err := b.entry(dir, name)
	if err != nil {
		return err
	}
	defer b.drop(n)
	if d, err := b.isDir(n); err != nil || d {
		return errOr(err, unix.EISDIR)
	}
	o := b.newOp()
	o.batch.UseReserve()
	if err := o.unlink(n); err != nil {
		return err
	}
	if err := o.dropName(dn, name, n, o.hasNames(n)); err != nil {
		return err
	}
	if err := o.touch(dn, 0); err != nil {
		return err
	}
	return b.finish(o, n)
}

// Rmdir removes an empty directory. ENOENT, ENOTDIR, ENOTEMPTY.
func (b *Branch) Rmdir(dir Ino, name string) error {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	dn, n, err := b.entry(dir, name)
	if err != nil {
		return err
	}
	defer b.drop(n)
	if d, err := b.isDir(n); err != nil || !d {
		return errOr(err, unix.ENOTDIR)
	}
	if empty, err := b.empty(n); err != nil || !empty {
		return errOr(err, unix.ENOTEMPTY)
	}
	o := b.newOp()
	o.batch.UseReserve()
	if err := o.unlink(n); err != nil {
		return err
	}
	if err := o.dropName(dn, name, n, false); err != nil {
		return err
	}
	if err := o.touch(dn, -1); err != nil {
		return err
	}
	return b.finish(o, n)
}

// entry finds name in dir for removal.
func (b *Branch) entry(dir Ino, name string) (dn, n *node, err error) {
	if dn, err = b.get(dir); err != nil {
		return nil, nil, err
	}
	n, _, err = b.child(dn, name)
	return dn, n, err
}

// finish commits a removal; a node that has just become an orphan and that nobody
// refers to goes at once.
func (b *Branch) finish(o *op, gone *node) error {
	if err := o.commit(); err != nil {
		return err
	}
	if gone.orphan && gone.refs == 0 {
		b.t.reap(&b.View, gone)
	}
	return nil
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// unlink takes one name away from n. The last one makes it an orphan, which is
// known in memory only when nothing was ever recorded of the inode.
func (o *op) unlink(n *node) error {
	v := &o.b.View
	if n.rec == nil {
		st, err := v.statBase(n)
		if err != nil {
			return err
		}
		if st.nlink == 1 || st.isDir() {
			rec, err := o.ghost(n, &st)
			if err != nil {
				return err
			}
			o.addGhost(&stagedRec{n: n, rec: rec})
			o.then = append(o.then, func() {
				n.rec, n.orphan = rec, true
				o.b.orphans[n.ino] = o.b.layer
			})
			return nil
		}
	}
	s, err := o.stage(n)
	if err != nil {
		return err
	}
	s.rec.ctime = o.now
	if s.rec.mode&unix.S_IFMT == unix.S_IFDIR {
		s.rec.nlink = 0
	} else {
		s.rec.nlink--
	}
	if s.rec.nlink == 0 {
		o.addGhost(s)
		o.forgetRec(s)
	}
	return nil
}

// forgetRec keeps the record of an inode that lost its last name out of the batch:
// in memory it has no link, in the store only the orphan mark says so.
func (o *op) forgetRec(s *stagedRec) {
	for i := len(o.recs) - 1; i >= 0; i-- { // it is among the last ones
		if o.recs[i] == s {
			o.recs = append(o.recs[:i], o.recs[i+1:]...)
			break
		}
	}
	delete(o.recOf, s.n)
	if s.rec.has(flagNames) && (s.n.rec == nil || s.n.rec.layer != o.b.layer) {
		// Its r/ record of this layer must be found by the layer's change index.
		o.batch.Put(kv.ChangeInode(uint64(o.b.layer), uint64(s.n.ino)), []byte{changeQuiet})
	}
	if s.n.rec != nil { // the version it had stays its version
		s.rec.layer = s.n.rec.layer
	}
	o.orphan(s.n)
	o.then = append(o.then, func() { s.n.rec = s.rec })
}

// ghost is the in-memory record of a base object without a name.
func (o *op) ghost(n *node, st *baseStat) (*inode, error) {
	p := n.path()
	rec := &inode{
		mode: st.mode, uid: st.uid, gid: st.gid, rdev: st.rdev, size: st.size, limit: st.size,
		atime: st.atime, mtime: st.mtime, ctime: o.now, btime: st.btime,
		origin: st.origin(p),
	}
	if st.mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := o.b.base.readlink(p)
		if err != nil {
			return nil, err
		}
		rec.target = target
	}
	return rec, nil
}

// reap removes what the head layer has of an orphan that nobody refers to any more.
// Versions in sealed layers stay until gc; no name leads to them.
func (t *Tree) reap(v *View, n *node) {
	b := v.branch
	delete(b.orphans, n.ino)
	rec := n.rec
	// Children may still hang on its place in the base; otherwise nothing knows it any more.
	n.orphan, n.rec = false, nil
	v.forgetDir(n)
	var batch kv.Batch
	batch.UseReserve()
	b.dropVersions(&batch, n.ino, rec)
	batch.Delete(kv.Orphan(uint64(b.layer), uint64(n.ino)))
	if err := t.db.Apply(&batch); err != nil {
		t.log.Warn("cannot remove the records of a deleted file; the next start will", "inode", n.ino, "error", err)
	}
}

// dropVersions adds the removal of every record of an inode that the head layer
// made to batch. Of an older inode, and of one of the base, only the extents go:
// the other records tell diff and rollback what the removed names led to.
func (b *Branch) dropVersions(batch *kv.Batch, ino Ino, rec *inode) {
	i, l := uint64(ino), uint64(b.layer)
	if p := b.t.pendingOf(ino, b.layer, false); p != nil {
		for _, s := range p.segs {
			for _, q := range s.seqs {
				batch.Delete(kv.Pending(i, l, q))
			}
		}
		b.t.dropPending(p)
	}
	if rec == nil || rec.layer != b.layer {
		return
	}
	drop := func(prefix []byte, mine func(k, v []byte) bool) {
		err := b.t.db.Scan(prefix, nil, func(k, v []byte) bool {
			if mine(k, v) {
				batch.Delete(append([]byte(nil), k...))
			}
			return true
		})
		if err != nil {
			b.t.log.Warn("cannot list the records of a deleted file", "inode", ino, "error", err)
		}
	}
	if rec.regions > 0 {
		drop(kv.ExtentInoPrefix(i), func(k, v []byte) bool {
			_, region, at, ok := kv.ParseExtent(k)
			if ok && at == l {
				if xs, err := decodeExtents(region, v); err == nil {
					b.t.loosen(chunkBytes(xs))
				}
			}
			return ok && at == l
		})
	}
	if rec.born != b.layer {
		return
	}
	batch.Delete(kv.Inode(i, l))
	batch.Delete(kv.ChangeInode(l, i))
	if rec.has(flagXattrs) {
		drop(kv.XattrInoPrefix(i), func(k, _ []byte) bool { _, _, at, ok := kv.ParseXattr(k); return ok && at == l })
	}
	if rec.has(flagNames) {
		drop(kv.RNamePrefix(i), func(k, _ []byte) bool { _, _, _, at, ok := kv.ParseRName(k); return ok && at == l })
	}
}
