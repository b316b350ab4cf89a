package fs

import (
	"sync"

	"github.com/rewindfs/rewindfs/layers"
)

// inoSet is a set of inode numbers.
type inoSet struct {
	max int // when it has so many it starts anew; 0: no bound
	mu  sync.Mutex
	m   map[layers.Ino]struct{} // guarded by mu
}

func (s *inoSet) add(ino layers.Ino) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || (s.max > 0 && len(s.m) >= s.max) {
		s.m = map[layers.Ino]struct{}{}
	}
	s.m[ino] = struct{}{}
}

func (s *inoSet) has(ino layers.Ino) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[ino]
	return ok
}

// drop takes ino out and reports whether it was in.
func (s *inoSet) drop(ino layers.Ino) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[ino]
	delete(s.m, ino)
	return ok
}

func (s *inoSet) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.m)
}

// take empties the set and returns what was in it.
func (s *inoSet) take() []layers.Ino {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]layers.Ino, 0, len(s.m))
	for ino := range s.m {
		out = append(out, ino)
	}
	clear(s.m)
	return out
}
