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
	if s.stopping {
		return &control.Error{Code: control.CodeStopping, Message: fmt.Sprintf("session %s is being unmounted", s.o.Name)}
	}
	return nil
}

// Checkpoint seals what there is under a name. The layer and its journal entry
// are one batch: both or neither are there after a crash.
func (s *Session) Checkpoint(ctx context.Context, r *control.CheckpointRequest) (*control.Checkpoint, error) {
	e := journal.Entry{
		Branch: s.o.Branch, Message: r.Message, Metadata: r.Metadata,
		Phase: r.Phase, Turn: r.Turn, ToolCall: r.ToolCall,
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
	made, took, err := s.seal(ctx, e)
	if err != nil {
		return nil, apiError(err)
	}
	if r.Durable {
		// Outside of heads: others need not wait for the disk.
		if err := s.tree.Sync(); err != nil {
			return nil, apiError(fmt.Errorf("checkpoint %s is made, but may not survive a power cut: %w", made.ID, err))
		}
	}
	out := wireCheckpoint(&made)
	out.EngineUS = took.Microseconds()
	return &out, nil
}

func (s *Session) seal(ctx context.Context, e journal.Entry) (journal.Entry, time.Duration, error) {
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return e, 0, err
	}
	start := time.Now()
	if e.Label != "" {
		if err := s.journal.LabelFree(e.Label, s.line); err != nil {
			return e, 0, err
		}
	}
	if err := s.barrier(ctx); err != nil {
		return e, 0, err
	}
	flushed := time.Since(start)
	var op journal.Op
	_, err := s.branch.Seal(func(b *kv.Batch, sealed layers.Sealed) (err error) {
		e.Layer, e.Parent = uint64(sealed.Layer), uint64(sealed.Parent)
		e.ChangedPaths, e.CreatedAt = sealed.Changed, sealed.At
		if e, err = s.journal.StageEntry(b, e); err != nil {
			return err
		}
		op, err = s.journal.StageOp(b, journal.Op{
			Kind: journal.OpCheckpoint, Branch: s.o.Branch, From: uint64(sealed.Layer),
			To: uint64(sealed.Layer), Open: uint64(sealed.Open), Label: e.Label, At: sealed.At,
		})
		return err
	})
	if err != nil {
		return e, 0, fmt.Errorf("make the checkpoint: %w", err)
	}
	s.journal.Commit(&e, &op)
	took := time.Since(start)
	s.stats.checkpoints.Add(1)
	s.stats.checkpointNS.Add(int64(took))
	s.log.Info("checkpoint", "label", e.Label, "id", e.ID, "layer", e.Layer, "changed_paths", e.ChangedPaths, "took", took, "barrier", flushed)
	return e, took, nil
}

func wireCheckpoint(e *journal.Entry) control.Checkpoint {
	return control.Checkpoint{
		ID: e.ID, Label: e.Label, Layer: e.Layer, Parent: e.Parent,
		CreatedAt: e.CreatedAt.UTC(), ChangedPaths: e.ChangedPaths,
		Conversation: control.Conversation(e.Conversation),
		Message:      e.Message, Metadata: e.Metadata, Phase: e.Phase,
		Turn: e.Turn, ToolCall: e.ToolCall, Auto: e.Auto,
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
	case errors.Is(err, journal.ErrNothing):
		code = control.CodeNothing
	case errors.Is(err, kv.ErrNoSpace), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = control.CodeNoSpace
	case errors.Is(err, layers.ErrCorrupt), errors.Is(err, kv.ErrCorrupt):
		code = control.CodeDamaged
	}
	return &control.Error{Code: code, Message: err.Error()}
}
