package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// mergeTries is how often a merge is planned while programs go on; then they wait for it.
const mergeTries = 3

// Merge brings what another branch changed into this one, or says what stands against it. Both are sealed first, as
// automatic checkpoints where something was changed, so undo takes the merge back. The conversation stays.
func (s *Session) Merge(ctx context.Context, r *control.MergeRequest) (*control.Merged, error) {
	if r.Branch == s.o.Branch {
		return nil, badRequest("branch %s cannot be merged into itself: name another one (rewindfs branch list)", r.Branch)
	}
	s.forking.Lock() // neither branch goes meanwhile
	defer s.forking.Unlock()
	if has, err := s.hasBranch(r.Branch); err != nil {
		return nil, apiError(err)
	} else if r.Branch == "" || !has {
		return nil, s.noBranch(r.Branch)
	}
	from, unlock, err := s.mergeFrom(r.Branch)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := firstOf(s.alive(), control.StillWaits(ctx)); err != nil {
		return nil, err
	}
	start := time.Now()
	m := &merging{s: s, from: from, start: start}
	if r.DryRun {
		return m.foresee(ctx)
	}
	return m.run(ctx)
}

// mergeFrom returns the branch to merge, as a session that is not served if it is not mounted. heads of both are locked until unlock.
// Preconditions: s.forking is held.
func (s *Session) mergeFrom(name string) (from *Session, unlock func(), err error) {
	from, err = s.branchNamed(name)
	if err != nil {
		from = newSession(s.store, s.forkOptions(name, ""))
		if from.branch, err = s.tree.Branch(name); err != nil {
			return nil, nil, apiError(fmt.Errorf("open branch %s: %w", name, err))
		}
		from.mount = nil
	}
	first, second := s, from
	if strings.Compare(from.o.Branch, s.o.Branch) < 0 {
		first, second = from, s
	}
	first.heads.Lock()
	second.heads.Lock()
	return from, func() {
		second.heads.Unlock()
		first.heads.Unlock()
		if from.mount == nil {
			from.branch.Close()
		}
	}, nil
}

// merging is one merge.
type merging struct {
	s, from *Session
	start   time.Time
}

// foresee says what a merge would do. Nothing is written.
func (m *merging) foresee(ctx context.Context) (*control.Merged, error) {
	for _, b := range []*Session{m.s, m.from} {
		if b.mount == nil {
			continue
		}
		if err := b.barrier(ctx); err != nil {
			return nil, apiError(err)
		}
	}
	plan, err := m.s.branch.ForeseeMerge(ctx, m.from.branch.HeadLayer())
	for try := 1; err != nil && try < mergeTries && ctx.Err() == nil && !errors.Is(err, layers.ErrGeneration); try++ { // programs may be changing what is looked at
		plan, err = m.s.branch.ForeseeMerge(ctx, m.from.branch.HeadLayer())
	}
	if err != nil {
		return nil, m.refused(err)
	}
	defer plan.Close()
	res := m.describe(ctx, plan)
	res.DryRun = true
	return res, nil
}

// refused explains why two branches cannot be compared.
func (m *merging) refused(err error) error {
	if errors.Is(err, layers.ErrGeneration) {
		return conflict("branches %s and %s stand on different states of the base: a commit came in between. Commit the one, make a new branch of the base, and do there what the other one did (its files: rewindfs diff base --branch %s)",
			m.s.o.Branch, m.from.o.Branch, m.from.o.Branch)
	}
	return apiError(err)
}

// run merges.
func (m *merging) run(ctx context.Context) (*control.Merged, error) {
	m.s.lookAtRuns(ctx)
	theirs, err := m.seal(ctx, m.from, false)
	if err != nil {
		return nil, apiError(err)
	}
	for try := 1; ; try++ {
		res, err := m.try(ctx, theirs, try == mergeTries)
		if !errors.Is(err, layers.ErrMoved) {
			return res, err
		}
	}
}

// seal seals what was changed in b and returns the layer that shows what it has.
func (m *merging) seal(ctx context.Context, b *Session, frozen bool) (layers.Layer, error) {
	if b.mount != nil && !frozen {
		if err := b.barrier(ctx); err != nil {
			return 0, err
		}
	}
	if b.branch.Clean() {
		return b.branch.Parent(), nil
	}
	made, err := b.sealLocked(ctx, sealing{
		entry: journal.Entry{Branch: b.o.Branch, Phase: "merge", Auto: true},
		talk:  b.memory.Live(b.o.Branch), frozen: frozen || b.mount == nil,
	})
	return layers.Layer(made.entry.Layer), err
}

// try plans a merge and applies it; layers.ErrMoved if programs changed something in between. With frozen,
// they wait for all of it.
func (m *merging) try(ctx context.Context, theirs layers.Layer, frozen bool) (*control.Merged, error) {
	s := m.s
	thaw := func() {}
	if frozen {
		if err := s.barrier(ctx); err != nil {
			return nil, apiError(err)
		}
		thaw = s.mount.Freeze()
	}
	defer func() { thaw() }()
	if _, err := m.seal(ctx, s, frozen); err != nil {
		return nil, apiError(err)
	}
	plan, err := s.branch.PlanMerge(ctx, theirs)
	if err != nil {
		return nil, m.refused(err)
	}
	defer plan.Close()
	if len(plan.Conflicts) > 0 || plan.Noop() {
		return m.describe(ctx, plan), nil
	}
	if !frozen {
		if err := s.barrier(ctx); err != nil {
			return nil, apiError(err)
		}
		thaw = s.mount.Freeze()
	}
	moved, op, err := m.apply(plan)
	thaw()
	thaw = func() {}
	if errors.Is(err, layers.ErrMoved) {
		return nil, err
	}
	if err != nil {
		return nil, apiError(err)
	}
	// From here on it has happened: an error is about caches, not about the state.
	if err := s.mount.Notify(moved); err != nil {
		return nil, apiError(fmt.Errorf("branch %s is merged, but the kernel may still show old contents (unmount and mount again): %w", m.from.o.Branch, err))
	}
	res := m.describe(ctx, plan)
	res.Layer, res.EngineUS = uint64(moved.Open), time.Since(m.start).Microseconds()
	res.Busy = wireProcesses(s.mayHold(ctx))
	event := s.event(ledger.KindMerge)
	event.Op, event.Label, event.Layer = op.N, m.from.o.Branch, res.Theirs
	event.Details = map[string]any{"from": m.from.o.Branch, "base": res.Base, "onto": res.Ours, "changed_paths": res.ChangedPaths, "merged_texts": len(res.Merged)}
	s.audit(event)
	s.lifecycle(lifeActive)
	s.log.Info("merge", "from", m.from.o.Branch, "layer", res.Theirs, "base", res.Base, "changed_paths", res.ChangedPaths, "took", time.Since(m.start))
	return res, nil
}

// apply makes a plan so: the layer, and the journal's note of it, in one batch. Preconditions: the mount is frozen.
func (m *merging) apply(plan *layers.Merge) (moved layers.Moved, op journal.Op, err error) {
	s := m.s
	s.layering.Lock()
	defer s.layering.Unlock()
	moved, err = s.branch.Merge(plan, func(b *kv.Batch, mv layers.Moved) (err error) {
		op, err = s.journal.StageOp(b, journal.Op{
			Kind: journal.OpMerge, Branch: s.o.Branch, From: uint64(mv.From), To: uint64(mv.Target), Open: uint64(mv.Open),
			Label: m.from.o.Branch, At: mv.At, Live: s.leftConversation(),
		})
		return err
	}, s.mount.Swapped)
	if op.N != 0 && (err == nil || !s.branch.Clean()) { // applied, whatever came then
		s.journal.Commit(nil, &op)
		s.arrived = s.memory.Live(s.o.Branch)
	}
	return moved, op, err
}

// describe puts a plan into words of the wire.
func (m *merging) describe(ctx context.Context, plan *layers.Merge) *control.Merged {
	res := &control.Merged{
		Branch: m.from.o.Branch, Into: m.s.o.Branch, Base: uint64(plan.Base), Ours: uint64(plan.Ours), Theirs: uint64(plan.Theirs), Noop: plan.Noop(),
		ChangedPaths: int64(len(plan.Changes)), Changes: []control.Change{}, Merged: []control.PathName{}, Conflicts: []control.Conflict{}, Busy: []control.Process{},
		EngineUS: time.Since(m.start).Microseconds(),
	}
	for i := range plan.Changes[:min(maxListed, len(plan.Changes))] {
		res.Changes = append(res.Changes, m.s.markedChange(&plan.Changes[i]))
	}
	for _, p := range plan.Merged[:min(maxListed, len(plan.Merged))] {
		res.Merged = append(res.Merged, control.NameOf(p))
	}
	for _, c := range plan.Conflicts[:min(maxListed, len(plan.Conflicts))] {
		res.Conflicts = append(res.Conflicts, control.Conflict{PathName: control.NameOf(c.Path), Kind: string(c.Kind), Detail: c.Detail})
	}
	res.Truncated = max(len(plan.Changes), len(plan.Conflicts)) > maxListed
	return res
}
