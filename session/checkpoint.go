package session

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// barrierTime bounds how long the kernel may take to hand over dirty pages.
const barrierTime = time.Minute

// barrier returns when all data that programs have written is in the open layer.
func (s *Session) barrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	if err := s.mount.Barrier(ctx); err != nil {
		return fmt.Errorf("wait for data on its way to the daemon: %w", err)
	}
	return nil
}

// alive refuses work on a session that is ending.
func (s *Session) alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.living()
}

// living is alive for who holds s.mu.
func (s *Session) living() error {
	switch {
	case s.stopping:
		return &control.Error{Code: control.CodeStopping, Message: fmt.Sprintf("session %s is being unmounted", s.o.Name)}
	case s.leaving:
		return &control.Error{Code: control.CodeStopping, Message: fmt.Sprintf("branch %s is being unmounted", s.o.Branch)}
	}
	return nil
}

// Checkpoint seals what there is under a name. The layer and its journal entry
// are one batch: both or neither are there after a crash.
func (s *Session) Checkpoint(ctx context.Context, r *control.CheckpointRequest) (*control.Checkpoint, error) {
	e := journal.Entry{
		Branch: s.o.Branch, Message: r.Message, Metadata: r.Metadata,
		Phase: r.Phase, Turn: r.Turn, ToolCall: r.ToolCall, Pending: r.Pending,
	}
	if r.Label != nil {
		if err := journal.CheckLabel(*r.Label); err != nil {
			return nil, apiError(err)
		}
		e.Label = *r.Label
	}
	if err := e.Validate(); err != nil {
		return nil, apiError(err)
	}
	took, err := s.copyAsked(ctx, r.SQLite, r.SkipFailedTargets)
	if err != nil {
		return nil, apiError(err)
	}
	defer took.release()
	e.Targets = took.copies
	s.heads.Lock()
	made, err := s.checkpoint(ctx, r, e)
	s.heads.Unlock()
	if err != nil {
		return nil, apiError(err)
	}
	if r.Durable {
		// Outside of heads: others need not wait for the disk.
		if err := errors.Join(s.tree.KeepOriginals(ctx), s.tree.Sync()); err != nil {
			return nil, apiError(fmt.Errorf("checkpoint %s is made, but may not survive a power cut: %w", made.entry.ID, err))
		}
	}
	out := s.describeCheckpoint(&made.entry)
	out.EngineUS, out.Existing = made.took.Microseconds(), made.existing
	if !made.existing {
		out.Targets = took.wire
	}
	return &out, nil
}

// checkpoint makes the checkpoint that r asks for. Preconditions: s.heads is held.
func (s *Session) checkpoint(ctx context.Context, r *control.CheckpointRequest, e journal.Entry) (sealed, error) {
	if err := s.alive(); err != nil {
		return sealed{}, err
	}
	now, err := s.merged(r.Threads, r.Missing)
	if err != nil {
		return sealed{}, err
	}
	if e.Pending {
		if first, ok := s.sameRevision(ctx, &e, now); ok {
			return sealed{entry: first, existing: true}, nil
		}
	}
	e.Tool = s.calls.between()
	made, err := s.sealLocked(ctx, sealing{entry: e, talk: now})
	if err != nil {
		return sealed{}, err
	}
	s.lifecycle(lifeActive)
	return made, nil
}

// sealing is a checkpoint to be made.
type sealing struct {
	entry      journal.Entry
	talk       memory.Threads // the conversations, see merged
	shareLayer bool           // where nothing was changed, the newest sealed layer will do
	frozen     bool           // the mount is: there is no barrier then
	run        *openRun       // the command that the checkpoint is in front of and that undo can take back; nil: none. Its Layer and Checkpoint are filled in
}

// sealed is a checkpoint that was made, or was there already.
type sealed struct {
	entry    journal.Entry
	took     time.Duration
	existing bool
}

// sealLocked makes a checkpoint: the layer, the journal's entry with the conversations, and
// those as the live ones, in one batch. Preconditions: s.heads is held.
func (s *Session) sealLocked(ctx context.Context, p sealing) (sealed, error) {
	start := time.Now()
	e := p.entry
	if e.Label != "" {
		if err := s.journal.LabelFree(e.Label, s.line); err != nil {
			return sealed{}, err
		}
	}
	e.Conversation = snapshotOf(p.talk)
	talk := s.heard(p.talk)
	if !p.frozen {
		if err := s.barrier(ctx); err != nil {
			return sealed{}, err
		}
	}
	flushed := time.Since(start)
	var op journal.Op
	var live func()
	stage := func(b *kv.Batch) (err error) {
		if e, err = s.journal.StageEntry(b, e); err != nil {
			return err
		}
		if live, err = s.memory.StageLive(b, s.o.Branch, talk); err == nil && p.run != nil {
			p.run.Layer, p.run.Checkpoint = e.Layer, e.ID
			err = stageRun(b, p.run)
		}
		return err
	}
	s.layering.Lock()
	defer s.layering.Unlock()
	var err error
	if p.shareLayer && s.mayShare() {
		op, err = s.shareNewest(&e, stage)
	} else {
		_, err = s.branch.Seal(func(b *kv.Batch, sealed layers.Sealed) (err error) {
			e.Layer, e.Parent = uint64(sealed.Layer), uint64(sealed.Parent)
			e.ChangedPaths, e.CreatedAt = sealed.Changed, sealed.At
			if err := stage(b); err != nil {
				return err
			}
			op, err = s.journal.StageOp(b, journal.Op{
				Kind: journal.OpCheckpoint, Branch: s.o.Branch, From: uint64(sealed.Layer),
				To: uint64(sealed.Layer), Open: uint64(sealed.Open), Label: e.Label, At: sealed.At,
			})
			return err
		})
	}
	if err != nil {
		return sealed{}, fmt.Errorf("make the checkpoint: %w", err)
	}
	if op.N != 0 {
		s.journal.Commit(&e, &op)
	} else {
		s.journal.Commit(&e, nil)
	}
	live()
	if p.run != nil {
		s.noteRuns(func(runs map[uint64]*openRun) { runs[e.Layer] = p.run })
	}
	s.arrived = talk
	for _, c := range e.Targets {
		s.holds(c)
	}
	took := time.Since(start)
	s.stats.checkpoints.Add(1)
	s.stats.checkpointNS.Add(int64(took))
	s.auditCheckpoint(&e, op.N)
	s.log.Info("checkpoint", "label", e.Label, "id", e.ID, "layer", e.Layer, "changed_paths", e.ChangedPaths, "took", took, "barrier", flushed)
	return sealed{entry: e, took: took}, nil
}

// shareNewest is the part of sealLocked that has e share the newest sealed layer. stage adds e to the batch. Preconditions: s.layering is held.
func (s *Session) shareNewest(e *journal.Entry, stage func(*kv.Batch) error) (op journal.Op, err error) {
	e.Layer = uint64(s.branch.Parent())
	e.Seq, e.CreatedAt = s.journal.NextSeq(e.Layer), s.o.Now()
	if at, ok := s.journal.At(e.Layer); ok {
		e.Parent = at.Parent
	}
	var b kv.Batch
	if err = stage(&b); err == nil {
		// By it the ledger gets to know of the checkpoint when we die in front of recording it.
		op, err = s.journal.StageOp(&b, journal.Op{
			Kind: journal.OpCheckpoint, Branch: s.o.Branch, From: e.Layer, To: e.Layer,
			Open: uint64(s.branch.HeadLayer()), Label: e.Label, At: e.CreatedAt,
		})
	}
	if err == nil {
		err = s.db.Apply(&b)
	}
	return op, err
}

// mayShare reports whether a checkpoint of the present state can share the newest sealed
// layer: nothing was changed since, and it is in no line but ours. (One that it shares with a
// branch that is not mounted shows there, too.) Preconditions: s.heads is held.
func (s *Session) mayShare() bool {
	at := s.branch.Parent()
	if !s.branch.Clean() || at == layers.BaseLayer {
		return false
	}
	for _, b := range s.sessions() {
		if b != s && b.line(uint64(at)) {
			return false
		}
	}
	e, ok := s.journal.At(uint64(at))
	return !ok || e.Branch == s.o.Branch
}

func (s *Session) auditCheckpoint(e *journal.Entry, op uint64) {
	event := s.event(ledger.KindCheckpoint)
	event.Checkpoint, event.Label, event.Layer, event.Op = e.ID, e.Label, e.Layer, op
	event.Details = map[string]any{
		"changed_paths": e.ChangedPaths, "conversation": e.Conversation.State, "messages": e.Conversation.Messages,
		"auto": e.Auto, "pending": e.Pending, "tool_call": e.ToolCall, "phase": e.Phase,
	}
	if len(e.Targets) > 0 {
		event.Details["targets"] = targetNames(wireTargets(e.Targets, ""))
	}
	s.audit(event)
}

func wireCheckpoint(e *journal.Entry) control.Checkpoint {
	return control.Checkpoint{
		ID: e.ID, Label: e.Label, Layer: e.Layer, Parent: e.Parent,
		CreatedAt: e.CreatedAt.UTC(), ChangedPaths: e.ChangedPaths,
		Conversation: wireConversation(e.Conversation), Seq: e.Seq, Tool: (*control.Tool)(e.Tool),
		Message: e.Message, Metadata: e.Metadata, Phase: e.Phase,
		Turn: e.Turn, ToolCall: e.ToolCall, Auto: e.Auto, Branch: e.Branch,
		Targets: wireTargets(e.Targets, ""),
	}
}

// apiError gives err the code that clients act on.
func apiError(err error) error {
	var e *control.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	code := control.CodeInternal
	switch {
	case errors.Is(err, journal.ErrUnknownRef), errors.Is(err, layers.ErrNoLayer):
		code = control.CodeUnknownCheckpoint
	case errors.Is(err, journal.ErrAmbiguousRef):
		code = control.CodeAmbiguousCheckpoint
	case errors.Is(err, journal.ErrBadLabel):
		code = control.CodeBadLabel
	case errors.Is(err, journal.ErrDuplicateLabel):
		code = control.CodeDuplicateLabel
	case errors.Is(err, journal.ErrBadEntry):
		code = control.CodeBadRequest
	case errors.Is(err, layers.ErrNoPath), errors.Is(err, layers.ErrInTheWay):
		code = control.CodeBadPath
	case errors.Is(err, layers.ErrGeneration):
		code = control.CodeConflict
	case errors.Is(err, journal.ErrNothing):
		code = control.CodeNothing
	case errors.Is(err, kv.ErrNoSpace), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = control.CodeNoSpace
	case errors.Is(err, layers.ErrCorrupt), errors.Is(err, kv.ErrCorrupt):
		code = control.CodeDamaged
	case errors.Is(err, memory.ErrUnrepairable):
		code = control.CodeUnrepairable
	}
	return &control.Error{Code: code, Message: err.Error()}
}
