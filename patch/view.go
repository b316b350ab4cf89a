package patch

import (
	"errors"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// View is a view of a tree as a side of a patch.
type View struct{ V *layers.View }

// resolve describes what is at path, with a reference that done gives back. ok is false for nothing.
func (s View) resolve(path string) (a layers.Attr, done func(), ok bool, err error) {
	a, err = s.V.Resolve(path)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return a, nil, false, nil
	}
	return a, func() { s.V.Forget(a.Ino, 1) }, err == nil, err
}

// Stat implements Side.
func (s View) Stat(path string) (*Object, error) {
	a, done, ok, err := s.resolve(path)
	if !ok || err != nil {
		return nil, err
	}
	defer done()
	o := &Object{Mode: a.Mode, Size: a.Size}
	if o.typ() == unix.S_IFLNK {
		o.Target, err = s.V.Readlink(a.Ino)
	}
	return o, err
}

// Leaves implements Side.
func (s View) Leaves(path string, fn func(string) error) error {
	a, done, ok, err := s.resolve(path)
	if !ok || err != nil {
		return err
	}
	defer done()
	var entries []layers.Entry
	err = s.V.ReadDir(a.Ino, 0, func(e layers.Entry) bool {
		entries = append(entries, e)
		return true
	})
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(x, y layers.Entry) int { return strings.Compare(x.Name, y.Name) })
	for _, e := range entries {
		p := path + "/" + e.Name
		if e.Type&unix.S_IFMT == unix.S_IFDIR {
			err = s.Leaves(p, fn)
		} else {
			err = fn(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Read implements Side.
func (s View) Read(path string, size int64) ([]byte, error) {
	a, done, ok, err := s.resolve(path)
	if !ok {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	defer done()
	out := make([]byte, size)
	for n := 0; n < len(out); {
		k, err := s.V.ReadAt(a.Ino, out[n:], int64(n))
		if err != nil || k == 0 { // it may have become shorter since
			return out[:n], err
		}
		n += k
	}
	return out, nil
}
