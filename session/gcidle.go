package session

import (
	"context"

	"github.com/rewindfs/rewindfs/control"
)

// idleGC collects garbage by the policy when nobody works: when no request came for a tick of the
// daemon's clock, and something was written or moved since the last time.
type idleGC struct {
	requests uint64 // at the last tick
	done     [2]int64
}

// tick starts a collection if one is due. ctx ends it.
func (k *idleGC) tick(ctx context.Context, s *Session) {
	var sum uint64
	for _, n := range s.requests() {
		sum += n
	}
	quiet := sum == k.requests
	k.requests = sum
	now := [2]int64{s.tree.Written(), int64(len(s.journal.Ops(0)))}
	if !quiet || now == k.done || !s.heads.TryLock() {
		return
	}
	rules := s.policy.GC
	s.heads.Unlock()
	if rules == nil || !s.thinning.TryLock() {
		return
	}
	s.thinning.Unlock() // nobody else is at it
	k.done = now
	s.background.Go(func() {
		_, err := s.CollectGarbage(ctx, &control.GCRequest{GCRules: *rules}, nil)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("collect garbage by the policy", "error", err)
		}
	})
}
