package layers

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// preimage says what the base had at a path before a commit. The content of a file and
// extended attributes are x/ and a/ records of an inode number of its own (body), which is
// used for nothing else, in BaseLayer. So what counts the chunks in use counts these, too.
type preimage struct {
	none      bool     // nothing was there
	whole     bool     // of a directory: all that was in it has a pre-image of the same commit, too
	st        baseStat // st.given is set
	target    string   // of a symbolic link
	body      Ino      // 0: neither content nor extended attributes
	hasXattrs bool
	unread    bool   // a file that could not be opened: it cannot be now either
	dir       string // of its path, where the key has only the hash of it
}

const preimageVersion = 1

// Flags of a preimage record.
const (
	preNone = 1 << iota
	preWhole
	preXattrs
	preUnread
)

func (k *preimage) encode() []byte {
	e := enc{b: make([]byte, 0, 96+len(k.target)+len(k.dir))}
	e.byte(preimageVersion)
	flags := byte(0)
	for _, f := range []struct {
		is bool
		f  byte
	}{{k.none, preNone}, {k.whole, preWhole}, {k.hasXattrs, preXattrs}, {k.unread, preUnread}} {
		if f.is {
			flags |= f.f
		}
	}
	e.byte(flags)
	e.str(k.dir)
	if k.none {
		return e.b
	}
	for _, n := range []uint64{
		uint64(k.st.given), k.st.dev, k.st.ino, uint64(k.st.mode), uint64(k.st.nlink),
		uint64(k.st.uid), uint64(k.st.gid), uint64(k.st.rdev), uint64(k.st.size), uint64(k.st.blocks), uint64(k.body),
	} {
		e.u(n)
	}
	for _, t := range []Time{k.st.atime, k.st.mtime, k.st.ctime, k.st.btime} {
		e.time(t)
	}
	e.str(k.target)
	return e.b
}

func decodePreimage(v []byte) (*preimage, error) {
	d := dec{b: v}
	d.version(preimageVersion, "pre-image")
	flags := d.byte()
	k := &preimage{
		none: flags&preNone != 0, whole: flags&preWhole != 0, hasXattrs: flags&preXattrs != 0, unread: flags&preUnread != 0,
		dir: d.str(),
	}
	if k.none {
		return k, d.err
	}
	k.st = baseStat{
		given: Ino(d.u()), dev: d.u(), ino: d.u(), mode: uint32(d.u()), nlink: uint32(d.u()),
		uid: uint32(d.u()), gid: uint32(d.u()), rdev: uint32(d.u()), size: int64(d.u()), blocks: int64(d.u()),
	}
	k.body = Ino(d.u())
	for _, t := range []*Time{&k.st.atime, &k.st.mtime, &k.st.ctime, &k.st.btime} {
		*t = d.time()
	}
	k.target = d.str()
	if d.err == nil && (k.st.given == 0 || k.st.size < 0) {
		d.fail()
	}
	return k, d.err
}

// view sees the records of the body.
func (k *preimage) view(t *Tree) *View { return &View{t: t} }

// layout says where bytes of the content are.
func (k *preimage) layout(t *Tree, lo, hi int64) (*layout, error) {
	rec := &inode{size: k.st.size}
	if k.body != 0 {
		rec.regions = uint64((k.st.size + regionSize - 1) / regionSize)
	}
	return k.view(t).stored(&node{ino: k.body, rec: rec}, lo, hi)
}

// keptIndex is what a tree keeps in memory of its pre-images: for which paths there are
// any, 16 bytes each, and which inode numbers the objects have. It is never changed: Tree.kept
// points to another one afterwards.
type keptIndex struct {
	gen   uint64 // the newest generation: pre-images are of older ones
	seed  maphash.Seed
	at    []keptAt  // by id, then generation
	inos  []keptIno // by number
	links bool      // there are pre-images of objects with several names
}

type keptKind uint8

const (
	keptLeaf  keptKind = iota // nothing, or something that is no directory: below there was nothing
	keptDir                   // a directory itself: what was below is another matter
	keptWhole                 // a directory with all below: what has no pre-image was not there
	keptLink                  // an object with several names
)

// keptAt is one pre-image. Paths are hashed with a seed of this process: nobody can make two that collide.
type keptAt struct {
	id   uint64 // of the path, or of device and number
	gen  uint32
	kind keptKind
}

// keptIno says whose a number is.
type keptIno struct {
	ino    Ino
	object uint64 // device, number and birth time, hashed
	path   uint64 // hashed
}

type linkID struct{ dev, ino uint64 }

type objectID struct {
	dev, ino uint64
	btime    Time
}

func newKeptIndex() *keptIndex { return &keptIndex{seed: maphash.MakeSeed()} }

func (x *keptIndex) pathID(p string) uint64 { return maphash.String(x.seed, p) }

func (x *keptIndex) linkID(st *baseStat) uint64 {
	return maphash.Comparable(x.seed, linkID{st.dev, st.ino})
}

func (x *keptIndex) objectID(st *baseStat) uint64 {
	return maphash.Comparable(x.seed, objectID{st.dev, st.ino, st.btime})
}

func (k *preimage) kind() keptKind {
	switch {
	case k.none || !k.st.isDir():
		return keptLeaf
	case k.whole:
		return keptWhole
	}
	return keptDir
}

// note adds a pre-image of the path p. sort has to follow.
func (x *keptIndex) note(p string, gen uint64, k *preimage) {
	x.at = append(x.at, keptAt{x.pathID(p), uint32(gen), k.kind()})
	if !k.none {
		x.inos = append(x.inos, keptIno{k.st.given, x.objectID(&k.st), x.pathID(p)})
	}
}

// noteLink adds a pre-image of an object with several names.
func (x *keptIndex) noteLink(gen uint64, st *baseStat) {
	x.at = append(x.at, keptAt{x.linkID(st), uint32(gen), keptLink})
	x.links = true
}

func (x *keptIndex) sort() {
	slices.SortFunc(x.at, func(a, b keptAt) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.gen, b.gen)) })
	slices.SortFunc(x.inos, func(a, b keptIno) int { return cmp.Compare(a.ino, b.ino) })
	x.inos = slices.Compact(x.inos)
}

// of lists the pre-images of a path or object from generation gen on, oldest first.
func (x *keptIndex) of(id, gen uint64) []keptAt {
	i, _ := slices.BinarySearchFunc(x.at, id, func(a keptAt, id uint64) int {
		return cmp.Or(cmp.Compare(a.id, id), cmp.Compare(uint64(a.gen), gen))
	})
	j := i
	for j < len(x.at) && x.at[j].id == id {
		j++
	}
	return x.at[i:j]
}

// any reports whether there is a pre-image of p.
func (x *keptIndex) any(p string) bool { return len(x.of(x.pathID(p), 0)) > 0 }

// hasIno reports whether an object of an older generation has this number.
func (x *keptIndex) hasIno(ino Ino) bool {
	if x == nil {
		return false
	}
	_, ok := x.findIno(ino)
	return ok
}

func (x *keptIndex) findIno(ino Ino) (int, bool) {
	return slices.BinarySearchFunc(x.inos, ino, func(a keptIno, ino Ino) int { return cmp.Compare(a.ino, ino) })
}

// whose says whether an object that older generations show has the number ino (known), and
// whether st, which is on the host at p, is that object. As with origin.is, a hard link of it is.
func (x *keptIndex) whose(ino Ino, p string, st *baseStat) (mine, known bool) {
	if x == nil {
		return false, false
	}
	i, ok := x.findIno(ino)
	if !ok {
		return false, false
	}
	object, path := x.objectID(st), x.pathID(p)
	for ; i < len(x.inos) && x.inos[i].ino == ino; i++ {
		if x.inos[i].object == object && (x.inos[i].path == path || !st.isDir() && st.nlink > 1) {
			return true, true
		}
	}
	return false, true
}

// find returns the pre-image that says what e had at p, nil if there is none. What was below
// something that was no directory, or was not among what was kept of one, was not there.
func (x *keptIndex) find(e era, p string) (*preimage, error) {
	gen, none := never, false
	if list := x.of(x.pathID(p), e.gen); len(list) > 0 {
		gen = uint64(list[0].gen)
	}
	for dir, more := p, p != ""; more; {
		dir, _ = split(dir)
		more = dir != ""
		for _, a := range x.of(x.pathID(dir), e.gen) {
			if uint64(a.gen) >= gen {
				break
			}
			if a.kind != keptDir {
				gen, none = uint64(a.gen), true
			}
		}
	}
	switch {
	case gen == never:
		return nil, nil
	case none:
		return &preimage{none: true}, nil
	}
	dir, name := split(p)
	k, err := e.t.preimage(kv.PreImage(dir, name, gen))
	if err != nil || k.none || !x.links {
		return k, err
	}
	// An earlier commit may have changed it under another name.
	if l, err := x.findLink(e, &k.st, gen); l != nil || err != nil {
		return l, err
	}
	return k, nil
}

const never = uint64(1) << 63 // later than all generations

// findLink returns the pre-image of an object with several names, from before generation
// last, nil if there is none.
func (x *keptIndex) findLink(e era, st *baseStat, last uint64) (*preimage, error) {
	if st.isDir() {
		return nil, nil
	}
	list := x.of(x.linkID(st), e.gen)
	if len(list) == 0 || uint64(list[0].gen) >= last {
		return nil, nil
	}
	key := kv.PreImageLink(st.dev, st.ino, uint64(list[0].gen))
	if _, ok, err := e.t.db.Get(key); err == nil && !ok && st.dev == 0 {
		key = kv.PreImageLink(e.t.base.dev, st.ino, uint64(list[0].gen)) // see Base.known
	}
	k, err := e.t.preimage(key)
	if err == nil && k.st.btime != st.btime {
		return nil, nil // the number was given to another object
	}
	return k, err
}

func (t *Tree) preimage(key []byte) (*preimage, error) {
	v, ok, err := t.db.Get(key)
	if err == nil && !ok {
		err = fmt.Errorf("pre-image %x is missing: %w", key, ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	return t.base.known(decodePreimage(v))
}

// known brings a pre-image to what baseStat says of devices: earlier versions wrote the number of the base's, too.
func (b *Base) known(k *preimage, err error) (*preimage, error) {
	if err == nil && k.st.dev == b.dev {
		k.st.dev = 0
	}
	return k, err
}

// list is the listing of the directory at p, of which there is a pre-image from e on.
func (x *keptIndex) list(e era, p string) ([]baseEntry, error) {
	whole := never // the first commit that kept the whole directory
	for _, a := range x.of(x.pathID(p), e.gen) {
		if a.kind == keptWhole {
			whole = uint64(a.gen)
			break
		}
	}
	kept, names, err := e.t.keptIn(p, e.gen, whole)
	if err != nil {
		return nil, err
	}
	var out []baseEntry
	if whole == never {
		live, err := e.t.base.readDir(p)
		if err != nil && len(kept) == 0 {
			return nil, err
		}
		for _, b := range live {
			if !names[b.name] {
				out = append(out, b)
			}
		}
	}
	return append(out, kept...), nil
}

// keptIn lists what pre-images of generations from gen to last say was in the directory p,
// and all names of which they say something.
func (t *Tree) keptIn(p string, gen, last uint64) (there []baseEntry, names map[string]bool, err error) {
	names = map[string]bool{}
	var bad error
	err = t.db.Scan(kv.PreImageDir(p), nil, func(key, v []byte) bool {
		_, name, at, ok := kv.ParsePreImage(key)
		if !ok || at < gen || at >= t.genOfKept() || name == "" || names[name] {
			return true // a link's, or the base's own; or one that does not count
		}
		names[name] = true
		var k *preimage
		if k, bad = t.base.known(decodePreimage(v)); bad != nil {
			return false
		}
		if at <= last && !k.none {
			there = append(there, baseEntry{name: name, ino: uint64(k.st.given), typ: k.st.mode & unix.S_IFMT, kept: true})
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, nil, fmt.Errorf("list what the base had in %q: %w", p, err)
	}
	return there, names, nil
}

// genOfKept is the generation from which on pre-images do not count: they are of a commit under way.
func (t *Tree) genOfKept() uint64 {
	if x := t.kept.Load(); x != nil {
		return x.gen
	}
	return 0
}

// loadKept reads which pre-images there are.
func (t *Tree) loadKept() error {
	x := newKeptIndex()
	x.gen = t.gen
	var bad error
	err := t.db.Scan(kv.PreImagePrefix(), nil, func(key, v []byte) bool {
		var k *preimage
		if k, bad = t.base.known(decodePreimage(v)); bad != nil {
			bad = fmt.Errorf("pre-image %x: %w", key, bad)
			return false
		}
		if _, _, gen, ok := kv.ParsePreImageLink(key); ok {
			if gen < t.gen {
				x.noteLink(gen, &k.st)
			}
			t.leftover = t.leftover || gen >= t.gen
			return true
		}
		dir, name, gen, ok := kv.ParsePreImage(key)
		if !ok {
			bad = fmt.Errorf("pre-image %x: %w", key, ErrCorrupt)
			return false
		}
		if k.dir != "" {
			dir = k.dir
		}
		if gen < t.gen {
			x.note(join(dir, name), gen, k)
		}
		t.leftover = t.leftover || gen >= t.gen
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	if len(x.at) > 0 {
		x.sort()
		t.kept.Store(x)
	}
	return nil
}
