package layers

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Diff calls fn for each path that differs between two layers (sealed, open, or
// BaseLayer), in path order. The work is that of the changes between the two, not
// of the tree. What was made and removed again in between does not show, nor does
// a directory whose entries changed.
func (t *Tree) Diff(from, to Layer, fn func(Change) error) error {
	a, err := t.View(from)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := t.View(to)
	if err != nil {
		return err
	}
	defer b.Close()
	d := &differ{t: t, from: a, to: b, byPath: map[string]*Change{}, done: map[Ino]bool{}}
	t.mu.Lock()
	err = d.run(from, to)
	t.mu.Unlock()
	if err != nil {
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

type differ struct {
	t        *Tree
	from, to *View
	byPath   map[string]*Change
	done     map[Ino]bool // inodes whose own change is told by a name
	removed  map[Ino]*gone
}

// gone is a name that went, until it is known whether it came back elsewhere.
type gone struct {
	path string
	n    *node
}

func (d *differ) run(from, to Layer) error {
	inos, names, err := d.t.changes(d.t.between(from, to), nil)
	if err != nil {
		return err
	}
	d.removed = map[Ino]*gone{}
	added := map[string]*node{}
	for k := range names {
		if err := d.name(k, added); err != nil {
			return err
		}
	}
	for p, n := range added {
		if err := d.added(p, n); err != nil {
			return err
		}
	}
	for _, g := range d.removed {
		if err := d.put(&Change{Status: Deleted, Path: g.path, NewSize: -1}, g.n, nil); err != nil {
			return err
		}
	}
	for ino := range inos {
		if err := d.inode(ino); err != nil {
			return err
		}
	}
	return nil
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
	if a != nil && b != nil && apath == bpath {
		if a.ino == b.ino {
			return nil // told by the inode, if it changed
		}
		d.done[a.ino], d.done[b.ino] = true, true
		return d.changed(apath, a, b)
	}
	if a != nil && b != nil && a.ino == b.ino {
		return nil // a directory above it moved
	}
	if a != nil {
		d.removed[a.ino] = &gone{apath, a}
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

// added tells of a name that is new: a rename if the same inode lost one.
func (d *differ) added(p string, n *node) error {
	d.done[n.ino] = true
	if g := d.removed[n.ino]; g != nil {
		delete(d.removed, n.ino)
		c := &Change{Status: Renamed, Path: p, OldPath: g.path}
		if same, content, err := d.same(g.n, n); err != nil {
			return err
		} else if !same {
			c.Content = content
		}
		return d.put(c, g.n, n)
	}
	return d.put(&Change{Status: Added, Path: p, OldSize: -1, Content: true}, nil, n)
}

// changed tells of a path that shows another inode than before.
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
	return d.put(&Change{Status: status, Path: p, Content: true}, a, b)
}

// inode tells of an inode that is in both views and differs.
func (d *differ) inode(ino Ino) error {
	if d.done[ino] {
		return nil
	}
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
	paths, err := d.to.pathsOf(b)
	if err != nil {
		return notThere(err)
	}
	for _, p := range paths {
		if d.byPath[p] != nil {
			continue
		}
		if err := d.put(&Change{Status: Modified, Path: p, Content: content}, a, b); err != nil {
			return err
		}
	}
	return nil
}

// same compares what an inode shows, and says whether its content may differ.
func (d *differ) same(a, b *node) (same, content bool, err error) {
	x, err := d.from.attr(a)
	if err != nil {
		return false, false, err
	}
	y, err := d.to.attr(b)
	if err != nil {
		return false, false, err
	}
	if x.IsDir() {
		same = x.Mode == y.Mode && x.UID == y.UID && x.GID == y.GID
	} else {
		content = x.Size != y.Size || x.Mtime != y.Mtime
		same = !content && x.Mode == y.Mode && x.UID == y.UID && x.GID == y.GID && x.Rdev == y.Rdev
	}
	if !same {
		return false, content, nil
	}
	if same, err = d.sameXattrs(a, b); err != nil || !same {
		return false, false, err
	}
	return true, false, nil
}

func (d *differ) sameXattrs(a, b *node) (bool, error) {
	x, err := d.from.attrs(a)
	if err != nil {
		return false, err
	}
	y, err := d.to.attrs(b)
	if err != nil || len(x) != len(y) {
		return false, err
	}
	for name, v := range x {
		if w, ok := y[name]; !ok || !bytes.Equal(v, w) {
			return false, nil
		}
	}
	return true, nil
}

// put records a change, filling in what the objects say.
func (d *differ) put(c *Change, a, b *node) error {
	if a != nil {
		x, err := d.from.attr(a)
		if err != nil {
			return notThere(err)
		}
		c.Type, c.OldSize = x.Mode&unix.S_IFMT, x.Size
	}
	if b != nil {
		y, err := d.to.attr(b)
		if err != nil {
			return notThere(err)
		}
		c.Type, c.NewSize = y.Mode&unix.S_IFMT, y.Size
	}
	d.byPath[c.Path] = c
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

// pathsOf returns every path by which v is known to show n. Names of a base file
// with several that were never looked at stay unknown.
func (v *View) pathsOf(n *node) ([]string, error) {
	if n.rec == nil || !n.rec.has(flagNames) {
		p, err := v.pathOf(n)
		if err != nil {
			return nil, err
		}
		return []string{p}, nil
	}
	keys, err := v.namesOf(n.ino)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, k := range keys {
		dn, err := v.find(k.Dir)
		if err != nil {
			return nil, err
		}
		dir, err := v.pathOf(dn)
		if err != nil {
			return nil, err
		}
		out = append(out, join(dir, k.Name))
	}
	return out, nil
}

// namesOf lists the known names of an inode that has had several.
func (v *View) namesOf(ino Ino) ([]NameKey, error) {
	var keys []NameKey
	seen := map[NameKey]bool{}
	err := v.t.db.Scan(kv.RNamePrefix(uint64(ino)), nil, func(k, val []byte) bool {
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
		return nil, fmt.Errorf("list names of inode %d: %w", ino, err)
	}
	return keys, nil
}
