package twin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Change is one line of a diff. OldPath is set for renames, whose Status is R.
type Change struct {
	Status, Path, OldPath string
}

// Differ is a subject that can tell what differs between two states.
type Differ interface {
	Diff(from, to string) ([]Change, error)
}

// checkDiffs holds the subject's diffs against the trees, for each state and the
// one that follows it, and for the first and the last.
func (r *Run) checkDiffs() {
	d, ok := r.sub.(Differ)
	list := r.reachable()
	if !ok || len(list) < 2 {
		return
	}
	pairs := [][2]*state{{list[0], list[len(list)-1]}}
	for i := 1; i < len(list); i++ {
		pairs = append(pairs, [2]*state{list[i-1], list[i]})
	}
	for _, p := range pairs {
		got, err := d.Diff(p[0].ref, p[1].ref)
		r.check(err, fmt.Sprintf("diff %s %s", p[0].ref, p[1].ref))
		if problems := DiffProblems(p[0].tree, p[1].tree, got); len(problems) > 0 {
			r.fatalf("diff %s %s:\n  %s\nit says:\n  %v", p[0].ref, p[1].ref, strings.Join(problems, "\n  "), got)
		}
	}
}

// DiffProblems compares a diff with the two trees, path by path. A rename is
// taken as its two halves, and the rename of a directory goes for all below.
func DiffProblems(from, to *fstree.Tree, changes []Change) []string {
	said := map[string]string{} // path -> status letters
	say := func(p, s string) {
		if !strings.Contains(said[p], s) {
			said[p] += s
		}
	}
	along := map[string]bool{} // with a directory that was renamed: another name of the file may be in its place
	below := func(t *fstree.Tree, dir, s string) {
		for p := range t.Entries {
			if p == dir || strings.HasPrefix(p, dir+"/") {
				say(p, s)
				along[p] = along[p] || p != dir
			}
		}
	}
	for _, c := range changes {
		switch c.Status {
		case "R":
			below(from, c.OldPath, "D")
			below(to, c.Path, "A")
		default:
			say(c.Path, c.Status)
		}
	}
	all := map[string]bool{}
	for _, t := range []*fstree.Tree{from, to} {
		for p := range t.Entries {
			all[p] = true
		}
	}
	var out []string
	for p := range said {
		if !all[p] {
			out = append(out, fmt.Sprintf("%q: %s, but it is in neither tree", p, said[p]))
		}
	}
	for p := range all {
		a, b := from.Entries[p], to.Entries[p]
		if a != nil && b != nil && said[p] == "" && a.Ino == b.Ino && a.Nlink > 1 {
			continue // another name of a file of the base: finding it would need a scan of the base
		}
		if along[p] && len(said[p]) > 1 {
			continue
		}
		if problem := pathProblem(a, b, said[p]); problem != "" {
			out = append(out, fmt.Sprintf("%q: %s", p, problem))
		}
	}
	slices.Sort(out)
	return out
}

func pathProblem(a, b *fstree.Entry, said string) string {
	switch {
	case a == nil && !strings.Contains(said, "A"):
		return fmt.Sprintf("was added, the diff says %q", said)
	case b == nil && !strings.Contains(said, "D"):
		return fmt.Sprintf("was deleted, the diff says %q", said)
	case a == nil || b == nil:
		return ""
	}
	same := a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.Hash == b.Hash && a.Target == b.Target && a.Rdev == b.Rdev && maps.Equal(a.Xattrs, b.Xattrs)
	if !a.IsDir() || !b.IsDir() {
		same = same && a.Mtime == b.Mtime && a.Size == b.Size
	}
	switch {
	case !same && said == "":
		return "differs, the diff says nothing"
	case same && said != "" && a.Ino == b.Ino && (!a.IsDir() || a.Mtime == b.Mtime):
		return fmt.Sprintf("is the same, the diff says %q", said)
	}
	return ""
}
