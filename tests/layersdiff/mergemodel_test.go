package layersdiff

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/merge3"
)

// mergeModel merges three trees as the documentation says, knowing nothing of records and layers.
type mergeModel struct {
	side [3]modelSide // ancestor, ours, theirs
	same map[uint64]uint64
	bad  []string // conflicts
	want map[modelName]uint64
	attr map[uint64]*fstree.Entry // of what is in the result
}

// modelSide is one tree, by inode numbers.
type modelSide struct {
	names map[modelName]uint64
	objs  map[uint64]*fstree.Entry
	read  func(p string) []byte
}

type modelName struct {
	dir  uint64
	name string
}

func newModelSide(t *fstree.Tree, read func(string) []byte) modelSide {
	s := modelSide{map[modelName]uint64{}, map[uint64]*fstree.Entry{}, read}
	for _, p := range t.Paths() {
		e := t.Entries[p]
		s.objs[e.Ino] = e
		if p != "." {
			s.names[modelName{t.Entries[path.Dir(p)].Ino, path.Base(p)}] = e.Ino
		}
	}
	return s
}

func (m *mergeModel) class(ino uint64) uint64 {
	for m.same[ino] != 0 {
		ino = m.same[ino]
	}
	return ino
}

// relabel makes of two numbers one, on all sides.
func (m *mergeModel) relabel(from, to uint64) {
	for i := range m.side {
		s := &m.side[i]
		names := map[modelName]uint64{}
		for k, ino := range s.names {
			if k.dir == from {
				k.dir = to
			}
			if ino == from {
				ino = to
			}
			names[k] = ino
		}
		s.names = names
		if e := s.objs[from]; e != nil {
			delete(s.objs, from)
			s.objs[to] = e
		}
	}
}

// pair finds out what is one object under different numbers: what one name leads to, if no side has both.
func (m *mergeModel) pair() bool {
	for _, k := range m.allNames() {
		for _, p := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
			x, y := m.side[p[0]].names[k], m.side[p[1]].names[k]
			if x == 0 || y == 0 || x == y || m.side[p[0]].objs[x].IsDir() != m.side[p[1]].objs[y].IsDir() {
				continue
			}
			both := false
			for _, s := range m.side {
				both = both || s.objs[x] != nil && s.objs[y] != nil
			}
			if !both {
				m.relabel(y, x)
				return true
			}
		}
	}
	return false
}

func (m *mergeModel) allNames() []modelName {
	all := map[modelName]bool{}
	for _, s := range m.side {
		for k := range s.names {
			all[k] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b modelName) int {
		if a.dir != b.dir {
			return int(a.dir>>1) - int(b.dir>>1) | int(a.dir&1) - int(b.dir&1)
		}
		if a.name < b.name {
			return -1
		}
		return 1
	})
}

func (m *mergeModel) conflict(format string, args ...any) {
	m.bad = append(m.bad, fmt.Sprintf(format, args...))
}

// three is the rule for everything: what one side changed counts.
func three[T comparable](m *mergeModel, base, ours, theirs T, what string, args ...any) T {
	switch {
	case theirs == base || ours == theirs:
		return ours
	case ours == base:
		return theirs
	}
	m.conflict(what+": %v, %v, %v", append(args, base, ours, theirs)...)
	return ours
}

func (m *mergeModel) run() {
	for m.pair() {
	}
	m.want, m.attr = map[modelName]uint64{}, map[uint64]*fstree.Entry{}
	base, ours, theirs := &m.side[0], &m.side[1], &m.side[2]
	for _, k := range m.allNames() {
		b, o, t := base.names[k], ours.names[k], theirs.names[k]
		w := three(m, b, o, t, "name %d/%s", k.dir, k.name)
		if w == 0 {
			continue
		}
		m.want[k] = w
		if w != b && base.objs[k.dir] != nil && (w == o && theirs.objs[k.dir] == nil || w == t && ours.objs[k.dir] == nil) {
			m.conflict("%s is put into a removed directory", k.name)
		}
	}
	all := map[uint64]bool{}
	for _, s := range m.side {
		for ino := range s.objs {
			all[ino] = true
		}
	}
	for _, ino := range slices.Sorted(maps.Keys(all)) {
		m.object(ino)
	}
	m.reachable()
}

// object merges one object.
func (m *mergeModel) object(ino uint64) {
	b, o, t := m.side[0].objs[ino], m.side[1].objs[ino], m.side[2].objs[ino]
	switch {
	case b != nil && o == nil && t == nil:
	case b != nil && t == nil:
		if m.changed(ino, 1) {
			m.conflict("%s: changed here, removed there", o.Path)
		}
	case b != nil && o == nil:
		if m.changed(ino, 2) {
			m.conflict("%s: removed here, changed there", t.Path)
		}
	case b == nil && t == nil:
		m.attr[ino] = o
	case b == nil && o == nil:
		m.attr[ino] = t
	case b == nil:
		if content(o) != content(t) || attributes(o) != attributes(t) {
			m.conflict("%s: both added it", o.Path)
		}
		m.attr[ino] = o
	default:
		m.attr[ino] = m.all(ino, b, o, t)
		m.apart(ino)
	}
}

// content and attributes are all that may differ, mtime left out.
func content(e *fstree.Entry) string {
	if e.IsDir() {
		return "directory"
	}
	return fmt.Sprintf("%o %s %q %d", e.Type(), e.Hash, e.Target, e.Rdev)
}

func attributes(e *fstree.Entry) string {
	return fmt.Sprintf("%o %d %d %q", e.Mode&^unix.S_IFMT, e.UID, e.GID, e.Xattrs)
}

func (m *mergeModel) namesOf(side int, ino uint64) map[modelName]bool {
	out := map[modelName]bool{}
	for k, i := range m.side[side].names {
		if i == ino {
			out[k] = true
		}
	}
	return out
}

func (m *mergeModel) changed(ino uint64, side int) bool {
	b, e := m.side[0].objs[ino], m.side[side].objs[ino]
	return content(b) != content(e) || attributes(b) != attributes(e) || !maps.Equal(m.namesOf(0, ino), m.namesOf(side, ino))
}

// all merges what all three have.
func (m *mergeModel) all(ino uint64, b, o, t *fstree.Entry) *fstree.Entry {
	e := *o
	switch cb, co, ct := content(b), content(o), content(t); {
	case ct == cb || co == ct:
	case co == cb:
		e.Mode, e.Hash, e.Target, e.Rdev, e.Size = e.Mode&^unix.S_IFMT|t.Type(), t.Hash, t.Target, t.Rdev, t.Size
	case b.Type() != unix.S_IFREG || o.Type() != unix.S_IFREG || t.Type() != unix.S_IFREG:
		m.conflict("%s: both changed it", o.Path)
	default:
		texts := [3][]byte{}
		for i, x := range []*fstree.Entry{b, o, t} {
			texts[i] = m.side[i].read(x.Path)
			if !merge3.IsText(texts[i]) {
				m.conflict("%s: no text", o.Path)
				return &e
			}
		}
		r := merge3.Merge(texts[0], texts[1], texts[2], merge3.Labels{})
		if r.Conflicts > 0 {
			m.conflict("%s: both changed it", o.Path)
		}
		e.Hash, e.Size = fstree.HashBytes(r.Text), int64(len(r.Text))
	}
	bits := uint32(unix.S_IFMT)
	e.Mode = e.Mode&bits | three(m, b.Mode&^bits, o.Mode&^bits, t.Mode&^bits, "%s: mode", o.Path)
	e.UID = three(m, b.UID, o.UID, t.UID, "%s: owner", o.Path)
	e.GID = three(m, b.GID, o.GID, t.GID, "%s: group", o.Path)
	e.Xattrs = map[string]string{}
	for _, x := range []*fstree.Entry{b, o, t} {
		for name := range x.Xattrs {
			get := func(e *fstree.Entry) string {
				if v, ok := e.Xattrs[name]; ok {
					return "=" + v
				}
				return ""
			}
			if v := three(m, get(b), get(o), get(t), "%s: attribute", o.Path); v != "" {
				e.Xattrs[name] = v[1:]
			}
		}
	}
	return &e
}

// apart finds what both sides moved, and what is left without a name by both together.
func (m *mergeModel) apart(ino uint64) {
	b, o, t := m.namesOf(0, ino), m.namesOf(1, ino), m.namesOf(2, ino)
	less := func(x, y map[modelName]bool) map[modelName]bool {
		out := maps.Clone(x)
		maps.DeleteFunc(out, func(k modelName, _ bool) bool { return y[k] })
		return out
	}
	if a, c := less(o, b), less(t, b); len(a) > 0 && len(c) > 0 && !maps.Equal(a, c) && len(less(b, o)) > 0 && len(less(b, t)) > 0 {
		m.conflict("%s: moved to different places", m.side[1].objs[ino].Path)
	}
	left := 0
	for _, w := range m.want {
		if w == ino {
			left++
		}
	}
	if left == 0 && ino != 1 {
		m.conflict("%s: no name is left", m.side[1].objs[ino].Path)
	}
}

// reachable finds directories that were moved into themselves.
func (m *mergeModel) reachable() {
	seen := map[uint64]bool{1: true}
	for more := true; more; {
		more = false
		for k, w := range m.want {
			if seen[k.dir] && !seen[w] {
				seen[w], more = true, true
			}
		}
	}
	for k, w := range m.want {
		if !seen[w] {
			m.conflict("%s cannot be reached", k.name)
		}
	}
}

// tree is the result as a tree.
func (m *mergeModel) tree() *fstree.Tree {
	t := fstree.New()
	links := map[uint64]uint64{}
	for _, w := range m.want {
		links[w]++
	}
	var walk func(dir uint64, prefix string)
	walk = func(dir uint64, prefix string) {
		for k, w := range m.want {
			if k.dir != dir {
				continue
			}
			e := *m.attr[w]
			e.Path, e.Ino = prefix+k.name, w
			if !e.IsDir() {
				e.Nlink = links[w]
			}
			t.Add(&e)
			if e.IsDir() {
				walk(w, e.Path+"/")
			}
		}
	}
	root := *m.attr[1]
	root.Path = "."
	t.Add(&root)
	walk(1, "")
	return t
}
