package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
)

// foresee tells what a rollback would do, or why it would be refused. Preconditions: s.heads is held.
func (s *Session) foresee(ctx context.Context, to journal.Target, g going) (*control.Rollback, error) {
	if e := to.Entry; e != nil && !g.filesOnly {
		if _, err := s.restoreConversations(e, e.Conversation, wanted{as: spoken(to), noNotice: true, check: true}); err != nil {
			return nil, err
		}
	}
	if err := s.barrier(ctx); err != nil {
		return nil, apiError(err)
	}
	start := time.Now()
	res := emptyRollback()
	res.DryRun, res.Layer = true, to.Layer
	s.nameTarget(res)
	err := s.tree.Diff(s.branch.HeadLayer(), layers.Layer(to.Layer), func(c layers.Change) error {
		if s.rules.Kept(c.Path, c.Type == unix.S_IFDIR) && (c.OldPath == "" || s.rules.Kept(c.OldPath, c.Type == unix.S_IFDIR)) {
			res.KeptPaths++
			return nil
		}
		res.ChangedPaths++
		if len(res.Changes) < maxListed {
			res.Changes = append(res.Changes, wireChange(&c))
		} else {
			res.Truncated = true
		}
		return nil
	})
	if err != nil {
		return nil, apiError(fmt.Errorf("compare with %s: %w", to.Name(), err))
	}
	if to.Entry != nil && !g.noTargets && !g.messagesOnly {
		res.Targets = wireTargets(to.Entry.Targets, control.TargetWouldRestore)
	}
	target := layers.Layer(to.Layer)
	res.Dropped = dropped(s.linePast(target), s.inLineOf(target))
	res.Noop = res.ChangedPaths == 0 && len(res.Dropped) == 0 && len(res.Targets) == 0
	res.Busy = wireProcesses(s.mayHold(ctx))
	res.EngineUS = time.Since(start).Microseconds()
	return res, nil
}

// inLineOf returns the line of a sealed layer, as far as the journal knows parents. A layer that a head movement sealed has no entry; then
// the operation log says what lies under it.
func (s *Session) inLineOf(l layers.Layer) journal.Line {
	parents := map[uint64]uint64{}
	for _, e := range s.journal.List(nil) {
		parents[e.Layer] = e.Parent
	}
	under := map[uint64]uint64{} // open layer → what it was opened on
	for _, op := range s.journal.Ops(0) {
		under[op.Open] = op.To
	}
	have := map[uint64]bool{}
	for at := uint64(l); at != 0 && !have[at]; {
		have[at] = true
		if p, ok := parents[at]; ok {
			at = p
		} else {
			at = under[at]
		}
	}
	return func(l uint64) bool { return l == 0 || have[l] }
}

func wireProcesses(ps []Process) []control.Process {
	out := make([]control.Process, 0, len(ps))
	for _, p := range ps {
		out = append(out, control.Process{PID: p.PID, Command: strings.ToValidUTF8(p.Command, "\uFFFD"), Uses: p.Uses})
	}
	return out
}

// describeAll names processes for a message.
func describeAll(ps []Process) string {
	if len(ps) == 0 {
		return "processes that cannot be seen"
	}
	var names []string
	for i, p := range ps {
		if i == 5 {
			names = append(names, fmt.Sprintf("and %d more", len(ps)-i))
			break
		}
		names = append(names, fmt.Sprintf("%s (pid %d)", p.Command, p.PID))
	}
	return strings.Join(names, ", ")
}
