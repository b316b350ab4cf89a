package session

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/memory"
	"github.com/rewindfs/rewindfs/memory/convo"
)

// foresee tells what a rollback would do, or why it would be refused. Preconditions: s.heads is held.
func (s *Session) foresee(ctx context.Context, to journal.Target, g going) (*control.Rollback, error) {
	if e := to.Entry; e != nil && !g.filesOnly {
		if _, err := s.restoreConversations(e, e.Conversation, wanted{as: spoken(to), noNotice: true, check: true}); err != nil {
			return nil, err
		}
	}
	gone, err := s.goneMessages(to, g)
	if err != nil {
		return nil, err
	}
	if err := s.barrier(ctx); err != nil {
		return nil, apiError(err)
	}
	start := time.Now()
	res := emptyRollback()
	res.GoneMessages = gone
	res.DryRun, res.Layer = true, to.Layer
	s.nameTarget(res)
	err = s.tree.Diff(s.branch.HeadLayer(), layers.Layer(to.Layer), func(c layers.Change) error {
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

// goneMessages counts, by thread, the messages of the live conversation that to does not have.
func (s *Session) goneMessages(to journal.Target, g going) (map[string]int, error) {
	if g.filesOnly {
		return nil, nil
	}
	then := memory.Threads{}
	if to.Entry != nil {
		then = threadsOf(to.Entry.Conversation)
	}
	gone := map[string]int{}
	for name, ref := range s.memory.Live(s.o.Branch) {
		if ref.Missing || ref == then[name] {
			continue
		}
		now, err := s.memory.Get(ref)
		if err != nil {
			return nil, apiError(fmt.Errorf("read the live conversation (thread %q): %w", name, err))
		}
		var was convo.History
		if r, ok := then[name]; ok && !r.Missing {
			if was, err = s.memory.Get(r); err != nil {
				return nil, apiError(fmt.Errorf("read the conversation of %s (thread %q): %w", to.Name(), name, err))
			}
		}
		same := 0
		for same < min(len(now.Items), len(was.Items)) && bytes.Equal(now.Items[same], was.Items[same]) {
			same++
		}
		if n := len(now.Items) - same; n > 0 {
			gone[name] = n
		}
	}
	return gone, nil
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
