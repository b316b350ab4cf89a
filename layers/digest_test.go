package layers

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

func (s *store) digest(l Layer) Digest {
	s.t.Helper()
	d, err := s.tree.Digest(l)
	s.ok(err)
	return d
}

func TestDigestsCoverWhatALayerHas(t *testing.T) {
	s := newStore(t, kernelBase(t))
	s.write("f", "one")
	first := s.seal()
	s.write("f", "two")
	second := s.seal()
	d1, d2 := s.digest(first), s.digest(second)
	if d1 == d2 || d1 != s.digest(first) {
		t.Fatalf("digests %x, %x; again %x", d1, d2, s.digest(first))
	}
	s.write("f", "three")
	s.ok(s.tree.digestSome(time.Now().Add(time.Hour)))
	for _, l := range []Layer{first, second} {
		if _, ok, err := s.tree.keptDigest(l); !ok || err != nil {
			t.Fatalf("layer %d has no digest: %v", l, err)
		}
	}
	if s.digest(first) != d1 || s.digest(second) != d2 {
		t.Fatal("kept digests differ from those made when asked for")
	}
	if _, err := s.tree.Digest(s.b.HeadLayer()); !errors.Is(err, ErrNoLayer) {
		t.Fatalf("digest of an open layer: %v", err)
	}
	s.reopen()
	if s.digest(second) != d2 {
		t.Fatal("the digest is another one after a restart")
	}
	// A layer that is thinned out gets another one, and the layers above with it.
	s.collect(second)
	if _, ok, _ := s.tree.keptDigest(first); ok {
		t.Fatal("a link has the digest that it had as a whole layer")
	}
	s.ok(s.tree.digestSome(time.Now().Add(time.Hour)))
	if s.digest(second) == d2 {
		t.Fatal("the digest does not depend on what is below")
	}
	s.checkDigests()
	s.collect()
	s.ok(s.db.Scan(kv.DigestPrefix(), nil, func(k, _ []byte) bool {
		if l, _ := kv.ParseDigest(k); s.tree.layers[Layer(l)] == nil {
			t.Errorf("digest of layer %d, which is gone", l)
		}
		return true
	}))
}

// checkDigests holds all kept digests against what is there.
func (s *store) checkDigests() {
	s.t.Helper()
	s.tree.mu.RLock()
	digested := slices.Collect(maps.Keys(s.tree.digested))
	s.tree.mu.RUnlock()
	for _, l := range digested {
		kept, ok, err := s.tree.keptDigest(l)
		s.ok(err)
		own, err := s.tree.ownDigest(l)
		s.ok(err)
		if !ok || own != kept {
			s.t.Errorf("layer %d is not what its digest says (there is one: %v)", l, ok)
		}
	}
}
