package layers

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rewindfs/rewindfs/kv"
)

// generations adds to the names and inodes to compare those that commits changed between
// the generations of the base that the two views are built on.
func (d *differ) generations(inos map[Ino]struct{}, names map[NameKey]struct{}) error {
	lo, hi := d.from.base.gen, d.to.base.gen
	if lo == hi {
		return nil
	}
	paths, links, err := d.t.keptBetween(min(lo, hi), max(lo, hi))
	if err != nil {
		return err
	}
	newer := d.to
	if lo > hi {
		newer = d.from
	}
	if err := links.addNames(newer.base, paths); err != nil {
		return err
	}
	hidden := map[*node]bool{}
	for p, kind := range paths {
		dir, name := split(p)
		for _, v := range []*View{d.from, d.to} {
			dn, err := v.nodeAt(dir)
			if err != nil {
				if notThere(err) != nil {
					return err
				}
				continue // the base of this one has no such directory
			}
			if _, known := hidden[dn]; !known {
				hidden[dn] = !v.shows(dn)
			}
			if hidden[dn] {
				continue
			}
			names[NameKey{dn.ino, name}] = struct{}{}
			n, _, err := v.child(dn, name)
			if err == nil {
				inos[n.ino] = struct{}{}
				if kind != keptDir { // a directory that came or went as a whole
					err = v.namesBelow(n, names)
				}
			}
			if notThere(err) != nil {
				return err
			}
		}
	}
	// What the layers of a view have removed together with its directory is not there.
	for n, not := range hidden {
		n.gone = n.gone || not
	}
	return nil
}

// namesBelow adds the names of all below n.
func (v *View) namesBelow(n *node, names map[NameKey]struct{}) error {
	below := map[string]*node{}
	if err := v.below(n, "", below); err != nil {
		return err
	}
	for p := range below {
		dir, name := split(p)
		dn := n
		if dir != "" {
			dn = below[dir]
		}
		names[NameKey{dn.ino, name}] = struct{}{}
	}
	return nil
}

// shows reports whether a name leads to n.
func (v *View) shows(n *node) bool {
	p, err := v.pathOf(n)
	if err != nil {
		return false
	}
	at := v.root
	for p != "" && err == nil {
		var name string
		name, p, _ = strings.Cut(p, "/")
		at, _, err = v.child(at, name)
	}
	return err == nil && at == n
}

// keptLinks are objects with several names, by their numbers on the host and here.
type keptLinks struct {
	host  map[uint64]bool
	given map[Ino]bool
}

// addNames adds all names that they have in the base to paths: commits named only some.
// This, which is rare, costs a walk of the base.
func (l keptLinks) addNames(e era, paths map[string]keptKind) error {
	if len(l.host) == 0 {
		return nil
	}
	return e.walk("", func(dir string, b baseEntry) error {
		if b.kept && l.given[Ino(b.ino)] || !b.kept && l.host[b.ino] {
			paths[join(dir, b.name)] = keptLeaf
		}
		return nil
	})
}

// keptBetween lists the paths of which there are pre-images of the generations from lo up
// to before hi, and likewise the objects with several names.
func (t *Tree) keptBetween(lo, hi uint64) (paths map[string]keptKind, links keptLinks, err error) {
	paths, links = map[string]keptKind{}, keptLinks{map[uint64]bool{}, map[Ino]bool{}}
	var bad error
	err = t.db.Scan(kv.PreImagePrefix(), nil, func(key, v []byte) bool {
		dir, name, gen, isPath := kv.ParsePreImage(key)
		_, _, linkGen, isLink := kv.ParsePreImageLink(key)
		if isLink {
			gen = linkGen
		}
		if !isPath && !isLink || gen < lo || gen >= hi || isPath && name == "" {
			return true
		}
		k, err := decodePreimage(v)
		if bad = err; err != nil {
			return false
		}
		if isLink {
			links.host[k.st.ino], links.given[k.st.given] = true, true
			return true
		}
		if k.dir != "" {
			dir = k.dir
		}
		p := join(dir, name)
		if was, again := paths[p]; !again || was == keptDir {
			paths[p] = k.kind()
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, links, fmt.Errorf("list what commits changed: %w", err)
	}
	return paths, links, nil
}
