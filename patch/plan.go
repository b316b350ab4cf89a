package patch

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Change is a path that differs, as a listing of changes has it: Status is one of A, M, D, R and T. A
// renamed directory stands for all below it; what changed there is told at its new path.
type Change struct {
	Status        string
	Path, OldPath string
}

// Object is what one side has at a path. Target is that of a symbolic link.
type Object struct {
	Mode   uint32 // st_mode
	Size   int64
	Target string
}

func (o *Object) typ() uint32 { return o.Mode & unix.S_IFMT }

// inGit reports whether git has words for objects of this type.
func (o *Object) inGit() bool { return o.typ() == unix.S_IFREG || o.typ() == unix.S_IFLNK }

// gitsOwn reports whether path lies in a .git directory, or in what git takes for one. git apply refuses a whole patch that
// touches such a path.
func gitsOwn(path string) bool {
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		name, _, _ = strings.Cut(name, ":")
		name = strings.TrimRight(name, " .")
		if strings.EqualFold(name, ".git") || strings.EqualFold(name, "git~1") {
			return true
		}
	}
	return false
}

// gitMode is the mode that git would record.
func (o *Object) gitMode() uint32 {
	switch {
	case o.typ() == unix.S_IFLNK:
		return 0o120000
	case o.Mode&0o100 != 0:
		return 0o100755
	}
	return 0o100644
}

// Side is one of the two trees.
type Side interface {
	// Stat describes the object at path, nil if there is none.
	Stat(path string) (*Object, error)
	// Leaves calls fn for what is below the directory path and no directory.
	Leaves(path string, fn func(path string) error) error
	// Read returns the content of a regular file of size bytes.
	Read(path string, size int64) ([]byte, error)
}

// pair is one entry of a patch: a file before and after; one of them may be missing.
type pair struct {
	old, new string // paths, "" where there is nothing
	a, b     *Object
}

// planner makes pairs of changes.
type planner struct {
	from, to Side
	dirs     []Change // renamed directories
	pairs    []pair
}

// plan turns changes into pairs, in the order of paths.
func plan(from, to Side, changes []Change) ([]pair, error) {
	p := &planner{from: from, to: to}
	told := map[string]bool{} // paths of the to side
	for _, c := range changes {
		told[c.Path] = told[c.Path] || c.Status != "D"
		if c.Status != "R" {
			continue
		}
		o, err := to.Stat(c.Path)
		if err != nil {
			return nil, err
		}
		if o != nil && o.typ() == unix.S_IFDIR {
			p.dirs = append(p.dirs, c)
		}
	}
	for _, c := range changes {
		if err := p.change(c); err != nil {
			return nil, err
		}
	}
	for _, d := range p.dirs {
		err := to.Leaves(d.Path, func(path string) error {
			if told[path] || p.oldOf(path) != d.OldPath+strings.TrimPrefix(path, d.Path) {
				return nil
			}
			return p.add(p.oldOf(path), path)
		})
		if err != nil {
			return nil, err
		}
	}
	return p.settle()
}

// oldOf is where the from side has what the to side has at path, if only directories moved.
func (p *planner) oldOf(path string) string {
	var best *Change
	for i, d := range p.dirs {
		if strings.HasPrefix(path, d.Path+"/") && (best == nil || len(d.Path) > len(best.Path)) {
			best = &p.dirs[i]
		}
	}
	if best == nil {
		return path
	}
	return best.OldPath + strings.TrimPrefix(path, best.Path)
}

func (p *planner) change(c Change) error {
	switch c.Status {
	case "A":
		return p.add("", c.Path)
	case "D":
		return p.add(c.Path, "")
	case "R":
		return p.add(c.OldPath, c.Path)
	case "T":
		if err := p.add(c.Path, ""); err != nil {
			return err
		}
		return p.add("", c.Path)
	}
	old := p.oldOf(c.Path)
	if o, err := p.from.Stat(old); err != nil {
		return err
	} else if o == nil { // it has another name there
		old = c.Path
	}
	return p.add(old, c.Path)
}

// add notes a pair, with what the two sides have there.
func (p *planner) add(old, new string) error {
	pr := pair{old: old, new: new}
	var err error
	if old != "" {
		if pr.a, err = p.from.Stat(old); err != nil {
			return err
		}
	}
	if new != "" {
		if pr.b, err = p.to.Stat(new); err != nil {
			return err
		}
	}
	if pr.a == nil && pr.b == nil {
		return nil
	}
	if pr.a == nil {
		pr.old = ""
	}
	if pr.b == nil {
		pr.new = ""
	}
	p.pairs = append(p.pairs, pr)
	return nil
}

// settle makes of the pairs what git apply can carry out: no file is renamed to where the from side
// has one that does not itself go, and none changes its type.
func (p *planner) settle() ([]pair, error) {
	leaves := map[string]bool{} // of the from side, which go or move
	for _, pr := range p.pairs {
		if pr.old != "" && pr.old != pr.new {
			leaves[pr.old] = true
		}
	}
	used := map[string]bool{} // from side, by a rename: a file with several names can move but once
	var out []pair
	for _, pr := range p.pairs {
		switch {
		case pr.old == "" || pr.new == "":
		case pr.a.typ() != pr.b.typ(), gitsOwn(pr.old) != gitsOwn(pr.new):
			out = append(out, pair{old: pr.old, a: pr.a}, pair{new: pr.new, b: pr.b})
			continue
		case pr.old == pr.new:
		case used[pr.old]:
			pr.old, pr.a = "", nil
		default:
			there, err := p.from.Stat(pr.new)
			if err != nil {
				return nil, err
			}
			used[pr.old] = true
			if there == nil || there.typ() == unix.S_IFDIR || leaves[pr.new] {
				break
			}
			out = append(out, pair{old: pr.old, a: pr.a})
			pr.old, pr.a = pr.new, there
			if there.typ() != pr.b.typ() {
				out = append(out, pair{old: pr.new, a: there})
				pr.old, pr.a = "", nil
			}
		}
		out = append(out, pr)
	}
	slices.SortStableFunc(out, func(x, y pair) int { return strings.Compare(x.path(), y.path()) })
	return out, nil
}

// path is what the pair is listed under.
func (p *pair) path() string {
	if p.new != "" {
		return p.new
	}
	return p.old
}
