package layers

import (
	"errors"
	"slices"
)

// linked takes all names of base files that have several, and that some side changed or named, for changed ones: some may
// never have been looked up, and no record has them. Only this, which is rare, costs a walk of the base.
func (f *mergeFind) linked(inos map[Ino]struct{}, names map[NameKey]struct{}) error {
	links := keptLinks{host: map[uint64]bool{}, given: map[Ino]bool{}}
	see := func(v *View, n *node, err error) error {
		if err != nil || n.gone {
			return notThere(err)
		}
		host, err := v.severalInBase(n)
		if err != nil {
			return err
		}
		if host != 0 {
			links.host[host], links.given[n.ino] = true, true
			f.several[n.ino] = nil
		}
		return nil
	}
	for _, v := range f.v {
		for ino := range inos {
			n, err := v.find(ino)
			if err := errors.Join(see(v, n, err), f.step()); err != nil {
				return err
			}
		}
		for k := range names {
			n, err := v.find(k.Dir)
			if err == nil {
				n, _, err = v.child(n, k.Name)
			}
			if err := errors.Join(see(v, n, err), f.step()); err != nil {
				return err
			}
		}
	}
	paths := map[string]keptKind{}
	if err := links.addNames(f.v[atTheirs].base, paths); err != nil {
		return err
	}
	return f.addLinks(paths)
}

// addLinks notes names that base files with several names have in the base.
func (f *mergeFind) addLinks(paths map[string]keptKind) error {
	for p := range paths {
		dir, name := split(p)
		for _, v := range f.v {
			dn, err := v.nodeAt(dir)
			if err != nil {
				if notThere(err) != nil {
					return err
				}
				continue
			}
			st, err := v.base.stat(p)
			if err != nil {
				return err
			}
			ino, err := f.t.inoOf(p, &st)
			if err != nil {
				return err
			}
			f.changedName(dn.ino, name)
			if k := (NameKey{dn.ino, name}); !slices.Contains(f.several[ino], k) {
				f.several[ino] = append(f.several[ino], k)
			}
		}
	}
	return nil
}

// keysOf lists the names of n that are known, also those of base files with several that no record has.
func (f *mergeFind) keysOf(side int, n *node) ([]NameKey, error) {
	keys, err := f.v[side].namesOf(n)
	return append(keys, f.several[n.ino]...), err
}

// severalInBase returns the host's number of a base file that has several names there, else 0.
func (v *View) severalInBase(n *node) (uint64, error) {
	if n.rec != nil {
		if n.rec.has(flagNames) && n.rec.origin != nil {
			return n.rec.origin.ino, nil
		}
		return 0, nil
	}
	st, err := v.statBase(n)
	if err != nil || st.nlink < 2 || st.isDir() {
		return 0, notThere(err)
	}
	return st.ino, nil
}
