package convo

import (
	"bytes"
	"slices"
)

// queues are the calls that wait for a result that does not name its call by id: by
// name, and all of them under "". Those that got a result meanwhile are skipped.
type queues map[string][]*part

func (q queues) add(c *part) {
	q[c.name] = append(q[c.name], c)
	if c.name != "" {
		q[""] = append(q[""], c)
	}
}

func (q queues) oldest(name string) *part {
	for len(q[name]) > 0 {
		c := q[name][0]
		if c.answer == nil {
			return c
		}
		q[name] = q[name][1:]
	}
	return nil
}

// waiting is the calls without a result at one point of the walk.
type waiting struct {
	byID   map[string]*part // a call hides an older one of the same id
	ids    map[string]bool  // of all calls of the history, earlier and later ones
	named  map[string]bool  // ids that results of the history name
	server map[string]*part // the provider's own
	// Calls without an id and, where ids are optional, all that no result names: of every
	// step, and of the step at hand, which is asked first.
	anon, anonStep, loose, looseStep queues
}

func newWaiting(nodes []*node) *waiting {
	q := &waiting{byID: map[string]*part{}, ids: map[string]bool{}, named: map[string]bool{}, server: map[string]*part{}, anon: queues{}, loose: queues{}}
	for _, n := range nodes {
		for _, p := range n.parts {
			switch p.kind {
			case kCall:
				q.ids[p.id] = true
			case kResult:
				q.named[p.id] = true
			}
		}
	}
	q.nextStep()
	return q
}

func (q *waiting) nextStep() { q.anonStep, q.looseStep = queues{}, queues{} }

func (q *waiting) open(c *part) {
	if c.server {
		q.server[c.id] = c
		return
	}
	if c.id != "" {
		q.byID[c.id] = c
	} else {
		q.anon.add(c)
		q.anonStep.add(c)
	}
	if c.loose && (c.id == "" || !q.named[c.id]) {
		q.loose.add(c)
		q.looseStep.add(c)
	}
}

// take finds the call that a result answers; nil when there is none.
func (q *waiting) take(r *part) *part {
	if r.server {
		if c := q.server[r.id]; c != nil && c.answer == nil {
			return c
		}
		return nil
	}
	if r.id != "" {
		if c := q.byID[r.id]; c != nil && c.answer == nil {
			return c
		}
		if !r.loose || q.ids[r.id] {
			return nil
		}
		return firstOf(q.anonStep.oldest(r.name), q.anon.oldest(r.name))
	}
	if r.loose {
		return firstOf(q.looseStep.oldest(r.name), q.loose.oldest(r.name))
	}
	// No id: by position, and by name where there is one.
	return firstOf(q.anonStep.oldest(r.name), q.anonStep.oldest(""), q.anon.oldest(r.name), q.anon.oldest(""))
}

func firstOf(calls ...*part) *part {
	for _, c := range calls {
		if c != nil {
			return c
		}
	}
	return nil
}

// link finds the steps, and for each result its call. It changes nothing: a result
// without a call is marked dead, one in the wrong place moved.
func (w *work) link() {
	var (
		wait     = newWaiting(w.nodes)
		cur      *step // the last step so far
		adjacent bool  // nothing stands between it and here
		gap      bool  // something other than its results does
		seq      int
	)
	for _, n := range w.nodes {
		if n.role == roleSkip {
			continue
		}
		if n.role == roleModel {
			same := cur != nil && (adjacent && w.join || n.group != "" && n.group == cur.group && !gap)
			if !same {
				cur, gap = &step{group: n.group}, false
				w.steps = append(w.steps, cur)
				wait.nextStep()
			}
			n.step = cur
			cur.nodes = append(cur.nodes, n)
		}
		if w.linkParts(n, cur, gap, wait, &seq) && n.role != roleModel {
			gap = true
		}
		adjacent = n.role == roleModel
	}
}

// linkParts links the calls and results of one item, and tells whether there is
// something in it that results behind it may not stand behind.
func (w *work) linkParts(n *node, cur *step, gap bool, wait *waiting, seq *int) bool {
	blocked := len(n.parts) == 0 && !(w.blocks && n.role == roleSystem)
	for _, p := range n.parts {
		if p.kind == kCall && n.role != roleModel && !p.ghost {
			p.kind = kText // only the model asks for tools
		}
		switch p.kind {
		case kCall:
			*seq++
			p.seq = *seq
			wait.open(p)
			switch {
			case n.step == nil: // of a compacted history
			case p.server:
				n.step.server = append(n.step.server, p)
			default:
				n.step.calls = append(n.step.calls, p)
			}
		case kResult:
			c := wait.take(p)
			if c == nil {
				p.dead = true
				continue
			}
			c.answer, p.call = p, c
			p.moved = !p.server && !w.anywhere && !c.ghost && (c.node.step != cur || gap || n.role == roleModel)
		default:
			blocked = blocked || !(w.blocks && n.role == roleSystem)
		}
	}
	if !w.blocks && len(n.parts) > 1 {
		moveTogether(n)
	}
	return blocked
}

// moveTogether keeps an item with several results in one piece: it is moved when all
// that is in it are results of one step, and stays when not.
func moveTogether(n *node) {
	var of *step
	for _, p := range n.parts {
		if p.dead {
			continue
		}
		if !p.moved || of != nil && p.call.node.step != of {
			for _, p := range n.parts {
				p.moved = false
			}
			return
		}
		of = p.call.node.step
	}
}

// cutPending goes back to the moment in front of a call (CONVERSATIONS 1.10): behind
// its step only the results stay that were there then. What it takes away is not a
// change of the repair, as what lies behind a cut is not.
func (w *work) cutPending() {
	if w.opt.Pending == "" {
		return
	}
	at := len(w.steps) - 1
	var c *part
	for ; at >= 0; at-- {
		s := w.steps[at]
		if i := slices.IndexFunc(s.calls, func(c *part) bool { return c.ref() == w.opt.Pending }); i >= 0 {
			c = s.calls[i]
			break
		}
	}
	// A transcript that was read before the step was in it has nothing to cut; one that
	// was repaired before holds the invented result of this call.
	if c == nil || c.answer != nil && (w.opt.AtCall || invented(c.answer)) {
		return
	}
	s := w.steps[at]
	w.steps = w.steps[:at+1]
	keep := func(p *part) bool {
		if p.kind != kResult || p.call == nil || p.call.node.step != s {
			return false
		}
		if slices.Contains(w.opt.Inflight, p.call.ref()) {
			return false
		}
		if w.opt.Answered != nil {
			return slices.Contains(w.opt.Answered, p.call.ref())
		}
		return p.call.seq < c.seq
	}
	last := slices.Index(w.nodes, s.nodes[len(s.nodes)-1])
	for i := slices.Index(w.nodes, s.nodes[0]) + 1; i < len(w.nodes); i++ {
		n := w.nodes[i]
		if n.step == s || i < last && !n.answers(s) {
			continue
		}
		n.remove(func(p *part) bool {
			if !keep(p) && p.call != nil && p.call.answer == p {
				p.call.answer = nil
			}
			return !keep(p)
		})
		n.dead = len(n.parts) == 0
	}
}

// invented tells whether a result was made up by a repair.
func invented(r *part) bool {
	raw := r.raw
	if raw == nil {
		raw = r.node.raw
	}
	return slices.ContainsFunc([]string{notRun, wasRunning, mayHaveRun, resultLost}, func(s string) bool {
		return bytes.Contains(raw, []byte(`"`+s))
	})
}

// settle takes out the results that have no call and those that stand where they may
// not, and says so.
func (w *work) settle() {
	for _, n := range w.nodes {
		had := len(n.parts)
		for _, p := range n.parts {
			switch {
			case p.dead:
				w.log(actOrphanResult, n.pos, p.ref())
			case p.moved:
				w.log(actMoveResult, n.pos, p.ref())
				p.call.node.step.moved = true
			}
		}
		n.remove(func(p *part) bool { return p.dead })
		if n.role == roleTool && len(n.parts) > 0 && n.parts[0].moved {
			n.dead = true // all of it, with its parts: placeItems puts it back
			continue
		}
		n.remove(func(p *part) bool { return p.moved })
		if had > 0 && len(n.parts) == 0 {
			n.dead = true
			if w.blocks {
				w.log(actDropEmpty, n.pos, "")
			}
		}
	}
	w.prune()
}

// prune forgets the items of steps, and the steps, that are gone.
func (w *work) prune() {
	for _, s := range w.steps {
		s.nodes = slices.DeleteFunc(s.nodes, func(n *node) bool { return n.dead })
	}
	w.steps = slices.DeleteFunc(w.steps, func(s *step) bool { return len(s.nodes) == 0 })
}
