package twin

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Restorer is a subject that can bring single paths of a state back.
type Restorer interface {
	// Restore makes path ("." for everything) what it is in the state ref; done is false when nothing was
	// to be. What there was is sealed before: left names it, if it has a name, and both results of Moved are that
	// state. blocked says that a directory above path is something else now, and nothing was done.
	Restore(ref, path string) (left string, done, blocked bool, err error)
}

// restore brings a path of a state back, on both sides.
func (r *Run) restore(pick int) {
	r.dropQuietly()
	r.lastTree, r.lastPlain = nil, nil
	r.compare()
	list := r.reachable()
	s := list[pick%len(list)]
	now := r.lastTree
	paths := map[string]bool{}
	for p := range s.tree.Entries {
		paths[p] = true
	}
	for p := range now.Entries {
		paths[p] = true
	}
	all := slices.Sorted(maps.Keys(paths))
	p := all[pick*7919%len(all)]
	if apart(now, s.tree, p) {
		return
	}
	was := r.now("")
	left, done, blocked, err := r.sub.(Restorer).Restore(s.ref, p)
	r.note("restore %q of %s, left %q", p, s.ref, left)
	r.check(err, "restore")
	if blocked != inTheWay(now, s.tree, p) {
		r.fatalf("restore %q says that something is in the way: %v", p, blocked)
	}
	if !done {
		r.same(r.lastTree, r.tree(), r.opt.Exact, "the tree before", "the tree after nothing was restored")
	} else {
		was.ref = left
		if left != "" {
			r.states, r.under = append(r.states, was), was
		}
		r.leave(was)
	}
	if blocked {
		return
	}
	if done {
		var keep *fstree.Entry
		a, b := now.Entries[p], r.tree().Entries[p]
		if a != nil && b != nil && a.Ino == b.Ino { // no name was changed in the directory above
			keep = r.lastPlain.Entries[path.Dir(p)]
		}
		links := linksOf(now, s.tree, p)
		r.check(fstree.Replace(r.dir, s.plain, p, links, keep), "restore on the plain side")
	}
	r.lastTree, r.lastPlain = nil, nil
	r.compare()
	// The plain twin has new objects; the subject's must be what they were to the nanosecond.
	f := fstree.Fields{Mtime: true, Blocks: r.opt.Exact.Blocks}
	r.same(part(s.tree, p), part(r.lastTree, p), f, "what was restored", "what is there")
}

// apart reports whether below p there is a copy, as an earlier restore makes one, of a file that has or
// had several names: it stays what it is, whatever happens to the others.
func apart(now, was *fstree.Tree, p string) bool {
	for q, w := range was.Entries {
		n := now.Entries[q]
		if n != nil && below(q, p) && !w.IsDir() && n.Ino != w.Ino && unchanged(w, n) && w.Nlink+n.Nlink > 2 {
			return true
		}
	}
	return false
}

func below(p, dir string) bool { return dir == "." || p == dir || strings.HasPrefix(p, dir+"/") }

func part(t *fstree.Tree, dir string) *fstree.Tree {
	out := fstree.New()
	for p, e := range t.Entries {
		if below(p, dir) {
			e := *e
			e.Nlink = 1 // names elsewhere may have gone; compare looks at the counts
			out.Add(&e)
		}
	}
	return out
}

// inTheWay reports whether a directory that p of was needs is something else in now.
func inTheWay(now, was *fstree.Tree, p string) bool {
	if was.Entries[p] == nil {
		return false
	}
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if e := now.Entries[dir]; e != nil && !e.IsDir() {
			return true
		}
	}
	return false
}

// linksOf says which names below p remain, or become again, names of an object of now: those of
// one that some name of both states shows unchanged. The others become new objects.
func linksOf(now, was *fstree.Tree, p string) map[string]string {
	stays := map[uint64]bool{}
	for q, w := range was.Entries {
		if n := now.Entries[q]; n != nil && !w.IsDir() && n.Ino == w.Ino && unchanged(w, n) && !replaced(now, was, p, q) {
			stays[w.Ino] = true
		}
	}
	outside := map[uint64]string{}
	for q, n := range now.Entries {
		if stays[n.Ino] && !below(q, p) {
			outside[n.Ino] = q
		}
	}
	links := map[string]string{}
	for q, w := range was.Entries {
		if other := outside[w.Ino]; other != "" && below(q, p) {
			links[q] = other
		}
	}
	return links
}

func unchanged(a, b *fstree.Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.Size == b.Size && a.Mtime == b.Mtime && a.Rdev == b.Rdev && maps.Equal(a.Xattrs, b.Xattrs)
}

// replaced reports whether q lies below p in a directory that is another object in now.
func replaced(now, was *fstree.Tree, p, q string) bool {
	for dir := q; below(dir, p) && dir != "."; dir = path.Dir(dir) {
		a, b := now.Entries[dir], was.Entries[dir]
		if a == nil || b == nil || a.Ino != b.Ino {
			return true
		}
	}
	return false
}
