package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// maxListed bounds the paths that one answer lists.
const maxListed = 100_000

// Rollback makes the head show a checkpoint again, or tells what that would
// change. The present state is sealed first, so undo brings it back.
func (s *Session) Rollback(ctx context.Context, r *control.RollbackRequest) (*control.Rollback, error) {
	when := r.WhenBusy
	if r.DryRun {
		when.IfBusy = control.BusyGoOn
	}
	if err := s.lockWhenIdle(ctx, when); err != nil {
		return nil, err
	}
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	to, err := s.resolve(r.Ref)
	if err != nil {
		return nil, err
	}
	if r.FilesOnly && r.MessagesOnly {
		return nil, badRequest("either the files alone or the messages alone")
	}
	g := going{
		touch: r.Touch, reason: r.Notes, noNotice: r.NoNotice, filesOnly: r.FilesOnly, messagesOnly: r.MessagesOnly, noTargets: r.NoTargets,
	}
	if r.DryRun {
		return s.foresee(ctx, to, g)
	}
	return s.rollbackTo(ctx, to, g)
}

// going says how to go back to a checkpoint.
type going struct {
	touch                   bool
	reason                  string // why, for the model and the ledger
	noNotice                bool
	filesOnly, messagesOnly bool
	noTargets               bool   // leave what is outside of the mount as it is
	trigger                 string // what asked for it, "" for a person or a program
}

// rollbackTo brings back the files and the conversations of a checkpoint, in one batch.
// Preconditions: s.heads is held.
func (s *Session) rollbackTo(ctx context.Context, to journal.Target, g going) (*control.Rollback, error) {
	s.lookAtRuns(ctx)
	m := move{
		target: layers.Layer(to.Layer), touch: g.touch, kind: journal.OpRollback, label: to.Name(),
		reason: g.reason, trigger: g.trigger,
	}
	if !g.filesOnly {
		snap := journal.NoConversation()
		if to.Entry != nil {
			snap = to.Entry.Conversation
		}
		var err error
		if m.conv, err = s.restoreConversations(to.Entry, snap, wanted{as: spoken(to), reason: g.reason, noNotice: g.noNotice, alone: g.messagesOnly}); err != nil {
			return nil, err
		}
	}
	if g.messagesOnly {
		return s.restoreMessages(ctx, to, m)
	}
	if to.Entry != nil && !g.noTargets {
		var err error
		if m.back, err = s.readyTargets(ctx, to.Entry.Targets); err != nil {
			return nil, err
		}
		defer m.back.close()
	}
	res, err := s.moveHead(ctx, m)
	if err != nil {
		return nil, err
	}
	if e := to.Entry; e != nil { // several checkpoints may share the layer
		res.Checkpoint, res.CheckpointID = to.Name(), e.ID
	}
	return res, nil
}

// spoken is how to speak of a checkpoint to the model: an id says nothing to it.
func spoken(to journal.Target) string {
	if e := to.Entry; e != nil && e.Label == "" && e.ToolCall != "" {
		return "before the tool call " + e.ToolCall
	}
	return to.Name()
}

// standsAt reports whether the head is at a layer already, with nothing changed. Preconditions: s.heads is held.
func (s *Session) standsAt(ctx context.Context, l uint64) bool {
	return s.barrier(ctx) == nil && s.branch.Clean() && uint64(s.branch.Parent()) == l
}

// Undo takes back the last head movements: rollbacks, and redone ones.
func (s *Session) Undo(ctx context.Context, r *control.UndoRequest) (*control.Rollback, error) {
	return s.walk(ctx, r, journal.OpUndo, s.journal.Undo,
		"there is no rollback, restore or run to undo (to drop the changes since a checkpoint: rewindfs rollback latest)")
}

// Redo makes undone head movements again.
func (s *Session) Redo(ctx context.Context, r *control.UndoRequest) (*control.Rollback, error) {
	return s.walk(ctx, r, journal.OpRedo, s.journal.Redo, "there is nothing to redo: no undo came last")
}

func (s *Session) walk(ctx context.Context, r *control.UndoRequest, kind journal.OpKind, steps func(string, int) ([]journal.Step, error), none string) (*control.Rollback, error) {
	n := r.N
	if n == 0 {
		n = 1
	}
	if n < 0 {
		return nil, badRequest("%s %d times: the number must be 1 or more", kind, n)
	}
	if err := s.lockWhenIdle(ctx, r.WhenBusy); err != nil {
		return nil, err
	}
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	if err := s.endLostRuns(ctx, ""); err != nil {
		return nil, apiError(err)
	}
	path, err := steps(s.o.Branch, n)
	if kind == journal.OpUndo {
		if err := s.mayPassRuns(ctx, path); err != nil {
			return nil, apiError(err)
		}
	}
	if err != nil {
		if one, _ := steps(s.o.Branch, 1); one == nil && errors.Is(err, journal.ErrNothing) {
			return nil, &control.Error{Code: control.CodeNothing, Message: none}
		}
		return nil, apiError(err)
	}
	last := path[len(path)-1]
	m := move{target: layers.Layer(last.Back), kind: kind, steps: n, label: last.Label}
	if talk := lastTalk(path); talk != nil && !r.FilesOnly {
		snap := journal.NoConversation()
		if talk.Live != nil {
			snap = *talk.Live
		}
		if m.conv, err = s.restoreConversations(nil, snap, wanted{as: "the state before", noNotice: true, raw: true}); err != nil {
			return nil, err
		}
	}
	if !r.NoTargets {
		if m.back, err = s.readyTargets(ctx, stepTargets(path)); err != nil {
			return nil, err
		}
		defer m.back.close()
	}
	res, err := s.moveHead(ctx, m)
	if err != nil {
		return nil, err
	}
	res.Steps = n
	res.Before = &control.Movement{Kind: string(last.By), Label: last.Label}
	return res, nil
}

// refCall names the checkpoint in front of the tool call that began last.
const refCall = "@call"

// resolve finds the checkpoint that ref names and checks that its layer is there.
func (s *Session) resolve(ref string) (journal.Target, error) {
	if ref == refCall {
		last := s.before.Load()
		if last == nil {
			return journal.Target{}, &control.Error{Code: control.CodeUnknownCheckpoint, Message: "no tool call that writes has begun since the daemon started or the last rollback"}
		}
		ref = last.ID
	}
	t, err := s.journal.Resolve(ref, s.line)
	if err != nil {
		return t, apiError(err)
	}
	if !s.tree.Has(layers.Layer(t.Layer)) {
		return t, &control.Error{Code: control.CodeUnknownCheckpoint, Message: fmt.Sprintf("checkpoint %s was dropped and its data has been collected", t.Name())}
	}
	return t, nil
}

type move struct {
	target  layers.Layer
	touch   bool
	kind    journal.OpKind
	steps   int
	label   string
	conv    *restored // nil: the conversations stay as they are
	back    *putting  // nil: what is outside of the mount stays as it is
	reason  string
	trigger string
}

// moveHead does the work of rollback, undo and redo. Preconditions: s.heads is held.
func (s *Session) moveHead(ctx context.Context, m move) (*control.Rollback, error) {
	start := time.Now()
	if err := s.barrier(ctx); err != nil {
		return nil, apiError(err)
	}
	before := s.linePast(m.target)
	parent := s.branch.Parent() // only who holds heads changes it
	var op journal.Op
	live := func() {}
	talk := false // the conversation or a target moved, and no file
	thaw := s.mount.Freeze()
	s.layering.Lock()
	moved, err := s.branch.MoveHead(m.target, m.touch, func(b *kv.Batch, mv layers.Moved) (err error) {
		b.UseReserve() // going back must work on a full disk
		o := s.opOf(m, mv)
		if o.Untouched, err = s.untouched(mv); err != nil {
			return err
		}
		if o.Untouched = o.Untouched && !s.talkedOn() && !s.wentOn(m.back); o.Untouched {
			o.Same = uint64(parent)
		}
		if op, err = s.journal.StageOp(b, o); err == nil {
			if err = s.stageSettled(b); err == nil {
				err = s.stageOwed(b, m.back)
			}
		}
		if err != nil || m.conv == nil {
			return err
		}
		live, err = s.memory.StageLive(b, s.o.Branch, m.conv.live)
		return err
	}, s.mount.Swapped)
	if op.N != 0 && (err == nil || uint64(s.branch.HeadLayer()) == op.Open) { // applied, whatever came then
		s.journal.Commit(nil, &op)
		live()
	}
	s.layering.Unlock()
	thaw()
	if err != nil {
		return nil, apiError(fmt.Errorf("move the head: %w", err))
	}
	if op.N == 0 {
		if op, talk, err = s.moveWithoutFiles(m, moved); err != nil {
			return nil, err
		}
	}
	if !moved.Noop {
		// From here on it has happened: an error is about caches, not about the state.
		if err := s.mount.Notify(moved); err != nil {
			return nil, apiError(fmt.Errorf("the head has moved, but the kernel may still show old contents (unmount and mount again): %w", err))
		}
	}
	took := time.Since(start)
	outside := s.putBack(ctx, m.back)
	s.calls.reset() // whatever was under way belongs to what was left
	s.before.Store(nil)
	s.arrived = s.memory.Live(s.o.Branch)
	res := s.describeMove(ctx, m, moved, before)
	res.EngineUS, res.Targets = took.Microseconds(), outside
	res.Noop = res.Noop && !talk
	m.conv.tell(res)
	if res.FilesOnly = m.conv == nil; res.FilesOnly {
		res.Conversation = wireConversation(snapshotOf(s.memory.Live(s.o.Branch)))
	}
	s.auditMove(m, moved, op.N, res)
	s.stats.rollbacks.Add(1)
	s.stats.rollbackNS.Add(int64(took))
	s.stats.rollbackPaths.Add(res.ChangedPaths)
	s.log.Info(string(m.kind), "to", m.label, "layer", m.target, "left", moved.From, "changed_paths", res.ChangedPaths, "noop", moved.Noop, "took", took)
	return res, nil
}

func (s *Session) opOf(m move, mv layers.Moved) journal.Op {
	return journal.Op{
		Kind: m.kind, Branch: s.o.Branch, From: uint64(mv.From), To: uint64(mv.Target),
		Open: uint64(mv.Open), Steps: m.steps, Label: m.label, At: mv.At, Live: s.leftConversation(), Targets: m.back.left(),
	}
}

// leftConversation is what the journal says about the conversation that a movement leaves.
func (s *Session) leftConversation() *journal.Conversation {
	return left(snapshotOf(s.memory.Live(s.o.Branch)))
}

// left is how an operation of the journal has a conversation: nil for none.
func left(c journal.Conversation) *journal.Conversation {
	if c.State == journal.ConversationNone && len(c.Threads) == 0 {
		return nil
	}
	return &c
}

// talkedOn reports whether the conversations went on since the head got where it stands.
func (s *Session) talkedOn() bool { return !maps.Equal(s.arrived, s.memory.Live(s.o.Branch)) }

// auditMove records a movement in the ledger.
func (s *Session) auditMove(m move, moved layers.Moved, op uint64, res *control.Rollback) {
	event := s.event(ledger.Kind(m.kind))
	if res.Noop {
		event.Kind = ledger.KindSkippedNoop
	}
	event.Op, event.Label, event.Layer, event.Checkpoint = op, m.label, uint64(m.target), res.CheckpointID
	event.Details = map[string]any{
		"asked": string(m.kind), "from": uint64(moved.From), "changed_paths": res.ChangedPaths, "kept_paths": res.KeptPaths, "trigger": m.trigger,
		"reason": clip(m.reason, 2000), "messages": len(res.Messages), "repairs": len(res.Repairs),
	}
	if len(res.Targets) > 0 {
		event.Details["targets"] = targetNames(res.Targets)
	}
	s.audit(event)
	if !moved.Noop {
		s.lifecycle(lifeRolledBack)
	}
}

// untouched reports whether no program changed anything in the layer that a movement leaves. In the moment of a
// movement the tree is locked, so nobody can change that.
func (s *Session) untouched(mv layers.Moved) (bool, error) {
	l, none := mv.From, true
	if mv.Untouched {
		return true, nil
	}
	err := s.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(_, _ []byte) bool {
		none = false
		return false
	})
	if err != nil {
		return false, fmt.Errorf("look for changes in layer %d: %w", l, err)
	}
	return none, nil
}

// noteOp records an operation that changes nothing in the layers, and returns it with its number.
func (s *Session) noteOp(op journal.Op) (journal.Op, error) {
	var b kv.Batch
	b.UseReserve()
	return s.applyOp(&b, op)
}

// applyOp is noteOp in one batch with what b has.
func (s *Session) applyOp(b *kv.Batch, op journal.Op) (journal.Op, error) {
	s.layering.Lock()
	defer s.layering.Unlock()
	op, err := s.journal.StageOp(b, op)
	if err != nil {
		return op, err
	}
	if err := s.db.Apply(b); err != nil {
		return op, fmt.Errorf("note the operation: %w", err)
	}
	s.journal.Commit(nil, &op)
	return op, nil
}

// linePast returns the checkpoints of the line that a head on target may lose. When
// target is outside of the line any may be.
func (s *Session) linePast(target layers.Layer) []journal.Entry {
	if s.branch.Ancestor(target) {
		return s.journal.Above(s.line, uint64(target))
	}
	return s.journal.List(s.line)
}

// exactPaths is up to how many changed paths a movement counts them one by one;
// beyond, comparing the trees would cost several times the movement itself.
const exactPaths = 500

// describeMove says what a movement did. before is linePast from before it.
func (s *Session) describeMove(ctx context.Context, m move, moved layers.Moved, before []journal.Entry) *control.Rollback {
	res := emptyRollback()
	res.Layer, res.Noop = uint64(m.target), moved.Noop
	s.nameTarget(res)
	if moved.Noop {
		return res
	}
	res.Dropped = dropped(before, s.line)
	res.ChangedPaths, res.KeptPaths = moved.Changed, moved.Spared
	if moved.Changed <= exactPaths {
		res.ChangedPaths = 0
		count := func(layers.Change) error { res.ChangedPaths++; return nil }
		if err := s.tree.Diff(moved.From, moved.Open, count); err != nil {
			s.log.Warn("count what the movement changed", "error", err)
		}
	}
	res.Busy = wireProcesses(s.mayHold(ctx))
	return res
}

// emptyRollback has lists that are [] in JSON, not null.
func emptyRollback() *control.Rollback {
	return &control.Rollback{Busy: []control.Process{}, Changes: []control.Change{}, Dropped: []control.Checkpoint{}}
}

// nameTarget fills in which checkpoint the layer gone to is.
func (s *Session) nameTarget(res *control.Rollback) {
	if res.Layer == uint64(layers.BaseLayer) {
		res.Checkpoint = journal.RefBase
		return
	}
	if e, ok := s.journal.At(res.Layer); ok {
		res.Checkpoint, res.CheckpointID = journal.Target{Entry: &e}.Name(), e.ID
	}
}

// dropped returns those of before that are not in the line after it.
func dropped(before []journal.Entry, after journal.Line) []control.Checkpoint {
	out := []control.Checkpoint{}
	for i := range before {
		if !after(before[i].Layer) {
			c := wireCheckpoint(&before[i])
			c.Dropped = true
			out = append(out, c)
		}
	}
	return out
}
