package layers

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// names checks that names lead to inodes.
func (c *checker) names() error {
	var group []version
	err := c.scan([]byte("d/"), func(k, v []byte) error {
		if _, _, _, ok := kv.ParseName(k); !ok {
			c.found(Finding{Kind: "name", What: fmt.Sprintf("the key %q does not decode", k), Lost: true}, c.offline(c.remove(k)))
			return nil
		}
		var err error
		if len(group) > 0 && string(bare(group[0].key)) != string(bare(k)) {
			err = c.nameVersions(group)
			group = group[:0]
		}
		group = append(group, version{layer: layerAt(k), key: slices.Clone(k), val: slices.Clone(v)})
		return err
	})
	if err == nil && len(group) > 0 {
		err = c.nameVersions(group)
	}
	return err
}

// nameVersions checks the versions of one name, newest first.
func (c *checker) nameVersions(vs []version) error {
	var all []Layer
	for _, v := range vs {
		all = append(all, v.layer)
	}
	for _, v := range vs {
		dir, name, _, _ := kv.ParseName(v.key)
		l, more := c.ofLayer("name", v.key)
		if !more {
			continue
		}
		rec, err := decodeName(l, v.val)
		if err != nil {
			f := c.at(Finding{Kind: "name", What: fmt.Sprintf("what layer %d made of the name does not decode", l), Lost: true}, Ino(dir), l, all)
			f.Path = join2(f.Path, name)
			c.found(f, c.offline(c.touching(l, func() {
				c.batch.Put(v.key, nameRec{ino: lostIno, typ: unix.S_IFREG}.encode())
			})))
			continue
		}
		kind := byte(changeReal)
		if rec.under == underPin {
			kind = changePin
		}
		if err := c.indexed("a name", l, kv.ChangeName(uint64(l), dir, name), kind, Ino(dir)); err != nil {
			return err
		}
		if err := c.leadsTo(NameKey{Ino(dir), name}, rec, all); err != nil {
			return err
		}
		if err := c.reversed(NameKey{Ino(dir), name}, rec, all); err != nil {
			return err
		}
	}
	return nil
}

// reversed checks that an inode whose names are recorded one by one has this one recorded, where a layer that can be looked at
// sees a version of the name, which has versions in all. What is missing follows from the others: it came with the first version
// of the inode that has its names recorded and is not older than the name. If that is true, the layer has the digest it had.
func (c *checker) reversed(k NameKey, rec nameRec, all []Layer) error {
	if rec.ino == 0 || rec.typ == unix.S_IFDIR {
		return nil
	}
	vs, err := c.versions(rec.ino)
	if err != nil || !slices.ContainsFunc(vs, func(r *inode) bool { return r.has(flagNames) && !r.has(flagLost) }) {
		return err
	}
	for _, p := range c.lowest(rec.layer, all) {
		seen := slices.DeleteFunc(slices.Clone(vs), func(r *inode) bool { return !c.s.under(r.layer, p) }) // newest first
		if len(seen) == 0 || !seen[0].has(flagNames) || seen[0].has(flagLost) {
			continue
		}
		there := false
		prefix := kv.RName(uint64(rec.ino), uint64(k.Dir), k.Name, 0)
		err := c.db.Scan(bare(prefix), nil, func(key, _ []byte) bool {
			there = len(key) == len(prefix) && c.s.under(layerAt(key), p)
			return !there
		})
		if err != nil {
			return err
		}
		if there {
			continue
		}
		first := seen[0].layer
		for _, r := range seen {
			if r.has(flagNames) && r.layer >= rec.layer {
				first = r.layer
			}
		}
		key := kv.RName(uint64(rec.ino), uint64(k.Dir), k.Name, uint64(first))
		c.found(Finding{Kind: "reverse name", What: fmt.Sprintf("that inode %d is called %q is not there", rec.ino, k.Name), Ino: rec.ino, Path: join2(c.path(k.Dir, p), k.Name), Layers: []Layer{p}},
			func() { c.batch.Put(key, []byte{1}) })
	}
	return nil
}

// leadsTo checks that whoever sees a version of a name, which has versions in all, sees the inode.
func (c *checker) leadsTo(k NameKey, rec nameRec, all []Layer) error {
	if rec.ino == 0 {
		return nil
	}
	vs, err := c.versions(rec.ino)
	if err != nil {
		return err
	}
	f := Finding{Kind: "name", Ino: rec.ino, Lost: true}
	switch p := c.blind(rec.layer, all, vs); {
	case p != 0:
		f.What, f.Layers = fmt.Sprintf("it leads to inode %d, of which nothing is there", rec.ino), []Layer{p}
	case len(vs) > 0 && rec.typ != vs[0].mode&unix.S_IFMT && !vs[0].has(flagLost):
		f.What, f.Layers, f.Lost = fmt.Sprintf("it says that inode %d is of another type than it is", rec.ino), c.showing(rec.layer, all), false
	default:
		return nil
	}
	f.Path = join2(c.path(k.Dir, f.Layers[0]), k.Name)
	c.found(f, nil)
	return nil
}

// blind finds a layer that can be looked at and sees version l of a name, which has versions in all, but
// none of vs. 0: there is none.
func (c *checker) blind(l Layer, all []Layer, vs []*inode) Layer {
	if slices.ContainsFunc(vs, func(r *inode) bool { return c.s.under(r.layer, l) }) {
		return 0
	}
	newer, has := map[*strand]bool{}, map[*strand]bool{}
	for _, m := range all {
		newer[c.s.strands[m]] = newer[c.s.strands[m]] || m > l
	}
	for _, r := range vs {
		has[c.s.strands[r.layer]] = true
	}
	var walk func(r *strand) Layer
	walk = func(r *strand) Layer {
		switch {
		case r == nil || newer[r] || has[r]:
			return 0
		case r.point:
			return r.top
		}
		for _, k := range r.kids {
			if p := walk(k); p != 0 {
				return p
			}
		}
		return 0
	}
	return walk(c.s.strands[l])
}

// inodes checks the versions of inodes, and their link counts.
func (c *checker) inodes() error {
	last := Ino(0)
	err := c.scan(kv.InodesPrefix(), func(k, v []byte) error {
		i, _, ok := kv.ParseInode(k)
		ino := Ino(i)
		if !ok {
			c.found(Finding{Kind: "inode", What: fmt.Sprintf("the key %q does not decode", k), Lost: true}, c.offline(c.remove(k)))
			return nil
		}
		l, more := c.ofLayer("inode", k)
		if !more {
			return nil
		}
		if _, err := decodeInode(l, v); err != nil {
			key := slices.Clone(k)
			f := c.at(Finding{Kind: "inode", What: fmt.Sprintf("what layer %d made of inode %d does not decode", l, ino), Lost: true}, ino, l, c.layersOf(k))
			c.found(f, c.offline(c.touching(l, func() {
				c.batch.Put(key, lostInode().encode())
			})))
			return nil
		}
		if err := c.indexed("an inode", l, kv.ChangeInode(uint64(l), i), changeReal, ino); err != nil {
			return err
		}
		if ino == last {
			return nil
		}
		last = ino
		vs, err := c.versions(ino)
		if err != nil {
			return err
		}
		return c.links(ino, vs)
	})
	return err
}

// lostInode takes the place of a record of which nothing is known.
func lostInode() *inode {
	return &inode{flags: flagLost | flagNames | flagXattrs, nlink: 1}
}

// links checks, where the lowest layer that can be looked at sees a version, that it has as many names there as it
// says. One that has none any more is no matter: the last unlink writes no version.
func (c *checker) links(ino Ino, vs []*inode) error {
	if ino == RootIno {
		return nil
	}
	for _, rec := range vs {
		if rec.has(flagLost) {
			f := c.at(Finding{Kind: "inode", What: fmt.Sprintf("what layer %d made of inode %d was lost", rec.layer, ino), Lost: true}, ino, rec.layer, layersIn(vs))
			c.found(f, nil)
			continue
		}
		for _, p := range c.lowest(rec.layer, layersIn(vs)) {
			n, exact, err := c.count(ino, rec, p)
			if errors.Is(err, ErrCorrupt) {
				continue // a name that does not decode: it is reported
			}
			if err != nil {
				return err
			}
			if want := int(rec.nlink); n != 0 && (n > want || exact && n != want) {
				f := Finding{Kind: "links", What: fmt.Sprintf("inode %d has %d links and should have %d", ino, want, n), Ino: ino, Layers: []Layer{p}, Path: c.path(ino, p)}
				c.found(f, nil)
			}
		}
	}
	return nil
}

// lowest lists the layers that can be looked at, see version l of a key that has versions in all, and have no such
// layer below them.
func (c *checker) lowest(l Layer, all []Layer) (out []Layer) {
	newer := map[*strand]bool{}
	for _, m := range all {
		newer[c.s.strands[m]] = newer[c.s.strands[m]] || m > l
	}
	var walk func(r *strand)
	walk = func(r *strand) {
		switch {
		case r == nil || newer[r]:
		case r.point:
			out = append(out, r.top)
		default:
			for _, k := range r.kids {
				walk(k)
			}
		}
	}
	walk(c.s.strands[l])
	return out
}

// count counts the links that an inode has in the view of p: of a directory itself, its name and its
// subdirectories. 0: it has no name there. Not exact where the base may have more.
func (c *checker) count(ino Ino, rec *inode, p Layer) (n int, exact bool, err error) {
	x := &inodeSift{collector: &collector{t: c.t, s: c.s}, ino: ino}
	if rec.mode&unix.S_IFMT != unix.S_IFDIR && rec.has(flagNames) {
		n, err = c.countNames(x, p)
		return n, rec.origin == nil, err
	}
	at, err := x.leads(NameKey{rec.parent, rec.name}, p)
	switch {
	case err != nil || at != ino:
		return 0, false, err
	case rec.mode&unix.S_IFMT != unix.S_IFDIR:
		return 1, rec.origin == nil, nil
	case rec.origin != nil || rec.nlink < 2:
		return 1, false, nil
	}
	n, err = c.subdirs(ino, p)
	return n + 2, true, err
}

// countNames counts the names of an inode that has r/ records.
func (c *checker) countNames(x *inodeSift, p Layer) (n int, err error) {
	var bad error
	var last NameKey
	err = c.db.Scan(kv.RNamePrefix(uint64(x.ino)), nil, func(k, _ []byte) bool {
		_, dir, name, _, ok := kv.ParseRName(k)
		if key := (NameKey{Ino(dir), name}); ok && key != last {
			var ino Ino
			last = key
			if ino, bad = x.leads(key, p); ino == x.ino {
				n++
			}
		}
		return bad == nil
	})
	return n, errOr(err, bad)
}

// subdirs counts the directories in a directory of which the base knows nothing.
func (c *checker) subdirs(dir Ino, p Layer) (n int, err error) {
	var last string
	have := false
	err = c.db.Scan(kv.DirPrefix(uint64(dir)), nil, func(k, v []byte) bool {
		_, name, l, ok := kv.ParseName(k)
		if !ok || have && name == last || !c.s.under(Layer(l), p) {
			return true
		}
		last, have = name, true
		if rec, err := decodeName(Layer(l), v); err == nil && rec.ino != 0 && rec.typ == unix.S_IFDIR {
			n++
		}
		return true
	})
	return n, err
}
