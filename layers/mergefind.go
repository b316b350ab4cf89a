package layers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mergeObject is one thing as the sides have it: of one inode number or, where a name was given to a
// new object, of several.
type mergeObject struct {
	node  [3]*node // nil: not there
	typ   uint32   // S_IFMT bits on the side where it was found first
	same  *mergeObject
	asked [3]bool // node is known, also when it is nil
	// Of directories:
	names  map[string]*mergeName // names in it that some side changed
	queued bool
	// What the sides say of it, once all are known:
	attr   [3]Attr
	xattrs [3]map[string][]byte
	target [3]string // of a symbolic link
	alike  map[[2]int]likeness
	at     []*mergeName // changed names that lead to it on some side
	do     mergeDo
}

// likeness says whether two sides have the same content.
type likeness int

const (
	unlike likeness = iota
	alike
	unsure // of the same size, and made of different pieces
)

// mergeName is a name that some side changed, and what it leads to on each.
type mergeName struct {
	dir   *mergeObject
	name  string
	leads [3]*mergeObject
	want  *mergeObject // what it leads to after the merge
	clash bool         // there is no saying
}

// rep is the object that x was found to be.
func (x *mergeObject) rep() *mergeObject {
	for x.same != nil {
		x = x.same
	}
	return x
}

func (x *mergeObject) has(side int) bool { return x != nil && x.node[side] != nil }

func (x *mergeObject) isDir() bool { return x.typ == unix.S_IFDIR }

// mergeFind finds out what is the same on the sides. It runs with t.mu held.
type mergeFind struct {
	t       *Tree
	v       [3]*View
	byIno   map[Ino]*mergeObject
	names   map[Ino]map[string]struct{} // changed names by directory
	queue   []*mergeObject              // directories to look into
	objects []*mergeObject              // all, in the order they were found
	showing [3]map[*node]bool
	several map[Ino][]NameKey       // names in the base of files that have several there
	goes    func(*mergeObject) bool // whether a directory that theirs has not is removed; nil: any
	pause   func() error            // lets others have the lock for a moment; nil: they must not
	steps   int
}

func (f *mergeFind) run(m *Merge) error {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	inos, names, err := m.changed(f.t)
	if err != nil {
		return err
	}
	if err := m.settleAll(inos); err != nil {
		return err
	}
	if m.stale() {
		return ErrNoLayer
	}
	if f.t.layers[m.Ours] != nil && !f.t.layers[m.Ours].sealed || !f.t.layers[m.Theirs].sealed {
		return f.compareAll(inos, names) // a head may change under the view
	}
	f.pause = func() error { // of sealed layers: only a collection could do something to the views
		f.t.mu.Unlock()
		f.t.mu.Lock()
		if m.stale() {
			return ErrNoLayer
		}
		return nil
	}
	return f.compareAll(inos, names)
}

// pauseEvery is how many objects and names are looked at until others are let in.
const pauseEvery = 64

// step is called for each object and name that is looked at.
func (f *mergeFind) step() error {
	if f.steps++; f.pause == nil || f.steps%pauseEvery > 0 {
		return nil
	}
	return f.pause()
}

func newMergeFind(t *Tree, v [3]*View) *mergeFind {
	return &mergeFind{t: t, v: v, byIno: map[Ino]*mergeObject{}, names: map[Ino]map[string]struct{}{}, several: map[Ino][]NameKey{}}
}

// compareAll finds and describes all that changed inodes and names are about. The caller holds t.mu.
func (f *mergeFind) compareAll(inos map[Ino]struct{}, names map[NameKey]struct{}) error {
	for i := range f.showing {
		f.showing[i] = map[*node]bool{}
	}
	for k := range names {
		f.changedName(k.Dir, k.Name)
	}
	if err := f.linked(inos, names); err != nil {
		return err
	}
	for dir := range f.names {
		inos[dir] = struct{}{}
	}
	for _, ino := range slices.Sorted(maps.Keys(inos)) {
		if _, err := f.object(ino); err != nil {
			return err
		}
		if err := f.step(); err != nil {
			return err
		}
	}
	for len(f.queue) > 0 {
		x := f.queue[0]
		f.queue = f.queue[1:]
		if x.queued = false; x.same == nil {
			if err := f.look(x); err != nil {
				return err
			}
		}
	}
	f.objects = slices.DeleteFunc(f.objects, func(x *mergeObject) bool { return x.same != nil || x.node == [3]*node{} })
	for _, x := range f.objects {
		if err := f.describe(x); err != nil {
			return err
		}
		if err := f.step(); err != nil {
			return err
		}
	}
	return nil
}

func (f *mergeFind) changedName(dir Ino, name string) {
	if f.names[dir] == nil {
		f.names[dir] = map[string]struct{}{}
	}
	f.names[dir][name] = struct{}{}
}

// object returns what has inode number ino, finding out which sides have it.
func (f *mergeFind) object(ino Ino) (*mergeObject, error) {
	x := f.known(ino)
	for side, v := range f.v {
		if x.asked[side] {
			continue
		}
		n, err := v.find(ino)
		if err == nil && !n.gone {
			var is bool
			if is, err = f.placed(side, n); err == nil && is {
				f.found(x, side, n)
			}
		}
		if notThere(err) != nil {
			return nil, err
		}
		x.asked[side] = true
	}
	return x.rep(), nil
}

func (f *mergeFind) known(ino Ino) *mergeObject {
	x := f.byIno[ino]
	if x == nil {
		x = &mergeObject{}
		f.byIno[ino] = x
		f.objects = append(f.objects, x)
	}
	return x.rep()
}

// found notes that a side has x.
func (f *mergeFind) found(x *mergeObject, side int, n *node) {
	if x.node[side] != nil {
		return
	}
	x.node[side], x.asked[side] = n, true
	if x.typ == 0 {
		x.typ = f.v[side].typeOf(n)
	}
	f.enqueue(x)
}

func (f *mergeFind) enqueue(x *mergeObject) {
	if x.isDir() && !x.queued {
		x.queued = true
		f.queue = append(f.queue, x)
	}
}

// placed reports whether some name leads to n.
func (f *mergeFind) placed(side int, n *node) (bool, error) {
	v := f.v[side]
	if dir, err := v.isDir(n); err != nil || dir {
		return dir && f.shows(side, n), err
	}
	keys, err := f.keysOf(side, n)
	if err != nil {
		return false, err
	}
	for _, k := range keys {
		dn, err := v.find(k.Dir)
		if err != nil || dn.gone || !f.shows(side, dn) {
			continue
		}
		if c, _, err := v.child(dn, k.Name); err == nil && c == n {
			return true, nil
		} else if notThere(err) != nil {
			return false, err
		}
	}
	return false, nil
}

func (f *mergeFind) shows(side int, dn *node) bool {
	is, known := f.showing[side][dn]
	if !known {
		is = f.v[side].shows(dn)
		f.showing[side][dn] = is
	}
	return is
}

// look goes through the changed names in a directory.
func (f *mergeFind) look(x *mergeObject) error {
	names := map[string]struct{}{}
	for _, n := range x.node {
		if n != nil {
			maps.Copy(names, f.names[n.ino])
		}
	}
	// Of a directory that one side removed, the other must lose all that it has not changed.
	if x.has(atBase) && x.has(atOurs) && !x.has(atTheirs) && (f.goes == nil || f.goes(x)) {
		if err := f.v[atOurs].eachName(x.node[atOurs], func(name string) { names[name] = struct{}{} }); err != nil {
			return err
		}
	}
	x.names = make(map[string]*mergeName, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := f.name(x, name); err != nil {
			return err
		}
		if err := f.step(); err != nil {
			return err
		}
	}
	return nil
}

// eachName calls fn for the names in directory n.
func (v *View) eachName(n *node, fn func(name string)) error {
	d, err := v.dirOf(n)
	if err == nil {
		err = v.list(n, d, false)
	}
	if err != nil {
		return err
	}
	d.ascend(0, func(e dirent) bool { fn(e.name); return true })
	return nil
}

// name finds out what a name in dir leads to on each side, and which of it is the same object.
func (f *mergeFind) name(dir *mergeObject, name string) error {
	e := &mergeName{dir: dir, name: name}
	for side, dn := range dir.node {
		if dn == nil {
			continue
		}
		n, _, err := f.v[side].child(dn, name)
		if err != nil {
			if notThere(err) != nil {
				return err
			}
			continue
		}
		e.leads[side] = f.known(n.ino)
		f.found(e.leads[side], side, n)
	}
	for _, x := range e.leads {
		if x != nil {
			if err := f.ask(x); err != nil {
				return err
			}
		}
	}
	dir.names[name] = e
	for _, pair := range [][2]int{{atBase, atOurs}, {atBase, atTheirs}, {atOurs, atTheirs}} {
		if x, y := e.leads[pair[0]], e.leads[pair[1]]; x != nil && y != nil {
			f.unite(x.rep(), y.rep())
		}
	}
	return nil
}

// ask has all inode numbers of x looked for on all sides.
func (f *mergeFind) ask(x *mergeObject) error {
	x = x.rep()
	for _, n := range x.node {
		if n == nil || x.asked == [3]bool{true, true, true} {
			continue
		}
		if _, err := f.object(n.ino); err != nil {
			return err
		}
	}
	return nil
}

// unite makes one of two objects that have the same name on different sides, if none of the
// sides has both: a file that an editor replaced, a directory that was made anew, or on both sides.
func (f *mergeFind) unite(x, y *mergeObject) {
	if x == y || x.isDir() != y.isDir() {
		return
	}
	for side := range x.node {
		if x.node[side] != nil && y.node[side] != nil {
			return
		}
	}
	for side, n := range y.node {
		if n != nil {
			x.node[side] = n
		}
	}
	x.asked = [3]bool{true, true, true}
	y.same, y.names = x, nil
	f.enqueue(x)
}

// describe notes what the sides say of x, and compares it.
func (f *mergeFind) describe(x *mergeObject) (err error) {
	for side, n := range x.node {
		if n == nil {
			continue
		}
		v := f.v[side]
		if x.attr[side], err = v.attr(n); err != nil {
			return err
		}
		if x.xattrs[side], err = v.attrs(n); err != nil {
			return err
		}
		if x.attr[side].Mode&unix.S_IFMT != unix.S_IFLNK {
			continue
		}
		if n.rec != nil {
			x.target[side] = n.rec.target
		} else if x.target[side], err = v.base.readlink(n.path()); err != nil {
			return err
		}
	}
	x.alike = map[[2]int]likeness{}
	for _, pair := range [][2]int{{atBase, atOurs}, {atBase, atTheirs}, {atOurs, atTheirs}} {
		if x.node[pair[0]] != nil && x.node[pair[1]] != nil {
			if x.alike[pair], err = f.compare(x, pair[0], pair[1]); err != nil {
				return err
			}
		}
	}
	for _, e := range x.names {
		for side, c := range e.leads {
			if c == nil {
				continue
			}
			e.leads[side] = c.rep()
			if c := c.rep(); !slices.Contains(c.at, e) {
				c.at = append(c.at, e)
			}
		}
	}
	return nil
}

// pathAt returns the path of a name on the first of sides that has its directory. The caller holds t.mu.
func (f *mergeFind) pathAt(e *mergeName, sides ...int) (string, error) {
	for _, side := range sides {
		if !e.dir.has(side) {
			continue
		}
		p, err := f.v[side].pathOf(e.dir.node[side])
		if err != nil {
			return "", fmt.Errorf("find the path of %q: %w", e.name, err)
		}
		return join(p, e.name), nil
	}
	return "", errors.New("a name in no directory")
}

// path returns where x is, on the first of sides that has it. The caller holds t.mu.
func (f *mergeFind) path(x *mergeObject, sides ...int) (string, error) {
	for _, side := range sides {
		n := x.node[side]
		if n == nil {
			continue
		}
		if x.isDir() {
			return f.v[side].pathOf(n)
		}
		at := slices.DeleteFunc(slices.Clone(x.at), func(e *mergeName) bool { return e.leads[side] != x })
		if len(at) > 0 {
			return f.pathAt(slices.MinFunc(at, func(a, b *mergeName) int { return cmp.Compare(a.name, b.name) }), side)
		}
		keys, err := f.keysOf(side, n)
		if err != nil {
			return "", err
		}
		slices.SortFunc(keys, func(a, b NameKey) int { return cmp.Or(cmp.Compare(a.Dir, b.Dir), strings.Compare(a.Name, b.Name)) })
		for _, k := range keys {
			dn, err := f.v[side].find(k.Dir)
			if err != nil || !f.shows(side, dn) {
				continue
			}
			if c, _, err := f.v[side].child(dn, k.Name); err == nil && c == n {
				p, err := f.v[side].pathOf(dn)
				return join(p, k.Name), err
			}
		}
	}
	return "", unix.ESTALE
}
