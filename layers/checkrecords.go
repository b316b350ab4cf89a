package layers

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// lostIno is a number that no inode has: what a name leads to whose record was lost.
const lostIno = firstMapped - 1

// lostExtent is n bytes at off that are lost: no chunk has this hash, so reading them is EIO.
func lostExtent(off, n int64) extent { return extent{off: off, n: n, kind: kindChunk} }

// preimages checks what there is of older generations of the base, and learns whose their bodies are.
func (c *checker) preimages() error {
	c.bodies = map[Ino]bool{}
	return c.scan(kv.PreImagePrefix(), func(k, v []byte) error {
		rec, err := decodePreimage(v)
		_, _, _, ok := kv.ParsePreImage(k)
		if !ok {
			_, _, _, ok = kv.ParsePreImageLink(k)
		}
		switch {
		case !ok:
			c.found(Finding{Kind: "pre-image", What: fmt.Sprintf("the key %q is none of a pre-image", k), Lost: true}, c.offline(c.remove(k)))
		case err != nil:
			dir, name, _, _ := kv.ParsePreImage(k)
			key := slices.Clone(k)
			c.found(Finding{Kind: "pre-image", What: "what the base had before a commit does not decode", Path: join2(dir, name), Lost: true}, c.offline(func() {
				lost := &preimage{st: baseStat{given: lostIno, mode: unix.S_IFREG, nlink: 1}, unread: true}
				c.batch.Put(key, lost.encode())
			}))
		case rec.body != 0:
			c.bodies[rec.body] = true
		}
		return nil
	})
}

// index checks the change indexes: for each entry the layer has something.
func (c *checker) index() error {
	return c.scan([]byte("c/"), func(k, v []byte) error {
		l, isName, ino, name, ok := kv.ParseChange(k)
		rec := c.t.layers[Layer(l)]
		switch {
		case !ok:
			c.found(Finding{Kind: "index", What: fmt.Sprintf("the entry %q does not decode", k)}, c.remove(k))
			return nil
		case c.t.doomed[Layer(l)] != nil:
			return nil
		case rec == nil:
			c.litter("index", k, Layer(l))
			return nil
		case rec.given == givenBare:
			c.found(Finding{Kind: "index", What: fmt.Sprintf("layer %d is said to have no changes, and has", l)}, c.offline(func() {
				whole := *rec
				whole.given = givenLink
				c.batch.Put(kv.LayerKey(l), whole.encode())
				c.t.layers[Layer(l)] = &whole
			}))
		}
		if len(v) != 1 || v[0] > changePin {
			entry := slices.Clone(k)
			c.found(Finding{Kind: "index", What: fmt.Sprintf("the entry %q has no kind", k), Layers: []Layer{Layer(l)}}, func() { c.batch.Put(entry, []byte{changeReal}) })
			v = []byte{changeReal}
		}
		if isName {
			return c.nameEntry(k, Layer(l), NameKey{Ino(ino), name})
		}
		return c.inodeEntry(k, Layer(l), Ino(ino), v[0] == changeReal)
	})
}

// nameEntry checks that there is a record of a name that layer l changed.
func (c *checker) nameEntry(entry []byte, l Layer, k NameKey) error {
	key := kv.Name(uint64(k.Dir), k.Name, uint64(l))
	_, ok, err := c.db.Get(key)
	if err != nil || ok {
		return err
	}
	f := c.at(Finding{Kind: "name", What: fmt.Sprintf("what layer %d made of the name is not there", l), Lost: true}, k.Dir, l, append(c.layersOf(key), l))
	f.Path = join(f.Path, k.Name)
	c.found(f, c.touching(l, c.remove(entry)))
	return nil
}

// inodeEntry checks that layer l, which changed an inode, has something of it.
func (c *checker) inodeEntry(entry []byte, l Layer, ino Ino, changed bool) error {
	_, ok, err := c.db.Get(kv.Inode(uint64(ino), uint64(l)))
	link := c.s.isLink(l)
	if err != nil || ok || !changed && !link {
		return err // what only lost its last name has no record
	}
	if link {
		if err := c.t.recordsOf(ino, l, func(_, _ []byte) { ok = true }); err != nil || ok {
			return err
		}
	}
	vs, err := c.versions(ino)
	if err != nil {
		return err
	}
	f := c.at(Finding{Kind: "inode", What: fmt.Sprintf("what layer %d made of inode %d is not there", l, ino), Lost: true}, ino, l, append(layersIn(vs), l))
	c.found(f, c.touching(l, c.remove(entry)))
	return nil
}

func layersIn(vs []*inode) (out []Layer) {
	for _, v := range vs {
		out = append(out, v.layer)
	}
	return out
}

// litter is a record of a layer that is not there. It does no harm; but if layers have been lost it may be theirs.
func (c *checker) litter(kind string, k []byte, l Layer) {
	if c.broken {
		return
	}
	c.found(Finding{Kind: kind, What: fmt.Sprintf("the record %q belongs to layer %d, which is not there", k, l)}, c.remove(k))
}

// touching is fix that takes the digest of layer l away, too, as the layer will not be what it was.
func (c *checker) touching(l Layer, fix func()) func() {
	if fix == nil {
		return nil
	}
	return func() {
		fix()
		c.batch.Delete(kv.Digest(uint64(l)))
		if t := c.o.Live; t != nil {
			delete(t.digested, l)
		}
	}
}

// indexed checks that the change index of l has an entry.
func (c *checker) indexed(kind string, l Layer, entry []byte, value byte, ino Ino) error {
	_, ok, err := c.db.Get(entry)
	if err != nil || ok {
		return err
	}
	c.found(Finding{Kind: "index", What: fmt.Sprintf("layer %d has a record of %s that its index has not", l, kind), Ino: ino, Layers: []Layer{l}},
		func() { c.batch.Put(entry, []byte{value}) })
	return nil
}

// ofLayer checks the layer of a versioned record, and reports whether there is more to check.
func (c *checker) ofLayer(kind string, k []byte) (Layer, bool) {
	l := layerAt(k)
	if c.t.layers[l] != nil {
		return l, true
	}
	if c.t.doomed[l] == nil {
		c.litter(kind, k, l)
	}
	return l, false
}

// loosePieces checks the records that hang on inodes.
func (c *checker) loosePieces() error {
	for _, class := range []struct {
		prefix []byte
		check  func(k, v []byte) error
	}{
		{kv.ExtentsPrefix(), c.extent}, {[]byte("a/"), c.xattr}, {[]byte("r/"), c.rname},
		{kv.PendingPrefix(), c.pending}, {kv.OrphanPrefix(), c.orphan}, {[]byte("i/"), c.mapped}, {kv.OriginalPrefix(), c.original},
	} {
		if err := c.scan(class.prefix, class.check); err != nil {
			return err
		}
	}
	return nil
}

// piece checks what x/, a/ and r/ records have in common.
func (c *checker) piece(kind string, ok bool, k []byte, ino Ino) (l Layer, more bool, err error) {
	if !ok {
		c.found(Finding{Kind: kind, What: fmt.Sprintf("the key %q does not decode", k), Lost: true}, c.remove(k))
		return 0, false, nil
	}
	if l = layerAt(k); l == BaseLayer {
		if !c.bodies[ino] {
			c.found(Finding{Kind: kind, What: fmt.Sprintf("the record %q is of a pre-image that is not there", k), Ino: ino}, c.remove(k))
		}
		return l, c.bodies[ino], nil
	}
	if l, more = c.ofLayer(kind, k); !more {
		return l, false, nil
	}
	vs, err := c.versions(ino)
	if err == nil && len(vs) == 0 {
		if _, ok, err := c.anyInode(ino); err != nil || ok {
			return l, true, err // one that does not decode
		}
		c.found(Finding{Kind: kind, What: fmt.Sprintf("layer %d has a record of inode %d, which is not there", l, ino), Ino: ino, Layers: []Layer{l}, Lost: true}, c.touching(l, c.remove(k)))
		return l, false, nil
	}
	if err == nil {
		err = c.indexed(kind, l, kv.ChangeInode(uint64(l), uint64(ino)), changeReal, ino)
	}
	return l, true, err
}

func (c *checker) anyInode(ino Ino) (key []byte, ok bool, err error) {
	err = c.db.Scan(kv.InodePrefix(uint64(ino)), nil, func(k, _ []byte) bool {
		key, ok = slices.Clone(k), true
		return false
	})
	return key, ok, err
}

// extent checks the extents of a region, and that their chunks are there.
func (c *checker) extent(k, v []byte) error {
	i, region, _, ok := kv.ParseExtent(k)
	ino := Ino(i)
	l, more, err := c.piece("content", ok, k, ino)
	if err != nil || !more {
		return err
	}
	key := slices.Clone(k)
	start := int64(region) * regionSize
	xs, err := decodeExtents(region, v)
	if err != nil {
		f := c.at(Finding{Kind: "content", What: fmt.Sprintf("what the file has from byte %d on does not decode", start), Lost: true}, ino, l, c.layersOf(k))
		c.found(f, c.touching(l, func() {
			c.batch.Put(key, encodeExtents(region, []extent{lostExtent(start, regionSize)}))
		}))
		return nil
	}
	lost := int64(0)
	first := int64(-1)
	for _, x := range xs {
		if x.kind != kindChunk || !c.isLost(x) {
			continue
		}
		if lost += x.n; first < 0 {
			first = x.off
		}
	}
	if lost > 0 {
		f := c.at(Finding{Kind: "content", What: fmt.Sprintf("%d bytes from byte %d on are lost", lost, first), Lost: true}, ino, l, c.layersOf(k))
		c.found(f, nil) // reading them is EIO
	}
	return nil
}

// isLost reports whether the chunk of x is damaged or not there.
func (c *checker) isLost(x extent) bool {
	if c.rotten[x.hash] {
		return true
	}
	n, err := c.chunks.Size(x.hash)
	return err != nil || x.coff+x.n > int64(n)
}

func (c *checker) xattr(k, v []byte) error {
	i, name, _, ok := kv.ParseXattr(k)
	l, more, err := c.piece("attribute", ok, k, Ino(i))
	if err != nil || !more {
		return err
	}
	if len(v) == 0 || v[0] > 1 {
		key := slices.Clone(k)
		f := c.at(Finding{Kind: "attribute", What: fmt.Sprintf("the extended attribute %q does not decode", name), Lost: true}, Ino(i), l, c.layersOf(k))
		c.found(f, c.touching(l, func() { c.batch.Put(key, xattrGone) }))
	}
	return nil
}

func (c *checker) rname(k, v []byte) error {
	i, _, name, _, ok := kv.ParseRName(k)
	l, more, err := c.piece("reverse name", ok, k, Ino(i))
	if err == nil && more && (len(v) != 1 || v[0] > 1) {
		key := slices.Clone(k)
		c.found(Finding{Kind: "reverse name", What: fmt.Sprintf("that inode %d is called %q does not decode", i, name), Ino: Ino(i), Layers: []Layer{l}},
			c.touching(l, func() { c.batch.Put(key, []byte{1}) })) // whoever asks looks whether the name leads there
	}
	return err
}

// pending checks bytes that are not cut yet.
func (c *checker) pending(k, v []byte) error {
	i, layer, _, ok := kv.ParsePending(k)
	ino, l := Ino(i), Layer(layer)
	switch {
	case !ok || len(v) < 8:
		c.found(Finding{Kind: "content", What: fmt.Sprintf("written bytes %q do not decode", k), Ino: ino, Lost: true}, c.offline(func() {
			c.remove(k)()
			if ok {
				c.loseFile(ino, l)
			}
		}))
		return nil
	case c.t.doomed[l] != nil:
		return nil
	case c.t.layers[l] == nil:
		if !c.broken {
			c.found(Finding{Kind: "content", What: fmt.Sprintf("written bytes %q belong to layer %d, which is not there", k, l)}, c.offline(c.remove(k)))
		}
		return nil
	}
	vs, err := c.versions(ino)
	if err == nil && !slices.ContainsFunc(vs, func(r *inode) bool { return c.s.under(r.layer, l) }) {
		if _, any, err := c.anyInode(ino); err != nil || any && len(vs) == 0 {
			return err
		}
		c.found(Finding{Kind: "content", What: fmt.Sprintf("%d written bytes are of inode %d, which is not there", len(v)-8, ino), Ino: ino, Layers: []Layer{l}, Lost: true}, c.offline(c.remove(k)))
	}
	return err
}

// loseFile makes everything that layer l shows of a file lost.
func (c *checker) loseFile(ino Ino, l Layer) {
	vs, err := c.versions(ino)
	i := slices.IndexFunc(vs, func(r *inode) bool { return c.s.under(r.layer, l) })
	if err != nil || i < 0 {
		return
	}
	if vs[i].regions > maxHoles { // a record for each would never end
		c.batch.Put(kv.Inode(uint64(ino), uint64(l)), lostInode().encode())
		return
	}
	for region := range vs[i].regions {
		at := int64(region) * regionSize
		c.batch.Put(kv.Extent(uint64(ino), region, uint64(l)), encodeExtents(region, []extent{lostExtent(at, regionSize)}))
	}
}

func (c *checker) orphan(k, _ []byte) error {
	l, _, ok := kv.ParseOrphan(k)
	switch rec := c.t.layers[Layer(l)]; {
	case !ok:
		c.found(Finding{Kind: "orphan", What: fmt.Sprintf("the mark %q does not decode", k)}, c.remove(k))
	case rec == nil && c.t.doomed[Layer(l)] == nil:
		c.litter("orphan", k, Layer(l))
	}
	return nil
}

// mapped checks the numbers given to objects of the base.
func (c *checker) mapped(k, v []byte) error {
	if _, ok := kv.ParseBaseShared(k); ok {
		return nil
	}
	d := dec{b: v}
	ino := Ino(d.u())
	d.u()
	d.time()
	if d.err != nil || ino < firstMapped {
		c.found(Finding{Kind: "number", What: fmt.Sprintf("the number given to an object of the base (%q) does not decode: it gets a new one", k)}, c.remove(k))
	}
	return nil
}

// original checks a text that the base had. Without it nothing is lost but that others' changes to the file can be merged.
func (c *checker) original(k, v []byte) error {
	path, _, ok := kv.ParseOriginal(k)
	if _, err := decodeOriginal(v, true); err != nil || !ok {
		c.found(Finding{Kind: "original", What: "what the base had, for merges, does not decode", Path: path}, c.remove(k))
	}
	return nil
}

// digests holds layers against their digests.
func (c *checker) digests() error {
	if err := c.flush(); err != nil { // of index entries, which say what is covered
		return err
	}
	return c.scan(kv.DigestPrefix(), func(k, v []byte) error {
		n, ok := kv.ParseDigest(k)
		l := Layer(n)
		rec := c.t.layers[l]
		if !ok || len(v) != digestLen || v[0] != digestVersion || rec == nil && !c.known(l) || rec != nil && !rec.sealed {
			c.found(Finding{Kind: "digest", What: fmt.Sprintf("the digest %q does not decode, or is of no sealed layer: it is made anew", k)}, c.touching(l, c.remove(k)))
			return nil
		}
		if rec == nil {
			return nil
		}
		own, err := c.t.ownDigest(l)
		if err != nil {
			return err
		}
		if own != Digest(v[1:]) {
			c.found(Finding{Kind: "digest", What: fmt.Sprintf("layer %d has not what it had when its digest was made: some of its records are changed or gone", l), Layers: c.showing(l, nil), Lost: true}, nil)
		}
		return nil
	})
}
