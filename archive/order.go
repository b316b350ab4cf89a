package archive

// phase is where in a section one is.
type phase int

const (
	taking  phase = iota // names go
	making               // objects and names come
	setting              // what is there changes
)

// order follows an archive and says what may come next: see the package doc.
type order struct {
	base    bool // a base section must come first
	in      Section
	phase   phase
	file    *Node
	set     bool  // file came in a Set
	pos     int64 // up to where bytes of it were told
	printed bool
	ended   Section // the last section that ended, 0 at the start and after a checkpoint
	states  int
	closed  bool
}

func (o *order) next(rec Record) error {
	if o.file != nil && o.in == SectionBase && !o.printed {
		if _, ok := rec.(Print); !ok {
			return bad("a file of the base comes without its print")
		}
	}
	switch r := rec.(type) {
	case Begin:
		return o.begin(r.Section)
	case end:
		if o.in == 0 {
			return bad("a section ends that did not begin")
		}
		return nil
	case *Checkpoint:
		if o.in != 0 || o.ended != SectionTree {
			return bad("a checkpoint comes without its tree")
		}
		o.ended, o.states = 0, o.states+1
		return nil
	case *Counts:
		if o.in != 0 || o.ended != SectionTalk {
			return bad("it ends early")
		}
		o.closed = true
		return nil
	case link:
		if o.in == SectionTalk {
			return nil
		}
	case Take, Make, Name, Set, Clear, Data, Ref, Print:
		return o.object(rec)
	}
	return bad("a record is out of its place: %T", rec)
}

func (o *order) begin(s Section) error {
	first := o.ended == 0 && o.states == 0
	ok := false
	switch {
	case o.in != 0:
	case s == SectionBase:
		ok = first && o.base
		o.base = false
	case s == SectionTree:
		ok = !o.base && (o.ended == 0 || o.ended == SectionBase)
	case s == SectionTalk:
		ok = o.ended == 0 && o.states > 0
	}
	if !ok {
		return bad("section %d is out of its place", s)
	}
	o.in, o.phase, o.file = s, taking, nil
	return nil
}

func (o *order) end() error {
	o.ended, o.in, o.file = o.in, 0, nil
	return nil
}

// object checks a record about the tree.
func (o *order) object(rec Record) error {
	if o.in != SectionBase && o.in != SectionTree {
		return bad("a file comes outside of a tree")
	}
	tree := o.in == SectionTree
	switch r := rec.(type) {
	case Take:
		if tree && o.to(taking) {
			return nil
		}
	case Make:
		if o.to(making) {
			o.hold(&r.Node, false)
			return nil
		}
	case Name:
		if o.to(making) {
			return nil
		}
	case Set:
		if tree && o.to(setting) {
			o.hold(&r.Node, true)
			return nil
		}
	case Print:
		if o.file != nil && !tree && !o.printed {
			o.printed = true
			return nil
		}
	case Clear:
		if tree && o.file != nil && o.set {
			return o.bytes(r.Off, r.N, false)
		}
	case Data:
		if tree && o.file != nil {
			return o.bytes(r.Off, int64(len(r.Bytes)), true)
		}
	case Ref:
		if tree && o.file != nil {
			return o.bytes(r.Off, r.N, true)
		}
	}
	return bad("a record is out of its place: %T", rec)
}

// to goes on to a phase, which must not be over.
func (o *order) to(p phase) bool {
	ok := o.phase <= p
	o.phase, o.file = p, nil
	return ok
}

func (o *order) hold(n *Node, set bool) {
	o.set, o.pos, o.printed = set, 0, false
	if n.isFile() {
		o.file = n
	}
}

// bytes checks a range of the present file: they come in order, and within it.
func (o *order) bytes(off, n int64, chunk bool) error {
	if off < o.pos || n <= 0 || off > o.file.Size || n > o.file.Size-off {
		return bad("bytes %d to %d of object %d are out of order, or behind its end", off, off+n, o.file.ID)
	}
	if n > ChunkSize || off+n > slotEnd(off) {
		return bad("a chunk of object %d lies across two", o.file.ID)
	}
	if o.pos = off; chunk {
		o.pos = off + n
	}
	return nil
}
