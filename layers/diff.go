package layers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Diff calls fn for each path that differs between two layers (sealed, open, or
// BaseLayer, which means the base as of the generation of the other), in path order. The work is that of the changes between the two, not
// of the tree. What was made and removed again in between does not show, nor does
// a directory whose entries changed.
func (t *Tree) Diff(from, to Layer, fn func(Change) error) error {
	a, b, err := t.Sides(from, to)
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	a.keep, b.keep = true, true
	d := newDiffer(t, a, b)
	if err := d.locked(from, to); err != nil {
		return fmt.Errorf("compare layers %d and %d: %w", from, to, err)
	}
	paths := make([]string, 0, len(d.byPath))
	for p := range d.byPath {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if err := fn(*d.byPath[p]); err != nil {
			return err
		}
	}
	return nil
}

// Sides opens the views of two layers, as Diff compares them: the base is that on which the other one is
// built. Close them when done.
func (t *Tree) Sides(from, to Layer) (a, b *View, err error) {
	layers, views := [2]Layer{from, to}, [2]*View{}
	for i, l := range layers {
		if other := layers[1-i]; l == BaseLayer && other != BaseLayer {
			views[i], err = t.baseOf(other)
		} else {
			views[i], err = t.View(l)
		}
		if err != nil {
			if i == 1 {
				views[0].Close()
			}
			return nil, nil, err
		}
	}
	return views[0], views[1], nil
}

type differ struct {
	t        *Tree
	from, to *View
	byPath   map[string]*Change
	left     map[string]bool // paths from which something moved
	removed  map[Ino][]gone
	twins    map[string]bool // paths that show different inodes which are alike
}

func newDiffer(t *Tree, from, to *View) *differ {
	return &differ{t: t, from: from, to: to, byPath: map[string]*Change{}, left: map[string]bool{}, removed: map[Ino][]gone{}, twins: map[string]bool{}}
}

// gone is a name that went, until it is known whether it came back elsewhere.
type gone struct {
	path string
	n    *node
}

func (d *differ) locked(from, to Layer) error {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	if d.from.stale || d.to.stale { // given up since the views were opened
		return ErrNoLayer
	}
	return d.run(from, to)
}

func (d *differ) run(from, to Layer) error {
	inos, names, err := d.t.changes(d.t.between(from, to), nil)
	if err == nil {
		err = d.generations(inos, names)
	}
	if err != nil {
		return err
	}
	added := map[string]*node{}
	for k := range names {
		if err := d.name(k, added); err != nil {
			return err
		}
	}
	for p, n := range added { // of what has several names, those that it has as before
		lost := d.removed[n.ino]
		if i := slices.IndexFunc(lost, func(g gone) bool { return g.path == p }); i >= 0 {
			d.removed[n.ino] = slices.Delete(lost, i, i+1)
			delete(added, p)
		}
	}
	for p, n := range added { // then what only moved
		if ok, err := d.moved(p, n); err != nil {
			return err
		} else if ok {
			delete(added, p)
		}
	}
	for _, list := range d.removed {
		for _, g := range list {
			if err := d.gone(g, added); err != nil {
				return err
			}
		}
	}
	for p, n := range added {
		if err := d.put(&Change{Status: Added, Path: p, OldSize: -1, Content: true}, nil, n); err != nil {
			return err
		}
	}
	several := map[Ino]*node{} // changed base files with names nobody has looked up yet
	for ino := range inos {
		if err := d.inode(ino, several); err != nil {
			return err
		}
	}
	return d.unknownNames(several)
}

// name compares what a name shows in the two views.
func (d *differ) name(k NameKey, added map[string]*node) error {
	a, apath, err := d.side(d.from, k)
	if err != nil {
		return err
	}
	b, bpath, err := d.side(d.to, k)
	if err != nil {
		return err
	}
	if a != nil && b != nil && a.ino == b.ino {
		return nil // told by the inode, if it changed, or by a directory above that moved
	}
	if a != nil {
		d.removed[a.ino] = append(d.removed[a.ino], gone{apath, a})
	}
	if b != nil {
		added[bpath] = b
	}
	return nil
}

// side finds a name in one view: its node and path, nil where it does not show.
func (d *differ) side(v *View, k NameKey) (*node, string, error) {
	dn, err := v.find(k.Dir)
	if err != nil || dn.gone {
		return nil, "", notThere(err)
	}
	dir, err := v.pathOf(dn)
	if err != nil {
		return nil, "", notThere(err)
	}
	n, _, err := v.child(dn, k.Name)
	if err != nil {
		return nil, "", notThere(err)
	}
	return n, join(dir, k.Name), nil
}

// notThere lets errors pass that say more than that something does not show.
func notThere(err error) error {
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE) {
		return nil
	}
	return err
}

// moved tells of a name that an inode got in place of one that it lost.
func (d *differ) moved(p string, n *node) (bool, error) {
	lost := d.removed[n.ino]
	if len(lost) == 0 {
		return false, nil
	}
	g := lost[len(lost)-1]
	d.removed[n.ino] = lost[:len(lost)-1]
	d.left[g.path] = true
	same, content, err := d.same(g.n, n)
	if err != nil {
		return false, err
	}
	return true, d.put(&Change{Status: Renamed, Path: p, OldPath: g.path, Content: !same && content}, g.n, n)
}

// gone tells of a name that went: another object may have come in its place.
func (d *differ) gone(g gone, added map[string]*node) error {
	if b := added[g.path]; b != nil {
		delete(added, g.path)
		return d.changed(g.path, g.n, b)
	}
	if d.byPath[g.path] != nil {
		return nil // something else was moved over it
	}
	return d.put(&Change{Status: Deleted, Path: g.path, NewSize: -1}, g.n, nil)
}

// changed tells of a path that shows another inode than before. What is below a
// directory that came or went in this way need not have a changed name of its own. If it has
// one and only moved, that was told before.
func (d *differ) changed(p string, a, b *node) error {
	x, err := d.from.attr(a)
	if err != nil {
		return err
	}
	y, err := d.to.attr(b)
	if err != nil {
		return err
	}
	status := Modified
	if x.Mode&unix.S_IFMT != y.Mode&unix.S_IFMT {
		status = Retyped
	}
	same, err := d.equal(a, b)
	if d.twins[p] = same; err == nil && !same {
		err = d.put(&Change{Status: status, Path: p, Content: true}, a, b)
	}
	if err != nil {
		return notThere(err)
	}
	before, after := map[string]*node{}, map[string]*node{}
	if err := d.from.below(a, p, before); err != nil {
		return err
	}
	if err := d.to.below(b, p, after); err != nil {
		return err
	}
	for q, n := range before {
		if d.left[q] && after[q] == nil || d.byPath[q] != nil {
			continue
		}
		if after[q] == nil {
			err = d.put(&Change{Status: Deleted, Path: q, NewSize: -1}, n, nil)
		} else if after[q].ino != n.ino {
			var same bool
			if same, err = d.equal(n, after[q]); same {
				d.twins[q] = true
			} else if err == nil {
				err = d.put(&Change{Status: Modified, Path: q, Content: true}, n, after[q])
			}
		}
		if err != nil {
			return err
		}
	}
	for q, n := range after {
		if before[q] == nil && d.byPath[q] == nil {
			if err := d.put(&Change{Status: Added, Path: q, OldSize: -1, Content: true}, nil, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// below collects everything under n, which is at p; nothing when n is no directory.
func (v *View) below(n *node, p string, out map[string]*node) error {
	if dir, err := v.isDir(n); err != nil || !dir {
		return notThere(err)
	}
	d, err := v.dirOf(n)
	if err == nil {
		err = v.list(n, d, false)
	}
	if err != nil {
		return notThere(err)
	}
	var names []string
	d.ascend(0, func(e dirent) bool { names = append(names, e.name); return true })
	for _, name := range names {
		c, _, err := v.child(n, name)
		if err != nil {
			if notThere(err) == nil {
				continue
			}
			return err
		}
		out[join(p, name)] = c
		if err := v.below(c, join(p, name), out); err != nil {
			return err
		}
	}
	return nil
}

// inode tells of an inode that is in both views and differs.
func (d *differ) inode(ino Ino, several map[Ino]*node) error {
	a, err := d.from.find(ino)
	if err != nil || a.gone {
		return notThere(err)
	}
	b, err := d.to.find(ino)
	if err != nil || b.gone {
		return notThere(err)
	}
	same, content, err := d.same(a, b)
	if err != nil || same {
		return notThere(err)
	}
	keys, err := d.to.namesOf(b)
	if err != nil {
		return notThere(err)
	}
	for _, k := range keys {
		if err := d.modified(k, a, b, content); err != nil {
			return err
		}
	}
	attr, err := d.to.attr(b)
	if err != nil {
		return notThere(err)
	}
	if b.inb && !attr.IsDir() && int(attr.Nlink) > len(keys) {
		several[ino] = a
	}
	return nil
}

// modified tells of a changed inode by one of its names, if it still is one.
func (d *differ) modified(k NameKey, a, b *node, content bool) error {
	n, p, err := d.side(d.to, k)
	if err != nil || n == nil || n.ino != b.ino || d.byPath[p] != nil {
		return err
	}
	return d.put(&Change{Status: Modified, Path: p, Content: content}, a, b)
}

// unknownNames looks through the base for the other names of changed files that
// have several there. Only this, which is rare, costs a walk of the tree.
func (d *differ) unknownNames(several map[Ino]*node) error {
	if len(several) == 0 {
		return nil
	}
	want := map[uint64]*node{} // by the host's number
	for ino := range several {
		b, err := d.to.find(ino)
		if err != nil {
			continue
		}
		if b.rec != nil && b.rec.origin != nil {
			want[b.rec.origin.ino] = b
		} else if st, err := d.to.statBase(b); err == nil {
			want[st.ino] = b
		}
	}
	return d.to.base.walk("", func(dir string, e baseEntry) error {
		b := want[e.ino]
		if e.kept {
			if b = nil; several[Ino(e.ino)] != nil {
				b = d.to.nodes[Ino(e.ino)]
			}
		}
		if b == nil {
			return nil
		}
		dn, err := d.to.nodeAt(dir)
		if err != nil {
			return notThere(err)
		}
		a := several[b.ino]
		_, content, err := d.same(a, b)
		if err != nil {
			return notThere(err)
		}
		return d.modified(NameKey{dn.ino, e.name}, a, b, content)
	})
}

// put records a change, filling in what the objects say.
func (d *differ) put(c *Change, a, b *node) error {
	if err := d.sizes(c, a, b); err != nil {
		return notThere(err)
	}
	d.byPath[c.Path] = c
	return nil
}

// sizes fills in what the objects say.
func (d *differ) sizes(c *Change, a, b *node) error {
	if a != nil {
		x, err := d.from.attr(a)
		if err != nil {
			return err
		}
		c.Type, c.OldSize = x.Mode&unix.S_IFMT, x.Size
	}
	if b != nil {
		y, err := d.to.attr(b)
		if err != nil {
			return err
		}
		c.Type, c.NewSize = y.Mode&unix.S_IFMT, y.Size
	}
	return nil
}

// pathOf returns where v shows an inode that has one name only, as directories have.
func (v *View) pathOf(n *node) (string, error) {
	var parts []string
	for n.ino != RootIno {
		if n.gone || len(parts) > unix.PathMax {
			return "", unix.ESTALE
		}
		var up *node
		var name string
		var err error
		if n.rec != nil {
			name = n.rec.name
			up, err = v.find(n.rec.parent)
		} else { // as in the base: so is its place in its directory
			var dir string
			dir, name = split(n.path())
			up, err = v.nodeAt(dir)
		}
		if err != nil {
			return "", err
		}
		parts = append(parts, name)
		n = up
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/"), nil
}

// namesOf lists the known names of n. Names of a base file with several that were
// never looked at stay unknown.
func (v *View) namesOf(n *node) ([]NameKey, error) {
	switch {
	case n.rec == nil && n.bdir != nil:
		return []NameKey{{n.bdir.ino, n.bname}}, nil
	case n.rec == nil:
		p := n.path()
		dir, name := split(p)
		dn, err := v.nodeAt(dir)
		if err != nil {
			return nil, err
		}
		return []NameKey{{dn.ino, name}}, nil
	case !n.rec.has(flagNames):
		return []NameKey{{n.rec.parent, n.rec.name}}, nil
	}
	var keys []NameKey
	seen := map[NameKey]bool{}
	err := v.t.db.Scan(kv.RNamePrefix(uint64(n.ino)), nil, func(k, val []byte) bool {
		_, dir, name, l, ok := kv.ParseRName(k)
		key := NameKey{Ino(dir), name}
		if !ok || seen[key] || !v.anc.has(Layer(l)) {
			return true
		}
		seen[key] = true
		if len(val) == 1 && val[0] == 1 {
			keys = append(keys, key)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("list names of inode %d: %w", n.ino, err)
	}
	return keys, nil
}
