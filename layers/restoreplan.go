package layers

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// compare decides what is to be done at q.
func (r *restoring) compare(q string) error {
	h, err := r.head.at(q)
	if err != nil {
		return err
	}
	x, err := r.ref.at(q)
	if err != nil || h == nil && x == nil {
		return err
	}
	if h != nil && x != nil {
		same, err := r.d.equal(h, x)
		if err != nil {
			return err
		}
		dir, err := r.ref.isDir(x)
		switch {
		case err != nil:
			return err
		case h.ino == x.ino && dir:
			return r.directory(q, h, x, same)
		case same && !dir && (h.ino == x.ino || !r.apart[x.ino]):
			return nil
		}
	}
	return r.replace(q, h, x)
}

// directory notes a directory that both states have, if its attributes or times differ.
func (r *restoring) directory(q string, h, x *node, same bool) error {
	a, err := r.head.attr(h)
	if err != nil {
		return err
	}
	b, err := r.ref.attr(x)
	if err != nil {
		return err
	}
	if same && a.Mtime == b.Mtime && a.Ctime == b.Ctime && a.Atime == b.Atime {
		return nil
	}
	r.inPlace[q] = true
	if !same {
		return r.tell(q, h, x)
	}
	return nil
}

// replace notes that q is to be made as x, nil for nothing, in place of h.
func (r *restoring) replace(q string, h, x *node) error {
	before, after := map[string]*node{}, map[string]*node{}
	if h != nil {
		before[q] = h
		if err := r.head.below(h, q, before); err != nil {
			return err
		}
	}
	if x != nil {
		after[q] = x
		if err := r.ref.below(x, q, after); err != nil {
			return err
		}
	}
	if x == nil || !r.apart[x.ino] {
		if again, err := r.sameTree(before, after); err != nil || again {
			return err
		}
	}
	at := root{}
	at.dir, at.name = split(q)
	for _, p := range slices.Sorted(maps.Keys(after)) {
		_, name := split(p)
		k := &plant{name: name, n: after[p]}
		r.plants[p] = k
		if p == q {
			at.plant = k
			continue
		}
		up, _ := split(p)
		r.plants[up].kids = append(r.plants[up].kids, k)
	}
	r.whole[q] = true
	for p, n := range before {
		if err := r.tell(p, n, after[p]); err != nil {
			return err
		}
	}
	for p, n := range after {
		if before[p] == nil {
			if err := r.tell(p, nil, n); err != nil {
				return err
			}
		}
	}
	if x != nil {
		if hangs, err := r.parents(at); err != nil || hangs {
			return err
		}
	}
	r.roots = append(r.roots, at)
	if r.inScope(at.dir) { // its times go back, too, though the new name moves them
		r.inPlace[at.dir] = true
	}
	return nil
}

// inScope reports whether p is among the paths to restore, or below one of them.
func (r *restoring) inScope(p string) bool {
	for ; !r.paths[p]; p, _ = split(p) {
		if p == "" {
			return false
		}
	}
	return true
}

// sameTree reports whether two trees show the same, if not as the same inodes.
func (r *restoring) sameTree(before, after map[string]*node) (bool, error) {
	if len(before) != len(after) {
		return false, nil
	}
	now := map[Ino]Ino{} // of the files with several names: they share one inode here, too
	for p, h := range before {
		x := after[p]
		if x == nil || now[x.ino] != 0 && now[x.ino] != h.ino {
			return false, nil
		}
		now[x.ino] = h.ino
		if same, err := r.d.equal(h, x); err != nil || !same {
			return false, err
		}
		a, err := r.head.attr(h)
		if err != nil {
			return false, err
		}
		b, err := r.ref.attr(x)
		if err != nil || a.Mtime != b.Mtime {
			return false, err
		}
	}
	return true, nil
}

// tell adds the change from h to x at p to what is told.
func (r *restoring) tell(p string, h, x *node) error {
	c := Change{Status: Modified, Path: p, OldSize: -1, NewSize: -1, Content: true}
	switch {
	case h == nil:
		c.Status = Added
	case x == nil:
		c.Status = Deleted
	default:
		same, err := r.d.equal(h, x)
		if err != nil || same {
			return err
		}
		if a, b := r.head.typeOf(h), r.ref.typeOf(x); a != b {
			c.Status = Retyped
		} else if a == unix.S_IFDIR {
			c.Content = false
		} else if a == unix.S_IFREG {
			c.Content, err = r.d.sameBytes(h, x)
			if c.Content = !c.Content; err != nil {
				return err
			}
		}
	}
	if err := r.d.sizes(&c, h, x); err != nil {
		return err
	}
	r.changes = append(r.changes, c)
	return nil
}

// parents sees to it that the directory of at is there. One that is to be made again becomes
// a plant, and at hangs below it.
func (r *restoring) parents(at root) (hangs bool, err error) {
	for dir, k := at.dir, at.plant; ; hangs = true {
		if up := r.plants[dir]; up != nil { // made for another path
			up.kids = append(up.kids, k)
			return true, nil
		}
		h, err := r.head.at(dir)
		if err != nil {
			return false, err
		}
		if h != nil {
			if is, err := r.head.isDir(h); err != nil || !is {
				return false, errOr(err, fmt.Errorf("%q: %w", dir, ErrInTheWay))
			}
			if hangs {
				r.roots = append(r.roots, root{dir: dir, name: k.name, plant: k})
			}
			return hangs, nil
		}
		x, err := r.ref.at(dir)
		if err != nil {
			return false, err
		}
		if x == nil {
			return false, fmt.Errorf("directory %q: %w", dir, ErrCorrupt)
		}
		up, name := split(dir)
		made := &plant{name: name, n: x, part: true, kids: []*plant{k}}
		r.plants[dir] = made
		if err := r.tell(dir, nil, x); err != nil {
			return false, err
		}
		dir, k = up, made
	}
}
