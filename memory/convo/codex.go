package convo

import (
	"encoding/json"
	"errors"
)

// codex is Codex's rollout file (CONVERSATIONS 2.2): rows around the items of the
// Responses API, and bookkeeping. What it says of places counts the items only.
type codex struct{ responses }

func (c codex) read(raw json.RawMessage) (*node, error) {
	o, ok := asObject(raw)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	if !isString(o.get("type")) {
		return nil, errors.New("its type is not a string")
	}
	switch o.str("type") {
	case "response_item":
		payload := o.get("payload")
		if payload == nil {
			return nil, errors.New("it has no payload")
		}
		n, err := c.responses.read(payload)
		if err != nil {
			return nil, err
		}
		n.raw = raw
		return n, nil
	case "compacted":
		return c.compacted(o), nil
	case "event_msg", "token_usage_record":
		return &node{raw: raw, role: roleSkip, follows: true}, nil
	}
	return &node{raw: raw, role: roleSkip}, nil
}

// compacted reads the row that takes the place of all in front of it. Its calls may be
// answered behind it.
func (c codex) compacted(o object) *node {
	n := &node{raw: o.raw, role: roleOther}
	list, _ := asArray(o.sub("payload").get("replacement_history"))
	answered := map[string]bool{}
	for _, it := range list.items {
		in, err := c.responses.read(it)
		if err != nil {
			continue
		}
		for _, p := range in.parts {
			if p.kind == kResult {
				answered[p.id] = true
			}
			if p.kind == kCall {
				p.ghost = true
				n.parts = append(n.parts, p)
			}
		}
	}
	open := n.parts[:0]
	for _, p := range n.parts {
		if !answered[p.id] {
			open = append(open, p)
		}
	}
	n.parts = append(open, &part{kind: kText})
	return n
}

// row wraps an item as the row behind prev is.
func (codex) row(item json.RawMessage, prev *node) json.RawMessage {
	o, _ := asObject(prev.raw)
	if at := o.get("timestamp"); at != nil {
		return obj("timestamp", at, "type", "response_item", "payload", item)
	}
	return obj("type", "response_item", "payload", item)
}

func (c codex) answer(w *work, p *part, text string, prev *node) json.RawMessage {
	item := c.responses.answer(w, p, text, prev)
	if p.typ == "local_shell_call" {
		item = obj("type", "function_call_output", "call_id", p.id, "output", text)
	}
	return c.row(item, prev)
}

func (c codex) write(n *node) json.RawMessage {
	o, _ := asObject(n.raw)
	if item, ok := asObject(o.get("payload")); ok && n.dropID {
		return o.with("payload", item.without("id"))
	}
	return n.raw
}

func (codex) prepare(w *work) {
	w.dropTwins(func(n *node) (string, []byte) {
		o, _ := asObject(n.raw)
		item := o.get("payload")
		return itemID(n, item), item
	})
}

func (c codex) notice(w *work) {
	if len(w.nodes) == 0 {
		return // a rollout that does not say whose it is would be refused
	}
	last := w.last()
	if last != nil && (last.role == roleSystem || last.role == roleUser) {
		o, _ := asObject(last.raw)
		if w.says(lastText(o.get("payload"))) {
			return
		}
	}
	n := w.push(fresh(c, c.row(c.noticeItem(w), w.nodes[len(w.nodes)-1])))
	w.log(actNotice, n.pos, "")
}

// finish makes it the rollout of a new thread, when there is an id for one: the first
// row says where it comes from, and what only the screen needs is left out.
func (c codex) finish(w *work) error {
	if w.opt.NewID == "" {
		return nil
	}
	id := quote(w.opt.NewID)
	own := false // the first session_meta is the thread's own; others came with a fork
	for _, n := range w.nodes {
		o, _ := asObject(n.raw)
		switch o.str("type") {
		case "event_msg":
			n.dead = true
		case "session_meta":
			if own {
				continue
			}
			own = true
			p, ok := asObject(o.get("payload"))
			if !ok {
				return errors.New("the session_meta row has no payload: there is no thread to fork")
			}
			old := p.get("id")
			if string(old) == string(id) {
				continue
			}
			p, _ = asObject(p.with("id", id))
			if p.has("session_id") {
				p, _ = asObject(p.with("session_id", id))
			}
			if isString(old) {
				p, _ = asObject(p.with("forked_from_id", old))
			}
			n.raw = o.with("payload", p.raw)
		}
	}
	return nil
}
