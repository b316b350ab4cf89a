package layers

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Built says what the base had at a path when the layers first changed it: whoever
// writes the layers back to the host compares it with what is there now.
type Built struct {
	// Known is false of a path that no layer changed, and where the change was recorded by
	// a version of the program that did not note what the base had. The rest says nothing then.
	Known bool
	// Exists is false where the base had nothing. The rest says nothing then.
	Exists bool
	Type   uint32 // S_IFMT bits
	Ino    uint64 // as the host's stat(2) has it, as all that follows
	Btime  Time
	Mtime  Time
	Ctime  Time
	Size   int64
	// MergedAt is not 0 where what the base had was merged into the layers later (TakeIn): 1 more than the generation of the base then.
	// With Markers, that left conflict markers in the file.
	MergedAt uint64
	Markers  bool
}

// wasBase is what a name record knows of the base below it.
type wasBase struct {
	none  bool // there was nothing
	given Ino  // the number of the object here
	Built      // with Known and Exists set, unless none
}

func (w *wasBase) encode(e *enc) {
	if w.none {
		e.byte(0)
		return
	}
	switch {
	case w.MergedAt == 0:
		e.byte(1)
	case !w.Markers:
		e.byte(2)
	default:
		e.byte(3)
	}
	if w.MergedAt != 0 {
		e.u(w.MergedAt)
	}
	e.u(uint64(w.given))
	e.u(uint64(w.Type >> 12))
	e.u(w.Ino)
	e.time(w.Btime)
	e.time(w.Mtime)
	e.time(w.Ctime)
	e.i(w.Size)
}

func decodeWasBase(d *dec) *wasBase {
	switch kind := d.byte(); kind {
	case 0:
		return &wasBase{none: true}
	case 1, 2, 3:
		merged := uint64(0)
		if kind > 1 {
			merged = d.u()
		}
		w := &wasBase{given: Ino(d.u())}
		w.Built = Built{Known: true, Exists: true, MergedAt: merged, Markers: kind == 3, Type: uint32(d.u()) << 12, Ino: d.u(), Btime: d.time(), Mtime: d.time(), Ctime: d.time(), Size: d.i()}
		return w
	}
	d.fail()
	return nil
}

// wasBase is what the base had, as far as the record of a copied-up inode tells.
func (r *inode) wasBase(ino Ino) *wasBase {
	o := r.origin
	if o == nil {
		return nil
	}
	w := &wasBase{given: ino, Built: o.built()}
	w.Type = r.mode & unix.S_IFMT
	return w
}

// built is the state of the base object that o was, but for its type.
func (o *origin) built() Built {
	return Built{Known: true, Exists: true, Ino: o.ino, Btime: o.btime, Mtime: o.mtime, Ctime: o.ctime, Size: o.size}
}

// was returns what a name is to note of the base when it changes: e is its visible record,
// if there is one (ok), and n what it showed, nil for nothing. A nil answer says nothing.
func (o *op) was(e nameRec, ok bool, n *node) *wasBase {
	switch {
	case ok && e.was != nil:
		return e.was
	case ok && e.under == underNothing, !ok && n == nil:
		return &wasBase{none: true}
	case n == nil || ok && e.under != underPin:
		return nil
	}
	if s := o.recStaged(n); s != nil {
		return s.rec.wasBase(n.ino)
	}
	if g := o.ghostStaged(n); g != nil {
		return g.rec.wasBase(n.ino)
	}
	if n.rec == nil {
		return nil
	}
	return n.rec.wasBase(n.ino)
}

// Built says what the base had at path p, relative to the base, when the layers of v
// first changed what is there. The base itself is not asked where records tell.
func (v *View) Built(p string) (Built, error) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	if v.stale {
		return Built{}, unix.ESTALE
	}
	at := RootIno
	if p == "" {
		w, err := v.builtIno(at)
		if w == nil || err != nil {
			return Built{}, err
		}
		return w.Built, nil
	}
	parts := strings.Split(p, "/")
	for i, name := range parts {
		w, err := v.builtAt(at, strings.Join(parts[:i], "/"), name)
		switch {
		case err != nil:
			return Built{}, fmt.Errorf("find out what the base had at %q: %w", p, err)
		case w == nil:
			return Built{}, nil
		case w.none, i < len(parts)-1 && w.Type != unix.S_IFDIR:
			return Built{Known: true}, nil
		case i == len(parts)-1:
			return w.Built, nil
		}
		at = w.given
	}
	return Built{}, nil
}

// builtAt is Built for name in the base directory at dir, which is inode ino. nil: not known.
func (v *View) builtAt(ino Ino, dir, name string) (*wasBase, error) {
	rec, ok, err := v.nameOf(ino, name)
	switch {
	case err != nil:
		return nil, err
	case ok && rec.was != nil:
		return rec.was, nil
	case ok && rec.under == underNothing:
		return &wasBase{none: true}, nil
	case ok && rec.under != underPin:
		return nil, nil
	case ok:
		return v.builtIno(rec.ino)
	}
	// No record: the name is as in the base, but what it leads to may have changed under another name.
	p := join(dir, name)
	st, err := v.base.stat(p)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if ino, err = v.t.inoOf(p, &st); err != nil {
		return nil, err
	}
	w, err := v.builtIno(ino)
	if w != nil || err != nil || !st.isDir() {
		return w, err
	}
	// An unchanged directory leads on.
	return &wasBase{given: ino, Built: Built{Type: unix.S_IFDIR}}, nil
}

// nameOf is record for a directory that may not be in memory.
func (v *View) nameOf(dir Ino, name string) (nameRec, bool, error) {
	if n := v.nodes[dir]; n != nil {
		return v.record(n, name)
	}
	return v.loadName(dir, name)
}

// builtIno is what the record of an inode tells of the base.
func (v *View) builtIno(ino Ino) (*wasBase, error) {
	if n := v.nodes[ino]; n != nil && n.rec != nil {
		return n.rec.wasBase(ino), nil
	}
	rec, err := v.visibleInode(ino)
	if err != nil || rec == nil {
		return nil, err
	}
	return rec.wasBase(ino), nil
}
