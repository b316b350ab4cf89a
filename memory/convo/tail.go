package convo

import "slices"

// tails looks at the last step, and as long as there is one of which nothing ran, drops
// it and looks again.
func (w *work) tails() {
	end := len(w.nodes) // nothing from here on but results of steps that stay
	for i := len(w.nodes) - 1; i >= 0; i-- {
		n := w.nodes[i]
		if n.dead || n.role == roleSkip || n.answers(nil) {
			continue
		}
		if n.role != roleModel {
			return
		}
		if !w.dropTail(n.step) {
			n.step.tail = true
			return
		}
		// Bookkeeping that hangs on what was dropped goes with it.
		first := n.step.nodes[0]
		for ; i >= 0; i-- {
			for ; end > i; end-- {
				if w.nodes[end-1].follows {
					w.nodes[end-1].dead = true
				}
			}
			if w.nodes[i] == first {
				break
			}
		}
	}
}

// dropTail drops the last step when it cannot or should not be completed.
func (w *work) dropTail(s *step) bool {
	if s.only(kThink) {
		w.dropFragment(s)
		return true
	}
	open := s.open()
	mute := slices.ContainsFunc(open, func(c *part) bool { return c.mute }) || w.notice_ != "" && s.serverOpen()
	if len(open) == 0 && !mute {
		return false
	}
	var ran []*part
	answered := 0
	for _, c := range s.calls {
		if c.answer != nil {
			answered++
		}
		if c.answer != nil && !invented(c.answer) || slices.Contains(w.opt.Inflight, c.ref()) || w.ended(c) {
			ran = append(ran, c)
		}
	}
	drop := w.opt.Mode == Drop && (w.opt.Pending == "" || s.has(w.opt.Pending))
	if !mute && !drop && (w.opt.Mode == Synthesize || answered+len(ran) > 0) {
		return false
	}
	if !drop { // which says that the files are those of before the step
		w.ran = append(ran, w.ran...)
	}
	w.kill(s, answered)
	return true
}

// kill drops a step with the results it has.
func (w *work) kill(s *step, answered int) {
	change := Change{Action: actDropStep, At: s.nodes[0].pos, Results: &answered}
	for _, n := range s.nodes {
		n.dead = true
		for _, p := range n.parts {
			if p.kind != kCall {
				continue
			}
			change.IDs = append(change.IDs, p.ref())
			if r := p.answer; r != nil && r.node.step != s {
				r.node.remove(func(p *part) bool { return p == r })
				r.node.dead = len(r.node.parts) == 0
			}
		}
	}
	w.changes = append(w.changes, change)
}

// dropFragment drops a response that was cut behind its reasoning.
func (w *work) dropFragment(s *step) {
	for i := len(s.nodes) - 1; i >= 0; i-- {
		n := s.nodes[i]
		n.dead = true
		if w.fragment == actDropReasoning {
			w.log(w.fragment, n.pos, n.parts[0].id)
		}
	}
	if w.fragment != actDropReasoning {
		w.log(w.fragment, s.nodes[0].pos, "")
	}
}

// dropUnanswerable takes out calls in the middle of a history whose result is missing
// and cannot be invented.
func (w *work) dropUnanswerable() {
	defer w.prune()
	for i, n := range w.nodes {
		s := n.step
		if s == nil || n != s.nodes[len(s.nodes)-1] {
			continue
		}
		// The provider goes on with its own call only at the end, and behind results alone.
		server := s.serverOpen() && (s != w.steps[len(w.steps)-1] || w.otherThanResults(i+1))
		if !server && (s.tail || !slices.ContainsFunc(s.open(), func(c *part) bool { return c.mute })) {
			continue
		}
		for _, n := range s.nodes {
			w.dropCalls(n, server)
		}
	}
}

// dropCalls takes the calls that nobody can answer out of one item.
func (w *work) dropCalls(n *node, server bool) {
	for _, c := range n.parts {
		if c.kind == kCall && c.answer == nil && (c.mute || server && c.server) {
			c.dead = true
			w.log(actDropCall, n.pos, c.ref())
		}
	}
	if n.remove(func(p *part) bool { return p.dead }) && len(n.parts) == 0 {
		n.dead = true
		if w.blocks {
			w.log(actDropEmpty, n.pos, "")
			return
		}
		w.cutLoose(n)
	}
}

// cutLoose deals with the reasoning in front of an item that is gone: its own next item
// is no longer there, so it goes too, and what is left of the response is sent by value,
// without the ids by which it would ask for that reasoning.
func (w *work) cutLoose(n *node) {
	s := n.step
	at := slices.Index(s.nodes, n)
	cut := false
	for i := at - 1; i >= 0 && !s.nodes[i].dead && s.nodes[i].parts[0].kind == kThink; i-- {
		s.nodes[i].dead, cut = true, true
		w.log(actOrphanReasoning, s.nodes[i].pos, s.nodes[i].parts[0].id)
	}
	if !cut {
		return
	}
	for _, n := range s.nodes[at+1:] {
		if len(n.parts) == 0 || n.parts[0].kind == kThink {
			break
		}
		switch n.parts[0].typ {
		case "message", "function_call", "custom_tool_call": // of others the id is no mere name
			n.dropID, n.edited = true, true
			w.log(actDropItemID, n.pos, n.parts[0].ref())
		}
	}
}

// otherThanResults tells whether the user's turn that starts at item i holds anything
// but results.
func (w *work) otherThanResults(i int) bool {
	for ; i < len(w.nodes) && w.nodes[i].role != roleModel; i++ {
		if w.nodes[i].role != roleSkip && !w.nodes[i].answers(nil) {
			return true
		}
	}
	return false
}
