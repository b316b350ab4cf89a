package layers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

// Purged is a file, or another object, whose content is removed from all layers, by one of the paths at which
// layers show it: not only those that were given.
type Purged struct {
	Ino    Ino
	Path   string
	Layers []Layer // some of those that show it there
	Bytes  int64   // of its largest version; what only the base has does not count
}

// purgedTarget is where symbolic links lead whose targets were purged.
const purgedTarget = "purged"

// Purge removes what the paths, and all below them, have ever held: in every layer, in pre-images, as pending
// bytes, as extended attributes and targets of symbolic links. Names, modes and times stay; the files are empty. It follows objects, not names: one that
// was at a path once is emptied wherever it was moved. Also returned are the objects that still have some of the same
// bytes, because they are copies; these are left alone. What the base has on the host is not touched.
//
// Nobody may have the tree in use: no branch is mounted, no view is open. A dry run changes nothing. When Purge has
// returned, and only then, no file of the store has the bytes any more.
func (t *Tree) Purge(paths []string, dry bool) (gone, copies []Purged, err error) {
	t.collecting <- struct{}{}
	defer func() { <-t.collecting }()
	p := &purger{t: t, inos: map[Ino]bool{}, hashes: map[cas.Hash]bool{}, touched: map[Layer]bool{}}
	p.c = &checker{db: t.db, chunks: t.chunks, t: t}
	t.mu.Lock()
	p.c.s = t.shape(nil)
	t.mu.Unlock()
	for _, path := range paths {
		if path = strings.Trim(path, "/"); !validPath(path) {
			return nil, nil, fmt.Errorf("path %q: %w", path, unix.EINVAL)
		}
		if err := p.find(path); err != nil {
			return nil, nil, fmt.Errorf("look for what %q has held: %w", path, err)
		}
	}
	if gone, err = p.list(); err != nil {
		return nil, nil, fmt.Errorf("list what is to be purged: %w", err)
	}
	if copies, err = p.copies(); err != nil || dry {
		return gone, copies, err
	}
	for _, step := range []func() error{p.purge, p.keptOnes, p.apply, p.wipe} {
		if err := step(); err != nil {
			return gone, copies, fmt.Errorf("purge: %w", err)
		}
	}
	return gone, copies, nil
}

// purger is one Purge at work.
type purger struct {
	t       *Tree
	c       *checker
	paths   []string
	inos    map[Ino]bool
	order   []Ino
	lost    []lostName
	hashes  map[cas.Hash]bool // that they name
	bodies  map[Ino]bool      // of pre-images
	touched map[Layer]bool    // layers that lose something
	batch   kv.Batch
}

// lostName is a version of a name that leads to an inode of which there is nothing.
type lostName struct {
	key []byte
	at  NameKey
	l   Layer
}

// find finds every inode that was ever at path, or below.
func (p *purger) find(path string) error {
	p.paths = append(p.paths, path)
	dirs := []Ino{RootIno}
	at := ""
	for name := range strings.SplitSeq(path, "/") {
		var next []Ino
		at = join(at, name)
		for _, dir := range dirs {
			inos, err := p.ever(kv.NamePrefix(uint64(dir), name))
			if err != nil {
				return err
			}
			next = append(next, inos...)
		}
		if st, err := p.t.base.stat(at); err == nil {
			p.t.mu.Lock()
			ino, err := p.t.inoOf(at, &st)
			p.t.mu.Unlock()
			if err != nil {
				return err
			}
			next = append(next, ino)
		}
		slices.Sort(next)
		dirs = slices.Compact(next)
	}
	for len(dirs) > 0 {
		ino := dirs[len(dirs)-1]
		if dirs = dirs[:len(dirs)-1]; p.inos[ino] {
			continue
		}
		p.inos[ino] = true
		p.order = append(p.order, ino)
		below, err := p.ever(kv.DirPrefix(uint64(ino)))
		if err != nil {
			return err
		}
		dirs = append(dirs, below...)
	}
	return nil
}

// ever lists what the names with this prefix have led to in whatever layer.
func (p *purger) ever(prefix []byte) (inos []Ino, err error) {
	err = p.t.db.Scan(prefix, nil, func(k, v []byte) bool {
		if rec, err := decodeName(layerAt(k), v); err == nil && rec.ino != 0 && !slices.Contains(inos, rec.ino) {
			inos = append(inos, rec.ino)
		}
		return true
	})
	return inos, err
}

// findLost finds the names of one inode, of which there is nothing: all that can be done is to let them go.
func (p *purger) findLost(ino Ino) error {
	if _, ok, err := p.c.anyInode(ino); ok || err != nil || ino.ofBase() && ino != lostIno {
		return err
	}
	return p.t.db.Scan([]byte("d/"), nil, func(k, v []byte) bool {
		rec, err := decodeName(layerAt(k), v)
		if dir, name, l, ok := kv.ParseName(k); ok && err == nil && rec.ino == ino {
			p.lost = append(p.lost, lostName{slices.Clone(k), NameKey{Ino(dir), name}, Layer(l)})
		}
		return true
	})
}

// list describes what was found, as far as the store has something of it.
func (p *purger) list() (out []Purged, err error) {
	for _, ino := range p.order {
		vs, err := p.c.versions(ino)
		if err == nil && len(vs) == 0 {
			err = p.findLost(ino)
		}
		if err != nil {
			return nil, err
		}
		g := Purged{Ino: ino}
		for _, rec := range vs {
			if rec.mode&unix.S_IFMT == unix.S_IFDIR {
				continue
			}
			g.Layers = append(g.Layers, p.c.showing(rec.layer, layersIn(vs))...)
			g.Bytes = max(g.Bytes, rec.size)
		}
		slices.Sort(g.Layers)
		out = append(out, p.byPath(g)...)
		err = p.t.db.Scan(kv.ExtentInoPrefix(uint64(ino)), nil, func(_, v []byte) bool {
			if xs, err := decodeExtents(0, v); err == nil {
				for _, x := range xs {
					if x.kind == kindChunk {
						p.hashes[x.hash] = true
					}
				}
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	for i, n := range p.lost {
		g := Purged{Ino: lostIno, Path: join2(p.c.path(n.at.Dir, n.l), n.at.Name), Layers: p.c.showing(n.l, p.c.layersOf(n.key))}
		// Other names may have been lost at the same time.
		if slices.ContainsFunc(p.paths, func(q string) bool { return g.Path == q || strings.HasPrefix(g.Path, q+"/") }) {
			out = append(out, g)
		} else {
			p.lost[i].key = nil
		}
	}
	return out, nil
}

// byPath takes g apart by the paths at which its layers show it.
func (p *purger) byPath(g Purged) (out []Purged) {
	for _, l := range slices.Compact(g.Layers) {
		paths := []string{}
		names, ok := p.c.shown(g.Ino, l)
		for _, k := range names {
			paths = append(paths, join2(p.c.path(k.Dir, l), k.Name))
		}
		if !ok {
			paths = append(paths, p.c.path(g.Ino, l))
		}
		for _, at := range paths {
			i := slices.IndexFunc(out, func(o Purged) bool { return o.Path == at })
			if i < 0 {
				i = len(out)
				out = append(out, Purged{Ino: g.Ino, Path: at, Bytes: g.Bytes})
			}
			out[i].Layers = append(out[i].Layers, l)
		}
	}
	return out
}

// copies lists the other files that name the same chunks.
func (p *purger) copies() (out []Purged, err error) {
	seen := map[Ino]bool{}
	var others []Ino
	err = p.t.db.Scan(kv.ExtentsPrefix(), nil, func(k, v []byte) bool {
		i, region, _, _ := kv.ParseExtent(k)
		if ino := Ino(i); !p.inos[ino] && !seen[ino] {
			xs, err := decodeExtents(region, v)
			if err == nil && slices.ContainsFunc(xs, func(x extent) bool { return x.kind == kindChunk && p.hashes[x.hash] }) {
				seen[ino] = true
				others = append(others, ino)
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, ino := range others {
		vs, err := p.c.versions(ino)
		if err != nil {
			return nil, err
		}
		g := Purged{Ino: ino}
		if len(vs) > 0 {
			g.Layers = p.c.showing(vs[0].layer, layersIn(vs))
			g.Path, g.Bytes = p.c.path(ino, vs[0].layer), vs[0].size
		}
		out = append(out, g)
	}
	return out, nil
}

// purge empties the inodes, each in a batch of its own or with others.
func (p *purger) purge() error {
	for _, n := range p.lost {
		if n.key != nil {
			p.touched[n.l] = true
			p.batch.Put(n.key, nameRec{under: underSomething}.encode())
		}
	}
	for _, ino := range p.order {
		if err := p.inode(ino); err != nil {
			return fmt.Errorf("inode %d: %w", ino, err)
		}
		if p.batch.Len() >= spillAt {
			if err := p.apply(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *purger) inode(ino Ino) error {
	i := uint64(ino)
	had := map[Layer]bool{}  // layers with something of it
	left := map[Layer]bool{} // that keep something
	err := p.t.db.Scan(kv.InodePrefix(i), nil, func(k, v []byte) bool {
		l := layerAt(k)
		left[l], p.touched[l] = true, true
		p.batch.Put(slices.Clone(k), emptied(l, v, TimeOf(p.t.now())))
		return true
	})
	err = errors.Join(err, p.t.db.Scan(kv.RNamePrefix(i), nil, func(k, _ []byte) bool {
		left[layerAt(k)] = true
		return true
	}))
	for _, prefix := range [][]byte{kv.ExtentInoPrefix(i), kv.XattrInoPrefix(i)} {
		err = errors.Join(err, p.t.db.Scan(prefix, nil, func(k, _ []byte) bool {
			had[layerAt(k)], p.touched[layerAt(k)] = true, true
			p.batch.Delete(slices.Clone(k))
			return true
		}))
	}
	err = errors.Join(err, p.t.db.Scan(kv.PendingInoPrefix(i), nil, func(k, _ []byte) bool {
		p.batch.Delete(slices.Clone(k))
		return true
	}))
	for l := range had {
		if !left[l] && p.c.s.isLink(l) {
			p.batch.Delete(kv.ChangeInode(uint64(l), i))
		}
	}
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	for _, q := range slices.Clone(p.t.pend[ino]) {
		p.t.dropPending(q)
	}
	return err
}

// emptied is an n/ record without what its inode held. One that was damaged becomes an empty file.
func emptied(l Layer, v []byte, now Time) []byte {
	rec, err := decodeInode(l, v)
	if err != nil || rec.has(flagLost) {
		rec = &inode{mode: unix.S_IFREG, nlink: 1, flags: flagNames}
	}
	rec.flags &^= flagXattrs | flagSparse
	rec.limit, rec.regions, rec.blocks, rec.source, rec.ctime = 0, 0, 0, nil, now
	switch rec.mode & unix.S_IFMT {
	case unix.S_IFLNK:
		rec.target, rec.size = purgedTarget, int64(len(purgedTarget))
	case unix.S_IFREG:
		rec.size = 0
	}
	return rec.encode()
}

// keptOnes empties what was kept of older generations of the base, and removes what was of files before they were changed.
func (p *purger) keptOnes() error {
	p.bodies = map[Ino]bool{}
	type kept struct {
		key []byte
		rec *preimage
	}
	var mine, links []kept
	err := p.t.db.Scan(kv.PreImagePrefix(), nil, func(k, v []byte) bool {
		rec, err := decodePreimage(v)
		if err != nil || rec.none {
			return true
		}
		if _, _, _, ok := kv.ParsePreImageLink(k); ok {
			links = append(links, kept{slices.Clone(k), rec})
			return true
		}
		dir, name, _, _ := kv.ParsePreImage(k)
		if rec.dir != "" {
			dir = rec.dir
		}
		at := join(dir, name)
		if p.inos[rec.st.given] || slices.ContainsFunc(p.paths, func(q string) bool { return at == q || strings.HasPrefix(at, q+"/") }) {
			mine = append(mine, kept{slices.Clone(k), rec})
			p.bodies[rec.body] = rec.body != 0
		}
		return true
	})
	for _, k := range links {
		if p.bodies[k.rec.body] {
			mine = append(mine, k)
		}
	}
	for _, k := range mine {
		k.rec.hasXattrs = false
		switch k.rec.st.mode & unix.S_IFMT {
		case unix.S_IFREG:
			k.rec.st.size, k.rec.st.blocks = 0, 0
		case unix.S_IFLNK:
			k.rec.target, k.rec.st.size = purgedTarget, int64(len(purgedTarget))
		}
		p.batch.Put(k.key, k.rec.encode())
	}
	for body, is := range p.bodies {
		for _, prefix := range [][]byte{kv.ExtentInoPrefix(uint64(body)), kv.XattrInoPrefix(uint64(body))} {
			if is {
				err = errors.Join(err, p.t.db.Scan(prefix, nil, func(k, _ []byte) bool { p.batch.Delete(slices.Clone(k)); return true }))
			}
		}
	}
	return errors.Join(err, p.t.eachOriginal(func(r originalRec) error {
		at, _, _ := kv.ParseOriginal(r.key)
		if p.inos[r.ino] || slices.ContainsFunc(p.paths, func(q string) bool { return at == q || strings.HasPrefix(at, q+"/") }) {
			p.batch.Delete(r.key)
		}
		return nil
	}))
}

// apply makes what has been gathered so. The layers are not what they were: they get new digests.
func (p *purger) apply() error {
	p.batch.UseReserve()
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	for l := range p.touched {
		p.batch.Delete(kv.Digest(uint64(l)))
	}
	err := p.t.db.Apply(&p.batch)
	for l := range p.touched {
		delete(p.t.digested, l)
	}
	p.batch.Reset()
	clear(p.touched)
	return err
}

// wipe takes the bytes out of the files of the store.
func (p *purger) wipe() error {
	p.t.reclaiming.Lock()
	defer p.t.reclaiming.Unlock()
	if _, err := p.t.reclaim(true); err != nil {
		return err
	}
	return p.t.db.Scrub()
}
