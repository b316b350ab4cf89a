package layers

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// However it is found, the ancestry of a layer is its chain of parents.
func TestAncestry(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tr := &Tree{layers: map[Layer]*layerRec{}, ancestries: map[Layer]ancestry{}, branches: map[string]*Branch{}}
	head := ancestry{}
	parent := BaseLayer
	for l := Layer(1); l < 500; l++ {
		if rnd.IntN(8) == 0 { // back to some earlier layer
			parent = Layer(rnd.IntN(int(l)))
			head = tr.walkUp(parent)
		}
		tr.layers[l] = &layerRec{parent: parent}
		head = head.grow(l)
		parent = l
		tr.branches["head"] = &Branch{View: View{anc: head}}
		for range 5 {
			q := Layer(rnd.IntN(int(l) + 1))
			want := map[Layer]bool{}
			for p := q; p != BaseLayer; p = tr.layers[p].parent {
				want[p] = true
			}
			got := tr.ancestry(q)
			for p := Layer(1); p <= l; p++ {
				if got.has(p) != want[p] {
					t.Fatalf("layer %d in the ancestry of %d: %v, want %v (%v)", p, q, got.has(p), want[p], got)
				}
			}
			if walked := tr.walkUp(q); !slices.Equal(got, walked) {
				t.Fatalf("ancestry of %d is %v, walking up gives %v", q, got, walked)
			}
		}
	}
}
