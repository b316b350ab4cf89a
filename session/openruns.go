package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/secret"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// A command that undo can take back is a step of it from its end on, which its caller says. A caller that is killed says
// nothing, and the step would be missing: undo would take back something older. So what has begun is noted in the batch of the
// checkpoint in front of it, until the batch of its end; and before anything counts on the steps, the daemon ends by itself what
// has lost its caller.

// openRun is a command whose end is not recorded.
type openRun struct {
	V          int            `json:"v"`
	Branch     string         `json:"branch"`
	Layer      uint64         `json:"layer"`      // of the checkpoint in front of it, which no other command shares
	Checkpoint string         `json:"checkpoint"` // its id
	Label      string         `json:"label"`      // how the operation log is to name it
	Details    map[string]any `json:"details"`    // as the ledger has them of its begin
	Caller     caller         `json:"caller"`
	At         time.Time      `json:"at"`
}

// openRunPrefix starts the names of the kv.Meta keys of open runs; the layer follows.
const openRunPrefix = "open_run/"

func runKey(layer uint64) []byte { return kv.Meta(fmt.Sprintf("%s%020d", openRunPrefix, layer)) }

// newRun is the note of a command that the caller of ctx is about to run.
func (s *Session) newRun(ctx context.Context, r *control.Run, details map[string]any) *openRun {
	return &openRun{
		V: stateVersion, Branch: s.o.Branch, Label: runLabel(r), Details: details, Caller: callerOf(ctx, s.machine), At: s.o.Now().UTC(),
	}
}

// runLabel is how the operation log names a command.
func runLabel(r *control.Run) string {
	return clip(strings.Join(secret.Mask(r.Argv[:min(len(r.Argv), maxArgs)], nil), " "), maxRunLabel)
}

// stageRun adds to b that r has begun.
func stageRun(b *kv.Batch, r *openRun) error {
	v, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the begin of a command: %w", err)
	}
	b.Put(runKey(r.Layer), v)
	return nil
}

// loadRuns reads which commands an earlier daemon knew of.
func (st *store) loadRuns() error {
	st.machine = here()
	var bad error
	err := st.db.Scan(kv.Meta(openRunPrefix), nil, func(k, v []byte) bool {
		r := &openRun{}
		if bad = json.Unmarshal(v, r); bad == nil && r.V > stateVersion {
			bad = fmt.Errorf("a record of version %d: %w", r.V, kv.ErrNewerFormat)
		}
		st.runs[r.Layer] = r
		return bad == nil
	})
	if err = firstOf(bad, err); err != nil {
		return fmt.Errorf("read which commands have begun: %w", err)
	}
	return nil
}

// noteRuns has change bring what is known in memory in line with the store.
func (st *store) noteRuns(change func(map[uint64]*openRun)) {
	st.runsMu.Lock()
	defer st.runsMu.Unlock()
	change(st.runs)
}

// forgetRuns is noteRuns for those that are not open any more.
func (st *store) forgetRuns(gone []*openRun) {
	st.noteRuns(func(runs map[uint64]*openRun) {
		for _, r := range gone {
			delete(runs, r.Layer)
		}
	})
}

// openRuns lists the open runs of a branch, or of all when that is "", in the order in which they began.
func (st *store) openRuns(branch string) (out []*openRun) {
	st.noteRuns(func(runs map[uint64]*openRun) {
		for _, r := range runs {
			if branch == "" || r.Branch == branch {
				out = append(out, r)
			}
		}
	})
	slices.SortFunc(out, func(a, b *openRun) int { return cmp.Compare(a.Layer, b.Layer) })
	return out
}

// lookAtRuns is endLostRuns for what does not depend on it. Preconditions: s.heads is held.
func (s *Session) lookAtRuns(ctx context.Context) {
	if err := s.endLostRuns(ctx, ""); err != nil {
		s.log.Warn("undo may not know of a command", "error", err)
	}
}

// endLostRuns records the end of the branch's commands that have lost their callers, but for the one that began at the checkpoint
// but, in the order in which they began. Preconditions: s.heads is held.
func (s *Session) endLostRuns(ctx context.Context, but string) error {
	for _, r := range s.openRuns(s.o.Branch) {
		if r.Checkpoint == but {
			continue
		}
		state := r.Caller.state(&s.machine)
		if state == callerRuns {
			continue
		}
		n, err := s.changedSince(ctx, r.Layer)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if state == callerUnknown && err == nil && n == 0 {
			continue // it may still run, and there is nothing to take back
		}
		event := s.event(ledger.KindExec)
		event.Checkpoint, event.Details = r.Checkpoint, map[string]any{"end_unknown": true}
		maps.Copy(event.Details, r.Details)
		if err != nil {
			s.log.Warn("it cannot be told what a command changed whose end was not recorded", "command", r.Label, "error", err)
		} else {
			event.Details["changed_paths"] = n
		}
		err = s.endRunLocked(r.Checkpoint, r.Label, err != nil || n > 0, event)
		if errors.Is(err, journal.ErrUnknownRef) {
			s.log.Warn("undo cannot take back a command, as the checkpoint in front of it is gone", "command", r.Label, "checkpoint", r.Checkpoint)
		} else if err != nil {
			return fmt.Errorf("record the end of the command %q, which has lost its caller (rewindfs rollback %s takes it back): %w", r.Label, r.Checkpoint, err)
		}
		s.log.Info("a command has lost its caller: its end is recorded without it", "command", r.Label, "checkpoint", r.Checkpoint, "changed_paths", n)
	}
	return nil
}

// changedSince counts the paths that differ between a layer and what there is now.
func (s *Session) changedSince(ctx context.Context, layer uint64) (n int64, err error) {
	if err := s.barrier(ctx); err != nil {
		return 0, err
	}
	err = s.tree.Diff(layers.Layer(layer), s.branch.HeadLayer(), func(layers.Change) error { n++; return nil })
	return n, err
}

// endRun records the end of the command that began at a checkpoint: see endRunLocked.
func (s *Session) endRun(ctx context.Context, checkpoint, label string, changed bool, event ledger.Event) error {
	s.heads.Lock()
	defer s.heads.Unlock()
	err := s.alive()
	if err == nil {
		if err := s.endLostRuns(ctx, checkpoint); err != nil { // those that ended before this one come before it
			s.log.Warn("undo may not know of a command", "error", err)
		}
		err = s.endRunLocked(checkpoint, label, changed, event)
	}
	if err != nil && !errors.Is(err, journal.ErrUnknownRef) {
		s.audit(event)
	}
	return err
}

// endRunLocked records the end of a command. ONE batch takes it from those that are open, and makes it a step of undo if it has
// changed something, unless no listed checkpoint was made of it, the head was moved since, which undo takes back, or it is a step
// already: the end that the daemon recorded may be followed by the real one. journal.ErrUnknownRef says that the checkpoint is
// gone, and all else is recorded. Preconditions: s.heads is held.
func (s *Session) endRunLocked(checkpoint, label string, changed bool, event ledger.Event) error {
	var ended []*openRun
	for _, r := range s.openRuns(s.o.Branch) {
		if r.Checkpoint == checkpoint {
			ended = append(ended, r)
		}
	}
	var b kv.Batch
	b.UseReserve()
	for _, r := range ended {
		b.Delete(runKey(r.Layer))
	}
	var unknown error
	if changed {
		t, err := s.journal.Resolve(checkpoint, s.line)
		unknown = err
		if err == nil && t.Entry != nil && !t.Entry.Auto && !s.journal.MovedSince(s.o.Branch, t.Layer) && !s.journal.HasRun(s.o.Branch, t.Layer) {
			op, err := s.applyOp(&b, journal.Op{
				Kind: journal.OpRun, Branch: s.o.Branch, From: t.Layer, To: t.Layer, Open: uint64(s.branch.HeadLayer()), Label: label, At: s.o.Now(),
				Live: left(t.Entry.Conversation), Targets: t.Entry.Targets,
			})
			if err != nil {
				return err
			}
			s.forgetRuns(ended)
			event.Op = op.N
			s.audit(event)
			return nil
		}
	}
	if len(ended) == 0 {
		s.audit(event)
		return unknown
	}
	if err := s.applyOwing(&b, event); err != nil {
		return err
	}
	s.forgetRuns(ended)
	return unknown
}

// errDiffers ends a comparison at the first difference.
var errDiffers = errors.New("they differ")

// mayPassRuns refuses to go back over path, the steps of an undo, to what was before a command that still runs, unless it has
// changed nothing. No steps ask whether there is such a command. Preconditions: s.heads is held, and endLostRuns was called.
func (s *Session) mayPassRuns(ctx context.Context, path []journal.Step) error {
	if len(path) == 0 {
		path = []journal.Step{{}}
	}
	for _, r := range slices.Backward(s.openRuns(s.o.Branch)) {
		at := s.branch.HeadLayer()
		for _, step := range path {
			if step.Back < r.Layer {
				break
			}
			at = layers.Layer(step.Back)
		}
		if last := path[len(path)-1]; last.Back >= r.Layer || r.Caller.state(&s.machine) != callerRuns || !s.tree.Has(layers.Layer(r.Layer)) {
			continue
		}
		if err := s.barrier(ctx); err != nil {
			return err
		}
		err := s.tree.Diff(layers.Layer(r.Layer), at, func(layers.Change) error { return errDiffers })
		if errors.Is(err, errDiffers) {
			return &control.Error{
				Code: control.CodeBusy,
				Message: fmt.Sprintf("the command %q (pid %d) still runs, and undo would take back what was before it; nothing was changed: end it, and undo takes it back; or take back what it has changed so far with: rewindfs rollback %s",
					r.Label, r.Caller.PID, r.Checkpoint),
				Details: map[string]any{"pid": r.Caller.PID, "checkpoint": r.Checkpoint},
			}
		}
		if err != nil {
			return fmt.Errorf("find out whether the command %q has changed anything: %w", r.Label, err)
		}
	}
	return nil
}

// describeRuns lists the open runs for status. While a checkpoint or a rollback is being made, those without a caller are among them.
func (s *Session) describeRuns(ctx context.Context) (out []control.OpenRun) {
	if len(s.openRuns(s.o.Branch)) > 0 && s.heads.TryLock() {
		if s.alive() == nil {
			s.lookAtRuns(ctx)
		}
		s.heads.Unlock()
	}
	for _, r := range s.openRuns(s.o.Branch) {
		o := control.OpenRun{Command: r.Label, Checkpoint: r.Checkpoint, PID: r.Caller.PID, State: control.RunUnknown, StartedAt: r.At}
		if r.Caller.state(&s.machine) == callerRuns {
			o.State = control.RunRuns
		}
		out = append(out, o)
	}
	return out
}
