package layers

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// audit holds the whole store against what is seen, in the plain way: it looks
// through the eyes of every layer that can be looked at. It says what is there
// and seen by nobody, and what the change indexes have too much or too little.
type audit struct {
	s      *store
	points map[Layer]ancestry     // what can be looked at, the base left out
	shown  map[Layer]map[Ino]bool // inodes with a name there, or in use without
	based  map[Ino]bool           // have an origin in the base
	hosted map[Ino]bool           // of them those with several names there, some perhaps unknown
	indexN map[Layer]map[Ino]byte
	indexD map[Layer]map[NameKey]byte
	has    map[Layer]map[Ino]bool // something of it
	bad    []string
}

func (s *store) audit() {
	s.t.Helper()
	a := &audit{s: s, points: map[Layer]ancestry{}, shown: map[Layer]map[Ino]bool{}, based: map[Ino]bool{}, hosted: map[Ino]bool{},
		indexN: map[Layer]map[Ino]byte{}, indexD: map[Layer]map[NameKey]byte{}, has: map[Layer]map[Ino]bool{}}
	t := s.tree
	t.mu.RLock()
	layers := maps.Clone(t.layers)
	t.mu.RUnlock()
	if len(t.doomed) > 0 {
		a.say("layers %v are still there", slices.Sorted(maps.Keys(t.doomed)))
	}
	inUse := false
	for _, b := range t.branches {
		inUse = inUse || len(b.orphans) > 0
	}
	for l, rec := range layers {
		switch rec.given {
		case givenNew:
			if !inUse { // else it may have something of them
				a.say("layer %d is not thinned out", l)
			}
		case givenNot:
			a.points[l] = t.walkUp(l)
		}
	}
	for l := range a.points {
		a.shown[l] = a.look(l)
	}
	a.readIndex(layers)
	a.readVersions(layers)
	if len(a.bad) > 0 {
		slices.Sort(a.bad)
		s.t.Fatalf("the store holds:\n  %s", fmt.Sprint(a.bad[:min(len(a.bad), 20)]))
	}
}

func (a *audit) say(format string, args ...any) { a.bad = append(a.bad, fmt.Sprintf(format, args...)) }

func (a *audit) look(l Layer) map[Ino]bool {
	shown := map[Ino]bool{RootIno: true}
	v, err := a.s.tree.View(l)
	a.s.ok(err)
	defer v.Close()
	var walk func(dir Ino)
	walk = func(dir Ino) {
		a.s.ok(v.ReadDir(dir, 0, func(e Entry) bool {
			shown[e.Ino] = true
			if e.Type == unix.S_IFDIR {
				at, err := v.Lookup(dir, e.Name)
				a.s.ok(err)
				walk(at.Ino)
			}
			return true
		}))
	}
	walk(RootIno)
	for _, b := range a.s.tree.branches { // what is in use without a name stays for now
		for ino := range b.orphans {
			shown[ino] = true
		}
	}
	return shown
}

func (a *audit) readIndex(layers map[Layer]*layerRec) {
	a.s.ok(a.s.db.Scan([]byte("c/"), nil, func(k, v []byte) bool {
		l, isName, ino, name, ok := kv.ParseChange(k)
		rec := layers[Layer(l)]
		switch {
		case !ok || rec == nil:
			a.say("index entry %q of layer %d, which is gone", k, l)
		case rec.given == givenBare:
			a.say("index entry %q of layer %d, which is said to be bare", k, l)
		case isName:
			if a.indexD[Layer(l)] == nil {
				a.indexD[Layer(l)] = map[NameKey]byte{}
			}
			a.indexD[Layer(l)][NameKey{Ino(ino), name}] = v[0]
		default:
			if a.indexN[Layer(l)] == nil {
				a.indexN[Layer(l)] = map[Ino]byte{}
			}
			a.indexN[Layer(l)][Ino(ino)] = v[0]
		}
		return true
	}))
}

func (a *audit) readVersions(layers map[Layer]*layerRec) {
	a.s.ok(a.s.db.Scan(kv.InodesPrefix(), nil, func(k, v []byte) bool {
		ino, _, _ := kv.ParseInode(k)
		rec, err := decodeInode(0, v)
		a.s.ok(err)
		if rec.origin != nil {
			a.based[Ino(ino)] = true
			if st, err := a.s.host.stat(rec.origin.path); rec.has(flagNames) && (err != nil || st.nlink > 1) {
				a.hosted[Ino(ino)] = true
			}
		}
		return true
	}))
	names := map[Layer]map[NameKey]bool{}
	for _, class := range []string{"n/", "x/", "a/", "r/", "d/", "w/", "o/"} {
		var group string
		var older []Layer // versions of the group so far: newer ones
		a.s.ok(a.s.db.Scan([]byte(class), nil, func(k, v []byte) bool {
			if class == "w/" || class == "o/" {
				l := layerIn(k)
				if layers[l] == nil {
					a.say("%q of layer %d, which is gone", k, l)
				}
				return true
			}
			l := layerAt(k)
			if g := string(bare(k)); g != group {
				group, older = g, nil
			}
			older = append(older, l)
			if layers[l] == nil {
				a.say("%q of layer %d, which is gone", k, l)
				return true
			}
			if class == "d/" {
				dir, name, _, _ := kv.ParseName(k)
				key := NameKey{Ino(dir), name}
				if names[l] == nil {
					names[l] = map[NameKey]bool{}
				}
				names[l][key] = true
				if _, ok := a.indexD[l][key]; !ok {
					a.say("%q of layer %d is not in its index", k, l)
				}
			} else {
				if a.has[l] == nil {
					a.has[l] = map[Ino]bool{}
				}
				a.has[l][Ino(inoIn(k))] = true
				if _, ok := a.indexN[l][Ino(inoIn(k))]; !ok {
					a.say("%q of layer %d is not in its index", k, l)
				}
			}
			if layers[l].given != givenNot && !a.seen(class, k, l, older) {
				a.say("%q of layer %d, which nobody sees", k, l)
			}
			return true
		}))
	}
	for l, keys := range a.indexD {
		for key := range keys {
			if !names[l][key] {
				a.say("layer %d: index entry of %v without a version", l, key)
			}
		}
	}
	for l, inos := range a.indexN {
		for ino := range inos {
			if layers[l].given != givenNot && !a.has[l][ino] {
				a.say("layer %d: index entry of inode %d, of which it has nothing", l, ino)
			}
		}
	}
}

// seen reports whether a point sees the version l of a key; newer ones come before it in all.
func (a *audit) seen(class string, k []byte, l Layer, all []Layer) bool {
	ino := Ino(inoIn(k))
	for p, anc := range a.points {
		if !anc.has(l) || slices.ContainsFunc(all, func(m Layer) bool { return m > l && anc.has(m) }) {
			continue
		}
		if class == "d/" || a.shown[p][ino] || class == "n/" && a.based[ino] || a.hosted[ino] {
			return true
		}
		// A version above a point where it has no name keeps the older ones for now.
		for q, up := range a.points {
			if q > p && up.has(p) && slices.ContainsFunc(all, func(m Layer) bool { return m > p && up.has(m) }) || a.shown[q][ino] && up.has(p) {
				return true
			}
		}
	}
	return false
}

func inoIn(k []byte) uint64 { return uint64(^layerAt(k[:2+8])) }

// layerIn finds the layer of a w/ or o/ key.
func layerIn(k []byte) Layer {
	if _, l, _, ok := kv.ParsePending(k); ok {
		return Layer(l)
	}
	l, _, _ := kv.ParseOrphan(k)
	return Layer(l)
}
