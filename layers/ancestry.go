package layers

import "slices"

// ancestry is the set of layers a view sees: its own and all below, as disjoint
// intervals, newest first. A chain without rollbacks is one interval, so asking
// costs the same at layer 10 and at layer 10,000.
type ancestry []interval

type interval struct{ lo, hi Layer }

func (a ancestry) has(l Layer) bool {
	for _, i := range a {
		if l > i.hi {
			return false
		}
		if l >= i.lo {
			return true
		}
	}
	return l == BaseLayer
}

// grow returns the ancestry of a new layer l on top of a.
func (a ancestry) grow(l Layer) ancestry {
	if len(a) > 0 && a[0].hi+1 == l {
		out := append(ancestry(nil), a...)
		out[0].hi = l
		return out
	}
	return append(ancestry{{l, l}}, a...)
}

// ancestry returns the ancestry of l. It never changes, so the last few asked for
// are remembered. The caller holds t.mu for writing.
func (t *Tree) ancestry(l Layer) ancestry {
	if a, ok := t.ancestries[l]; ok {
		return a
	}
	if len(t.ancestries) >= maxAncestries {
		clear(t.ancestries)
	}
	a := t.lineOf(l)
	t.ancestries[l] = a
	return a
}

// lineOf finds the ancestry of l in that of a head above it, so that what is asked
// about the layers below the head, such as by the cutter, does not get slower with their number.
func (t *Tree) lineOf(l Layer) ancestry {
	for _, b := range t.branches {
		if b.anc.has(l) {
			return b.anc.upTo(l)
		}
	}
	return t.walkUp(l)
}

// upTo returns the ancestry of l, which is in a: parents have smaller numbers.
func (a ancestry) upTo(l Layer) ancestry {
	for i := range a {
		if l >= a[i].lo {
			out := slices.Clone(a[i:])
			out[0].hi = min(out[0].hi, l)
			return out
		}
	}
	return nil
}

const maxAncestries = 64

func (t *Tree) walkUp(l Layer) ancestry {
	var chain []Layer
	for ; l != BaseLayer; l = t.layers[l].parent {
		chain = append(chain, l)
	}
	var a ancestry // oldest interval first
	for i := len(chain) - 1; i >= 0; i-- {
		if k := len(a) - 1; k >= 0 && a[k].hi+1 == chain[i] {
			a[k].hi = chain[i]
		} else {
			a = append(a, interval{chain[i], chain[i]})
		}
	}
	slices.Reverse(a)
	return a
}

// between lists the layers that are ancestors of exactly one of a and b: what
// changed between the two is in their change indexes. The caller holds t.mu.
func (t *Tree) between(a, b Layer) []Layer {
	var out []Layer
	for a != b { // a parent's number is always the smaller one
		if a > b {
			out = append(out, a)
			a = t.layers[a].parent
		} else {
			out = append(out, b)
			b = t.layers[b].parent
		}
	}
	return out
}
