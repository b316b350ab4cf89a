package layers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

// Check holds a store against what this package promises of it:
//
//	layers    parents are there and older; the open ones are the heads, and each branch has one (checklayers.go)
//	records   of every class: they decode, their layer is there, and its change index has them; of every entry
//	          of an index there is something (checkrecords.go)
//	tree      what a layer shows: names lead to inodes, link counts are the numbers of names, and files have
//	          no regions behind their ends (checktree.go)
//	content   extents name chunks that are long enough, and every chunk is what its hash says
//	digests   layers have what they had when their digests were made
//
// It works on the records alone, so a store that Open refuses can be checked, too. Repair
// makes anew what follows from other records, and removes what nothing can be made of; it
// never makes up what a file or a directory holds: that is said to be lost, and answers EIO.

// Finding is one thing that is wrong. Layers are those of the ones that can be looked at which show it,
// the first few. Path is where they show it, as far as that is known.
type Finding struct {
	Kind   string // what kind of record or promise it is about: layer, head, name, inode, content, …
	What   string
	Ino    Ino
	Path   string
	Layers []Layer
	Lost   bool // something cannot be had back
	Fixed  bool // by Repair
}

// CheckOptions say how Check works.
type CheckOptions struct {
	Repair bool
	// Live is the tree that is open on the store, nil for none. Only what it has not in memory is repaired then.
	Live *Tree
	// SkipContent leaves the bytes of chunks unread.
	SkipContent bool
	Found       func(Finding)
	Progress    func(done, total int64, unit string)
	// Known tells, from what others have recorded, what a layer was: its parent and when it was sealed. It may be nil.
	Known func(Layer) (parent Layer, sealedAt Time, ok bool)
	// Branches are the open layers of branches as others have recorded them, Needed layers that others name.
	Branches map[string]Layer
	Needed   []Layer
}

// CheckStats is what a check looked at.
type CheckStats struct {
	Layers, Records, Chunks, Bytes int64
	Findings, Fixed, Lost          int64
}

// Check checks the store in db and chunks. With a live tree, it looks twice if it finds something: once while
// programs work, and then with the tree locked, so that nothing which is just being made counts. The caller sees to
// it that nobody seals or moves a head meanwhile.
func Check(ctx context.Context, db *kv.DB, chunks *cas.Store, o CheckOptions) (CheckStats, error) {
	if o.Progress == nil {
		o.Progress = func(int64, int64, string) {}
	}
	c := &checker{db: db, chunks: chunks, o: o, ctx: ctx, rotten: map[cas.Hash]bool{}}
	suspects, err := c.content()
	if err != nil {
		return c.st, fmt.Errorf("check the content: %w", err)
	}
	if t := o.Live; t != nil { // what is quick, from here on, without sweeps and collections
		t.reclaiming.Lock()
		defer t.reclaiming.Unlock()
		t.collecting <- struct{}{}
		defer func() { <-t.collecting }()
	}
	if err := c.badChunks(suspects); err != nil {
		return c.st, fmt.Errorf("check the content: %w", err)
	}
	if o.Live != nil {
		quick := &checker{db: db, chunks: chunks, o: o, ctx: ctx, rotten: c.rotten}
		quick.o.Repair, quick.o.Found = false, func(Finding) {}
		if err := quick.records(); err != nil || quick.st.Findings == 0 {
			quick.st.add(&c.st)
			return quick.st, err
		}
		o.Live.mu.Lock()
		defer o.Live.mu.Unlock()
	}
	return c.st, c.records()
}

func (s *CheckStats) add(o *CheckStats) {
	s.Chunks += o.Chunks
	s.Bytes += o.Bytes
	s.Findings += o.Findings
	s.Fixed += o.Fixed
	s.Lost += o.Lost
}

// checker is one Check at work.
type checker struct {
	db     *kv.DB
	chunks *cas.Store
	o      CheckOptions
	ctx    context.Context
	st     CheckStats

	t      *Tree             // what the records make of it: layers, ancestries; not open
	s      *shape            // of t
	broken bool              // some layers are not known: what belongs to no layer may be theirs
	rotten map[cas.Hash]bool // chunks whose bytes are not what the hash says
	bodies map[Ino]bool      // of pre-images
	batch  kv.Batch

	vino Ino // of vs:
	vs   []*inode
}

func (c *checker) records() error {
	for _, step := range []func() error{c.layers, c.preimages, c.index, c.names, c.inodes, c.loosePieces, c.digests, c.flush} {
		if err := errors.Join(step(), c.ctx.Err()); err != nil {
			return fmt.Errorf("check the records: %w", err)
		}
	}
	return nil
}

// found notes that something is wrong. fix, if it is not nil, adds to c.batch what puts it right.
func (c *checker) found(f Finding, fix func()) {
	c.st.Findings++
	if c.o.Repair && fix != nil {
		fix()
		f.Fixed = true
		c.st.Fixed++
	}
	if f.Lost {
		c.st.Lost++
	}
	c.o.Found(f)
}

// offline is fix, unless the tree that is open has in memory what fix would change.
func (c *checker) offline(fix func()) func() {
	if c.o.Live != nil {
		return nil
	}
	return fix
}

func (c *checker) remove(key []byte) func() {
	key = slices.Clone(key)
	return func() { c.batch.Delete(key) }
}

// flush applies what repairs have gathered.
func (c *checker) flush() error {
	if c.batch.Len() == 0 {
		return nil
	}
	defer c.batch.Reset()
	c.batch.UseReserve()
	if err := c.db.Apply(&c.batch); err != nil {
		return fmt.Errorf("repair %d records: %w", c.batch.Len(), err)
	}
	return nil
}

// scan calls fn for the records with prefix, which may write, and counts them. An error ends it.
func (c *checker) scan(prefix []byte, fn func(k, v []byte) error) error {
	var bad error
	n := int64(0)
	err := c.db.Scan(prefix, nil, func(k, v []byte) bool {
		n++
		if n%4096 == 0 {
			c.o.Progress(c.st.Records+n, 0, "records")
			bad = c.ctx.Err()
		}
		if bad == nil {
			bad = fn(k, v)
		}
		return bad == nil
	})
	c.st.Records += n
	return errors.Join(err, bad)
}

// content reads every chunk, and lists the keys of those that seem to be damaged: they may just have been swept.
func (c *checker) content() (suspects [][]byte, err error) {
	if c.o.SkipContent {
		return nil, nil
	}
	total, err := c.chunks.DiskBytes()
	if err != nil {
		return nil, err
	}
	err = c.chunks.Check(nil, func(key []byte, size int, err error) bool {
		c.st.Chunks++
		c.st.Bytes += int64(size)
		if c.st.Chunks%64 == 0 {
			c.o.Progress(c.st.Bytes, max(total, c.st.Bytes), "bytes")
		}
		if err != nil {
			suspects = append(suspects, slices.Clone(key))
		}
		return c.ctx.Err() == nil
	})
	return suspects, errors.Join(err, c.ctx.Err())
}

// badChunks looks again at chunks. Of those that are damaged, a repair has the index forget them: whoever writes the
// same bytes again stores them again.
func (c *checker) badChunks(suspects [][]byte) error {
	for _, key := range suspects {
		err := c.chunks.Check(key, func(k []byte, _ int, err error) bool {
			if err == nil || !bytes.Equal(k, key) {
				return false
			}
			c.found(Finding{Kind: "chunk", What: err.Error()}, c.remove(key))
			if raw, ok := kv.ParseChunk(key); ok && len(raw) == len(cas.Hash{}) {
				c.rotten[cas.Hash(raw)] = true
			}
			return false
		})
		if err != nil {
			return err
		}
	}
	return c.flush()
}

// versions returns the n/ records of an inode that decode, newest first.
func (c *checker) versions(ino Ino) ([]*inode, error) {
	if c.vino == ino && c.vs != nil {
		return c.vs, nil
	}
	c.vino, c.vs = ino, []*inode{}
	err := c.db.Scan(kv.InodePrefix(uint64(ino)), nil, func(k, v []byte) bool {
		if _, l, ok := kv.ParseInode(k); ok {
			if rec, err := decodeInode(Layer(l), v); err == nil {
				c.vs = append(c.vs, rec)
			}
		}
		return true
	})
	return c.vs, err
}

// showing lists some layers that can be looked at and that see version l of a key which has versions in all.
func (c *checker) showing(l Layer, all []Layer) (out []Layer) {
	const few = 8
	r := c.s.strands[l]
	if r == nil {
		return nil
	}
	newer := map[*strand]bool{}
	for _, m := range all {
		if m > l {
			newer[c.s.strands[m]] = true
		}
	}
	var walk func(r *strand)
	walk = func(r *strand) {
		if newer[r] || len(out) == few {
			return
		}
		if r.point {
			out = append(out, r.top)
		}
		for _, k := range r.kids {
			walk(k)
		}
	}
	walk(r)
	slices.Sort(out)
	return out
}

// path is where a view shows an inode: its names as the records know them, up to the root.
func (c *checker) path(ino Ino, at Layer) string {
	p := ""
	for depth := 0; ino != RootIno && depth < 4096; depth++ {
		vs, err := c.versions(ino)
		if err != nil {
			break
		}
		i := slices.IndexFunc(vs, func(r *inode) bool { return c.s.under(r.layer, at) })
		switch {
		case i < 0 && len(vs) > 0:
			i = len(vs) - 1
		case i < 0:
			return fmt.Sprintf("(inode %d)/%s", ino, p)
		}
		if rec := vs[i]; rec.origin != nil && rec.name == "" {
			return join2(rec.origin.path, p)
		} else if rec.name != "" {
			p = join2(rec.name, p)
			ino = rec.parent
		} else {
			return fmt.Sprintf("(inode %d)/%s", ino, p)
		}
	}
	return p
}

// shown lists the names that lead to an inode where a layer looks; none: it was deleted there. Of one that is as in
// the base there, or was damaged, ok is false: it may have any.
func (c *checker) shown(ino Ino, at Layer) (names []NameKey, ok bool) {
	vs, err := c.versions(ino)
	i := slices.IndexFunc(vs, func(r *inode) bool { return c.s.under(r.layer, at) })
	if err != nil || i < 0 || vs[i].has(flagLost) || vs[i].name == "" {
		return nil, false
	}
	keys := []NameKey{{vs[i].parent, vs[i].name}}
	if vs[i].has(flagNames) {
		_ = c.db.Scan(kv.RNamePrefix(uint64(ino)), nil, func(k, _ []byte) bool {
			_, dir, name, _, _ := kv.ParseRName(k)
			if key := (NameKey{Ino(dir), name}); !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
			return true
		})
	}
	return slices.DeleteFunc(keys, func(k NameKey) bool { return !c.leads(k, ino, at) }), true
}

// leads reports whether the version of a name that a layer sees leads to ino.
func (c *checker) leads(k NameKey, ino Ino, at Layer) (yes bool) {
	_ = c.db.Scan(kv.NamePrefix(uint64(k.Dir), k.Name), nil, func(key, v []byte) bool {
		l := layerAt(key)
		if !c.s.under(l, at) {
			return true
		}
		rec, err := decodeName(l, v)
		yes = err == nil && rec.ino == ino
		return false
	})
	return yes
}

func join2(dir, p string) string {
	if p == "" {
		return dir
	}
	return join(dir, p)
}

// at completes a finding about version l of something of ino: who shows it, and where.
func (c *checker) at(f Finding, ino Ino, l Layer, all []Layer) Finding {
	f.Ino, f.Layers = ino, c.showing(l, all)
	on := l
	if len(f.Layers) > 0 {
		on = f.Layers[0]
	}
	f.Path = c.path(ino, on)
	return f
}

// layersOf reads which versions the key has of which k is one.
func (c *checker) layersOf(k []byte) (out []Layer) {
	_ = c.db.Scan(bare(k), nil, func(k2, _ []byte) bool {
		if len(k2) == len(k) {
			out = append(out, layerAt(k2))
		}
		return true
	})
	return out
}

// known are the layers of the store, those that go included.
func (c *checker) known(l Layer) bool { return c.t.layers[l] != nil || c.t.doomed[l] != nil }

// bareTree is a tree of which only the layers are known.
func bareTree(db *kv.DB, chunks *cas.Store, recs map[Layer]*layerRec) *Tree {
	t := &Tree{
		db: db, chunks: chunks, layers: map[Layer]*layerRec{}, doomed: map[Layer]*layerRec{},
		ancestries: map[Layer]ancestry{}, branches: map[string]*Branch{}, pend: map[Ino][]*pending{}, digested: map[Layer]bool{},
	}
	for l, rec := range maps.All(recs) {
		if rec.given == givenAll {
			t.doomed[l] = rec
		} else {
			t.layers[l] = rec
		}
	}
	return t
}
