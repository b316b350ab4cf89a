package session

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// Fsck checks the whole store while it is served.
func (s *Session) Fsck(ctx context.Context, r *control.FsckRequest, out *control.Stream[control.Finding]) (*control.Fsck, error) {
	end, err := s.work()
	if err != nil {
		return nil, err
	}
	defer end()
	s.thinning.Lock() // no checkpoint goes meanwhile
	defer s.thinning.Unlock()
	f := &fsck{
		db: s.db, chunks: s.chunks, store: s.o.Store, live: s.tree, r: r, progress: emitTo(out),
		found: func(f control.Finding) { _ = out.Emit(f) },
	}
	res, err := f.run(ctx)
	if err != nil {
		return nil, apiError(err)
	}
	if res.Fixed > 0 {
		s.audit(f.event())
	}
	return res, nil
}

// CheckStore is Fsck for a store that no daemon serves. It also checks one that cannot be mounted.
func CheckStore(ctx context.Context, o Options, r *control.FsckRequest, found func(control.Finding), progress func(control.Progress)) (_ *control.Fsck, err error) {
	if err := o.Complete(); err != nil {
		return nil, err
	}
	if !isStore(o.Store) {
		return nil, badPath("%s is no store", o.Store)
	}
	s := newSession(newStore(o.Logger), o)
	s.served.Store(&[]*Session{s})
	defer func() { err = firstOf(err, s.release()) }()
	if _, err := s.lockStore(); err != nil {
		return nil, err
	}
	if s.chunks, err = cas.Open(o.Store, s.db, cas.Options{Logger: s.log}); err != nil {
		return nil, storeError(o.Store, err)
	}
	s.db.SetBeforeFlush(s.chunks.Sync)
	f := &fsck{db: s.db, chunks: s.chunks, store: o.Store, r: r, progress: progress, found: found}
	res, err := f.run(ctx)
	if err != nil || res.Fixed == 0 {
		return res, err
	}
	id := s.db.StoreID()
	l, err := ledger.Open(LedgerDir(o.Store), hex.EncodeToString(id[:]), ledger.Options{Now: o.Now})
	if err == nil {
		_, err = l.Append(f.event())
		err = firstOf(err, l.Close())
	}
	if err != nil {
		return res, fmt.Errorf("the store is repaired, but the ledger does not say so: %w", err)
	}
	return res, nil
}

// fsck is one check of a store.
type fsck struct {
	db       *kv.DB
	chunks   *cas.Store
	store    string
	live     *layers.Tree // nil: nobody has opened it
	r        *control.FsckRequest
	progress progressFunc
	found    func(control.Finding)

	out     control.Fsck
	journal *journal.Checked
	names   map[uint64][]string // of the checkpoints of a layer
	fixes   kv.Batch
	lost    []string // for the ledger
}

// event is the ledger's line about a repair.
func (f *fsck) event() ledger.Event {
	return ledger.Event{Kind: ledger.KindRecovered, Branch: MainBranch, Details: map[string]any{
		"action": "fsck", "findings": f.out.Findings, "fixed": f.out.Fixed, "lost": f.out.Lost, "what_is_lost": f.lost,
	}}
}

func (f *fsck) run(ctx context.Context) (*control.Fsck, error) {
	if f.progress == nil {
		f.progress = func(control.Progress) {}
	}
	if rec := f.db.Recovered(); rec.Lost {
		f.report(control.Finding{Kind: "log", What: "what was written last before a power cut is gone, from " + filepath.Base(rec.Where) + " on", Lost: true}, nil)
	}
	for _, step := range []func() error{f.checkJournal, f.checkMemory, f.checkTargets, func() error { return f.checkLayers(ctx) }, f.apply, f.checkLedger} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("check the store: %w", err)
		}
	}
	f.out.Clean = f.out.Findings == 0
	return &f.out, nil
}

// report passes a finding on. key, if it is not nil, is a record that a repair removes.
func (f *fsck) report(g control.Finding, key []byte) {
	f.out.Findings++
	if key != nil && f.r.Repair && f.live == nil {
		f.fixes.Delete(key)
		g.Fixed = true
		f.out.Fixed++
	}
	f.pass(g)
}

// maxLost is how many lost things the ledger names.
const maxLost = 20

func (f *fsck) pass(g control.Finding) {
	if g.Lost {
		f.out.Lost++
		if len(f.lost) < maxLost {
			f.lost = append(f.lost, quotePath(g.Path)+" in "+fmt.Sprint(g.Checkpoints)+": "+g.Kind)
		}
	}
	if g.Checkpoints == nil {
		g.Checkpoints = []string{}
	}
	f.found(g)
}

func (f *fsck) checkJournal() (err error) {
	if f.journal, err = journal.Check(f.db); err != nil {
		return err
	}
	f.names = map[uint64][]string{}
	for _, e := range f.journal.Entries {
		name := e.ID
		if e.Label != "" {
			name = e.Label
		}
		f.names[e.Layer] = append(f.names[e.Layer], name)
	}
	for _, d := range f.journal.Damage {
		g := control.Finding{Kind: "journal", What: d.What, Lost: true}
		if d.Layer != 0 {
			g.Checkpoints = []string{fmt.Sprintf("layer %d", d.Layer)}
		}
		f.report(g, d.Key)
	}
	return nil
}

// checkMemory checks the conversations of checkpoints, of states that undo leads to, and the live ones.
func (f *fsck) checkMemory() error {
	c := memory.NewChecker(f.db)
	check := func(conv journal.Conversation, in string) {
		for name, ref := range threadsOf(conv) {
			if err := c.History(ref); err != nil {
				f.report(control.Finding{Kind: "conversation", What: fmt.Sprintf("%s: %v", name, err), Checkpoints: []string{in}, Lost: true}, nil)
			}
		}
	}
	for _, e := range f.journal.Entries {
		check(e.Conversation, f.names[e.Layer][0])
	}
	for _, op := range f.journal.Ops {
		if op.Live != nil {
			check(*op.Live, fmt.Sprintf("operation %d", op.N))
		}
	}
	return c.Live(func(branch, thread string, d memory.Damage) {
		f.report(control.Finding{Kind: "conversation", What: d.What, Checkpoints: []string{"the head of " + branch}, Lost: true}, d.Key)
	})
}

func (f *fsck) checkLayers(ctx context.Context) error {
	heads := map[layers.Layer]string{}
	o := layers.CheckOptions{
		Repair: f.r.Repair, Live: f.live, SkipContent: f.r.Quick, Branches: map[string]layers.Layer{},
		Progress: func(done, total int64, unit string) {
			f.progress(control.Progress{Done: done, Total: total, Unit: unit})
		},
		Known: func(l layers.Layer) (layers.Layer, layers.Time, bool) {
			p, at, ok := f.journal.Parent(uint64(l))
			if at.IsZero() {
				return layers.Layer(p), layers.Time{}, ok
			}
			return layers.Layer(p), layers.TimeOf(at), ok
		},
	}
	for name, l := range f.journal.Heads() {
		o.Branches[name] = layers.Layer(l)
		heads[layers.Layer(l)] = name
	}
	for l := range f.names {
		o.Needed = append(o.Needed, layers.Layer(l))
	}
	o.Found = func(g layers.Finding) {
		out := control.Finding{PathName: control.NameOf(g.Path), Kind: g.Kind, What: g.What, Lost: g.Lost, Fixed: g.Fixed}
		for _, l := range g.Layers {
			switch names := f.names[uint64(l)]; {
			case len(names) > 0:
				out.Checkpoints = append(out.Checkpoints, names...)
			case heads[l] != "":
				out.Checkpoints = append(out.Checkpoints, "the head of "+heads[l])
			default:
				out.Checkpoints = append(out.Checkpoints, fmt.Sprintf("layer %d", l))
			}
		}
		out.Checkpoints = slices.Compact(out.Checkpoints)
		f.pass(out)
	}
	st, err := layers.Check(ctx, f.db, f.chunks, o)
	f.out.Findings += st.Findings
	f.out.Fixed += st.Fixed
	f.out.Layers, f.out.Records, f.out.Chunks, f.out.Bytes = st.Layers, st.Records, st.Chunks, st.Bytes
	return err
}

// apply makes the repairs outside of the layers so.
func (f *fsck) apply() error {
	if f.fixes.Len() == 0 {
		return nil
	}
	f.fixes.UseReserve()
	return f.db.Apply(&f.fixes)
}

func (f *fsck) checkLedger() error {
	id := f.db.StoreID()
	rep, err := ledger.Verify(LedgerDir(f.store), hex.EncodeToString(id[:]))
	if err != nil {
		f.report(control.Finding{Kind: "ledger", What: err.Error()}, nil)
		return nil
	}
	for _, d := range rep.Damage {
		f.report(control.Finding{Kind: "ledger", What: d.String()}, nil)
	}
	return nil
}
