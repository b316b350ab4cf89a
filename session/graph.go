package session

import (
	"maps"
	"slices"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
)

// graph is all states that there are, of all branches: newest first, each with the state below it. A
// state that a movement left without a checkpoint counts while undo or redo may lead there.
func (s *Session) graph(all bool, limit int) ([]control.GraphNode, error) {
	nodes := map[uint64]*control.GraphNode{0: {Layer: 0}}
	node := func(l uint64) *control.GraphNode {
		if nodes[l] == nil {
			nodes[l] = &control.GraphNode{Layer: l}
		}
		return nodes[l]
	}
	for _, e := range s.journal.List(nil) {
		if (all || !e.Auto) && s.tree.Has(layers.Layer(e.Layer)) {
			n := node(e.Layer)
			n.Checkpoints = append(n.Checkpoints, s.describeCheckpoint(&e))
		}
	}
	heads, err := s.tree.Heads()
	if err != nil {
		return nil, apiError(err)
	}
	lines, err := s.lines()
	if err != nil {
		return nil, apiError(err)
	}
	for _, h := range heads {
		if isStaged(h.Branch) {
			continue
		}
		head := control.GraphHead{Branch: h.Branch}
		if b, err := s.branchNamed(h.Branch); err == nil {
			changed := b.branch.Changed()
			head.ChangedPaths = &changed
		}
		n := node(uint64(h.Layer))
		n.Heads = append(n.Heads, head)
	}
	s.addLeft(node)
	out := make([]control.GraphNode, 0, len(nodes))
	for _, l := range slices.Backward(slices.Sorted(maps.Keys(nodes))) {
		n := nodes[l]
		if l != 0 {
			n.Parent = s.below(l, nodes)
		}
		n.Dropped = !inAny(lines, l)
		if limit > 0 && len(out) == limit {
			break
		}
		out = append(out, *n)
	}
	return out, nil
}

// addLeft adds what movements left and can be gone back to.
func (s *Session) addLeft(node func(uint64) *control.GraphNode) {
	reachable := map[uint64]bool{}
	for _, l := range s.journal.Reachable() {
		reachable[l] = true
	}
	for _, op := range s.journal.Ops(0) {
		if !isMovement(op.Kind) || op.Untouched || !reachable[op.From] || !s.tree.Has(layers.Layer(op.From)) {
			continue
		}
		if n := node(op.From); len(n.Checkpoints) == 0 && n.Left == nil {
			n.Left = &control.Left{Kind: string(op.Kind), Label: op.Label, At: op.At.UTC()}
		}
	}
}

func isMovement(k journal.OpKind) bool {
	return k == journal.OpRollback || k == journal.OpUndo || k == journal.OpRedo || k == journal.OpRestore || k == journal.OpMerge || k == journal.OpRun
}

// below returns the nearest layer below l that is in the graph.
func (s *Session) below(l uint64, nodes map[uint64]*control.GraphNode) uint64 {
	for {
		under, ok := s.tree.Under(layers.Layer(l))
		if l = uint64(under); !ok || nodes[l] != nil {
			return l
		}
	}
}

// describeOp tells of an operation what a person needs to go back: the checkpoints it was about, and how
// many steps of undo or redo lead to what it left. steps is what stepsTo says.
func (s *Session) describeOp(op *journal.Op, steps map[string]map[uint64]int) control.Op {
	out := wireOp(op)
	if e, ok := s.journal.At(op.To); ok && op.Kind != journal.OpRestore { // which stays where it is
		out.Checkpoint = e.ID
	}
	if op.Kind == journal.OpCheckpoint {
		if e, ok := s.journal.Newest(op.To); ok {
			out.Checkpoint, out.ChangedPaths = e.ID, e.ChangedPaths
		}
	}
	if !isMovement(op.Kind) {
		return out
	}
	back := op.From
	if op.Untouched {
		back = op.Same
	}
	if e, ok := s.journal.At(back); ok {
		out.Left = e.ID
	}
	out.Steps = steps[op.Branch][back]
	return out
}

// stepsTo says, by branch and layer, how many steps lead there: above 0 of undo, below of redo.
func (s *Session) stepsTo() map[string]map[uint64]int {
	out := map[string]map[uint64]int{}
	for _, b := range s.sessions() {
		name := b.o.Branch
		out[name] = map[uint64]int{}
		undo, redo := s.journal.Steps(name)
		note := func(steps []journal.Step, sign int) {
			for i, st := range steps {
				if out[name][st.Back] == 0 {
					out[name][st.Back] = sign * (i + 1)
				}
			}
		}
		if steps, err := s.journal.Undo(name, undo); err == nil {
			note(steps, 1)
		}
		if steps, err := s.journal.Redo(name, redo); err == nil {
			note(steps, -1)
		}
	}
	return out
}
