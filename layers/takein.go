package layers

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// TakeIn is one file in which the user's changes on the host were merged with ours.
type TakeIn struct {
	Path string
	// Seen is the file as it was when that was done, by which it is told whether it has changed since: its number and ctime.
	Seen Attr
	Text []byte  // what both make of it
	Mode *uint32 // permission bits that it gets, nil: as they are
	// Host is the state of the base that was merged, HostMode its mode, HostText what it had. Markers says that Text has conflict markers.
	Host     Built
	HostMode uint32
	HostText []byte
	Markers  bool
}

// TakeIn seals the head and changes files in the layer on top, in one batch: what others did to them on the host comes in, and from then on
// they are built on that (Built.MergedAt). ErrMoved if one of them is not what it was: then nothing was changed. No program
// may write meanwhile. extra is as for Seal, swapped as for MoveHead; of the result, From is the sealed layer, and Changed counts what it has.
func (b *Branch) TakeIn(files []TakeIn, extra func(*kv.Batch, Moved) error, swapped func(Moved)) (Moved, error) {
	for {
		texts := make([]*stored, len(files))
		for i, f := range files {
			runs, _ := carve(f.Text, 0, 0)
			st, err := b.t.store(runs)
			if err != nil {
				return Moved{}, fmt.Errorf("store what was merged: %w", err)
			}
			texts[i] = st
		}
		mv, err := b.takeIn(files, texts, extra, swapped)
		if !errors.Is(err, errVoid) {
			return mv, err
		}
	}
}

func (b *Branch) takeIn(files []TakeIn, texts []*stored, extra func(*kv.Batch, Moved) error, swapped func(Moved)) (Moved, error) {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range files {
		if err := b.settle(f.Seen.Ino, nil); err != nil {
			return Moved{}, fmt.Errorf("store pending bytes of %q: %w", f.Path, err)
		}
	}
	if slices.ContainsFunc(texts, t.void) {
		return Moved{}, errVoid
	}
	if b.stale {
		return Moved{}, unix.ESTALE
	}
	mv := Moved{From: b.layer, Target: b.layer, Open: t.nextLayer, At: t.now(), Changed: b.changed, Untouched: b.untouched(), Merged: true}
	head := b.shift(mv.Open)
	k := &takingIn{op: b.newOp().large(), mv: &mv}
	k.batch.UseReserve()
	sealed := head.seal(&k.batch, TimeOf(mv.At))
	err := func() error {
		for i := range files {
			if err := k.file(&files[i], texts[i]); err != nil {
				return fmt.Errorf("%q: %w", files[i].Path, err)
			}
		}
		if extra != nil {
			if err := extra(&k.batch, mv); err != nil {
				return err
			}
		}
		return k.commit()
	}()
	if err != nil {
		k.unreserve()
		head.back()
	} else {
		t.layers[mv.From], t.layers[mv.Open] = sealed, onTop(mv.From, b.base.gen)
		t.nextLayer = mv.Open + 1
		slices.Sort(mv.Inos)
		mv.Renew = slices.Clone(mv.Inos)
		if swapped != nil {
			swapped(mv)
		}
	}
	for _, n := range k.held {
		b.drop(n)
	}
	if err != nil {
		return Moved{}, fmt.Errorf("take in what was changed on the host: %w", err)
	}
	return mv, nil
}

// takingIn is one TakeIn at work.
type takingIn struct {
	*op
	mv   *Moved
	held []*node // looked at, to be dropped
}

// file stages one file.
func (k *takingIn) file(f *TakeIn, st *stored) error {
	b := k.b
	dir, name := split(f.Path)
	dn, err := b.walkTo(dir)
	if err != nil {
		return errors.Join(ErrMoved, err)
	}
	n, _, err := b.child(dn, name)
	if err != nil {
		return errors.Join(ErrMoved, err)
	}
	k.held = append(k.held, dn, n)
	if n.ino != f.Seen.Ino || n.rec == nil || n.rec.ctime != f.Seen.Ctime || n.rec.mode&unix.S_IFMT != unix.S_IFREG || len(b.visiblePending(n.ino)) > 0 {
		return ErrMoved
	}
	is, err := k.t.base.stat(f.Path)
	if err != nil || !f.Host.same(&is) {
		return errors.Join(ErrMoved, notThere(err))
	}
	rec, err := k.rec(n)
	if err != nil {
		return err
	}
	rec.mtime, rec.ctime = k.now, k.now
	if f.Mode != nil {
		rec.mode = rec.mode&^0o777 | *f.Mode&0o777
	}
	if err := k.putContent(n, rec, st, int64(len(f.Text))); err != nil {
		return err
	}
	if o := rec.origin; o != nil && o.is(f.Path, &is) { // no drift any more
		rec.origin = is.origin(o.path)
	}
	if err := k.name(dn, name, n, f); err != nil {
		return err
	}
	k.t.putOriginal(&k.batch, f.Path, &f.Host, &original{Original: Original{f.HostText, f.HostMode, f.Host.Ctime}, at: NameKey{dn.ino, name}, put: true})
	return k.tell(n)
}

// name notes what the name is built on now.
func (k *takingIn) name(dn *node, name string, n *node, f *TakeIn) error {
	d, err := k.b.dirOf(dn)
	if err != nil {
		return err
	}
	e, ok := d.find(name)
	if !ok || e.ino != n.ino {
		return fmt.Errorf("its name has no record: %w", ErrCorrupt)
	}
	was := &wasBase{given: n.ino, Built: f.Host}
	was.Known, was.MergedAt, was.Markers = true, k.t.gen+1, f.Markers
	rec := nameRec{layer: k.b.layer, ino: n.ino, typ: e.typ, under: e.under, was: was}
	kind := byte(changePin)
	if rec.under != underPin {
		rec.under, kind = underSomething, changeReal
		k.count++
	}
	k.addName(stagedName{dir: dn, name: name, rec: rec})
	k.batch.Put(kv.ChangeName(uint64(k.b.layer), uint64(dn.ino), name), []byte{kind})
	return nil
}

// tell notes what the kernel must be told of n.
func (k *takingIn) tell(n *node) error {
	b := k.b
	if n.refs == 0 {
		return nil
	}
	k.mv.Inos = append(k.mv.Inos, n.ino)
	keys, err := b.namesOf(n)
	if err != nil {
		return err
	}
	for key := range b.links[n.ino] {
		keys = append(keys, key)
	}
	for _, key := range keys {
		if dn := b.nodes[key.Dir]; dn != nil && (dn.refs > 0 || dn == b.root) && !slices.Contains(k.mv.Names, key) {
			k.mv.Names = append(k.mv.Names, key)
		}
	}
	return nil
}

// shifted is a head whose layer has been sealed, as long as that is in no batch that was applied.
type shifted struct {
	b       *Branch
	layer   Layer
	anc     ancestry
	changed int64
	dirty   bool
	open    Layer
}

// shift has operations on b go to a new layer on top of its own.
func (b *Branch) shift(open Layer) *shifted {
	return &shifted{b, b.layer, b.anc, b.changed, b.dirty, open}
}

// seal adds to batch that the old layer is sealed and the new one is the head. It returns the record of the old one.
func (s *shifted) seal(batch *kv.Batch, at Time) *layerRec {
	b := s.b
	sealed := b.sealHead(batch, at)
	b.carryOrphans(batch, b.anc)
	b.t.openLayer(batch, b.name, b.layer, b.base.gen)
	b.layer, b.anc, b.changed, b.dirty = s.open, b.anc.grow(s.open), 0, false
	return sealed
}

// back takes that back.
func (s *shifted) back() {
	s.b.layer, s.b.anc, s.b.changed, s.b.dirty = s.layer, s.anc, s.changed, s.dirty
}
