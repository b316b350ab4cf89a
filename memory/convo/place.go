package convo

import (
	"cmp"
	"encoding/json"
	"slices"
)

// placeItems puts results that are items of their own behind their step: first those
// that stand there, then those that stood elsewhere and the invented ones.
func (w *work) placeItems() {
	var (
		out   = make([]*node, 0, len(w.nodes)+8)
		count int
		cur   *step // the step whose results may still come
		at    int   // where in out more of them belong
	)
	put := func(n *node) {
		n.pos = count
		if out = append(out, n); n.role != roleSkip || w.countRows {
			count++
		}
	}
	flush := func() {
		if cur == nil {
			return
		}
		more := w.missing(cur, out[at-1])
		out = slices.Insert(out, at, more...)
		count += len(more)
		cur = nil
	}
	for _, n := range w.nodes {
		switch {
		case n.role == roleSkip:
			put(n)
			continue
		case n.role == roleModel:
			if cur != n.step {
				flush()
			}
			put(n)
			cur, at = n.step, len(out)
			continue
		case cur != nil && n.answers(cur):
			put(n)
			at = len(out)
			continue
		}
		flush()
		put(n)
	}
	flush()
	w.nodes = out
}

// missing makes the items to be put behind a step, in the order of its calls.
func (w *work) missing(s *step, prev *node) []*node {
	if !s.moved && len(s.open()) == 0 {
		return nil
	}
	var more []*node
	for _, c := range s.calls {
		switch {
		case c.dead:
		case c.answer == nil:
			w.log(actSynthesize, c.node.pos, c.ref())
			n := fresh(w.adapter, w.answer(w, c, w.excuse(c), prev))
			pairUp(c, n.parts[0])
			more = append(more, n)
		case c.answer.moved && c.answer.node.dead:
			c.answer.node.dead = false
			more = append(more, c.answer.node)
		default:
			continue
		}
		if len(more) > 0 {
			prev = more[len(more)-1]
		}
	}
	return more
}

func pairUp(c, r *part) { c.answer, r.call = r, c }

// placeBlocks puts results that are blocks into the user's turn behind their step,
// which is made where there is none.
func (w *work) placeBlocks() {
	out := make([]*node, 0, len(w.nodes)+8)
	var (
		s      *step
		target *node
	)
	for i, n := range w.nodes {
		n.pos = len(out)
		out = append(out, n)
		if n == target {
			w.fill(n, s)
			target = nil
		}
		if n.step == nil || n != n.step.nodes[len(n.step.nodes)-1] || !n.step.moved && len(n.step.open()) == 0 {
			continue
		}
		s = n.step
		if target = w.turnBehind(i, s); target == nil {
			made := fresh(w.adapter, w.adapter.(turner).turn())
			made.pos = len(out)
			w.fill(made, s)
			out = append(out, made)
		}
	}
	w.nodes = out
}

// turnBehind finds the user's message that takes the results of step s, which ends at
// item i: the last one that has some of them, else the first; nil when there is none.
func (w *work) turnBehind(i int, s *step) *node {
	var target *node
	for _, n := range w.nodes[i+1:] {
		if n.role == roleModel {
			break
		}
		if n.role != roleUser {
			continue
		}
		has := slices.ContainsFunc(n.parts, func(p *part) bool { return p.kind == kResult && p.call != nil && p.call.node.step == s })
		if target == nil || has {
			target = n
		}
	}
	return target
}

// fill adds the missing results of a step to a user's message, behind those it has.
func (w *work) fill(n *node, s *step) {
	fine := w.ordered && inOrder(n)
	_, end := n.results()
	var more []*part
	for _, c := range s.calls {
		switch {
		case c.dead:
		case c.answer == nil:
			w.log(actSynthesize, n.pos, c.ref())
			p := fresh(w.adapter, w.adapter.(turner).turn(w.answer(w, c, w.excuse(c), n))).parts[0]
			pairUp(c, p)
			more = append(more, p)
		case c.answer.moved:
			c.answer.moved = false
			more = append(more, c.answer)
		}
	}
	for _, p := range more {
		p.node = n
	}
	n.edit(end)
	n.parts = slices.Insert(n.parts, end, more...)
	if fine {
		sortResults(n)
	}
}

// inOrder tells whether the results of a message come first and in the order of their calls.
func inOrder(n *node) bool {
	return slices.IsSortedFunc(n.parts, byCall)
}

func byCall(a, b *part) int {
	place := func(p *part) int {
		if p.kind != kResult || p.call == nil {
			return int(^uint(0) >> 1)
		}
		return p.call.seq
	}
	return cmp.Compare(place(a), place(b))
}

// sortResults puts results first and in the order of their calls.
func sortResults(n *node) {
	n.edit(0)
	slices.SortStableFunc(n.parts, byCall)
}

// hoist puts results first. It tells whether it had to.
func hoist(n *node) bool {
	first := slices.IndexFunc(n.parts, func(p *part) bool { return p.kind != kResult })
	if _, end := n.results(); first < 0 || end <= first {
		return false
	}
	n.edit(first)
	slices.SortStableFunc(n.parts, func(a, b *part) int {
		return cmp.Compare(b2i(a.kind != kResult), b2i(b.kind != kResult))
	})
	return true
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// raws returns the texts of the parts of an item.
func raws(n *node) []json.RawMessage {
	out := make([]json.RawMessage, len(n.parts))
	for i, p := range n.parts {
		out[i] = p.raw
	}
	return out
}
