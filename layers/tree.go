package layers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

// Options configure a Tree.
type Options struct {
	Logger *slog.Logger     // nil: slog.Default
	Now    func() time.Time // nil: time.Now
	// Drifted, if set, is told of a base file whose content changed under the
	// mount, so that the kernel's cache of it can be voided. If another object took
	// its place, name is where, and is to be looked up again. It must not block.
	Drifted func(i Ino, name *NameKey)
	// Spare, if set, says which paths (relative to the root) stay as they are when a head moves; it says so of all below a
	// directory of which it does. It does not change.
	Spare func(path string, dir bool) bool
	// Named, if set, calls fn for every chunk that others than the tree need, see NameChunks.
	Named func(fn func(cas.Hash)) error
}

// Tree is one store's versioned tree.
type Tree struct {
	db      *kv.DB
	chunks  *cas.Store
	base    *Base
	log     *slog.Logger
	now     func() time.Time
	drifted func(Ino, *NameKey)
	spare   func(path string, dir bool) bool // nil: nothing
	others  func(fn func(cas.Hash)) error    // nil: nobody; see Options.Named

	// mu guards everything below, and all that hangs on it: views, nodes,
	// directory states, pending bytes. No hashing and no pack or content I/O
	// happens with it held; stats of base objects do.
	mu        sync.RWMutex
	layers    map[Layer]*layerRec // but for the doomed ones. A record in it is replaced, never changed
	doomed    map[Layer]*layerRec // given up as a whole, and not all gone yet
	digested  map[Layer]bool      // those of layers with a g/ record
	nextLayer Layer
	mixed     bool   // some layer has merged another: an inode may be in lines that the layer which made it is not in
	marked    uint64 // how often layers were given up

	ancestries map[Layer]ancestry // some of them

	own       inoCounter // of objects made in the tree
	sourced   inoCounter // of files made in the tree with content of the base
	mapped    inoCounter // of base objects
	branches  map[string]*Branch
	views     map[*View]struct{}
	shared    map[Ino]struct{} // numbers of the host that some object had to give up, see inoOf
	copied    map[Ino]Layer    // base inode numbers that have an n/ record in some layer: from which on they may
	origins   map[Ino]uint64   // of those some, which object of the base at which path has the number, see originID. Guarded by mu
	seed      maphash.Seed     // of originID
	pend      map[Ino][]*pending
	pendBytes int64
	pendSeq   uint64
	listed    int // base directory entries held in listings

	named map[cas.Hash]struct{} // while a reclaim is under way: the chunks named since its start
	loose int64                 // bytes, about, that lost a name since the last reclaim

	// reclaiming is held by the one who reclaims. Taken before mu, and only by
	// who holds nothing else of the tree.
	reclaiming sync.Mutex
	reclaims   atomic.Uint64 // how many were completed

	// collecting holds the token of the one who removes what was given up. Taken
	// with nothing else of the tree held.
	collecting chan struct{}

	written atomic.Int64 // bytes that programs wrote

	gen      uint64                    // of the base: how many commits there were. Guarded by mu
	kept     atomic.Pointer[keptIndex] // what of older generations there are pre-images. Stored with mu held
	keeping  sync.Mutex                // held by the one who makes or removes pre-images; taken before mu
	leftover bool                      // some were made for a commit that did not come. Guarded by keeping

	texting   sync.Mutex            // held by the one who reads originals; taken before mu
	wanted    map[string]wantedText // by path in the base: texts to be kept, see original.go. Guarded by mu
	originals atomic.Int64          // bytes, about, of e/ records; -1: not counted yet

	cutWake chan struct{} // tells the cutter that there is much to do
	stop    chan struct{}
	stopped sync.WaitGroup
}

// Open loads the tree of a store. db, chunks and base stay the caller's to close.
func Open(db *kv.DB, chunks *cas.Store, base *Base, o Options) (*Tree, error) {
	t := &Tree{
		db: db, chunks: chunks, base: base, log: o.Logger, now: o.Now, drifted: o.Drifted, spare: o.Spare, others: o.Named,
		layers:     map[Layer]*layerRec{},
		doomed:     map[Layer]*layerRec{},
		digested:   map[Layer]bool{},
		ancestries: map[Layer]ancestry{},
		branches:   map[string]*Branch{},
		views:      map[*View]struct{}{},
		copied:     map[Ino]Layer{},
		origins:    map[Ino]uint64{},
		seed:       maphash.MakeSeed(),
		shared:     map[Ino]struct{}{},
		pend:       map[Ino][]*pending{},
		loose:      looseWorth, // nobody knows what the last daemon left
		collecting: make(chan struct{}, 1),
		cutWake:    make(chan struct{}, 1),
		own:        inoCounter{key: metaNextIno},
		sourced:    inoCounter{key: metaNextSourced},
		mapped:     inoCounter{key: metaNextMapped},
		stop:       make(chan struct{}),
	}
	t.originals.Store(-1)
	if t.log == nil {
		t.log = slog.Default()
	}
	if t.now == nil {
		t.now = time.Now
	}
	if t.drifted == nil {
		t.drifted = func(Ino, *NameKey) {}
	}
	for _, load := range []func() error{t.loadCounters, t.loadKept, t.loadShared, t.loadLayers, t.loadDigests, t.loadCopied, t.loadPending} {
		if err := load(); err != nil {
			return nil, fmt.Errorf("open tree: %w", err)
		}
	}
	if err := t.cutWhatFits(); err != nil {
		return nil, fmt.Errorf("open tree: store what was written before the last stop: %w", err)
	}
	t.stopped.Go(t.cutLoop)
	t.stopped.Go(t.originalLoop)
	t.stopped.Go(t.reclaimLoop)
	t.stopped.Go(t.digestLoop)
	if t.unfinished() {
		t.stopped.Go(t.resumeCollect)
	}
	return t, nil
}

// Close cuts what is pending and stops background work.
func (t *Tree) Close() error {
	close(t.stop)
	t.stopped.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), originalsEnd)
	defer cancel()
	t.keepOriginals(ctx)
	return t.cutWhatFits()
}

// cutWhatFits cuts everything pending, or on a full disk as much as there is room
// for: the rest stays in the log, where it is as safe.
func (t *Tree) cutWhatFits() error {
	err := t.cutAll()
	if errors.Is(err, unix.ENOSPC) {
		t.log.Warn("the disk is full: some written bytes stay in the log", "error", err)
		return nil
	}
	return err
}

const (
	metaNextIno     = "next_ino"
	metaNextSourced = "next_sourced_ino"
	metaNextMapped  = "next_base_ino"
	metaNextLayer   = "next_layer"
	metaBaseGen     = "base_gen"
)

func (t *Tree) loadCounters() error {
	for _, c := range []struct {
		*inoCounter
		first Ino
	}{{&t.own, firstOwnIno}, {&t.sourced, firstSourced}, {&t.mapped, firstMapped}} {
		next, err := t.counter(c.key, uint64(c.first))
		if err != nil {
			return err
		}
		c.next, c.limit = Ino(next), Ino(next)
	}
	l, err := t.counter(metaNextLayer, uint64(BaseLayer)+1)
	if err != nil {
		return err
	}
	if t.gen, err = t.counter(metaBaseGen, 0); err != nil {
		return err
	}
	t.nextLayer = Layer(l)
	return nil
}

func (t *Tree) counter(name string, first uint64) (uint64, error) {
	v, ok, err := t.db.Get(kv.Meta(name))
	if err != nil || !ok {
		return first, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("counter %s has %d bytes: %w", name, len(v), ErrCorrupt)
	}
	return binary.BigEndian.Uint64(v), nil
}

func putCounter(b *kv.Batch, name string, v uint64) {
	b.Put(kv.Meta(name), binary.BigEndian.AppendUint64(nil, v))
}

func (t *Tree) loadLayers() error {
	var bad error
	err := t.db.Scan(kv.LayerPrefix(), nil, func(k, v []byte) bool {
		l, ok := kv.ParseLayerKey(k)
		rec, err := decodeLayer(v)
		if !ok || err != nil {
			bad = errors.Join(fmt.Errorf("layer record %x: %w", k, ErrCorrupt), err)
			return false
		}
		if rec.given == givenAll {
			t.doomed[Layer(l)] = &rec
		} else {
			t.layers[Layer(l)] = &rec
		}
		t.mixed = t.mixed || rec.merged != BaseLayer
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	for l, rec := range t.layers {
		if rec.parent >= l || (rec.parent != BaseLayer && t.layers[rec.parent] == nil) {
			return fmt.Errorf("layer %d has parent %d: %w", l, rec.parent, ErrCorrupt)
		}
	}
	return nil
}

// loadCopied finds the base inodes that have records, so that a lookup in the
// base can tell from memory that an object has none.
func (t *Tree) loadCopied() error {
	for from, next := Ino(0), Ino(0); ; from = next {
		err := t.db.Scan(kv.InodesPrefix(), kv.InodePrefix(uint64(from)), func(k, _ []byte) bool {
			ino, _, ok := kv.ParseInode(k)
			switch i := Ino(ino); {
			case !ok:
			case i.ofBase():
				t.copied[i] = BaseLayer + 1 // which is the first takes reading them all to know
				next = i + 1
			default:
				next = firstMapped
			}
			return false
		})
		if err != nil || next == from {
			return err
		}
	}
}

// Sync returns when everything acknowledged before the call survives a power cut.
func (t *Tree) Sync() error {
	if err := t.chunks.Sync(); err != nil {
		return fmt.Errorf("sync chunks: %w", err)
	}
	if err := t.db.Sync(); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	return nil
}

// Has reports whether layer l can be looked at, in whatever line: the store holds
// it, and it has not been given up.
func (t *Tree) Has(l Layer) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return l == BaseLayer || t.held(l) != nil
}

// held returns the record of a layer that has not been given up, nil for any other.
// The caller holds t.mu.
func (t *Tree) held(l Layer) *layerRec {
	if rec := t.layers[l]; rec != nil && rec.given == givenNot {
		return rec
	}
	return nil
}

// Written returns how many bytes programs wrote since Open.
func (t *Tree) Written() int64 { return t.written.Load() }

// Usage is what a tree holds in memory.
type Usage struct {
	Nodes        int   // inodes known to the kernel
	PendingBytes int64 // written bytes not yet cut into chunks
}

// Usage counts what is in memory now.
func (t *Tree) Usage() Usage {
	t.mu.RLock()
	defer t.mu.RUnlock()
	u := Usage{PendingBytes: t.pendBytes}
	for _, b := range t.branches {
		u.Nodes += len(b.nodes)
	}
	return u
}

// Drift lists, in no order, base objects that branch b's records depend on and
// that are no longer what they were when they were recorded.
func (b *Branch) Drift() ([]Drift, error) {
	t := b.t
	t.mu.RLock()
	recs, err := b.based()
	t.mu.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("list what depends on the base: %w", err)
	}
	var out []Drift
	for _, rec := range recs { // looking at the base needs no lock
		if why := b.base.driftOf(rec); why != "" {
			out = append(out, Drift{Path: rec.content().path, Reason: why})
		}
	}
	return out, nil
}

// based lists the visible records of objects that are in the base, too, or have content of it.
func (b *Branch) based() ([]*inode, error) {
	var out []*inode
	var bad error
	last := Ino(0)
	visit := func(k, v []byte) bool {
		ino, l, ok := kv.ParseInode(k)
		if !ok || firstOwnIno <= Ino(ino) && Ino(ino) < firstSourced {
			return false
		}
		if Ino(ino) == last || !b.anc.has(Layer(l)) {
			return true
		}
		last = Ino(ino)
		var rec *inode
		if rec, bad = decodeInode(Layer(l), v); bad != nil {
			return false
		}
		if rec.content() != nil {
			out = append(out, rec)
		}
		return true
	}
	for _, from := range []Ino{0, firstSourced} {
		if err := b.t.db.Scan(kv.InodesPrefix(), kv.InodePrefix(uint64(from)), visit); err != nil || bad != nil {
			return nil, errors.Join(err, bad)
		}
	}
	return out, nil
}

// driftOf says how the base object of rec differs from what was recorded, or "".
func (e era) driftOf(rec *inode) string {
	o := rec.content()
	st, err := e.stat(o.path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ESTALE):
		return "removed"
	case err != nil:
		return err.Error()
	case st.ino != o.ino || st.btime != o.btime || st.mode&unix.S_IFMT != rec.mode&unix.S_IFMT:
		return "replaced"
	case rec.mode&unix.S_IFMT == unix.S_IFREG && (st.size != o.size || st.mtime != o.mtime || st.ctime != o.ctime):
		return "changed"
	}
	return ""
}
