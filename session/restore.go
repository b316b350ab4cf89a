package session

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// maxRestored bounds the paths that one call may name.
const maxRestored = 10_000

// Restore brings single paths of a checkpoint into the head, or tells what that would change. The
// state before is sealed in the same batch, under an automatic checkpoint; undo goes back to it.
// The conversation goes on.
func (s *Session) Restore(ctx context.Context, r *control.RestoreRequest) (*control.Restored, error) {
	paths, err := cleanPaths(r.Paths)
	if err != nil {
		return nil, err
	}
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	to, err := s.resolveAnywhere(r.Ref)
	if err != nil {
		return nil, err
	}
	if !r.DryRun {
		s.lookAtRuns(ctx)
	}
	if err := s.barrier(ctx); err != nil {
		return nil, apiError(err)
	}
	start := time.Now()
	res := &control.Restored{Checkpoint: to.Name(), Layer: to.Layer, DryRun: r.DryRun, Changes: []control.Change{}}
	if to.Entry != nil {
		res.CheckpointID = to.Entry.ID
	}
	made, op, saved, err := s.restorePaths(to, paths, r.DryRun)
	if err != nil {
		return nil, restoreError(to, err)
	}
	res.Noop, res.ChangedPaths, res.Op, res.Saved = made.Noop, int64(len(made.Changes)), op.N, saved
	for i := range made.Changes {
		if res.Truncated = i == maxListed; res.Truncated {
			break
		}
		res.Changes = append(res.Changes, wireChange(&made.Changes[i]))
	}
	if r.DryRun {
		res.EngineUS = time.Since(start).Microseconds()
		return res, nil
	}
	if !made.Noop {
		if err := s.mount.Notify(made.Moved); err != nil {
			return nil, apiError(fmt.Errorf("the paths are restored, but the kernel may still show old contents (unmount and mount again): %w", err))
		}
		s.arrived = s.memory.Live(s.o.Branch)
		s.lifecycle(lifeActive)
	}
	took := time.Since(start)
	res.EngineUS = took.Microseconds()
	s.auditRestore(res, paths)
	s.log.Info("restore", "from", res.Checkpoint, "layer", res.Layer, "paths", len(paths), "changed_paths", res.ChangedPaths, "noop", res.Noop, "took", took)
	return res, nil
}

// restorePaths has the tree do it, with the journal's operation and the checkpoint of the state before in
// the same batch. Preconditions: s.heads is held.
func (s *Session) restorePaths(to journal.Target, paths []string, dry bool) (made layers.Restored, op journal.Op, saved string, err error) {
	var entry *journal.Entry
	parent := s.branch.Parent()
	s.layering.Lock()
	defer s.layering.Unlock()
	made, err = s.branch.Restore(layers.Layer(to.Layer), paths, dry, func(b *kv.Batch, m layers.Restored) error {
		var err error
		if entry, op, err = s.stageOnTop(b, m.Moved, journal.OpRestore, to.Name(), uint64(parent), m.Left); entry != nil {
			saved = entry.ID
		}
		return err
	}, s.mount.Swapped)
	if err == nil && op.N != 0 {
		s.journal.Commit(entry, &op)
	}
	return made, op, saved, err
}

// stageOnTop adds to b what the journal is to have of a change of files by a new head on top of the sealed old one: an automatic
// checkpoint of what that has, changed paths of it, unless it is as its parent, and the operation. Preconditions: s.heads is held.
func (s *Session) stageOnTop(b *kv.Batch, m layers.Moved, kind journal.OpKind, label string, parent uint64, changed int64) (entry *journal.Entry, op journal.Op, err error) {
	untouched, err := s.untouched(m)
	if err != nil {
		return nil, op, err
	}
	if !untouched {
		e := journal.Entry{
			Branch: s.o.Branch, Phase: string(kind), Auto: true, Layer: uint64(m.From), Parent: parent,
			ChangedPaths: changed, CreatedAt: m.At, Conversation: snapshotOf(s.memory.Live(s.o.Branch)),
		}
		if calls := s.calls.inflight(); len(calls) > 0 {
			e.Tool = &journal.Tool{Inflight: calls}
		}
		if e, err = s.journal.StageEntry(b, e); err != nil {
			return nil, op, err
		}
		entry = &e
	}
	op = journal.Op{
		Kind: kind, Branch: s.o.Branch, From: uint64(m.From), To: uint64(m.From), Open: uint64(m.Open),
		Label: label, At: m.At, Live: s.leftConversation(), FilesOnly: true,
	}
	if untouched && !s.talkedOn() {
		op.Untouched, op.Same = true, parent
	}
	op, err = s.journal.StageOp(b, op)
	return entry, op, err
}

// cleanPaths checks the paths of a request.
func cleanPaths(paths [][]byte) ([]string, error) {
	if len(paths) == 0 || len(paths) > maxRestored {
		return nil, badRequest("%d paths to restore: give 1 to %d (a directory brings all below it; '.' is everything)", len(paths), maxRestored)
	}
	var out []string
	for _, p := range paths {
		clean, err := cleanPath(string(p))
		if err != nil {
			return nil, err
		}
		if len(p) == 0 {
			return nil, badPath("a path to restore is empty")
		}
		switch clean = path.Clean(clean); {
		case clean == ".":
			clean = ""
		case clean == "..", strings.HasPrefix(clean, "../"):
			return nil, badPath("%s leads out of the session", quotePath(string(p)))
		case clean == rewindDir, strings.HasPrefix(clean, rewindDir+"/"):
			return nil, badPath("%s: %s is not part of the tree", quotePath(string(p)), rewindDir)
		}
		out = append(out, clean)
	}
	return out, nil
}

// restoreError says what to do about an error.
func restoreError(to journal.Target, err error) error {
	switch {
	case errors.Is(err, layers.ErrInTheWay):
		err = fmt.Errorf("%w: restore that path itself, or move what is there away", err)
	case errors.Is(err, layers.ErrNoPath):
		err = fmt.Errorf("%w: neither %s nor the present has it; see what differs with: rewindfs diff %s", err, to.Name(), to.Name())
	case errors.Is(err, layers.ErrGeneration):
		err = fmt.Errorf("%s lies before or after a commit to the base that this branch does not know of: take files from it with rewindfs cat %s:PATH, or look at it with rewindfs fork (%w)", to.Name(), to.Name(), err)
	}
	return apiError(err)
}

func (s *Session) auditRestore(res *control.Restored, paths []string) {
	event := s.event(ledger.KindRestore)
	if res.Noop {
		event.Kind = ledger.KindSkippedNoop
	}
	event.Op, event.Checkpoint, event.Label, event.Layer = res.Op, res.CheckpointID, res.Checkpoint, res.Layer
	named := make([]control.PathName, 0, min(len(paths), 100))
	for _, p := range paths[:min(len(paths), 100)] {
		named = append(named, control.NameOf(p))
	}
	event.Details = map[string]any{
		"asked": string(journal.OpRestore), "paths": named, "named": len(paths), "changed_paths": res.ChangedPaths, "saved": res.Saved,
	}
	s.audit(event)
}

// lastTalk is the step of path whose conversation comes back: that of the last movement which took
// the conversation along. nil if none did.
func lastTalk(path []journal.Step) *journal.Step {
	for i := range slices.Backward(path) {
		if !path[i].FilesOnly {
			return &path[i]
		}
	}
	return nil
}
