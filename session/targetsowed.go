package session

import (
	"encoding/json"
	"fmt"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
)

// From the batch that moves the head until all targets are put back the store says what is owed. A daemon that is killed in between leaves
// that to the user: programs may have gone on with the targets meanwhile. status says what to do. The same rollback puts the rest
// back; to take the movement back, and make it again, does it, too: of a target that still holds what it held before the movement, the journal
// takes what it was to get for what it held after it.

// owedTargets is the kv.Meta key of what the last movement of a branch's head has still to put back.
const owedTargets = "owed_targets/"

// stageOwed adds to b what is owed from its application on.
func (s *Session) stageOwed(b *kv.Batch, p *putting) error {
	if !p.any() {
		return nil
	}
	var all []journal.Copy
	for _, st := range p.staged {
		all = append(all, st.Copy)
	}
	v, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode what is to be put back: %w", err)
	}
	b.Put(kv.Meta(owedTargets+s.o.Branch), v)
	return nil
}

// stageSettled adds to b that nothing is owed any more, unless that is so already.
func (s *Session) stageSettled(b *kv.Batch) error {
	key := kv.Meta(owedTargets + s.o.Branch)
	_, ok, err := s.db.Get(key)
	if ok {
		b.Delete(key)
	}
	return err
}

// owedTargets lists what the last movement of the branch's head did not put back.
func (st *store) owedTargets(branch string) (owed []journal.Copy, err error) {
	v, ok, err := st.db.Get(kv.Meta(owedTargets + branch))
	if err == nil && ok {
		err = json.Unmarshal(v, &owed)
	}
	if err != nil {
		return nil, fmt.Errorf("read which targets are to be put back: %w", err)
	}
	return owed, nil
}

// tellOwed is called when a branch is opened.
func (s *Session) tellOwed() error {
	owed, err := s.owedTargets(s.o.Branch)
	if err != nil || len(owed) == 0 {
		return err
	}
	s.log.Warn("the last movement of the head did not put back all targets outside of the mount: status says what to do", "branch", s.o.Branch, "targets", targetNames(wireTargets(owed, "")))
	for i := range owed {
		if err := s.targets.Tidy(&owed[i]); err != nil {
			s.log.Warn("a file that was to become a target is left", "error", err)
		}
	}
	return nil
}

// lastMovement is the last operation of the branch that may have put targets back.
func (s *Session) lastMovement() (journal.Op, bool) {
	for _, op := range s.journal.Ops(0) {
		if op.Branch == s.o.Branch && (op.Kind == journal.OpRollback || op.Kind == journal.OpUndo || op.Kind == journal.OpRedo) {
			return op, true
		}
	}
	return journal.Op{}, false
}

// owedBy tells which movement owes something, nil if that is not known.
func (s *Session) owedBy() *control.Movement {
	op, ok := s.lastMovement()
	if !ok {
		return nil
	}
	return &control.Movement{Kind: string(op.Kind), Label: op.Label}
}

// lateCopies are the owed copies of those targets that now hold what they held before the movement that owes them. Preconditions: s.heads is held.
func (s *Session) lateCopies(now []journal.Copy) (late []journal.Copy, err error) {
	owed, err := s.owedTargets(s.o.Branch)
	if err != nil || len(owed) == 0 {
		return nil, err
	}
	op, _ := s.lastMovement()
	for _, c := range now {
		due, owes := copyOf(owed, c.Key())
		if was, known := copyOf(op.Targets, c.Key()); owes && known && was.Same(&c) {
			late = append(late, due)
		}
	}
	return late, nil
}
