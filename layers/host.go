package layers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// StagePrefix begins the name of the directory, in the root of the base, in which a commit
// gets its files ready. No view of the base shows such a name.
const StagePrefix = ".rewindfs-commit-"

// staged reports whether p is the directory of a commit.
func staged(p string) bool {
	return strings.HasPrefix(p, StagePrefix) && !strings.Contains(p, "/")
}

// Dup returns an O_PATH descriptor of the base's root, for whoever writes to it.
func (b *Base) Dup() (int, error) {
	fd, err := unix.FcntlInt(uintptr(b.root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the base once more: %w", err)
	}
	return fd, nil
}

// FromBase reports whether i is the number of an object that the base has or had, not of one made here.
func (i Ino) FromBase() bool { return i.ofBase() }

// TouchedPaths calls fn for paths at which v may show something else than the base that its line is built on: of what came, went or moved
// as a whole directory only for that itself. Names of objects with several that nobody has looked at are not among them: several
// is called for the changed objects of which there may be more. In no order, and some more than once. Unlike Diff it
// does not compare, so it finds also what the base has since lost. The records that it reads v keeps until it is closed.
func (v *View) TouchedPaths(fn func(path string), several func(Ino)) error {
	t, l := v.t, v.layer
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.stale {
		return fmt.Errorf("layer %d: %w", l, ErrNoLayer)
	}
	u := t.newView(l) // in v itself there is only what names lead to, by which Getattr tells what was removed
	u.root.rec, u.keep = v.root.rec, true
	defer u.handRecords(v)
	inos, names, err := t.changes(t.between(BaseLayer, l), nil)
	if err != nil {
		return err
	}
	for k := range names {
		ino, err := u.touched(k, fn)
		if err != nil {
			return fmt.Errorf("list what layer %d changed: %w", l, err)
		}
		if n := u.nodes[ino]; n != nil && n.rec != nil && n.rec.nlink == 1 && !ino.ofBase() {
			delete(inos, ino) // this is its only name
		}
	}
	for _, ino := range slices.Sorted(maps.Keys(inos)) { // records that are next to each other are read quicker
		if err := u.touchedNames(ino, fn, several); err != nil {
			return fmt.Errorf("list what layer %d changed: %w", l, err)
		}
	}
	return nil
}

// handRecords closes v and leaves the records that it has read to another view of the same layer.
func (v *View) handRecords(to *View) {
	to.read = make(map[Ino]*inode, len(v.nodes))
	for ino, n := range v.nodes {
		if n.rec != nil {
			to.read[ino] = n.rec
		}
	}
	v.close()
}

// touchedNames calls fn for the known paths of an inode, and several if it has more names.
func (v *View) touchedNames(ino Ino, fn func(path string), several func(Ino)) error {
	n, err := v.find(ino)
	if err != nil || n.gone || ino == RootIno {
		return notThere(err)
	}
	keys, err := v.namesOf(n)
	if err != nil {
		return notThere(err)
	}
	left := 0
	if n.rec != nil && n.rec.mode&unix.S_IFMT != unix.S_IFDIR {
		left = int(n.rec.nlink)
	}
	for _, k := range keys {
		at, err := v.touched(k, fn)
		if err != nil {
			return err
		}
		if at == ino {
			left--
		}
	}
	if left > 0 {
		several(ino)
	}
	return nil
}

// touched calls fn for the path of a name, and returns the inode that its record leads to, 0 for none.
func (v *View) touched(k NameKey, fn func(path string)) (Ino, error) {
	dn, err := v.find(k.Dir)
	if err != nil || dn.gone {
		return 0, notThere(err)
	}
	dir, err := v.pathOf(dn)
	if err != nil {
		return 0, notThere(err)
	}
	d, err := v.dirOf(dn)
	if err != nil {
		return 0, notThere(err)
	}
	fn(join(dir, k.Name))
	e, ok := d.find(k.Name)
	if !ok || e.ino == 0 {
		return 0, nil
	}
	if _, err := v.recorded(e.ino); err != nil {
		return 0, notThere(err)
	}
	return e.ino, nil
}
