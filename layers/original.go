package layers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/merge3"
)

// Originals are what text files of the base were before the layers changed them: once the user edits such a file on the host,
// too, only by its original can the two be merged, and what stands on it be read (readOrigin). Whoever changes the content of a base file, or puts another one in its place, notes it in
// Tree.wanted, which costs him a few comparisons; a goroutine of its own reads it from the base within half a second, or as fast as the disk does. If
// the base was changed in between, there is no original. What is kept is for one state of one path (Built),
// so an original is the right one, or none.

const (
	originalVersion = 1
	// maxOriginal is the largest text that is kept, and maxOriginals how much of all, compressed: beyond, the oldest go. Bytes.
	maxOriginal  = 1 << 20
	maxOriginals = 64 << 20
	// originalGrain: a file changed on the host so short before may have been changed again without its times telling (kernels before 6.13).
	originalGrain = 20 * time.Millisecond
	// originalsTick is how often originals are read, and originalsEnd how long the end of a tree may take over the last of them.
	originalsTick = 500 * time.Millisecond
	originalsEnd  = 2 * time.Second
	// maxWanted bounds what waits to be read; 200 bytes each.
	maxWanted = 100_000
)

// Original is a text that the base had.
type Original struct {
	Text  []byte
	Mode  uint32 // st_mode
	Ctime Time
}

// original is a decoded e/ record. While a version of ino or of the name at has the state, it may be asked for.
type original struct {
	Original
	at    NameKey
	ino   Ino
	since time.Time // when it was kept
	put   bool      // by a commit or a merge
}

// wantedText is an original to be read.
type wantedText struct {
	Built
	gen uint64 // of the base
	at  NameKey
	ino Ino
}

// stateID condenses a state of a base file, but for its ctime: a rename moves that.
func (b *Built) stateID() uint64 {
	v := binary.BigEndian.AppendUint64(nil, b.Ino)
	for _, n := range []uint64{uint64(b.Size), uint64(b.Mtime.Sec), uint64(b.Mtime.Nsec), uint64(b.Btime.Sec), uint64(b.Btime.Nsec)} {
		v = binary.BigEndian.AppendUint64(v, n)
	}
	sum := blake3.Sum256(v)
	return binary.BigEndian.Uint64(sum[:])
}

// same reports whether st is the state b.
func (b *Built) same(st *baseStat) bool {
	return st.mode&unix.S_IFMT == b.Type && st.ino == b.Ino && st.btime == b.Btime && st.mtime == b.Mtime && st.ctime == b.Ctime && st.size == b.Size
}

func (o *original) encode() []byte {
	e := enc{}
	e.byte(originalVersion)
	e.u(uint64(o.Mode))
	e.time(o.Ctime)
	e.u(uint64(o.ino))
	e.u(uint64(o.at.Dir))
	e.str(o.at.Name)
	e.i(o.since.UnixNano())
	if o.put {
		e.byte(1)
	} else {
		e.byte(0)
	}
	sum := blake3.Sum256(o.Text)
	e.str(string(sum[:16]))
	e.str(string(s2.EncodeBetter(nil, o.Text)))
	return e.b
}

// decodeOriginal reads an e/ record; without text, all but that.
func decodeOriginal(v []byte, text bool) (*original, error) {
	d := dec{b: v}
	d.version(originalVersion, "original")
	o := &original{}
	o.Mode, o.Ctime = uint32(d.u()), d.time()
	o.ino, o.at = Ino(d.u()), NameKey{Ino(d.u()), d.str()}
	o.since, o.put = time.Unix(0, d.i()), d.byte() == 1
	sum, packed := d.str(), d.str()
	if d.err != nil || !text {
		return o, d.err
	}
	if n, err := s2.DecodedLen([]byte(packed)); err != nil || n > maxOriginal {
		d.fail()
		return nil, d.err
	}
	var err error
	if o.Text, err = s2.Decode(nil, []byte(packed)); err != nil {
		d.fail()
	} else if got := blake3.Sum256(o.Text); string(got[:16]) != sum {
		d.fail()
	}
	return o, d.err
}

// Original returns the text that the base had at path in the state is, but for its ctime; nil if it is not known.
func (t *Tree) Original(path string, is Built) (*Original, error) {
	if len(path) > kv.MaxOriginalPath || !is.Exists {
		return nil, nil
	}
	v, ok, err := t.db.Get(kv.Original(path, is.stateID()))
	if err != nil || !ok {
		return nil, err
	}
	o, err := decodeOriginal(v, true)
	if err != nil {
		return nil, fmt.Errorf("what the base had at %q: %w", path, err)
	}
	return &o.Original, nil
}

// originalOf returns the text that the base file under l had at copy-up, if it was kept.
func (t *Tree) originalOf(l *layout) ([]byte, bool) {
	text, err := t.Original(l.path, l.origin.built())
	if err != nil {
		t.log.Warn("cannot read what a base file was before it changed", "path", l.path, "error", err)
	}
	if err != nil || text == nil || text.Ctime != l.origin.ctime {
		return nil, false
	}
	return text.Text, true
}

// PutOriginal adds to b that the base has a text at path, in the state is. What is too large is left out.
func (t *Tree) PutOriginal(b *kv.Batch, path string, is Built, mode uint32, text []byte) {
	t.putOriginal(b, path, &is, &original{Original: Original{text, mode, is.Ctime}, put: true})
}

// putOriginal returns the bytes that it takes.
func (t *Tree) putOriginal(b *kv.Batch, path string, is *Built, o *original) int64 {
	if len(path) > kv.MaxOriginalPath || len(o.Text) > maxOriginal || !merge3.IsText(o.Text) {
		return 0
	}
	o.since = t.now()
	v := o.encode()
	if len(v) > kv.MaxValue {
		return 0
	}
	b.Put(kv.Original(path, is.stateID()), v)
	return int64(len(v))
}

// wantOriginals notes what the operation takes from the base. The caller holds t.mu.
func (o *op) wantOriginals() {
	for _, s := range o.recs {
		r, old := s.rec, s.n.rec
		if r.origin == nil || r.mode&unix.S_IFMT != unix.S_IFREG || r.intact() || old != nil && old.origin != nil && !old.intact() {
			continue
		}
		if w := r.wasBase(s.n.ino); w != nil {
			o.wantOriginal(r.origin.path, wantedText{Built: w.Built, ino: s.n.ino})
		}
	}
	for _, s := range o.names {
		w := s.rec.was
		if s.gone || w == nil || w.none || s.rec.typ != unix.S_IFREG || w.Type != unix.S_IFREG || s.rec.under == underPin || !s.dir.inb && s.dir.ino != RootIno {
			continue
		}
		o.wantOriginal(join(s.dir.path(), s.name), wantedText{Built: w.Built, at: NameKey{s.dir.ino, s.name}})
	}
}

func (o *op) wantOriginal(path string, w wantedText) {
	age := time.Duration(o.now.Sec-w.Ctime.Sec)*time.Second + time.Duration(int64(o.now.Nsec)-int64(w.Ctime.Nsec))
	if w.Size == 0 || w.Size > maxOriginal || age.Abs() < originalGrain || w.MergedAt != 0 {
		return
	}
	if o.t.wanted == nil {
		o.t.wanted = map[string]wantedText{}
	}
	if len(o.t.wanted) >= maxWanted {
		return
	}
	w.gen = o.b.base.gen
	o.t.wanted[path] = w
}

// wantAgain notes what changes of the open layer, which an earlier daemon may have died over, take from the base.
func (b *Branch) wantAgain(inos map[Ino]struct{}, names map[NameKey]struct{}) error {
	o := b.newOp()
	for ino := range inos {
		if !ino.ofBase() {
			continue
		}
		rec, err := b.visibleInode(ino)
		if err != nil {
			return err
		}
		if rec != nil {
			o.recs = append(o.recs, &stagedRec{n: &node{ino: ino}, rec: rec})
		}
	}
	for k := range names {
		rec, ok, err := b.loadName(k.Dir, k.Name)
		if err != nil {
			return err
		}
		if !ok || rec.was == nil || rec.ino == 0 {
			continue
		}
		dn, err := b.find(k.Dir)
		if notThere(err) != nil {
			return err
		}
		if err != nil {
			continue
		}
		defer b.drop(dn)
		o.names = append(o.names, stagedName{dir: dn, name: k.Name, rec: rec})
	}
	o.wantOriginals()
	return nil
}

// intact reports whether a base file's content is as it was.
func (r *inode) intact() bool {
	return r.origin != nil && r.regions == 0 && r.limit == r.origin.size && r.size == r.origin.size
}

// originalLoop keeps what is wanted.
func (t *Tree) originalLoop() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-t.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	tick := time.NewTicker(originalsTick)
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		t.keepOriginals(ctx)
	}
}

// keepOriginals is KeepOriginals for who can do nothing about an error.
func (t *Tree) keepOriginals(ctx context.Context) {
	if err := t.KeepOriginals(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, unix.ENOSPC) {
		t.log.Warn("cannot keep what changed files were before, so changes of others to them could not be merged", "error", err)
	}
}

// KeepOriginals reads what is wanted of the base, now. What it does not come to before ctx ends stays wanted.
func (t *Tree) KeepOriginals(ctx context.Context) error {
	t.texting.Lock() // whoever comes second finds it done
	defer t.texting.Unlock()
	t.mu.Lock()
	todo := t.wanted
	t.wanted = nil
	t.mu.Unlock()
	var b kv.Batch
	taken, size := int64(0), int64(0)
	flush := func() error {
		if b.Len() == 0 {
			return nil
		}
		if err := t.db.CheckSpace(size); err != nil {
			return unix.ENOSPC
		}
		err := t.db.Apply(&b)
		b, size = kv.Batch{}, 0
		return err
	}
	defer t.wantLater(todo)
	for _, path := range slices.Sorted(maps.Keys(todo)) {
		if err := ctx.Err(); err != nil {
			return errors.Join(err, flush())
		}
		w := todo[path]
		delete(todo, path)
		n, err := t.readOriginal(&b, path, &w)
		if taken, size = taken+n, size+n; err == nil && size > 4<<20 {
			err = flush()
		}
		if err != nil {
			return fmt.Errorf("keep what the base has at %q: %w", path, err)
		}
	}
	if err := flush(); err != nil {
		return fmt.Errorf("keep what the base has: %w", err)
	}
	if taken == 0 {
		return nil
	}
	if t.originals.Load() < 0 {
		if err := t.countOriginals(); err != nil {
			return err
		}
	} else {
		t.originals.Add(taken)
	}
	if t.originals.Load() > maxOriginals {
		return t.evictOriginals()
	}
	return nil
}

// wantLater has left be wanted again, unless it is by now, or there is too much.
func (t *Tree) wantLater(left map[string]wantedText) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, w := range left {
		if _, newer := t.wanted[path]; !newer && len(t.wanted) < maxWanted {
			if t.wanted == nil {
				t.wanted = map[string]wantedText{}
			}
			t.wanted[path] = w
		}
	}
}

// readOriginal adds what is wanted of path to b, if it still is there and is text. It returns the bytes that it takes.
func (t *Tree) readOriginal(b *kv.Batch, path string, w *wantedText) (int64, error) {
	if len(path) > kv.MaxOriginalPath {
		return 0, nil
	}
	if _, ok, err := t.db.Get(kv.Original(path, w.stateID())); ok || err != nil {
		return 0, err
	}
	f, st, err := era{t, w.gen}.open(path)
	if err != nil {
		return 0, nil // it is not there any more, or not for us to read: then it is not known
	}
	defer f.release()
	if f.kept != nil || !w.same(&st) {
		return 0, nil // a pre-image has it, or nobody
	}
	text := make([]byte, st.size)
	if n, err := f.readAt(text, 0); err != nil || int64(n) < st.size {
		return 0, nil
	}
	if now, err := t.base.statFD(f.f.fd); err != nil || !w.same(&now) {
		return 0, nil
	}
	return t.putOriginal(b, path, &w.Built, &original{Original: Original{text, st.mode, st.ctime}, ino: w.ino, at: w.at}), nil
}

// originalRec is an e/ record without its text.
type originalRec struct {
	*original
	key  []byte
	size int64
}

func (t *Tree) eachOriginal(fn func(r originalRec) error) error {
	var bad error
	err := t.db.Scan(kv.OriginalPrefix(), nil, func(k, v []byte) bool {
		o, err := decodeOriginal(v, false)
		if err != nil {
			o = &original{} // the first to go
		}
		bad = fn(originalRec{o, slices.Clone(k), int64(len(v))})
		return bad == nil
	})
	return errors.Join(err, bad)
}

func (t *Tree) countOriginals() error {
	total := int64(0)
	err := t.eachOriginal(func(r originalRec) error { total += r.size; return nil })
	if err == nil {
		t.originals.Store(total)
	}
	return err
}

// evictOriginals makes room for a quarter of what there may be: the oldest go.
func (t *Tree) evictOriginals() error {
	var all []originalRec
	if err := t.eachOriginal(func(r originalRec) error { all = append(all, r); return nil }); err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b originalRec) int { return a.since.Compare(b.since) })
	total := int64(0)
	for _, r := range all {
		total += r.size
	}
	var b kv.Batch
	for _, r := range all {
		if total <= maxOriginals*3/4 {
			break
		}
		total -= r.size
		b.Delete(r.key)
	}
	t.originals.Store(total)
	return t.dropOriginals(&b)
}

func (t *Tree) dropOriginals(b *kv.Batch) error {
	b.UseReserve()
	if err := t.db.Apply(b); err != nil {
		return fmt.Errorf("drop what the base had: %w", err)
	}
	return nil
}

// originals removes those that no version of a name or inode is built on any more.
func (c *collector) originals(ctx context.Context) error {
	var gone []originalRec
	err := c.t.eachOriginal(func(r originalRec) error {
		path, id, ok := kv.ParseOriginal(r.key)
		var asked bool
		var err error
		switch {
		case !ok:
		case r.put: // by a commit: its record says when it goes
			err = c.t.db.Scan(kv.PlacedAt("", path), nil, func(_, _ []byte) bool { asked = true; return false })
			if err == nil && !asked {
				asked, err = c.builtOn(r.ino, r.at, id)
			}
		default:
			asked, err = c.builtOn(r.ino, r.at, id)
		}
		if err == nil && !asked {
			gone = append(gone, r)
		}
		return errors.Join(err, ctx.Err())
	})
	if err != nil || len(gone) == 0 {
		return err
	}
	var b kv.Batch
	for _, r := range gone {
		c.stats.Records++
		c.stats.Bytes += r.size
		b.Delete(r.key)
	}
	if c.o.DryRun {
		return nil
	}
	if err := c.t.dropOriginals(&b); err != nil {
		return err
	}
	return c.t.countOriginals()
}

// builtOn reports whether a version of inode ino, or of a name, is built on the state id of the base.
func (c *collector) builtOn(ino Ino, at NameKey, id uint64) (yes bool, err error) {
	if ino != 0 {
		err = c.t.db.Scan(kv.InodePrefix(uint64(ino)), nil, func(k, v []byte) bool {
			rec, err := decodeInode(layerAt(k), v)
			if err == nil {
				w := rec.wasBase(ino)
				yes = w != nil && w.stateID() == id
			}
			return !yes
		})
	}
	if at.Dir == 0 || yes || err != nil {
		return yes, err
	}
	err = c.t.db.Scan(kv.NamePrefix(uint64(at.Dir), at.Name), nil, func(k, v []byte) bool {
		rec, err := decodeName(layerAt(k), v)
		yes = err == nil && rec.was != nil && !rec.was.none && rec.was.stateID() == id
		return !yes
	})
	return yes, err
}
