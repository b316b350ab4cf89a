package apply

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// side is a view, looked at by paths. It holds a reference to all it met, until the view is closed.
type side struct {
	v    *layers.View
	dirs map[string]layers.Ino // by path; 0: no directory is there
}

func newSide(v *layers.View) *side { return &side{v, map[string]layers.Ino{"": layers.RootIno}} }

// at describes what is at p, nil if nothing is.
func (s *side) at(p string) (*layers.Attr, error) {
	if p == "" {
		a, err := s.v.Getattr(layers.RootIno)
		return &a, err
	}
	up, name := split(p)
	ino, err := s.dir(up)
	if err != nil || ino == 0 {
		return nil, err
	}
	a, err := s.v.Lookup(ino, name)
	if s.absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at %q: %w", p, err)
	}
	if a.IsDir() {
		s.dirs[p] = a.Ino
	}
	return &a, nil
}

// absent reports whether err says that nothing is there. A view that was given up says ESTALE of everything: that
// is no absence.
func (s *side) absent(err error) bool {
	if errors.Is(err, unix.ESTALE) {
		_, gone := s.v.Getattr(layers.RootIno)
		return gone == nil
	}
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}

// dir returns the number of the directory at p, 0 if there is none.
func (s *side) dir(p string) (layers.Ino, error) {
	if ino, ok := s.dirs[p]; ok {
		return ino, nil
	}
	a, err := s.at(p)
	if err != nil {
		return 0, err
	}
	if !isDir(a) {
		s.dirs[p] = 0
	}
	return s.dirs[p], nil
}

// names lists the directory at p; nothing if there is none.
func (s *side) names(p string) (all []layers.Entry, err error) {
	ino, err := s.dir(p)
	if err != nil || ino == 0 {
		return nil, err
	}
	err = s.v.ReadDir(ino, 0, func(e layers.Entry) bool { all = append(all, e); return true })
	if s.absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", p, err)
	}
	return all, nil
}

// walk calls fn for all below the directory at p, directories first.
func (s *side) walk(p string, fn func(path string, e layers.Entry) error) error {
	all, err := s.names(p)
	if err != nil {
		return err
	}
	for _, e := range all {
		q := join(p, e.Name)
		if err := fn(q, e); err != nil {
			return err
		}
		if e.Type == unix.S_IFDIR {
			if err := s.walk(q, fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// xattrs returns the extended attributes that a commit carries.
func (s *side) xattrs(ino layers.Ino) (map[string]string, error) {
	keys, err := s.v.Listxattr(ino)
	if err != nil {
		return nil, err
	}
	var out map[string]string
	for _, k := range keys {
		if !carried(k) {
			continue
		}
		v, err := s.v.Getxattr(ino, k)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = string(v)
	}
	return out, nil
}
