package session

import (
	"fmt"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
)

func checkRules(r *control.GCRules) error {
	switch {
	case r.Keep != nil && *r.Keep < 1:
		return badRequest("keep %d: the number must be 1 or more", *r.Keep)
	case r.OlderThanMS < 0:
		return badRequest("older than %d ms: the time must not be negative", r.OlderThanMS)
	case r.MaxSize < 0:
		return badRequest("at most %d bytes: the size must not be negative", r.MaxSize)
	case r.KeepLabeled && r.Keep == nil && r.OlderThanMS == 0 && r.MaxSize == 0:
		return badRequest("to keep what has a label says nothing alone: say what else is to go, by the number to keep, the age, or the size")
	}
	return nil
}

// standing is where checkpoints stand, as far as the question goes which may be dropped.
type standing struct {
	lines   map[string]journal.Line // of the branches, mounted or not
	waysOf  []journal.Line          // of the states that undo and redo lead to
	spared  map[string]bool         // by id: never to be dropped
	asked   map[string]int          // of each that was asked for: how many newer such ones its branches have, at least
	autos   map[string]int          // likewise of automatic ones
	entries []journal.Entry         // all, newest first
}

// standing looks at all branches. Preconditions: s.layering is held, or a hint is enough.
func (s *Session) standing(r *control.GCRules) (*standing, error) {
	heads, err := s.tree.Heads()
	if err != nil {
		return nil, err
	}
	st := &standing{
		lines: map[string]journal.Line{}, spared: map[string]bool{}, asked: map[string]int{}, autos: map[string]int{},
		entries: s.journal.List(nil),
	}
	for _, h := range heads {
		line := s.tree.Line(h.Layer)
		st.lines[h.Branch] = func(l uint64) bool { return line(layers.Layer(l)) }
	}
	for _, l := range s.journal.Reachable() {
		if !r.ForgetUndo && s.tree.Has(layers.Layer(l)) {
			line := s.tree.Line(layers.Layer(l))
			st.waysOf = append(st.waysOf, func(l uint64) bool { return line(layers.Layer(l)) })
		}
	}
	for branch, line := range st.lines {
		if err := s.spare(st, branch, line); err != nil {
			return nil, err
		}
	}
	for _, e := range s.journal.Undecided() {
		st.spared[e.ID] = true
	}
	for _, r := range s.openRuns("") {
		st.spared[r.Checkpoint] = true
	}
	for _, b := range s.sessions() {
		if e := b.before.Load(); e != nil {
			st.spared[e.ID] = true
		}
	}
	return st, nil
}

// spare notes what of a branch is never dropped, and counts its checkpoints.
func (s *Session) spare(st *standing, branch string, line journal.Line) error {
	if cur := s.journal.Attached(branch); len(cur) > 0 {
		st.spared[cur[len(cur)-1].ID] = true
	}
	if e, ok := s.journal.Latest(line); ok {
		st.spared[e.ID] = true
	}
	var p control.Policy
	if err := s.loadStateOf(branch, statePolicy, &p); err != nil {
		return err
	}
	if p.AutoRollback != nil {
		if to, err := s.journal.Resolve(p.AutoRollback.To, line); err == nil && to.Entry != nil {
			st.spared[to.Entry.ID] = true
		}
	}
	asked, autos := 0, 0
	count := func(of map[string]int, id string, n *int) {
		if had, ok := of[id]; !ok || *n < had {
			of[id] = *n
		}
		*n++
	}
	for _, e := range st.entries {
		switch {
		case !line(e.Layer):
		case e.Auto:
			if autos == 0 {
				st.spared[e.ID] = true // calls under way may go back to it
			}
			count(st.autos, e.ID, &autos)
		default:
			count(st.asked, e.ID, &asked)
		}
	}
	return nil
}

// left reports whether a checkpoint is in nobody's line, nor on a way back.
func (st *standing) left(e *journal.Entry) bool {
	for _, line := range st.lines {
		if line(e.Layer) {
			return false
		}
	}
	for _, line := range st.waysOf {
		if line(e.Layer) {
			return false
		}
	}
	return true
}

// choose picks the checkpoints that a collection by these rules drops, whatever the size.
func (s *Session) choose(r *control.GCRules) ([]journal.Entry, error) {
	st, err := s.standing(r)
	if err != nil {
		return nil, fmt.Errorf("choose what to drop: %w", err)
	}
	now := s.o.Now()
	var gone []journal.Entry
	for _, e := range st.entries {
		if st.spared[e.ID] || spares(r, &e, now) {
			continue
		}
		drop := st.left(&e)
		if !drop && (r.Keep != nil || r.OlderThanMS > 0) {
			drop = r.Keep == nil || st.rank(&e) >= *r.Keep
		}
		if drop {
			gone = append(gone, e)
		}
	}
	return gone, nil
}

// rank is how many newer checkpoints of its kind the branches of e have.
func (st *standing) rank(e *journal.Entry) int {
	of := st.asked
	if e.Auto {
		of = st.autos
	}
	if n, ok := of[e.ID]; ok {
		return n
	}
	return len(st.entries) // in no line
}

// chooseMore lists, in the order in which they are to go, the checkpoints that may be dropped for the sake
// of the size, besides those of gone: the oldest without a label first.
func (s *Session) chooseMore(r *control.GCRules, gone []journal.Entry) ([]journal.Entry, error) {
	st, err := s.standing(r)
	if err != nil {
		return nil, fmt.Errorf("choose what to drop: %w", err)
	}
	for _, e := range gone {
		st.spared[e.ID] = true
	}
	now := s.o.Now()
	var plain, labeled []journal.Entry
	for i := len(st.entries) - 1; i >= 0; i-- {
		e := st.entries[i]
		switch {
		case st.spared[e.ID] || spares(r, &e, now) || r.Keep != nil && st.rank(&e) < *r.Keep:
		case e.Label == "":
			plain = append(plain, e)
		default:
			labeled = append(labeled, e)
		}
	}
	return append(plain, labeled...), nil
}

// spares reports whether the rules keep e whatever else there is.
func spares(r *control.GCRules, e *journal.Entry, now time.Time) bool {
	return r.KeepLabeled && e.Label != "" ||
		r.OlderThanMS > 0 && now.Sub(e.CreatedAt) < time.Duration(r.OlderThanMS)*time.Millisecond
}
