package layersdiff

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// sparedName says which paths the tree of these tests spares: some names that the operations use, files and directories.
func sparedName(p string, dir bool) bool {
	parts := strings.Split(p, "/")
	for i, part := range parts {
		if part == "n1" || part == "hl2" || part == "f3" || part == "b" || part == "pkg" && (dir || i < len(parts)-1) {
			return true
		}
	}
	return false
}

// spareModel says what a movement of the head leads to, from trees alone.
type spareModel struct {
	head, to modelSide
	want     map[modelName]uint64
	reached  map[uint64]bool
}

// kept reports whether name k leads to something spared in s, which other has no name of that is not.
func (m *spareModel) kept(k modelName, s, other *modelSide) bool {
	ino := s.names[k]
	if ino == 0 {
		return false
	}
	e := s.objs[ino]
	if !sparedName(path.Join(s.objs[k.dir].Path, k.name), e.IsDir()) {
		return false
	}
	if d := other.objs[k.dir]; d != nil && !sparedName(path.Join(d.Path, k.name), e.IsDir()) {
		return false
	}
	return !m.free(ino, other)
}

func (m *spareModel) free(ino uint64, s *modelSide) bool {
	for k, i := range s.names {
		if i == ino && !sparedName(path.Join(s.objs[k.dir].Path, k.name), s.objs[ino].IsDir()) {
			return true
		}
	}
	return false
}

// named reports whether the head has a spared name for ino.
func (m *spareModel) named(ino uint64) bool {
	for k, i := range m.head.names {
		if i == ino && sparedName(path.Join(m.head.objs[k.dir].Path, k.name), m.head.objs[ino].IsDir()) {
			return true
		}
	}
	return false
}

func (m *spareModel) run() {
	m.want, m.reached = map[modelName]uint64{}, map[uint64]bool{}
	all := map[modelName]bool{}
	for _, s := range []*modelSide{&m.head, &m.to} {
		for k := range s.names {
			all[k] = true
		}
	}
	for k := range all {
		h, t := m.kept(k, &m.head, &m.to), m.kept(k, &m.to, &m.head)
		w := m.to.names[k]
		switch {
		case h && (w == 0 || t):
			w = m.head.names[k]
		case t && !h && w != m.head.names[k]:
			w = 0
		}
		if w != 0 {
			m.want[k] = w
		}
	}
	for k, w := range maps.Clone(m.want) {
		if w != m.to.names[k] && !m.reach(k.dir) {
			if delete(m.want, k); m.to.names[k] != 0 {
				m.want[k] = m.to.names[k]
			}
		}
	}
}

func (m *spareModel) reach(dir uint64) bool {
	if m.to.objs[dir] != nil || slices.Contains(slices.Collect(maps.Values(m.want)), dir) {
		return true
	}
	if m.reached[dir] {
		return false
	}
	m.reached[dir] = true
	for k, ino := range m.head.names {
		if ino == dir && m.to.names[k] == 0 && m.reach(k.dir) {
			m.want[k] = dir
			return true
		}
	}
	return false
}

func (m *spareModel) tree() *fstree.Tree {
	t := fstree.New()
	there := map[uint64]bool{1: true}
	for more := true; more; {
		more = false
		for k, w := range m.want {
			if there[k.dir] && !there[w] {
				there[w], more = true, true
			}
		}
	}
	maps.DeleteFunc(m.want, func(k modelName, _ uint64) bool { return !there[k.dir] })
	links, dirs := map[uint64]uint64{}, map[uint64]uint64{1: 2}
	for k, w := range m.want {
		links[w]++
		if dirs[k.dir] == 0 {
			dirs[k.dir] = 2
		}
		if e := m.head.objs[w]; e != nil && e.IsDir() || e == nil && m.to.objs[w].IsDir() {
			dirs[k.dir]++
		}
	}
	var walk func(dir uint64, prefix string)
	walk = func(dir uint64, prefix string) {
		for k, w := range m.want {
			if k.dir != dir {
				continue
			}
			h, to := m.head.objs[w], m.to.objs[w]
			e := to
			if to == nil || h != nil && !m.free(w, &m.to) && m.named(w) {
				e = h
			}
			c := *e
			if c.Path, c.Nlink = prefix+k.name, links[w]; c.IsDir() {
				c.Nlink = max(2, dirs[w])
			}
			t.Add(&c)
			if c.IsDir() {
				walk(w, c.Path+"/")
			}
		}
	}
	root := *m.to.objs[1]
	root.Nlink = dirs[1]
	t.Add(&root)
	walk(1, "")
	return t
}

// TestSparedPaths moves the head of a tree that spares paths, and holds it against the model.
func TestSparedPaths(t *testing.T) {
	seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: 150}, "REWINDFS_TEST_CHECKS")
	plan := twin.Plan{
		Ops: fsops.GenOptions{Held: true}, Lo: 10, Hi: 60,
		Chance: map[twin.Ctl]int{twin.Seal: 80, twin.Move: 100, twin.Reopen: 8},
	}
	for at := 0; at < seq.Count; at += perStore {
		part := twin.Sequences{Seed: seq.Seed + at, Count: min(perStore, seq.Count-at)}
		t.Run(fmt.Sprintf("from %d", part.Seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			w.spare = sparedName
			if err := w.reopen(); err != nil {
				t.Fatal(err)
			}
			twin.Check(t, part, twin.Steps(plan), func(tb twin.TB, steps []twin.Step) { runSpared(tb, w, steps) })
		})
	}
}

func links(s modelSide, ino uint64) uint64 {
	if e := s.objs[ino]; e != nil {
		return e.Nlink
	}
	return 0
}

func runSpared(tb twin.TB, w *world, steps []twin.Step) {
	must := func(err error) {
		if err != nil {
			tb.Fatalf("%v", err)
		}
	}
	name, b, err := w.newBranch()
	must(err)
	l := target{b: b}
	sealed := []layers.Layer{layers.BaseLayer}
	for _, s := range steps {
		switch s.Ctl {
		case "":
			l.Do(s.Op)
		case twin.Seal:
			at, err := b.Seal(nil)
			must(err)
			sealed = append(sealed, at.Layer)
		case twin.Move:
			to := sealed[s.Pick%len(sealed)]
			head := treeOf(&b.View)
			v, err := b.At(to)
			must(err)
			m := &spareModel{head: newModelSide(head, nil), to: newModelSide(treeOf(v), nil)}
			v.Close()
			m.run()
			want := m.tree()
			moved, err := b.MoveHead(to, false, nil, nil)
			must(err)
			if !moved.Noop {
				sealed = append(sealed, moved.From)
			}
			now := treeOf(&b.View)
			for p, e := range want.Entries { // one that has lost a link to a path that is not there has changed
				if g := now.Entries[p]; g != nil && !e.IsDir() && e.Nlink < max(links(m.head, e.Ino), links(m.to, e.Ino)) {
					e.Ctime = g.Ctime
				}
			}
			if problems := append(fstree.Diff(want, now, fstree.Exact, "model", "head"), now.LinkProblems()...); len(problems) > 0 {
				tb.Fatalf("moved to layer %d:\n  %s", to, strings.Join(problems, "\n  "))
			}
			for _, ino := range l.files { // what is spared is still open
				if a, err := b.Getattr(ino); ino != 0 && m.head.objs[uint64(ino)] != nil && slices.Contains(slices.Collect(maps.Values(m.want)), uint64(ino)) && err != nil {
					tb.Fatalf("inode %d, which is in use and stays: %+v, %v", ino, a, err)
				}
			}
		case twin.Reopen:
			before := treeOf(&b.View)
			l = target{}
			must(w.reopen())
			b, err = w.tree.Branch(name)
			must(err)
			l.b = b
			if d := fstree.Diff(before, treeOf(&b.View), fstree.Exact, "before", "reopened"); len(d) > 0 {
				tb.Fatalf("%s", strings.Join(d, "\n"))
			}
		}
	}
	_, err = b.Drop(nil)
	must(err)
}
