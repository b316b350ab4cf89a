package layers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// View shows the tree as of one layer. Its methods are safe for concurrent use.
//
// Lookup, and every method that makes a name, adds one reference to the inode it
// returns; Forget gives references back. Methods that take an inode number take
// one that the caller has a reference to, or RootIno.
type View struct {
	t      *Tree
	branch *Branch  // whose head it shows, nil for a read-only view
	layer  Layer    // the layer shown; of a Branch, the open one
	anc    ancestry // of layer
	base   era      // the base as of the generation of its line
	nodes  map[Ino]*node
	root   *node
	links  map[Ino]map[NameKey]struct{} // names by which base files of several were found
	keep   bool                         // nodes stay until Close: its user holds on to unreferenced ones
	read   map[Ino]*inode               // visible records that are known, of a read-only view
	stale  bool                         // its layer was given up
}

// bare is what is needed to look at single records and bytes.
func (t *Tree) bare(l Layer) *View {
	v := &View{t: t, layer: l, anc: t.ancestry(l)}
	v.base = era{t, t.genOf(v.anc)}
	return v
}

func (t *Tree) newView(l Layer) *View { return t.bare(l).furnish() }

// furnish makes v one that can look at objects.
func (v *View) furnish() *View {
	v.nodes, v.links = map[Ino]*node{}, map[Ino]map[NameKey]struct{}{}
	v.root = &node{ino: RootIno, inb: true, typ: unix.S_IFDIR}
	v.nodes[RootIno] = v.root
	return v
}

// View opens the tree as of layer l, BaseLayer (the base as it is now: see BaseView and Branch.At)
// or any other. Of an open layer,
// which still changes, it shows each object as it was when first looked at. Once a
// collection gives the layer up, all its methods answer ESTALE. Close it when done.
func (t *Tree) View(l Layer) (*View, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l != BaseLayer && t.held(l) == nil {
		return nil, fmt.Errorf("layer %d: %w", l, ErrNoLayer)
	}
	return t.openView(t.newView(l))
}

func (t *Tree) openView(v *View) (*View, error) {
	rec, err := v.visibleInode(RootIno)
	if err != nil {
		return nil, err
	}
	v.root.rec = rec
	t.views[v] = struct{}{}
	return v, nil
}

// Close forgets the view.
func (v *View) Close() {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	v.close()
}

func (v *View) close() {
	for _, n := range v.nodes {
		v.unlist1(n)
	}
	delete(v.t.views, v)
	v.nodes, v.links, v.read = map[Ino]*node{RootIno: v.root}, nil, nil
	v.root.dir = nil
}

// visibleInode returns the record of ino that the view sees, nil if there is none.
func (v *View) visibleInode(ino Ino) (*inode, error) {
	if len(v.anc) == 0 { // the base has none
		return nil, nil
	}
	if rec := v.read[ino]; rec != nil {
		return rec, nil
	}
	var rec *inode
	err := v.newest(kv.InodePrefix(uint64(ino)), func(l Layer, val []byte) (err error) {
		if rec, err = decodeInode(l, val); err == nil && rec.has(flagLost) {
			err = fmt.Errorf("it was lost: %w", ErrCorrupt)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read inode %d: %w", ino, err)
	}
	return rec, nil
}

// anyOrigin returns the origin that some version of ino, of whatever layer, carries.
func (t *Tree) anyOrigin(ino Ino) (*origin, error) {
	var o *origin
	var bad error
	err := t.db.Scan(kv.InodePrefix(uint64(ino)), nil, func(k, val []byte) bool {
		rec, err := decodeInode(0, val)
		if err != nil {
			bad = err
			return false
		}
		o = rec.origin
		return o == nil
	})
	return o, errors.Join(err, bad)
}

// originPaths lists where in the base the versions of ino, of all layers, say that it is: lines
// of different generations may know it by different names.
func (t *Tree) originPaths(ino Ino) (paths []string, err error) {
	var bad error
	err = t.db.Scan(kv.InodePrefix(uint64(ino)), nil, func(k, val []byte) bool {
		var rec *inode
		if rec, bad = decodeInode(0, val); bad != nil {
			return false
		}
		if rec.origin != nil && !slices.Contains(paths, rec.origin.path) {
			paths = append(paths, rec.origin.path)
		}
		return true
	})
	return paths, errors.Join(err, bad)
}

// get returns the node of an inode the caller refers to.
func (v *View) get(ino Ino) (*node, error) {
	n := v.nodes[ino]
	if n == nil || n.gone || v.stale {
		return nil, unix.ESTALE
	}
	return n, nil
}

// statBase looks at the base object of a node without a record.
func (v *View) statBase(n *node) (baseStat, error) {
	if !n.inb {
		return baseStat{}, unix.ESTALE
	}
	st, err := v.base.stat(n.path())
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		err = unix.ESTALE // the name is known, the object is gone
	}
	return st, err
}

// attr describes n. The caller holds t.mu, for reading at least.
func (v *View) attr(n *node) (Attr, error) {
	if n.rec != nil {
		return v.recAttr(n.ino, n.rec)
	}
	st, err := v.statBase(n)
	if err != nil {
		return Attr{}, err
	}
	return st.attr(n.ino), nil
}

func (s *baseStat) attr(ino Ino) Attr {
	return Attr{
		Ino: ino, Mode: s.mode, Nlink: s.nlink, UID: s.uid, GID: s.gid, Rdev: s.rdev,
		Size: s.size, Blocks: s.blocks,
		Atime: s.atime, Mtime: s.mtime, Ctime: s.ctime, Btime: s.btime,
	}
}

func (v *View) recAttr(ino Ino, r *inode) (Attr, error) {
	a := Attr{
		Ino: ino, Mode: r.mode, Nlink: r.nlink, UID: r.uid, GID: r.gid, Rdev: r.rdev,
		Size: r.size, Atime: r.atime, Mtime: r.mtime, Ctime: r.ctime, Btime: r.btime,
	}
	switch r.mode & unix.S_IFMT {
	case unix.S_IFREG:
		a.Blocks = (r.size + 4095) / 4096 * 8
		if r.has(flagSparse) {
			n, err := v.allocated(ino, r)
			if err != nil {
				return Attr{}, err
			}
			a.Blocks = min(a.Blocks, (n+511)/512)
		}
	case unix.S_IFDIR:
		a.Blocks = 8
	}
	return a, nil
}

// look notes what a base object without a record is now. When it is no longer what
// it was at the last look, the kernel's cache of it is void. The caller holds t.mu.
func (v *View) look(n *node, st *baseStat) {
	mark := st.mark()
	if n.mark != 0 && n.mark != mark {
		v.t.log.Warn("base object changed under the mount", "path", n.path())
		v.t.base.forgetFile(n.path())
		v.t.drifted(n.ino, v.replaced(n, st))
	}
	n.mark = mark
}

// replaced returns the name of n in the base if st, which is what has it now, is another object.
func (v *View) replaced(n *node, st *baseStat) *NameKey {
	if v.branch == nil || n.bdir == nil {
		return nil
	}
	if ino, err := v.t.inoOf(n.path(), st); err == nil && ino == n.ino {
		return nil
	}
	return &NameKey{n.bdir.ino, n.bname}
}

// Getattr describes ino.
func (v *View) Getattr(ino Ino) (Attr, error) {
	t := v.t
	t.mu.RLock()
	n, err := v.get(ino)
	if err != nil || n.rec != nil {
		defer t.mu.RUnlock()
		if err != nil {
			return Attr{}, err
		}
		return v.recAttr(ino, n.rec)
	}
	st, err := v.statBase(n)
	drift := n.mark != st.mark()
	t.mu.RUnlock()
	if err != nil {
		return Attr{}, err
	}
	if drift {
		t.mu.Lock()
		defer t.mu.Unlock()
		if v.nodes[ino] == n && n.rec == nil {
			v.look(n, &st)
		}
	}
	return st.attr(ino), nil
}

// Parent returns the directory that holds directory dir; the root holds itself.
func (v *View) Parent(dir Ino) (Ino, error) {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	n, err := v.get(dir)
	switch {
	case err != nil:
		return 0, err
	case n == v.root:
		return RootIno, nil
	case n.rec != nil:
		return n.rec.parent, nil
	case n.bdir == nil:
		return 0, unix.ESTALE
	}
	return n.bdir.ino, nil
}

// Readlink returns the target of a symbolic link.
func (v *View) Readlink(ino Ino) (string, error) {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	n, err := v.get(ino)
	switch {
	case err != nil:
		return "", err
	case n.rec == nil:
		return v.base.readlink(n.path())
	case n.rec.mode&unix.S_IFMT != unix.S_IFLNK:
		return "", unix.EINVAL
	}
	return n.rec.target, nil
}

// Lookup finds name in dir and adds a reference to what it is. ENOENT, ENOTDIR, ESTALE.
func (v *View) Lookup(dir Ino, name string) (Attr, error) {
	t := v.t
	t.mu.Lock()
	defer t.mu.Unlock()
	dn, err := v.get(dir)
	if err != nil {
		return Attr{}, err
	}
	n, st, err := v.child(dn, name)
	if err != nil {
		return Attr{}, err
	}
	var a Attr
	if n.rec == nil && st != nil {
		a = st.attr(n.ino)
	} else if a, err = v.attr(n); err != nil {
		v.drop(n)
		return Attr{}, err
	}
	n.refs++
	return a, nil
}

// Forget gives n references to ino back.
func (v *View) Forget(ino Ino, n uint64) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	nd := v.nodes[ino]
	if nd == nil || ino == RootIno {
		return
	}
	nd.refs -= min(n, nd.refs)
	if nd.refs > 0 {
		return
	}
	if nd.orphan {
		v.t.reap(v, nd)
	}
	v.drop(nd)
}

// child finds name in the directory dn: first among the records, then in the
// base. It returns the base's stat when it had to look there. The node may be
// unreferenced: the caller refers to it or drops it.
func (v *View) child(dn *node, name string) (*node, *baseStat, error) {
	d, err := v.dirOf(dn)
	if err != nil {
		return nil, nil, err
	}
	if e, ok := d.find(name); ok {
		if e.ino == 0 {
			return nil, nil, unix.ENOENT
		}
		n, err := v.recorded(e.ino)
		return n, nil, err
	}
	if !dn.inb || dn.orphan {
		return nil, nil, unix.ENOENT
	}
	p := join(dn.path(), name)
	st, err := v.base.stat(p)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE) {
			err = unix.ENOENT // the base directory is gone: as if it were empty
		}
		return nil, nil, err
	}
	n, err := v.fromBase(dn, name, p, &st)
	return n, &st, err
}

// recorded returns the node of an inode that has a record in this view.
func (v *View) recorded(ino Ino) (*node, error) {
	if n := v.nodes[ino]; n != nil && n.rec != nil {
		return n, nil
	}
	rec, err := v.visibleInode(ino)
	if err != nil {
		return nil, err
	}
	if rec == nil {
		return nil, fmt.Errorf("a name refers to inode %d, which has no record: %w", ino, ErrCorrupt)
	}
	return v.withRecord(ino, rec), nil
}

// withRecord returns the node of an inode, whose visible record is rec.
func (v *View) withRecord(ino Ino, rec *inode) *node {
	n := v.nodes[ino]
	if n == nil {
		n = &node{ino: ino}
		v.nodes[ino] = n
	}
	n.rec, n.gone = rec, false
	if rec.origin != nil && !n.inb {
		n.bname, n.inb = rec.origin.path, true
	}
	return n
}

// fromBase returns the node of the base object st found as name in dn, at path p.
func (v *View) fromBase(dn *node, name, p string, st *baseStat) (*node, error) {
	ino, err := v.t.inoOf(p, st)
	if err != nil {
		return nil, err
	}
	n := v.nodes[ino]
	if n == nil {
		n = &node{ino: ino}
		v.nodes[ino] = n
	}
	if _, copied := v.t.copied[ino]; copied && n.rec == nil && n.refs == 0 { // else it is known to have no record
		if n.rec, err = v.visibleInode(ino); err != nil {
			v.drop(n)
			return nil, err
		}
	}
	n.gone, n.typ = false, st.mode&unix.S_IFMT
	if st.nlink > 1 && !st.isDir() {
		if v.links[ino] == nil {
			v.links[ino] = map[NameKey]struct{}{}
		}
		v.links[ino][NameKey{dn.ino, name}] = struct{}{}
	}
	if n.rec == nil {
		v.look(n, st)
		if !n.inb || n.bdir != dn || n.bname != name {
			v.place(n, dn, name)
		}
	} else if !n.inb {
		n.bname, n.inb = n.rec.origin.path, true
	}
	return n, nil
}

// nodeAt returns the node of the base object at p, which has no name record on its way.
func (v *View) nodeAt(p string) (*node, error) {
	if p == "" {
		return v.root, nil
	}
	dir, name := split(p)
	dn, err := v.nodeAt(dir)
	if err != nil {
		return nil, err
	}
	st, err := v.base.stat(p)
	if err != nil {
		return nil, err
	}
	return v.fromBase(dn, name, p, &st)
}

// Resolve walks a slash-separated path from the root, following no symbolic link,
// and adds a reference to what it finds. ENOENT, ENOTDIR.
func (v *View) Resolve(p string) (Attr, error) {
	ino := RootIno
	v.t.mu.Lock()
	v.root.refs++
	v.t.mu.Unlock()
	for name := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			v.Forget(ino, 1)
			return Attr{}, fmt.Errorf("path %q has a .. component: %w", p, unix.EINVAL)
		}
		a, err := v.Lookup(ino, name)
		v.Forget(ino, 1)
		if err != nil {
			return Attr{}, err
		}
		ino = a.Ino
	}
	return v.Getattr(ino)
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func split(p string) (dir, name string) {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i], p[i+1:]
	}
	return "", p
}
