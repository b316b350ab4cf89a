package session

import (
	"slices"

	"github.com/rewindfs/rewindfs/journal"
)

// calls knows which tool calls of agents are under way, and decides where a layer may
// be sealed: in front of a call only when no mutating call is in flight, because a
// layer taken meanwhile would hold half of what that one does. A call does not start
// before its begin was answered, so the first of a step always gets a clean layer.
//
// It is memory of one daemon: after a restart no call is under way. The session
// calls it with heads held.
type calls struct {
	open  []*call          // in the order in which they began
	steps map[string]*step // by agent and step id
	order []*step          // the latest few, oldest first
	ended *call            // the one that ended last
	ran   []*call          // the latest few mutating ones that have ended, oldest first
}

// call is a tool call that has begun.
type call struct {
	id, name, agent string
	step            *step
	readOnly        bool
	ops             uint64 // Branch.Ops when it began
	alone           bool   // no mutating call has been under way at the same time
}

// step is what a model asked for in one response: one call or several.
type step struct {
	key      string
	answered []string // calls that have ended, in the order of their ends
	mutated  bool     // a mutating call has begun
}

// keepSteps is how many steps are remembered: a call may end long after the next step began.
const keepSteps = 64

// keepRan is how many ended calls a checkpoint names, as their results may not be in the
// conversation yet: as many as a step has in parallel.
const keepRan = 16

// begun is what the begin of a call means for the layer in front of it.
type begun struct {
	seal bool         // no mutating call is in flight
	tool journal.Tool // what a checkpoint taken now is to say
}

// begin notes that a call is about to start. stepID may be "": then the call is a step of its own.
// ops is Branch.Ops.
func (c *calls) begin(id, name, agent, stepID string, readOnly bool, ops uint64) begun {
	st := c.stepOf(agent, stepID, id)
	b := begun{seal: true, tool: journal.Tool{Step: stepID, BatchStart: !st.mutated, Pending: id, Answered: slices.Clone(st.answered)}}
	for _, o := range c.ran {
		if o.step != st && o.id != id {
			b.tool.Ran = append(b.tool.Ran, o.id)
		}
	}
	for _, o := range c.open {
		if !o.readOnly {
			b.seal = false
		}
		o.alone = o.alone && readOnly
		if o.step == st {
			b.tool.Inflight = append(b.tool.Inflight, o.id)
		} else if !o.readOnly {
			b.tool.Fuzzy = true
		}
	}
	alone := b.seal
	if readOnly {
		b.seal = false
	} else {
		st.mutated = true
	}
	c.open = append(c.open, &call{id: id, name: name, agent: agent, step: st, readOnly: readOnly, ops: ops, alone: alone})
	return b
}

// stepOf finds or makes a step.
func (c *calls) stepOf(agent, stepID, callID string) *step {
	key := agent + "\x00" + stepID
	if stepID == "" {
		key = agent + "\x00\x00" + callID
	}
	if st := c.steps[key]; st != nil {
		return st
	}
	st := &step{key: key}
	if c.steps == nil {
		c.steps = map[string]*step{}
	}
	c.steps[key] = st
	if c.order = append(c.order, st); len(c.order) > keepSteps {
		delete(c.steps, c.order[0].key)
		c.order = c.order[1:]
	}
	return st
}

// end notes that a call has ended and returns it, nil when nobody knows of it. An empty
// id means the latest one.
func (c *calls) end(id string) *call {
	for i := len(c.open) - 1; i >= 0; i-- {
		if o := c.open[i]; id == "" || o.id == id {
			c.open = slices.Delete(c.open, i, i+1)
			o.step.answered = append(o.step.answered, o.id)
			c.ended = o
			if !o.readOnly {
				c.ran = append(c.ran[max(0, len(c.ran)-keepRan+1):], o)
			}
			return o
		}
	}
	return nil
}

// between is what a checkpoint that no call asked for is to say; nil if no call has begun.
func (c *calls) between() *journal.Tool {
	var t journal.Tool
	for _, o := range c.open {
		if !o.readOnly {
			t.Inflight = append(t.Inflight, o.id)
		}
	}
	for _, o := range c.ran {
		t.Ran = append(t.Ran, o.id)
	}
	if len(t.Inflight)+len(t.Ran) == 0 {
		return nil
	}
	return &t
}

// lied reports whether a call that was to change nothing did, as no other can have done it.
func (o *call) lied(ops uint64) bool { return o.readOnly && o.alone && ops != o.ops }

// toolOf is the tool of the call that ended last, if that is the one.
func (c *calls) toolOf(id string) string {
	if c.ended != nil && c.ended.id == id {
		return c.ended.name
	}
	return ""
}

// has reports whether a call of this id is under way.
func (c *calls) has(id string) bool {
	return slices.ContainsFunc(c.open, func(o *call) bool { return o.id == id })
}

// inflight lists the ids of the calls that are under way.
func (c *calls) inflight() []string {
	ids := make([]string, 0, len(c.open))
	for _, o := range c.open {
		ids = append(ids, o.id)
	}
	return ids
}

// reset forgets all that is under way: a new prompt or model request, or a rollback.
func (c *calls) reset() { *c = calls{} }
