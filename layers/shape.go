package layers

import (
	"maps"
	"slices"
)

// shape is the tree of layers at one moment of a collection, as far as the question
// goes who sees what. A layer is a point if it can be looked at, or is somebody's open
// head. All others are links or, in nobody's line, gone. What comes into being after
// that moment lies above points, so it never makes a version visible that no point sees.
type shape struct {
	strands map[Layer]*strand
	gone    map[Layer]*layerRec // whole layers that go
	fresh   map[Layer]bool      // links that have just become what they are
	work    []Layer             // whose change indexes name all that may have to go, ascending
	sizes   map[Layer]int64     // of work: about how many entries the index has
	weight  int64               // the sum of them
	idle    []Layer             // open layers of branches that are not in use
	marked  uint64              // Tree.marked then
}

// strand is a chain of layers of which only the top may be a point or have several
// layers on top. So of all versions of a key in a strand only the newest is ever seen from above.
type strand struct {
	top     Layer
	point   bool   // the top is one
	gen     uint64 // of the line
	below   *strand
	kids    []*strand
	in, out int // of a walk through the strands in depth: whose interval is in another's is above it
}

// shape takes the tree as it will be once marks are made. The caller holds t.mu.
func (t *Tree) shape(marks map[Layer]givenUp) *shape {
	recs := maps.Clone(t.layers)
	s := &shape{
		strands: make(map[Layer]*strand, len(recs)), gone: maps.Clone(t.doomed),
		fresh: map[Layer]bool{}, sizes: map[Layer]int64{}, marked: t.marked,
	}
	for l, given := range marks {
		rec := *recs[l]
		rec.given = given
		if recs[l] = &rec; given == givenAll {
			delete(recs, l)
			s.gone[l] = &rec
		}
	}
	inUse := map[Layer]bool{}
	for _, b := range t.branches {
		inUse[b.layer] = true
	}
	above := map[Layer]int{}
	for l, rec := range recs {
		above[rec.parent]++
		if rec.given == givenNew {
			s.fresh[l] = true
		}
		if !rec.sealed && !inUse[l] {
			s.idle = append(s.idle, l)
		}
	}
	order := slices.Sorted(maps.Keys(recs))
	var roots []*strand
	for _, l := range order {
		rec := recs[l]
		r := s.strands[rec.parent]
		if r == nil || r.point || above[rec.parent] > 1 {
			r = &strand{below: r}
			if r.below == nil {
				r.gen = rec.gen
				roots = append(roots, r)
			} else {
				r.gen = r.below.gen
				r.below.kids = append(r.below.kids, r)
			}
		}
		r.top, r.point = l, rec.given == givenNot
		s.strands[l] = r
	}
	n := 0
	for _, r := range roots {
		n = r.number(n)
	}
	s.findWork(order, recs)
	return s
}

func (r *strand) number(n int) int {
	r.in = n
	n++
	for _, k := range r.kids {
		n = k.number(n)
	}
	r.out = n
	return n
}

// findWork finds the layers whose indexes have to be read. A version stops being
// seen when a layer stops being a point, and then there is a newer one above, up to the next
// points: their indexes name it. The layer's own index names what had no name even in itself.
func (s *shape) findWork(order []Layer, recs map[Layer]*layerRec) {
	below := map[Layer]bool{} // a link that has just become one lies at or below, with links only in between
	for _, l := range order {
		rec := recs[l]
		p := recs[rec.parent]
		if s.fresh[l] || p != nil && p.given != givenNot && below[rec.parent] {
			below[l] = true
			if rec.given != givenBare {
				s.add(l, rec)
			}
		}
	}
	for l, rec := range s.gone {
		s.add(l, rec)
	}
	slices.Sort(s.work)
}

func (s *shape) add(l Layer, rec *layerRec) {
	s.work = append(s.work, l)
	s.sizes[l] = rec.changed + 1
	s.weight += rec.changed + 1
}

// isLink reports whether l is in somebody's line, but cannot be looked at.
func (s *shape) isLink(l Layer) bool {
	r := s.strands[l]
	return r != nil && (l != r.top || !r.point)
}

// under reports whether a is b or one of the layers below it.
func (s *shape) under(a, b Layer) bool {
	x, y := s.strands[a], s.strands[b]
	switch {
	case x == nil || y == nil:
		return false
	case x == y:
		return a <= b
	}
	return x.in < y.in && y.out <= x.out
}

// version is one of the versions of a key.
type version struct {
	layer Layer
	key   []byte
	val   []byte
	none  bool // it says that there is nothing
	drop  bool // it is to go
}

// sift decides which versions of one key, newest first, are to go: those of layers
// that go as a whole, and with links set those of links that no point sees for which live holds.
func (s *shape) sift(vs []version, links bool, live func(point Layer) bool) {
	newest := make(map[*strand]bool, len(vs))
	for i := range vs {
		v := &vs[i]
		r := s.strands[v.layer]
		switch {
		case s.gone[v.layer] != nil:
			v.drop = true
		case r == nil: // made since
		case newest[r]:
			v.drop = links
		default:
			newest[r] = true
			v.drop = links && s.isLink(v.layer) && !r.seen(newest, live)
		}
	}
}

// seen reports whether a point sees the newest version in r. The strands above r that have
// a version are in newest.
func (r *strand) seen(newest map[*strand]bool, live func(Layer) bool) bool {
	if r.point {
		return live(r.top)
	}
	return slices.ContainsFunc(r.kids, func(k *strand) bool { return !newest[k] && k.seen(newest, live) })
}

// useless reports whether version i of vs, which says that there is nothing, hides
// nothing either: no older one stays below it.
func (s *shape) useless(vs []version, i int) bool {
	return !slices.ContainsFunc(vs[i+1:], func(v version) bool { return !v.drop && s.under(v.layer, vs[i].layer) })
}

// dropUseless drops the versions in links that say that there is nothing where
// nothing would be said without them.
func (s *shape) dropUseless(vs []version) {
	for i := len(vs) - 1; i >= 0; i-- {
		if v := &vs[i]; v.none && !v.drop && s.isLink(v.layer) {
			v.drop = s.useless(vs, i)
		}
	}
}
