package session

import (
	"context"
	"fmt"
	"sync"

	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// dropCheckpoints forgets the checkpoints that choose picks, which is called with s.heads
// held, and gives back what nothing else needs of them. It returns what was dropped.
func (s *Session) dropCheckpoints(ctx context.Context, choose func() []journal.Entry) ([]journal.Entry, error) {
	s.thinning.Lock()
	defer s.thinning.Unlock()
	s.heads.Lock()
	if err := s.alive(); err != nil {
		s.heads.Unlock()
		return nil, err
	}
	gone := choose()
	if len(gone) == 0 {
		s.heads.Unlock()
		return nil, nil
	}
	s.layering.Lock() // no other branch makes a layer either
	unlock := sync.OnceFunc(func() {
		s.layering.Unlock()
		s.heads.Unlock()
	})
	defer unlock()
	// First they are no checkpoints any more, then their layers are given up: a crash in
	// between leaves layers that nobody can name, for the next collection.
	if err := s.removeEntries(gone); err != nil {
		return nil, apiError(err)
	}
	keep, err := s.needed(nil, false)
	if err != nil {
		return nil, apiError(err)
	}
	stats, err := s.tree.Collect(ctx, keep, layers.CollectOptions{Marked: unlock})
	if err == nil && stats.Bytes > 0 {
		_, err = s.tree.Reclaim()
	}
	if err != nil {
		// The checkpoints are gone; the next collection frees what this one did not.
		s.log.Warn("free what dropped checkpoints held", "error", err)
	}
	return gone, nil
}

// removeEntries takes checkpoints out of the journal. Preconditions: s.heads is held.
func (s *Session) removeEntries(gone []journal.Entry) error {
	var b kv.Batch
	b.UseReserve()
	s.journal.StageRemove(&b, gone)
	events := make([]ledger.Event, len(gone))
	for i, e := range gone {
		events[i] = s.event(ledger.KindPolicy)
		events[i].Checkpoint, events[i].Label, events[i].Layer = e.ID, e.Label, e.Layer
		events[i].Details = map[string]any{"action": "drop", "auto": e.Auto, "pending": e.Pending}
	}
	if err := s.applyOwing(&b, events...); err != nil {
		return fmt.Errorf("drop %d checkpoints: %w", len(gone), err)
	}
	s.journal.CommitRemove(gone)
	for i := range gone {
		for _, b := range s.sessions() {
			if last := b.before.Load(); last != nil && last.ID == gone[i].ID {
				b.before.CompareAndSwap(last, nil)
			}
		}
	}
	return nil
}

// needed lists the layers that a checkpoint, but for those of without (by id), and unless noUndo is set undo or redo, of
// any branch, may ask for. Preconditions: s.layering is held, until the collection has marked what goes.
func (s *Session) needed(without map[string]bool, noUndo bool) ([]layers.Layer, error) {
	var keep []layers.Layer
	add := func(l uint64) {
		if l := layers.Layer(l); l != layers.BaseLayer && s.tree.Has(l) {
			keep = append(keep, l)
		}
	}
	for _, e := range s.journal.List(nil) {
		if !without[e.ID] {
			add(e.Layer)
		}
	}
	if !noUndo {
		for _, l := range s.journal.Reachable() {
			add(l)
		}
	}
	for p := range s.pinned {
		for _, e := range *p {
			add(e.Layer)
		}
	}
	for b := range s.staged {
		keep = append(keep, b.Line()...)
	}
	add(s.committed.Load())
	forks, err := s.tree.Forks()
	for _, l := range forks {
		add(uint64(l))
	}
	return keep, err
}

// thinOut drops the automatic checkpoints that the policy does not keep, in the
// background. Preconditions: s.heads is held.
func (s *Session) thinOut() {
	p := s.policy.AutoCheckpoint
	if p == nil || p.KeepLast == 0 || len(s.tooMany(p.KeepLast)) == 0 {
		return
	}
	if s.thins {
		return // whoever is at it looks again
	}
	s.thins = true
	s.background.Go(func() {
		for more := true; more; {
			gone, err := s.dropCheckpoints(context.Background(), func() (gone []journal.Entry) {
				if p := s.policy.AutoCheckpoint; p != nil && p.KeepLast > 0 {
					gone = s.tooMany(p.KeepLast)
				}
				s.thins = len(gone) > 0
				return gone
			})
			if more = err == nil && len(gone) > 0; err != nil {
				s.log.Warn("thin out automatic checkpoints", "error", err)
				s.heads.Lock()
				s.thins = false
				s.heads.Unlock()
			}
		}
	})
}

// tooMany lists the automatic checkpoints of the branch but for the newest keep. The one in
// front of calls under way is spared, and the one that automatic rollbacks go to.
func (s *Session) tooMany(keep int) []journal.Entry {
	var gone []journal.Entry
	spared := map[string]bool{}
	if last := s.before.Load(); last != nil {
		spared[last.ID] = true
	}
	if p := s.policy.AutoRollback; p != nil {
		if to, err := s.resolve(p.To); err == nil && to.Entry != nil {
			spared[to.Entry.ID] = true
		}
	}
	for _, e := range s.journal.List(nil) { // newest first
		if !e.Auto || e.Branch != s.o.Branch {
			continue
		}
		if keep > 0 {
			keep--
			continue
		}
		if !spared[e.ID] {
			gone = append(gone, e)
		}
	}
	return gone
}
