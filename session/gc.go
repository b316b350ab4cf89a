package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// A collection drops checkpoints by rules (gcrules.go), gives up the layers that nobody can ask for any
// more, and frees what only these needed. Agents may work meanwhile: the choice is made with layering
// held, like everything that makes a layer, and what takes long needs no lock.

// progressFunc is told how far a call is.
type progressFunc func(control.Progress)

// GC collects garbage.
func (s *Session) GC(ctx context.Context, r *control.GCRequest, out *control.Stream[struct{}]) (*control.GC, error) {
	return s.CollectGarbage(ctx, r, emitTo(out))
}

// emitTo sends progress to the client, who may have gone: that ends the call's context.
func emitTo[Item any](out *control.Stream[Item]) progressFunc {
	return func(p control.Progress) { _ = out.Progress(p) }
}

// CollectGarbage is GC without a stream. Interrupted, it loses nothing, and the next one goes on.
func (s *Session) CollectGarbage(ctx context.Context, r *control.GCRequest, progress func(control.Progress)) (*control.GC, error) {
	if err := checkRules(&r.GCRules); err != nil {
		return nil, err
	}
	if progress == nil {
		progress = func(control.Progress) {}
	}
	end, err := s.work()
	if err != nil {
		return nil, err
	}
	defer end()
	s.thinning.Lock()
	defer s.thinning.Unlock()
	g := &gc{s: s, r: r, progress: progress, out: &control.GC{DryRun: r.DryRun, Dropped: []control.GCDropped{}, MaxSize: r.MaxSize}}
	if g.before, err = s.storeBytes(); err != nil {
		return nil, err
	}
	if err := g.run(ctx); err != nil {
		return nil, apiError(err)
	}
	return g.out, nil
}

// work notes that something goes on that the end of the daemon has to wait for.
func (s *Session) work() (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, &control.Error{Code: control.CodeStopping, Message: fmt.Sprintf("session %s is being unmounted", s.o.Name)}
	}
	s.background.Add(1)
	return s.background.Done, nil
}

// gc is one collection at work.
type gc struct {
	s        *Session
	r        *control.GCRequest
	progress progressFunc
	out      *control.GC
	before   int64 // bytes of the store
	freed    int64 // of those
}

func (g *gc) run(ctx context.Context) error {
	first, err := g.s.choose(&g.r.GCRules)
	if err != nil {
		return err
	}
	if g.r.DryRun {
		return g.foresee(ctx, first)
	}
	err = g.round(ctx, func() ([]journal.Entry, error) {
		if g.r.ForgetUndo {
			if err := g.s.forgetUndo(); err != nil {
				return nil, err
			}
		}
		return g.s.choose(&g.r.GCRules)
	})
	if err != nil {
		return err
	}
	if err := g.shrink(ctx); err != nil {
		return err
	}
	event := g.s.event(ledger.KindGC)
	event.Details = map[string]any{"dropped": len(g.out.Dropped), "layers": g.out.Layers, "freed_bytes": g.out.FreedBytes, "store_bytes": g.out.StoreBytes}
	if g.out.TooLarge {
		event.Details["max_size"], event.Details["too_large"] = g.r.MaxSize, true
		g.s.log.Warn("the store cannot be made as small as asked for: all that is left is needed, or undo leads to it", "max_size", g.r.MaxSize, "store", g.out.StoreBytes)
	}
	g.s.audit(event)
	g.s.log.Info("collected garbage", "dropped", len(g.out.Dropped), "layers", g.out.Layers, "freed", g.out.FreedBytes, "store", g.out.StoreBytes)
	return nil
}

// round drops what pick chooses, with layering held, and frees what only that needed.
func (g *gc) round(ctx context.Context, pick func() ([]journal.Entry, error)) error {
	s := g.s
	bytes := map[layers.Layer]int64{}
	o := layers.CollectOptions{ByLayer: bytes, Progress: g.told("records")}
	gone, stats, err := s.dropAndCollect(ctx, pick, o)
	g.out.Layers += stats.GivenUp
	g.out.Records += stats.Records
	g.dropped(gone, bytes)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	swept, err := s.memory.Sweep(s.spoken())
	if g.out.Records += int64(swept); err != nil {
		return err
	}
	swept, err = s.targets.Sweep(s.neededContents)
	if g.out.Records += int64(swept); err != nil {
		return err
	}
	freed, err := s.tree.Squeeze()
	if g.freed += freed; err != nil {
		return err
	}
	g.out.FreedBytes = g.freed
	g.out.StoreBytes, err = s.storeBytes()
	return err
}

// spoken lists the conversations that checkpoints have, those that are exported, and the states that undo leads to, or once did.
func (s *Session) spoken() (refs []memory.Ref) {
	s.layering.Lock()
	defer s.layering.Unlock()
	add := func(c journal.Conversation) {
		for _, ref := range threadsOf(c) {
			refs = append(refs, ref)
		}
	}
	for _, e := range s.journal.List(nil) {
		add(e.Conversation)
	}
	for p := range s.pinned {
		for _, e := range *p {
			add(e.Conversation)
		}
	}
	for _, op := range s.journal.Ops(0) {
		if op.Live != nil {
			add(*op.Live)
		}
	}
	return refs
}

// told makes progress of what the tree tells.
func (g *gc) told(unit string) func(layers.CollectStats, int64, int64) {
	return func(_ layers.CollectStats, done, total int64) {
		g.progress(control.Progress{Done: done, Total: total, Unit: unit})
	}
}

func (g *gc) dropped(gone []journal.Entry, bytes map[layers.Layer]int64) {
	slices.SortFunc(gone, func(a, b journal.Entry) int { return int(int64(a.Layer) - int64(b.Layer)) })
	for i := range gone {
		l := layers.Layer(gone[i].Layer)
		d := control.GCDropped{Checkpoint: wireCheckpoint(&gone[i]), Bytes: bytes[l]}
		delete(bytes, l) // of several that share a layer, the first one has them
		g.out.Dropped = append(g.out.Dropped, d)
	}
}

// dropAndCollect drops the checkpoints that pick chooses, which is called with layering held, and the
// layers that nobody needs then. Preconditions: s.thinning is held.
func (s *Session) dropAndCollect(ctx context.Context, pick func() ([]journal.Entry, error), o layers.CollectOptions) ([]journal.Entry, layers.CollectStats, error) {
	s.layering.Lock()
	unlock := sync.OnceFunc(s.layering.Unlock)
	defer unlock()
	o.Marked = unlock
	gone, err := pick()
	if err != nil {
		return nil, layers.CollectStats{}, err
	}
	// First they are no checkpoints any more, then their layers are given up: a crash in
	// between leaves layers that nobody can name, for the next collection.
	for part := range slices.Chunk(gone, dropAtOnce) {
		if err := s.removeEntries(part); err != nil {
			return nil, layers.CollectStats{}, err
		}
	}
	keep, err := s.needed(nil, false)
	if err != nil {
		return gone, layers.CollectStats{}, err
	}
	stats, err := s.tree.Collect(ctx, keep, o)
	return gone, stats, err
}

// forgetUndo notes in the journal that nothing can be taken back any more. Preconditions: s.layering is held.
func (s *Session) forgetUndo() error {
	heads, err := s.tree.Heads()
	if err != nil {
		return err
	}
	movers := s.journal.Movers()
	for _, h := range heads {
		if !slices.Contains(movers, h.Branch) {
			continue
		}
		var b kv.Batch
		b.UseReserve()
		op, err := s.journal.StageOp(&b, journal.Op{
			Kind: journal.OpForgetUndo, Branch: h.Branch, From: uint64(h.Layer), To: uint64(h.Parent), Open: uint64(h.Layer),
		})
		if err == nil {
			err = s.db.Apply(&b)
		}
		if err != nil {
			return fmt.Errorf("forget what undo leads to: %w", err)
		}
		s.journal.Commit(nil, &op)
		s.audit(s.opEvent(&op))
	}
	return nil
}

// dropAtOnce is how many checkpoints one batch drops.
const dropAtOnce = 512

// estimate says what dropping gone would free, in bytes of content, and how many layers and records. Nobody waits for it.
func (s *Session) estimate(ctx context.Context, r *control.GCRules, gone []journal.Entry, byLayer map[layers.Layer]int64) (layers.CollectStats, error) {
	without := make(map[string]bool, len(gone))
	for _, e := range gone {
		without[e.ID] = true
	}
	s.layering.Lock()
	keep, err := s.needed(without, r.ForgetUndo)
	s.layering.Unlock()
	if err != nil {
		return layers.CollectStats{}, err
	}
	return s.tree.Collect(ctx, keep, layers.CollectOptions{DryRun: true, ByLayer: byLayer})
}

// foresee fills in what a collection would do that drops at first those of first.
func (g *gc) foresee(ctx context.Context, first []journal.Entry) error {
	loose, err := g.s.tree.LooseBytes()
	if err != nil {
		return err
	}
	ahead, err := g.s.db.LogAhead()
	if err != nil {
		return err
	}
	before := g.before - ahead // which is given back, and held nothing
	gone := first
	if max := g.r.MaxSize; max > 0 {
		more, err := g.enough(ctx, first, before-loose)
		if err != nil {
			return err
		}
		gone = append(gone, more...)
	}
	bytes := map[layers.Layer]int64{}
	stats, err := g.s.estimate(ctx, &g.r.GCRules, gone, bytes)
	if err != nil {
		return err
	}
	g.out.Layers, g.out.Records = stats.GivenUp, stats.Records
	g.out.FreedBytes = min(before, loose+stats.Bytes)
	g.out.StoreBytes = before - g.out.FreedBytes
	g.out.TooLarge = g.r.MaxSize > 0 && g.out.StoreBytes > g.r.MaxSize
	g.dropped(gone, bytes)
	return nil
}

// shrink drops the oldest checkpoints until the store is as small as asked for.
func (g *gc) shrink(ctx context.Context) error {
	for g.r.MaxSize > 0 && g.out.StoreBytes > g.r.MaxSize {
		more, err := g.enough(ctx, nil, g.out.StoreBytes)
		if err != nil {
			return err
		}
		if len(more) == 0 {
			g.out.TooLarge = true
			return nil
		}
		want := map[string]bool{}
		for _, e := range more {
			want[e.ID] = true
		}
		err = g.round(ctx, func() ([]journal.Entry, error) { // those that still may go
			may, err := g.s.chooseMore(&g.r.GCRules, nil)
			return slices.DeleteFunc(may, func(e journal.Entry) bool { return !want[e.ID] }), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// enough chooses the fewest of the checkpoints that may go for the sake of the size, besides those of
// first, that make a store of so many bytes small enough: all of them, if that is not enough.
func (g *gc) enough(ctx context.Context, first []journal.Entry, size int64) ([]journal.Entry, error) {
	g.s.layering.Lock()
	may, err := g.s.chooseMore(&g.r.GCRules, first)
	g.s.layering.Unlock()
	if err != nil {
		return nil, err
	}
	fits := func(n int) (bool, error) {
		stats, err := g.s.estimate(ctx, &g.r.GCRules, slices.Concat(first, may[:n]), nil)
		return size-stats.Bytes <= g.r.MaxSize, err
	}
	lo, hi := -1, 0 // lo is too few; hi is tried next
	for ok := false; ; hi = min(len(may), 2*hi+1) {
		if ok, err = fits(hi); err != nil {
			return nil, err
		}
		if ok || hi == len(may) {
			break
		}
		lo = hi
	}
	for lo+1 < hi {
		mid := (lo + hi) / 2
		ok, err := fits(mid)
		if err != nil {
			return nil, err
		}
		if ok {
			hi = mid
		} else {
			lo = mid
		}
	}
	if hi == 0 && first == nil && len(may) > 0 {
		hi = 1 // the estimate is too good: go on, one by one
	}
	return may[:hi], nil
}

// estimateRest is how many times its own duration an estimate of what is reclaimable is good for, at least.
const estimateRest = 100

// reclaimable is what status says could be freed.
type reclaimable struct {
	bytes   int64
	at      time.Time
	took    time.Duration
	running chan struct{} // closed when the estimate under way is there; nil: none is
}

// reclaimableBytes is about what a collection without rules would free: content of layers that nobody can
// ask for, and chunks that nothing names; not what the index shrinks by. It may be some seconds old.
func (s *Session) reclaimableBytes() int64 {
	s.mu.Lock()
	rec := &s.loose
	fresh := !rec.at.IsZero() && time.Since(rec.at) < max(time.Second, estimateRest*rec.took)
	if !fresh && rec.running == nil && !s.stopping {
		rec.running = make(chan struct{})
		s.background.Go(s.estimateReclaimable)
	}
	wait, first := rec.running, rec.at.IsZero()
	s.mu.Unlock()
	if first && wait != nil {
		select {
		case <-wait:
		case <-time.After(statusPatience):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return rec.bytes
}

// statusPatience is how long the first status waits for the estimate.
const statusPatience = 200 * time.Millisecond

func (s *Session) estimateReclaimable() {
	start := time.Now()
	loose, err := s.tree.LooseBytes()
	var stats layers.CollectStats
	if err == nil {
		var gone []journal.Entry
		s.layering.Lock()
		gone, err = s.choose(&control.GCRules{})
		s.layering.Unlock()
		if err == nil {
			stats, err = s.estimate(context.Background(), &control.GCRules{}, gone, nil)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.log.Warn("estimate what could be freed", "error", err)
	} else {
		s.loose.bytes = loose + stats.Bytes
	}
	s.loose.at, s.loose.took = time.Now(), time.Since(start)
	close(s.loose.running)
	s.loose.running = nil
}
