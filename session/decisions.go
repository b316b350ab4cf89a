package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// The states of a checkpoint that is recorded first and attached later.
const (
	checkpointRecorded = "recorded"
	checkpointAttached = "attached"
	checkpointRejected = "rejected"
)

// describeCheckpoint is wireCheckpoint with what was decided about it.
func (s *Session) describeCheckpoint(e *journal.Entry) control.Checkpoint {
	c := wireCheckpoint(e)
	d, ok := s.journal.Decided(e.ID)
	switch {
	case ok && d.Kind == journal.Attach:
		c.State = checkpointAttached
	case ok:
		c.State = checkpointRejected
	case e.Pending:
		c.State = checkpointRecorded
	case !e.Auto:
		c.State = checkpointAttached
	}
	return c
}

// sameRevision finds the recorded checkpoint that e would repeat: nothing was changed
// or said since, and nothing else asked for. Preconditions: s.heads is held.
func (s *Session) sameRevision(ctx context.Context, e *journal.Entry, now memory.Threads) (journal.Entry, bool) {
	if s.barrier(ctx) != nil || !s.branch.Clean() { // sealing will meet the same error
		return journal.Entry{}, false
	}
	first, ok := s.journal.Newest(uint64(s.branch.Parent()))
	if !ok || !first.Pending || e.Label != "" && e.Label != first.Label {
		return journal.Entry{}, false
	}
	before := threadsOf(first.Conversation)
	if len(before) != len(now) {
		return journal.Entry{}, false
	}
	for name, ref := range now {
		if before[name] != ref {
			return journal.Entry{}, false
		}
	}
	return first, true
}

// checkpointOf finds a checkpoint, not the base. Preconditions: s.heads is held.
func (s *Session) checkpointOf(ref string) (journal.Entry, error) {
	to, err := s.resolve(ref)
	if err != nil {
		return journal.Entry{}, err
	}
	if to.Entry == nil {
		return journal.Entry{}, badRequest("the base is no checkpoint")
	}
	return *to.Entry, nil
}

// Attach makes a recorded checkpoint count, and the current one.
func (s *Session) Attach(_ context.Context, r *control.CheckpointRef) (*control.Checkpoint, error) {
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	e, err := s.checkpointOf(r.Ref)
	if err != nil {
		return nil, err
	}
	if cur := s.attached(); len(cur) == 0 || cur[len(cur)-1].ID != e.ID {
		if err := s.decide(journal.Attach, &e); err != nil {
			return nil, err
		}
	}
	c := s.describeCheckpoint(&e)
	return &c, nil
}

// Reject takes back that a checkpoint is the current one: the one attached before it is
// again. When something newer was attached since, it changes nothing.
func (s *Session) Reject(_ context.Context, r *control.CheckpointRef) (*control.Rejected, error) {
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	stack := s.attached()
	e, err := s.checkpointOf(r.Ref)
	if err != nil { // a rollback that went past it frees a label, but not that of the current one
		at := slices.IndexFunc(stack, func(a journal.Entry) bool { return a.Label == r.Ref && r.Ref != "" })
		if at < 0 {
			return nil, err
		}
		e = stack[at]
	}
	at := slices.IndexFunc(stack, func(a journal.Entry) bool { return a.ID == e.ID })
	out := &control.Rejected{}
	switch {
	case at >= 0 && at == len(stack)-1:
		out.Moved = true
		stack = stack[:at]
		fallthrough
	case at < 0:
		if d, ok := s.journal.Decided(e.ID); !ok || d.Kind != journal.Reject {
			if err := s.decide(journal.Reject, &e); err != nil {
				return nil, err
			}
		}
	}
	out.Rejected = s.describeCheckpoint(&e)
	if n := len(stack); n > 0 {
		c := s.describeCheckpoint(&stack[n-1])
		c.Dropped = !s.line(c.Layer)
		out.Current = &c
	}
	return out, nil
}

// decide records a decision. Preconditions: s.heads is held.
func (s *Session) decide(kind journal.DecisionKind, e *journal.Entry) error {
	s.layering.Lock()
	defer s.layering.Unlock()
	var b kv.Batch
	b.UseReserve()
	event := s.event(ledger.KindPolicy)
	event.Checkpoint, event.Label, event.Layer = e.ID, e.Label, e.Layer
	event.Details = map[string]any{"action": string(kind)}
	d, err := s.journal.StageDecision(&b, journal.Decision{Kind: kind, ID: e.ID})
	if err == nil {
		err = s.applyOwing(&b, event)
	}
	if err != nil {
		return apiError(fmt.Errorf("%s the checkpoint: %w", kind, err))
	}
	s.journal.CommitDecision(d)
	return nil
}

// attached lists the checkpoints of the branch that are attached, the current one last. Those of
// a dropped branch that had its name are none of them.
func (s *Session) attached() []journal.Entry {
	return slices.DeleteFunc(s.journal.Attached(s.o.Branch), func(e journal.Entry) bool { return e.Layer < s.born })
}

// Current returns the checkpoint attached last.
func (s *Session) Current(context.Context, *control.None) (*control.Checkpoint, error) {
	stack := s.attached()
	if len(stack) == 0 {
		return nil, &control.Error{Code: control.CodeUnknownCheckpoint, Message: "no checkpoint is attached"}
	}
	c := s.describeCheckpoint(&stack[len(stack)-1])
	c.Dropped = !s.line(c.Layer)
	return &c, nil
}

// maxCollect bounds how many recorded checkpoints one call drops.
const maxCollect = 1000

// Collect drops recorded checkpoints that were never attached.
func (s *Session) Collect(ctx context.Context, r *control.CollectRequest) (*control.Collected, error) {
	if r.BeforeMS < 0 || r.Limit < 0 || r.Limit > maxCollect {
		return nil, badRequest("collect: the age must not be negative, and the limit 1 to %d", maxCollect)
	}
	limit := r.Limit
	if limit == 0 {
		limit = maxCollect
	}
	before := s.o.Now().Add(-time.Duration(r.BeforeMS) * time.Millisecond)
	out := &control.Collected{Checkpoints: []control.Checkpoint{}}
	gone, err := s.dropCheckpoints(ctx, func() []journal.Entry {
		var gone []journal.Entry
		for _, e := range s.journal.Undecided() {
			if e.CreatedAt.After(before) {
				continue
			}
			if len(gone) == limit {
				out.More = true
				break
			}
			gone = append(gone, e)
		}
		return gone
	})
	if err != nil {
		return nil, err
	}
	for i := range gone {
		out.Checkpoints = append(out.Checkpoints, wireCheckpoint(&gone[i]))
	}
	return out, nil
}

// Delete drops a checkpoint. What nothing else needs of it gives its space back.
func (s *Session) Delete(ctx context.Context, r *control.CheckpointRef) (*control.Checkpoint, error) {
	var found error
	gone, err := s.dropCheckpoints(ctx, func() []journal.Entry {
		e, err := s.checkpointOf(r.Ref)
		if found = err; err != nil {
			return nil
		}
		s.lookAtRuns(ctx)
		for _, r := range s.openRuns("") {
			if r.Checkpoint == e.ID {
				found = conflict("the command %q began there, and has not ended: undo needs the checkpoint until then", r.Label)
				return nil
			}
		}
		return []journal.Entry{e}
	})
	if err = firstOf(found, err); err != nil {
		return nil, err
	}
	c := wireCheckpoint(&gone[0])
	c.Dropped = true
	return &c, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
