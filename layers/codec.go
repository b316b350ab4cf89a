package layers

import (
	"encoding/binary"
	"fmt"
)

// Values in kv are compact binary records. The first byte is the record's
// version, so that a reader can tell an old one from a new one. Integers are
// unsigned varints unless said otherwise; times are a zig-zag varint of seconds
// and a varint of nanoseconds; strings carry their length.

const (
	inodeVersion  = 1
	sourceVersion = 2 // of an inode record with a source: who does not know it would show zeros
	lostVersion   = 3 // of an inode record that was lost: who does not know it would show an empty file
	nameVersion   = 1
	wasVersion    = 2 // of a name record that says what the base had
	takenVersion  = 3 // of a name record with what the base had later: who does not know it would see a conflict where there is none
	extentVersion = 1
	layerVersion  = 1
	mergeVersion  = 4 // of a layer record that says what was merged: who does not know it would take what came for made there
	genVersion    = 3 // of a layer record with a generation: who does not know it would show a wrong base
	givenVersion  = 2 // of a layer record with givenUp: who does not know it would show the layer as if it were whole
	headVersion   = 1
)

// enc appends to a record.
type enc struct{ b []byte }

func (e *enc) byte(v byte)  { e.b = append(e.b, v) }
func (e *enc) u(v uint64)   { e.b = binary.AppendUvarint(e.b, v) }
func (e *enc) i(v int64)    { e.b = binary.AppendVarint(e.b, v) }
func (e *enc) str(s string) { e.u(uint64(len(s))); e.b = append(e.b, s...) }
func (e *enc) time(t Time)  { e.i(t.Sec); e.u(uint64(t.Nsec)) }

// dec reads a record; the first fault sticks in err.
type dec struct {
	b   []byte
	err error
}

func (d *dec) fail() {
	if d.err == nil {
		d.err = fmt.Errorf("short or malformed record: %w", ErrCorrupt)
	}
	d.b = nil
}

func (d *dec) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *dec) u() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *dec) i() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *dec) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *dec) str() string { return string(d.bytes(d.u())) }
func (d *dec) time() Time  { return Time{Sec: d.i(), Nsec: uint32(d.u())} }

// version checks the leading byte of a record.
func (d *dec) version(want byte, what string) {
	if v := d.byte(); d.err == nil && v != want {
		d.err = fmt.Errorf("%s record of version %d, this program knows %d: %w", what, v, want, ErrCorrupt)
	}
}

// origin ties a copied-up inode to its object in the base: where it is, which
// object it was (dev, ino, btime never change for an object), and what it looked
// like when it was copied up (size, mtime, ctime), so that drift is seen.
type origin struct {
	path         string
	dev, ino     uint64
	btime        Time
	size         int64
	mtime, ctime Time
}

// Inode flags.
const (
	flagXattrs = 1 << iota // a/ records exist
	flagNames              // r/ records exist: had more than one name at some time
	flagSparse             // may have holes: st_blocks comes from the extents
	flagQuiet              // this version differs by side effects only (a directory's times and link count)
	flagLost               // it was damaged, and nothing is known of it: see Check
)

// inode is a decoded n/ record. It is never changed in place once a node points
// at it: an op works on a copy.
type inode struct {
	layer  Layer // the version's layer, from the key
	born   Layer // the layer that made the inode; BaseLayer for one copied up
	mode   uint32
	nlink  uint32
	uid    uint32
	gid    uint32
	rdev   uint32
	flags  uint32
	size   int64
	atime  Time
	mtime  Time
	ctime  Time
	btime  Time
	parent Ino    // a directory that has it
	name   string // and the name there: exact unless flagNames is set
	target string // of a symlink
	// limit is the number of leading bytes of the base file that still show where
	// no extent covers them. It only ever shrinks.
	limit   int64
	regions uint64 // x/ records exist only for regions below this
	blocks  int64  // st_blocks of the base object, for sparse ones
	// origin says which base object the inode is, source which one the content below limit
	// comes from when that is another: a file that was restored from a checkpoint is a new
	// inode with the bytes of an old one. At most one of them is set.
	origin, source *origin
}

// content is the base object that the bytes below limit come from, nil for none.
func (r *inode) content() *origin {
	if r.source != nil {
		return r.source
	}
	return r.origin
}

func (r *inode) has(f uint32) bool { return r.flags&f != 0 }

func (r *inode) encode() []byte {
	e := enc{b: make([]byte, 0, 96+len(r.name)+len(r.target))}
	switch {
	case r.has(flagLost):
		e.byte(lostVersion)
	case r.source == nil:
		e.byte(inodeVersion)
	default:
		e.byte(sourceVersion)
	}
	e.u(uint64(r.born))
	e.u(uint64(r.mode))
	e.u(uint64(r.nlink))
	e.u(uint64(r.uid))
	e.u(uint64(r.gid))
	e.u(uint64(r.rdev))
	e.u(uint64(r.flags))
	e.i(r.size)
	e.time(r.atime)
	e.time(r.mtime)
	e.time(r.ctime)
	e.time(r.btime)
	e.u(uint64(r.parent))
	e.str(r.name)
	e.str(r.target)
	e.i(r.limit)
	e.u(r.regions)
	e.i(r.blocks)
	r.origin.encode(&e)
	if r.source != nil {
		r.source.encode(&e)
	}
	return e.b
}

func (o *origin) encode(e *enc) {
	if o == nil {
		e.byte(0)
		return
	}
	e.byte(1)
	e.str(o.path)
	e.u(o.dev)
	e.u(o.ino)
	e.time(o.btime)
	e.i(o.size)
	e.time(o.mtime)
	e.time(o.ctime)
}

func decodeOrigin(d *dec) *origin {
	if d.byte() != 1 {
		return nil
	}
	return &origin{path: d.str(), dev: d.u(), ino: d.u(), btime: d.time(), size: d.i(), mtime: d.time(), ctime: d.time()}
}

func decodeInode(l Layer, v []byte) (*inode, error) {
	d := dec{b: v}
	version := byte(inodeVersion)
	if len(v) > 0 && (v[0] == sourceVersion || v[0] == lostVersion) {
		version = v[0]
	}
	d.version(version, "inode")
	r := &inode{layer: l}
	r.born = Layer(d.u())
	r.mode = uint32(d.u())
	r.nlink = uint32(d.u())
	r.uid = uint32(d.u())
	r.gid = uint32(d.u())
	r.rdev = uint32(d.u())
	r.flags = uint32(d.u())
	r.size = d.i()
	r.atime = d.time()
	r.mtime = d.time()
	r.ctime = d.time()
	r.btime = d.time()
	r.parent = Ino(d.u())
	r.name = d.str()
	r.target = d.str()
	r.limit = d.i()
	r.regions = d.u()
	r.blocks = d.i()
	r.origin = decodeOrigin(&d)
	if version == sourceVersion {
		if r.source = decodeOrigin(&d); r.source == nil {
			d.fail()
		}
	}
	return r, d.err
}

// What lies under a name version, which decides how the name is removed again
// in the same layer.
const (
	underSomething = iota // an object of an older layer or the base showed: a whiteout must stay
	underNothing          // no record, no base entry: the version can just go
	underWhiteout         // an older layer's whiteout: the version can just go
	underPin              // the base shows the same: the version only fixes the inode number
)

// nameRec is a decoded d/ record: ino 0 is a whiteout.
type nameRec struct {
	layer Layer
	ino   Ino
	typ   uint32 // S_IFMT bits
	under byte
	was   *wasBase // what the base had under it, if that is known and under does not say it
}

func (n nameRec) encode() []byte {
	e := enc{b: make([]byte, 0, 16)}
	if n.was == nil {
		e.byte(nameVersion)
	} else {
		e.b = make([]byte, 0, 64)
		if n.was.MergedAt != 0 {
			e.byte(takenVersion)
		} else {
			e.byte(wasVersion)
		}
	}
	e.u(uint64(n.ino))
	e.u(uint64(n.typ >> 12))
	e.byte(n.under)
	if n.was != nil {
		n.was.encode(&e)
	}
	return e.b
}

func decodeName(l Layer, v []byte) (nameRec, error) {
	d := dec{b: v}
	version := byte(nameVersion)
	if len(v) > 0 && (v[0] == wasVersion || v[0] == takenVersion) {
		version = v[0]
	}
	d.version(version, "name")
	n := nameRec{layer: l, ino: Ino(d.u()), typ: uint32(d.u()) << 12, under: d.byte()}
	if version != nameVersion {
		n.was = decodeWasBase(&d)
	}
	return n, d.err
}

// layerRec is a decoded l/ record. Changed counts paths, At is when it was sealed.
type layerRec struct {
	parent  Layer
	sealed  bool
	changed int64
	at      Time
	given   givenUp
	gen     uint64 // of a root layer: the generation of the base that its line is built on
	merged  Layer  // of another line, that was merged into this one; BaseLayer for none
}

// givenUp says what a collection has made of a layer. Once it is given up, a layer
// cannot be looked at nor moved to any more.
type givenUp byte

const (
	givenNot  givenUp = iota // it can be looked at
	givenNew                 // stays as a link in the line of others; what nobody sees of it is still to go
	givenLink                // what nobody saw of it is gone
	givenBare                // and nothing is left in its change index
	givenAll                 // in nobody's line: all of it goes, and with the last of it this record
)

func (l layerRec) encode() []byte {
	e := enc{}
	switch {
	case l.merged != BaseLayer:
		e.byte(mergeVersion)
	case l.gen != 0:
		e.byte(genVersion)
	case l.given != givenNot:
		e.byte(givenVersion)
	default:
		e.byte(layerVersion)
	}
	e.u(uint64(l.parent))
	if l.sealed {
		e.byte(1)
	} else {
		e.byte(0)
	}
	e.i(l.changed)
	e.time(l.at)
	if l.given != givenNot || l.gen != 0 || l.merged != BaseLayer {
		e.byte(byte(l.given))
	}
	if l.gen != 0 || l.merged != BaseLayer {
		e.u(l.gen)
	}
	if l.merged != BaseLayer {
		e.u(uint64(l.merged))
	}
	return e.b
}

func decodeLayer(v []byte) (layerRec, error) {
	d := dec{b: v}
	version := byte(layerVersion)
	if len(v) > 0 && v[0] >= givenVersion && v[0] <= mergeVersion {
		version = v[0]
	}
	d.version(version, "layer")
	l := layerRec{parent: Layer(d.u()), sealed: d.byte() == 1, changed: d.i(), at: d.time()}
	if version == layerVersion {
		return l, d.err
	}
	if l.given = givenUp(d.byte()); l.given > givenAll || version == givenVersion && l.given == givenNot {
		d.fail()
	}
	if version >= genVersion {
		if l.gen = d.u(); l.gen == 0 && version == genVersion {
			d.fail()
		}
	}
	if version == mergeVersion {
		if l.merged = Layer(d.u()); l.merged == BaseLayer {
			d.fail()
		}
	}
	return l, d.err
}

// headRec is a decoded h/ record.
type headRec struct{ layer Layer }

func (h headRec) encode() []byte {
	e := enc{}
	e.byte(headVersion)
	e.u(uint64(h.layer))
	return e.b
}

func decodeHead(v []byte) (headRec, error) {
	d := dec{b: v}
	d.version(headVersion, "head")
	return headRec{layer: Layer(d.u())}, d.err
}
