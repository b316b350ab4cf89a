package layers

import (
	"context"
	"fmt"
	"testing"
)

// check returns what is wrong with the store.
func (s *store) check(o CheckOptions) (out []Finding) {
	s.t.Helper()
	o.Found = func(f Finding) { out = append(out, f) }
	_, err := Check(context.Background(), s.db, s.chunks, o)
	s.ok(err)
	return out
}

// clean fails the test unless the store is clean, seen from within and from without.
func (s *store) clean() {
	s.t.Helper()
	for _, live := range []*Tree{s.tree, nil} {
		for i, f := range s.check(CheckOptions{Live: live}) {
			if s.t.Errorf("a store that nobody damaged (live: %v): %s", live != nil, f.text()); i == 10 {
				break
			}
		}
		if s.t.Failed() {
			s.t.FailNow()
		}
	}
}

func (f *Finding) text() string {
	return fmt.Sprintf("%s: %s [%q in %v, inode %d, lost %v, fixed %v]", f.Kind, f.What, f.Path, f.Layers, f.Ino, f.Lost, f.Fixed)
}

func TestAFreshStoreIsClean(t *testing.T) {
	s := newStore(t, kernelBase(t))
	s.clean()
	s.write("f", "one")
	s.clean()
	s.seal()
	s.clean()
}
