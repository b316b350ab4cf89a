package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/secret"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// Bounds of what is recorded and told of one command.
const (
	maxArgs       = 1000
	maxArgv       = 32 << 10 // bytes
	maxRunChanges = 1000
	maxRefused    = 100
	maxRunLabel   = 60 // bytes, of the command in the operation log
)

// phaseRun is the phase of checkpoints in front of a command.
const phaseRun = "run"

// RunBegin keeps the state in front of a command that the caller is about to run, and records that it does. The daemon
// keeps nothing else of it: a command goes on when the daemon is started anew.
func (s *Session) RunBegin(ctx context.Context, r *control.RunBegin) (*control.RunBegun, error) {
	if len(r.Run.Argv) == 0 {
		return nil, badRequest("a run needs the command's argv")
	}
	if r.Auto && r.Label != nil {
		return nil, badRequest("an automatic checkpoint has no label")
	}
	e := journal.Entry{Branch: s.o.Branch, Message: r.Message, Phase: phaseRun, Auto: r.Auto}
	if r.Label != nil {
		if err := journal.CheckLabel(*r.Label); err != nil {
			return nil, apiError(err)
		}
		e.Label = *r.Label
	}
	if err := e.Validate(); err != nil {
		return nil, apiError(err)
	}
	took, err := s.copyAsked(ctx, r.SQLite, r.SkipFailedTargets || r.Auto && len(r.SQLite) == 0)
	if err != nil {
		return nil, apiError(err)
	}
	defer took.release()
	e.Targets = took.copies
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	if err := s.withinBudget("run"); err != nil {
		return nil, err
	}
	s.lookAtRuns(ctx)
	now, err := s.merged(nil, nil)
	if err != nil {
		return nil, err
	}
	e.Tool = s.calls.between()
	s.madeUp++
	out := &control.RunBegun{ID: fmt.Sprintf("run-%d-%d", s.record.Generation, s.madeUp)}
	event := s.runEvent(out.ID, &r.Run)
	seal := sealing{entry: e, talk: now, shareLayer: r.Auto}
	if !r.Auto {
		seal.run = s.newRun(ctx, &r.Run, event.Details)
	}
	made, err := s.sealLocked(ctx, seal)
	if err != nil {
		return nil, apiError(err)
	}
	s.lifecycle(lifeActive)
	out.Checkpoint = s.describeCheckpoint(&made.entry)
	out.Checkpoint.EngineUS, out.Checkpoint.Targets = made.took.Microseconds(), took.wire
	event.Checkpoint, event.Label, event.Layer = made.entry.ID, made.entry.Label, made.entry.Layer
	s.audit(event)
	s.thinOut()
	return out, nil
}

// RunEnd records how a command ended, and tells what differs from the state in front of it.
func (s *Session) RunEnd(ctx context.Context, r *control.RunEnd) (*control.RunEnded, error) {
	if r.ID == "" || r.Checkpoint == "" || len(r.Run.Argv) == 0 {
		return nil, badRequest("the end of a run needs id, checkpoint and argv of its begin")
	}
	out, err := s.changedBy(ctx, r.Checkpoint)
	if err != nil {
		out.ChangedPaths = nil
		out.Warnings = append(out.Warnings, fmt.Sprintf("what the command changed cannot be told: %v", err))
	}
	event := s.runEvent(r.ID, &r.Run)
	event.Checkpoint = r.Checkpoint
	for k, v := range map[string]any{"exit_code": r.ExitCode, "timed_out": r.TimedOut, "duration_ms": r.DurationMS, "changed_paths": out.ChangedPaths, "left": r.Left} {
		event.Details[k] = v
	}
	if r.Signal != "" {
		event.Details["signal"] = clip(r.Signal, maxName)
	}
	if r.Error != "" {
		event.Details["error"] = clip(r.Error, 2000)
	}
	if len(r.Refused) > 0 {
		event.Details["refused"] = r.Refused[:min(len(r.Refused), maxRefused)]
	}
	err = s.endRun(ctx, r.Checkpoint, runLabel(&r.Run), out.ChangedPaths != nil && *out.ChangedPaths > 0, event)
	if errors.Is(err, journal.ErrUnknownRef) {
		out.Warnings = append(out.Warnings, fmt.Sprintf("undo cannot take the command back: %v", err))
	} else if err != nil {
		out.Warnings = append(out.Warnings, fmt.Sprintf("the end of the command is not recorded: if undo does not take it back, rewindfs rollback %s does: %v", r.Checkpoint, err))
	}
	return out, nil
}

// changedBy compares the state of a checkpoint with the present one.
func (s *Session) changedBy(ctx context.Context, ref string) (*control.RunEnded, error) {
	out := &control.RunEnded{Changes: []control.Change{}, Warnings: []string{}}
	d, err := s.comparison(ctx, &control.DiffRequest{From: ref})
	if err != nil {
		return out, err
	}
	n := int64(0)
	out.ChangedPaths = &n
	err = s.eachChange(ctx, d.from, d.to, func(*layers.Change) bool { return true }, func(c control.Change) error {
		if n++; n <= maxRunChanges {
			out.Changes = append(out.Changes, c)
		}
		return nil
	})
	out.Truncated = n > maxRunChanges
	return out, d.failed(err)
}

// runEvent is the start of a ledger record about a command. What the caller could not know of secrets is masked here.
func (s *Session) runEvent(id string, r *control.Run) ledger.Event {
	event := s.event(ledger.KindExec)
	argv := secret.Mask(r.Argv[:min(len(r.Argv), maxArgs)], nil)
	room, cut := maxArgv, len(argv) < len(r.Argv)
	for i, arg := range argv {
		argv[i] = clip(strings.ToValidUTF8(arg, "\uFFFD"), room)
		if room -= len(arg); room <= 0 {
			argv, cut = argv[:i+1], cut || i+1 < len(argv)
			break
		}
	}
	event.Details = map[string]any{"run": clip(id, maxName), "argv": argv, "cwd": r.Cwd, "sandbox": clip(r.Sandbox, maxName)}
	if cut {
		event.Details["argv_cut"] = true
	}
	return event
}
