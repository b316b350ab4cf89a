package layers

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestScatteredWrites: thousands of tiny writes leave few pieces, and the right bytes.
func TestScatteredWrites(t *testing.T) {
	s := newStore(t, sampleBase(t))
	const size = 3 * slotSize
	model := bytes.Repeat([]byte("base"), size/4)
	s.write("f", "")
	ino := s.ino("f")
	_, err := s.b.Write(ino, model, 0, WriteFlags{})
	s.ok(err)
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 3000 {
		off := rng.IntN(size - 3)
		p := []byte{byte(i), byte(i >> 8), 1}[:1+rng.IntN(3)]
		copy(model[off:], p)
		_, err := s.b.Write(ino, p, int64(off), WriteFlags{})
		s.ok(err)
		if i%500 == 0 {
			s.seal()
		}
	}
	s.ok(s.tree.cutAll())
	s.reopen()
	if c, err := readAll(&s.b.View, s.ino("f")); err != nil || c != string(model) {
		t.Fatalf("the bytes are not what was written (%v)", err)
	}
	xs, err := s.b.extents(ino, 0)
	s.ok(err)
	if len(xs) > 3*maxPieces {
		t.Errorf("%d extents in 3 slots", len(xs))
	}
}
