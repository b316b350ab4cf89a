package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// hostLabel names the host where else the branch is named that was merged.
const hostLabel = "changes on the host"

// mergeFirst takes what a plan merges into the mount, and plans again, until there is nothing left to merge: programs, here or on the host, may
// be changing the same files. It returns what was merged, by path. If some of it got conflict markers, the plan that is returned is the one that was
// merged last: nothing is to be brought to the host. Preconditions: s.committing is held.
func (s *Session) mergeFirst(ctx context.Context, r *control.CommitRequest, c *apply.Commit, res *control.Committed) (*apply.Commit, *control.Committed, map[string]*apply.Merge, error) {
	merged := map[string]*apply.Merge{}
	for try := 0; len(c.Merges) > 0 && !c.Conflicts(); try++ {
		if try == mergeTries {
			c.Close()
			return nil, nil, nil, conflict("%q is being changed all the time, in the mount or on the host: wait for that, and commit again", c.Merges[0].Path)
		}
		err := s.mergeHost(ctx, c.Merges)
		markers := false
		if err == nil {
			for _, m := range c.Merges {
				merged[m.Path] = m
				markers = markers || m.Conflicts > 0
			}
		}
		if markers {
			return c, res, merged, nil
		}
		c.Close()
		if err == nil || errors.Is(err, layers.ErrMoved) {
			c, res, err = s.planCommit(ctx, r)
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	return c, res, merged, nil
}

// mergeHost brings merged files into the mount. The state before is sealed in the same batch; undo goes back to it.
func (s *Session) mergeHost(ctx context.Context, merges []*apply.Merge) error {
	start := time.Now()
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return err
	}
	s.lookAtRuns(ctx)
	if err := s.barrier(ctx); err != nil {
		return apiError(err)
	}
	files := make([]layers.TakeIn, len(merges))
	markers := 0
	for i, m := range merges {
		if files[i] = m.TakeIn; m.Conflicts > 0 {
			markers++
		}
	}
	thaw := s.mount.Freeze()
	moved, op, err := s.mergeHostFrozen(files)
	thaw()
	if errors.Is(err, layers.ErrMoved) {
		return err
	}
	if err != nil {
		return apiError(err)
	}
	if err := s.mount.Notify(moved); err != nil {
		return apiError(fmt.Errorf("the changes on the host are merged into the mount, but the kernel may still show old contents (unmount and mount again): %w", err))
	}
	s.arrived = s.memory.Live(s.o.Branch)
	event := s.event(ledger.KindMerge)
	event.Op, event.Label, event.Layer = op.N, hostLabel, uint64(moved.From)
	event.Details = map[string]any{"from": s.o.Base, "onto": uint64(moved.From), "changed_paths": len(files), "merged_texts": len(files), "with_markers": markers}
	s.audit(event)
	s.lifecycle(lifeActive)
	s.log.Info("merged changes on the host into the mount", "files", len(files), "with_markers", markers, "took", time.Since(start))
	return nil
}

// mergeHostFrozen is mergeHost for the tree and the journal, in one batch. Preconditions: s.heads is held, the mount is frozen.
func (s *Session) mergeHostFrozen(files []layers.TakeIn) (moved layers.Moved, op journal.Op, err error) {
	var entry *journal.Entry
	parent := s.branch.Parent()
	s.layering.Lock()
	defer s.layering.Unlock()
	moved, err = s.branch.TakeIn(files, func(b *kv.Batch, m layers.Moved) (err error) {
		entry, op, err = s.stageOnTop(b, m, journal.OpMerge, hostLabel, uint64(parent), m.Changed)
		return err
	}, s.mount.Swapped)
	if err == nil {
		s.journal.Commit(entry, &op)
	}
	return moved, op, err
}

// describeMarkers fills in res for files that were merged into the mount with conflict markers, and sends what was merged.
func describeMarkers(res *control.Committed, c *apply.Commit, merged map[string]*apply.Merge, out *control.Stream[control.CommitChange]) error {
	for _, ch := range c.Changes {
		m := merged[ch.Path]
		if m == nil {
			continue
		}
		left := ""
		if ch.Reason = mergedReason; m.Conflicts > 0 {
			left = "conflict"
			res.Conflicts++
			ch.Reason = fmt.Sprintf("it has conflict markers in the mount now (places: %d): resolve them there, and commit again", m.Conflicts)
		}
		if err := out.Emit(wireCommitChange(&ch, left)); err != nil {
			return err
		}
	}
	res.Merged = len(merged)
	res.Counts["conflict"] = res.Conflicts
	return nil
}

const mergedReason = "merged in the mount with what was changed on the host"
