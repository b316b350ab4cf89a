package session

import (
	"context"
	"fmt"
	"maps"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// restoreMessages makes the conversations of m the live ones and leaves the files alone.
// It is a movement that undo takes back, so the present files are sealed, if they changed.
func (s *Session) restoreMessages(ctx context.Context, to journal.Target, m move) (*control.Rollback, error) {
	if err := s.barrier(ctx); err != nil { // what is sealed is what programs have written
		return nil, apiError(err)
	}
	at := uint64(s.branch.Parent())
	op := journal.Op{
		Kind: journal.OpRollback, Branch: s.o.Branch, From: at, To: at, Open: uint64(s.branch.HeadLayer()),
		Label: m.label, Live: s.leftConversation(),
	}
	res := emptyRollback()
	if res.Noop = maps.Equal(m.conv.live, s.memory.Live(s.o.Branch)); !res.Noop {
		if err := s.moveTalk(&op, m, !s.branch.Clean()); err != nil {
			return nil, err
		}
	}
	res.Layer = to.Layer
	res.Checkpoint = to.Name()
	if to.Entry != nil {
		res.CheckpointID = to.Entry.ID
	}
	m.conv.tell(res)
	event := s.event(ledger.KindRollback)
	if res.Noop {
		event.Kind = ledger.KindSkippedNoop
	}
	event.Checkpoint, event.Label, event.Layer, event.Op = res.CheckpointID, res.Checkpoint, res.Layer, op.N
	event.Details = map[string]any{"messages_only": true, "reason": clip(m.reason, 2000)}
	s.audit(event)
	return res, nil
}

// moveTalk makes the conversations of m live, if it has some, and notes op and the targets that m owes, in one batch; with seal, the open
// layer becomes the one that op left. Preconditions: s.heads is held.
func (s *Session) moveTalk(op *journal.Op, m move, seal bool) error {
	s.layering.Lock()
	defer s.layering.Unlock()
	live := func() {}
	stage := func(b *kv.Batch) (err error) {
		b.UseReserve()
		if *op, err = s.journal.StageOp(b, *op); err == nil && m.conv != nil {
			live, err = s.memory.StageLive(b, s.o.Branch, m.conv.live)
		}
		return firstOf(err, s.stageOwed(b, m.back))
	}
	var err error
	if seal {
		_, err = s.branch.Seal(func(b *kv.Batch, sealed layers.Sealed) error {
			op.From, op.To, op.Open = uint64(sealed.Layer), uint64(sealed.Layer), uint64(sealed.Open)
			return stage(b)
		})
	} else {
		var b kv.Batch
		if err = stage(&b); err == nil {
			err = s.db.Apply(&b)
		}
	}
	if err != nil {
		return apiError(fmt.Errorf("note the movement, and make its conversation the live one: %w", err))
	}
	s.journal.Commit(nil, op)
	live()
	s.arrived = s.memory.Live(s.o.Branch)
	return nil
}

// moveWithoutFiles notes a movement in which no file moved: op is empty where there was none. talk says that a conversation or a target does
// move. Preconditions: s.heads is held.
func (s *Session) moveWithoutFiles(m move, moved layers.Moved) (op journal.Op, talk bool, err error) {
	target := uint64(m.target)
	spoken := m.conv != nil && !maps.Equal(m.conv.live, s.memory.Live(s.o.Branch))
	talk = m.back.any() || spoken
	switch {
	case m.kind == journal.OpRollback && m.back.any() && !spoken && m.back.completes():
		// The last movement was to do it: this is no other one.
	case talk || m.conv != nil && m.kind != journal.OpRollback:
		// The conversation or a target moves, or the steps led back to where they began.
		op = s.opOf(m, moved)
		op.From, op.To, op.Open, op.FilesOnly = target, target, uint64(s.branch.HeadLayer()), m.conv == nil
		if op.Untouched = !s.talkedOn() && !s.wentOn(m.back); op.Untouched {
			op.Same = target
		}
		err = s.moveTalk(&op, m, false)
	case m.kind != journal.OpRollback:
		o := s.opOf(m, moved)
		o.Untouched, o.Same = true, target
		_, err = s.noteOp(o)
		err = apiError(err)
	}
	return op, talk, err
}
