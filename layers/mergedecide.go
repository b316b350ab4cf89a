package layers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/merge3"
)

// mergeDo is what a merge does to an object. All that is not said stays as ours is.
type mergeDo struct {
	content mergeContent
	text    []byte // for mergeText
	attrs   bool   // mode and owner are those of attr
	mtime   bool   // so is the mtime
	attr    Attr
	xattrs  map[string][]byte // changed ones; nil removes one
}

// any reports whether the object changes itself, and not only in its names.
func (do *mergeDo) any() bool {
	return do.content != mergeKeep || do.attrs || do.mtime || len(do.xattrs) > 0
}

type mergeContent int

const (
	mergeKeep mergeContent = iota
	mergeTake              // theirs
	mergeText              // text
)

// mergeDecide decides name by name and object by object, t.mu not held but for paths.
type mergeDecide struct {
	*mergeFind
	ctx    context.Context
	m      *Merge
	merged []*mergeObject
	told   map[string]bool // paths that are in conflict already
}

func (d *mergeDecide) run() error {
	d.told = map[string]bool{}
	m := d.m
	for _, x := range d.objects {
		for _, name := range slices.Sorted(maps.Keys(x.names)) {
			m.names = append(m.names, x.names[name])
		}
	}
	for _, e := range m.names {
		if err := d.name(e); err != nil {
			return err
		}
	}
	for _, x := range d.objects {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		if err := d.object(x); err != nil {
			return fmt.Errorf("merge %s: %w", d.show(x), err)
		}
	}
	for _, x := range d.objects {
		if err := d.moves(x); err != nil {
			return err
		}
	}
	slices.SortFunc(m.Conflicts, func(a, b Conflict) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Kind, b.Kind)) })
	m.objects = d.objects
	if len(m.Conflicts) > 0 {
		return nil
	}
	return d.changes()
}

// at runs fn, which asks for a path, with the tree locked.
func (d *mergeDecide) at(fn func() (string, error)) (string, error) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	return fn()
}

func (d *mergeDecide) show(x *mergeObject) string {
	p, err := d.at(func() (string, error) { return d.path(x, atOurs, atTheirs, atBase) })
	if err != nil {
		return "an object without a name"
	}
	return fmt.Sprintf("%q", p)
}

// conflict notes a conflict about x or, if it has a name of its own in it, about e.
func (d *mergeDecide) conflict(x *mergeObject, e *mergeName, kind ConflictKind, format string, args ...any) error {
	p, err := d.at(func() (string, error) {
		if e != nil {
			e.clash = true
			return d.pathAt(e, atOurs, atTheirs, atBase)
		}
		return d.path(x, atOurs, atTheirs, atBase)
	})
	if err != nil {
		return err
	}
	if !d.told[p] {
		d.told[p] = true
		d.m.Conflicts = append(d.m.Conflicts, Conflict{p, kind, fmt.Sprintf(format, args...)})
	}
	return nil
}

// name merges what one name leads to.
func (d *mergeDecide) name(e *mergeName) error {
	base, ours, theirs := e.leads[atBase], e.leads[atOurs], e.leads[atTheirs]
	switch {
	case theirs == base || ours == theirs:
		e.want = ours
	case ours == base:
		e.want = theirs
	case ours != nil && theirs != nil && ours.isDir() != theirs.isDir():
		return d.conflict(nil, e, ConflictDirectory, "a directory on one side and none on the other")
	case ours != nil && theirs != nil && base == nil:
		return d.conflict(nil, e, ConflictAdded, "both sides put something there")
	case ours != nil && theirs != nil:
		return d.conflict(nil, e, ConflictName, "both sides put something else there")
	case ours == nil:
		return d.conflict(nil, e, ConflictDeleted, "removed here, replaced there")
	default:
		return d.conflict(nil, e, ConflictDeleted, "replaced here, removed there")
	}
	switch {
	case e.want == nil || e.want == base:
	case e.dir.has(atBase) && !e.dir.has(atOurs) && theirs == e.want:
		return d.conflict(nil, e, ConflictDeleted, "added there, in a directory that was removed here")
	case e.dir.has(atBase) && !e.dir.has(atTheirs) && ours == e.want:
		return d.conflict(nil, e, ConflictDeleted, "added here, in a directory that was removed there")
	}
	return nil
}

// object merges what the sides made of one object.
func (d *mergeDecide) object(x *mergeObject) error {
	base, ours, theirs := x.has(atBase), x.has(atOurs), x.has(atTheirs)
	switch {
	case base && ours && theirs:
		if err := d.content(x); err != nil {
			return err
		}
		return d.attributes(x)
	case base && ours:
		return d.removed(x, atOurs, "changed here, removed there")
	case base && theirs:
		return d.removed(x, atTheirs, "removed here, changed there")
	case ours && theirs:
		return d.added(x)
	case theirs:
		x.do.content = mergeTake
	}
	return nil
}

// alikeAt says whether two sides have the same content, comparing it where that is the only way.
func (d *mergeDecide) alikeAt(x *mergeObject, s, r int) (bool, error) {
	pair := [2]int{s, r}
	if x.alike[pair] == unsure {
		same, err := sameBytes(d.ctx, d.v[s], x.node[s].ino, d.v[r], x.node[r].ino, x.attr[s].Size)
		if err != nil {
			return false, err
		}
		x.alike[pair] = unlike
		if same {
			x.alike[pair] = alike
		}
	}
	return x.alike[pair] == alike, nil
}

// removed is a conflict if the side that still has x changed it.
func (d *mergeDecide) removed(x *mergeObject, side int, detail string) error {
	changed := !sameAttrs(x, atBase, side)
	for _, e := range x.at {
		changed = changed || (e.leads[atBase] == x) != (e.leads[side] == x)
	}
	if !changed {
		same, err := d.alikeAt(x, atBase, side)
		if err != nil || same {
			return err
		}
	}
	kind := ConflictDeleted
	for _, e := range x.at { // the other side may have put something else there
		if other := e.leads[atOurs+atTheirs-side]; other != nil && other.isDir() != x.isDir() {
			kind = ConflictDirectory
		}
	}
	return d.conflict(x, nil, kind, "%s", detail)
}

// sameAttrs compares mode, owner and extended attributes.
func sameAttrs(x *mergeObject, s, r int) bool {
	a, b := &x.attr[s], &x.attr[r]
	return a.Mode&^unix.S_IFMT == b.Mode&^unix.S_IFMT && a.UID == b.UID && a.GID == b.GID && maps.EqualFunc(x.xattrs[s], x.xattrs[r], bytes.Equal)
}

// added compares what both sides put in one place.
func (d *mergeDecide) added(x *mergeObject) error {
	same, err := d.alikeAt(x, atOurs, atTheirs)
	switch {
	case err != nil:
		return err
	case !same:
		return d.conflict(x, nil, ConflictAdded, "both sides added it, with different contents")
	case sameAttrs(x, atOurs, atTheirs):
		return nil
	case x.isDir():
		return d.conflict(x, nil, ConflictMode, "both sides added it, with different attributes")
	}
	return d.conflict(x, nil, ConflictAdded, "both sides added it, with different attributes")
}

// content merges the content of what all have.
func (d *mergeDecide) content(x *mergeObject) error {
	for _, read := range []bool{false, true} { // what needs no reading first
		for _, c := range []struct {
			s, r int
			do   mergeContent
		}{{atBase, atTheirs, mergeKeep}, {atBase, atOurs, mergeTake}, {atOurs, atTheirs, mergeKeep}} {
			same := x.alike[[2]int{c.s, c.r}] == alike
			if read {
				var err error
				if same, err = d.alikeAt(x, c.s, c.r); err != nil {
					return err
				}
			}
			if same {
				x.do.content = c.do
				return nil
			}
		}
	}
	typ := func(side int) uint32 { return x.attr[side].Mode & unix.S_IFMT }
	if typ(atOurs) != typ(atTheirs) {
		return d.conflict(x, nil, ConflictType, "changed on both sides, to objects of different types")
	}
	if typ(atOurs) != unix.S_IFREG || typ(atBase) != unix.S_IFREG {
		return d.conflict(x, nil, ConflictContent, "changed on both sides")
	}
	return d.text(x)
}

// text merges a file that both sides changed line by line.
func (d *mergeDecide) text(x *mergeObject) error {
	var texts [3][]byte
	for side := range texts {
		if x.attr[side].Size > merge3.MaxSize {
			return d.conflict(x, nil, ConflictContent, "changed on both sides, and too large to be merged line by line")
		}
		texts[side] = make([]byte, x.attr[side].Size)
		n, err := d.v[side].ReadAt(x.node[side].ino, texts[side], 0)
		for k := n; err == nil && k > 0 && n < len(texts[side]); n += k {
			k, err = d.v[side].ReadAt(x.node[side].ino, texts[side][n:], int64(n))
		}
		if err != nil {
			return err
		}
		if n < len(texts[side]) {
			return errors.New("a file is shorter than its size")
		}
		if !merge3.IsText(texts[side]) {
			return d.conflict(x, nil, ConflictContent, "changed on both sides, and not text")
		}
	}
	res := merge3.Merge(texts[atBase], texts[atOurs], texts[atTheirs], merge3.Labels{})
	if res.Conflicts > 0 {
		return d.conflict(x, nil, ConflictContent, "changed on both sides, in the same lines or in lines beside each other (places: %d)", res.Conflicts)
	}
	x.do.content, x.do.text = mergeText, res.Text
	d.merged = append(d.merged, x)
	return nil
}

// attributes merges mode, owner, mtime and extended attributes of what all have.
func (d *mergeDecide) attributes(x *mergeObject) error {
	base, ours, theirs := &x.attr[atBase], &x.attr[atOurs], &x.attr[atTheirs]
	x.do.attr = *ours
	clash := false
	one := func(to *uint32, base, ours, theirs, bits uint32) {
		switch b, o, t := base&bits, ours&bits, theirs&bits; {
		case t == b || o == t:
		case o == b:
			*to, x.do.attrs = ours&^bits|t, true
		default:
			clash = true
		}
	}
	one(&x.do.attr.Mode, base.Mode, ours.Mode, theirs.Mode, ^uint32(unix.S_IFMT))
	one(&x.do.attr.UID, base.UID, ours.UID, theirs.UID, ^uint32(0))
	one(&x.do.attr.GID, base.GID, ours.GID, theirs.GID, ^uint32(0))
	if clash {
		return d.conflict(x, nil, ConflictMode, "mode or owner changed on both sides")
	}
	switch { // the newer one, unless one side alone changed it
	case theirs.Mtime == base.Mtime, x.do.content == mergeText:
	case ours.Mtime == base.Mtime, !x.isDir() && ours.Mtime.before(theirs.Mtime):
		x.do.attr.Mtime, x.do.mtime = theirs.Mtime, true
	}
	return d.extended(x)
}

func (a Time) before(b Time) bool { return a.Sec < b.Sec || a.Sec == b.Sec && a.Nsec < b.Nsec }

// extended merges extended attributes.
func (d *mergeDecide) extended(x *mergeObject) error {
	names := map[string]struct{}{}
	for _, xs := range x.xattrs {
		for name := range xs {
			names[name] = struct{}{}
		}
	}
	for name := range names {
		base, inBase := x.xattrs[atBase][name]
		ours, inOurs := x.xattrs[atOurs][name]
		theirs, inTheirs := x.xattrs[atTheirs][name]
		same := func(a []byte, hasA bool, b []byte, hasB bool) bool { return hasA == hasB && bytes.Equal(a, b) }
		switch {
		case same(theirs, inTheirs, base, inBase) || same(ours, inOurs, theirs, inTheirs):
			continue
		case !same(ours, inOurs, base, inBase):
			return d.conflict(x, nil, ConflictXattr, "extended attribute %q changed on both sides", name)
		}
		if x.do.xattrs == nil {
			x.do.xattrs = map[string][]byte{}
		}
		if x.do.xattrs[name] = nil; inTheirs {
			x.do.xattrs[name] = append([]byte{}, theirs...)
		}
	}
	return nil
}

// moves finds what was moved to different places, or by one side into what the other moved into it.
func (d *mergeDecide) moves(x *mergeObject) error {
	var names, lost [3]int
	apart := false
	left := int(x.attr[atOurs].Nlink)
	for _, e := range x.at {
		for _, side := range []int{atOurs, atTheirs} {
			switch was, is := e.leads[atBase] == x, e.leads[side] == x; {
			case was && !is:
				lost[side]++
			case is && !was:
				names[side]++
				apart = apart || e.leads[atOurs+atTheirs-side] != x
			}
		}
		switch was, is := e.leads[atOurs] == x, e.want == x; {
		case was && !is:
			left--
		case is && !was:
			left++
		}
	}
	if apart && lost[atOurs] > 0 && lost[atTheirs] > 0 && names[atOurs] > 0 && names[atTheirs] > 0 {
		return d.conflict(x, nil, ConflictName, "moved to different places")
	}
	if x.node[atBase] == nil || x.node[atOurs] == nil || x.node[atTheirs] == nil {
		return nil
	}
	if !x.isDir() && left <= 0 && !slices.ContainsFunc(x.at, func(e *mergeName) bool { return e.clash }) {
		return d.conflict(x, nil, ConflictDeleted, "each side removed names, and none is left")
	}
	if x.isDir() && names[atTheirs] > 0 {
		in, err := d.inItself(x)
		if err != nil || !in {
			return err
		}
		return d.conflict(x, nil, ConflictName, "each side moved it, or a directory above it, into the other")
	}
	return nil
}

// inItself reports whether after the merge the way up from x leads back to it.
func (d *mergeDecide) inItself(x *mergeObject) (bool, error) {
	seen := map[*mergeObject]bool{}
	for y := x; !seen[y]; {
		seen[y] = true
		up, _, err := d.above(y)
		if err != nil || up == nil {
			return false, err
		}
		y = up
	}
	return true, nil
}

// above returns the directory that x is in after the merge, and its name there; nil for the root.
func (d *mergeDecide) above(x *mergeObject) (*mergeObject, string, error) {
	for _, e := range x.at {
		if e.want == x {
			return e.dir, e.name, nil
		}
	}
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	for _, side := range []int{atOurs, atTheirs} {
		n, v := x.node[side], d.v[side]
		if n == nil {
			continue
		}
		if n.ino == RootIno {
			return nil, "", nil
		}
		keys, err := v.namesOf(n)
		if err != nil || len(keys) == 0 {
			return nil, "", errOr(err, unix.ESTALE)
		}
		up, err := d.mergeFind.object(keys[0].Dir)
		return up, keys[0].Name, err
	}
	return nil, "", unix.ESTALE
}
