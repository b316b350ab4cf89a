package archive

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// maxMismatches is how many paths a BaseError names.
const maxMismatches = 100

// BaseError says that the base is not the one that the archive was made on. Total counts
// the paths that differ, Paths are the first of them.
type BaseError struct {
	Total int
	Paths []Mismatch
}

// Mismatch is a path of the base that is not what the archive was made on.
type Mismatch struct{ Path, Why string }

func (e *BaseError) Error() string {
	return fmt.Sprintf("the base is not the one that the archive was made on: %d paths differ, the first is %q, %s", e.Total, e.Paths[0].Path, e.Paths[0].Why)
}

// matcher compares the base with the base section of an archive. What it finds is held until the end: objects of
// the base that no layer has a record of cannot be found again by their number alone.
type matcher struct {
	open  bool
	inos  map[layers.Ino]struct{}
	paths map[uint64]string // of directories
	names int64
	wrong BaseError

	made *layers.Attr // the file that a print comes of, nil if it is wrong already
	path string
}

func newMatcher() *matcher {
	return &matcher{open: true, inos: map[layers.Ino]struct{}{}, paths: map[uint64]string{RootID: ""}}
}

func (x *matcher) has(ino layers.Ino) bool {
	if x == nil {
		return false
	}
	_, ok := x.inos[ino]
	return ok
}

func (x *matcher) differs(path, why string) {
	if x.wrong.Total++; len(x.wrong.Paths) < maxMismatches {
		x.wrong.Paths = append(x.wrong.Paths, Mismatch{path, why})
	}
}

// find looks for a name that the base must have. known is false when that was told, or follows from what was.
func (m *Builder) find(dir uint64, name string) (a layers.Attr, path string, known bool, err error) {
	x := m.base
	up, ok := x.paths[dir]
	if !ok {
		return a, "", false, nil // in a directory that is missing
	}
	if path = name; up != "" {
		path = up + "/" + name
	}
	x.names++
	a, err = m.b.Lookup(m.inos[dir], name)
	if errors.Is(err, unix.ENOENT) {
		x.differs(path, "it is missing")
		return a, path, false, nil
	}
	if err != nil {
		return a, path, false, fmt.Errorf("look at %q in the base: %w", path, err)
	}
	if x.has(a.Ino) {
		m.b.Forget(a.Ino, 1)
	} else {
		x.inos[a.Ino] = struct{}{}
	}
	return a, path, true, nil
}

// match compares one object of the base.
func (m *Builder) match(r Make) error {
	x, n := m.base, &r.Node
	x.made = nil
	if _, twice := m.inos[n.ID]; twice {
		return bad("object %d is there twice", n.ID)
	}
	a, path, ok, err := m.find(r.Dir, r.Name)
	if err != nil || !ok {
		return err
	}
	target := ""
	if kindOf(a.Mode) == unix.S_IFLNK {
		if target, err = m.b.Readlink(a.Ino); err != nil {
			return err
		}
	}
	const run = 0o7111 // what a program may do, not who may read it
	switch {
	case kindOf(a.Mode) != n.typ():
		x.differs(path, "it is another kind of thing")
		return nil
	case n.isFile() && a.Size != n.Size:
		x.differs(path, fmt.Sprintf("it has %d bytes, not %d", a.Size, n.Size))
	case target != n.Target:
		x.differs(path, "the link leads elsewhere")
	case n.typ() != unix.S_IFLNK && a.Mode&run != n.Mode&run:
		x.differs(path, fmt.Sprintf("its mode is %04o, not %04o", permOf(a.Mode), permOf(n.Mode)))
	case n.isFile():
		x.made, x.path = &a, path
	}
	m.inos[n.ID] = a.Ino
	if n.isDir() {
		x.paths[n.ID] = path
	}
	return nil
}

func (m *Builder) matchName(r Name) error {
	a, path, ok, err := m.find(r.Dir, r.Name)
	if err == nil && ok && m.inos[r.ID] != a.Ino {
		m.base.differs(path, "it is not another name of the file that it was")
	}
	return err
}

func (m *Builder) matchPrint(r Print) error {
	x := m.base
	if x == nil || x.made == nil {
		return nil
	}
	d, err := printOf(m.ctx, &m.b.View, x.made, m.buf)
	if err != nil {
		return fmt.Errorf("read %q in the base: %w", x.path, err)
	}
	if d != r.Hash {
		x.differs(x.path, "its content is another one")
	}
	x.made = nil
	return nil
}

// matched looks for what the base has and the archive has not.
func (m *Builder) matched() error {
	x := m.base
	x.open = false
	names := int64(0)
	if err := m.unknown(layers.RootIno, "", &names); err != nil {
		return err
	}
	if x.wrong.Total == 0 && names != x.names {
		x.differs("", fmt.Sprintf("there are %d names in the base, not %d", names, x.names))
	}
	x.paths = nil
	if x.wrong.Total > 0 {
		return &x.wrong
	}
	return nil
}

func (m *Builder) unknown(dir layers.Ino, path string, names *int64) error {
	var bad error
	err := m.b.ReadDir(dir, 0, func(e layers.Entry) bool {
		*names++
		at := e.Name
		if path != "" {
			at = path + "/" + at
		}
		if !m.base.has(e.Ino) {
			m.base.differs(at, "it was not there")
		} else if e.Type == unix.S_IFDIR {
			bad = m.unknown(e.Ino, at, names)
		}
		return bad == nil
	})
	return firstOf(bad, err, m.ctx.Err())
}
