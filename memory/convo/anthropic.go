package convo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// anthropic is Anthropic Messages (CONVERSATIONS 1.3): calls and results are blocks, the
// results stand first in the user's turn behind their step, and thinking is bound to all
// that is in front of it.
type anthropic struct{ plain }

func (anthropic) traits() traits {
	return traits{blocks: true, join: true, bound: true, fragment: actDropThinking}
}

func (anthropic) read(raw json.RawMessage) (*node, error) {
	o, n, err := readMessage(raw)
	if err != nil {
		return nil, err
	}
	if o.str("role") == "assistant" {
		n.role = roleModel
	}
	return n, readBlocks(o, n)
}

// readBlocks reads the content of a message.
func readBlocks(o object, n *node) error {
	c := o.get("content")
	if isString(c) {
		n.bare = true
		n.parts = []*part{{raw: c, empty: string(c) == `""`}}
		return nil
	}
	n.list, _ = asArray(c)
	for i, raw := range n.list.items {
		b, ok := asObject(raw)
		if !ok || !isString(b.get("type")) {
			return fmt.Errorf("block %d of its content has no type", i)
		}
		p := &part{raw: raw, typ: b.str("type")}
		for _, key := range []string{"id", "tool_use_id"} {
			if id := b.get(key); id != nil && !isString(id) {
				return fmt.Errorf("the %s of block %d is not a string", key, i)
			}
		}
		switch typ := p.typ; {
		case typ == "thinking" || typ == "redacted_thinking":
			p.kind = kThink
		case typ == "tool_use":
			p.kind, p.id, p.name = kCall, b.str("id"), b.str("name")
		case typ == "server_tool_use" || typ == "mcp_tool_use":
			p.kind, p.server, p.id, p.name = kCall, true, b.str("id"), b.str("name")
		case typ == "tool_result":
			p.kind, p.id = kResult, b.str("tool_use_id")
		case strings.HasSuffix(typ, "_tool_result") && n.role == roleModel:
			p.kind, p.server, p.id = kResult, true, b.str("tool_use_id")
		case typ == "text":
			p.empty = b.str("text") == "" && string(b.get("text")) == `""`
		}
		n.parts = append(n.parts, p)
	}
	return nil
}

func (anthropic) answer(_ *work, c *part, text string, _ *node) json.RawMessage {
	return obj("type", "tool_result", "tool_use_id", c.id, "content", text, "is_error", json.RawMessage("true"))
}

func (anthropic) turn(blocks ...json.RawMessage) json.RawMessage {
	return obj("role", "user", "content", array{}.text(blocks))
}

func (anthropic) write(n *node) json.RawMessage {
	o, _ := asObject(n.raw)
	return o.with("content", content(n))
}

// content writes the blocks of a message: a lone string as the string that it was.
func content(n *node) json.RawMessage {
	if n.bare && len(n.parts) == 1 && isString(n.parts[0].raw) {
		return n.parts[0].raw
	}
	blocks := raws(n)
	for i, b := range blocks {
		if isString(b) {
			blocks[i] = obj("type", "text", "text", b)
		}
	}
	return n.list.text(blocks)
}

// prepare takes out what is refused for being empty.
func (anthropic) prepare(w *work) {
	for _, n := range w.nodes {
		if n.role == roleSkip || n.role == roleOther {
			continue
		}
		if n.remove(func(p *part) bool { return p.empty }) && len(n.parts) > 0 {
			w.log(actDropEmptyBlock, n.pos, "")
		}
		if len(n.parts) == 0 {
			n.dead = true
			w.log(actDropEmpty, n.pos, "")
		}
	}
}

func (a anthropic) rules(w *work) {
	for _, n := range w.nodes {
		if n.role == roleUser && hoist(n) {
			w.log(actHoist, n.pos, "")
		}
	}
	w.endsInThinking()
	w.renumber()
	if w.opt.MidSystem {
		w.moveSystems()
	}
	w.systemsToUser()
	w.renumber()
	if i := w.first(); i < len(w.nodes) && w.nodes[i].role == roleModel {
		w.nodes = slices.Insert(w.nodes, i, fresh(a, obj("role", "user", "content", trimmed)))
		w.renumber()
		w.log(actPrependUser, w.nodes[i].pos, "")
	}
}

// endsInThinking takes the thinking from the end of each response.
func (w *work) endsInThinking() {
	for _, s := range w.steps {
		if s.nodes[0].dead {
			continue
		}
		if s.only(kThink) {
			w.log(actDropThinking, s.nodes[0].pos, "")
			for _, n := range s.nodes {
				n.dead = true
			}
			continue
		}
		for i := len(s.nodes) - 1; i >= 0; i-- {
			n := s.nodes[i]
			if n.dead {
				continue
			}
			kept := len(n.parts)
			for kept > 0 && n.parts[kept-1].kind == kThink {
				kept--
			}
			if kept == len(n.parts) {
				break
			}
			w.log(actDropThinkingTail, n.pos, "")
			n.edit(kept)
			n.parts = n.parts[:kept]
			if n.dead = kept == 0; !n.dead {
				break
			}
		}
	}
}

// moveSystems puts each instruction that stands where it may not behind the next turn
// of the user. It may stand behind the user, or behind a result of the provider's own
// tool, and in front of the model or at the end.
func (w *work) moveSystems() {
	out := make([]*node, 0, len(w.nodes))
	var held []*node
	var prev *node // the last item that stays, of those that are no instructions
	behind := w.rolesBehind()
	for i, n := range w.nodes {
		switch n.role {
		case roleSystem:
			if len(held) > 0 || !mayFollow(prev) || behind[i] == roleUser {
				held = append(held, n)
				continue
			}
		case roleModel:
			if prev != nil && prev.role == roleUser {
				out = w.release(out, held)
				held = nil
			}
			prev = n
		case roleUser:
			prev = n
		}
		out = append(out, n)
	}
	if prev != nil && prev.role == roleUser {
		out = w.release(out, held)
		held = nil
	}
	w.nodes = append(out, held...) // systemsToUser deals with what has no place
	for _, n := range held {
		n.homeless = true
	}
}

func (w *work) release(out, held []*node) []*node {
	for _, n := range held {
		w.log(actMoveSystem, n.pos, "")
	}
	return append(out, held...)
}

func mayFollow(prev *node) bool {
	if prev == nil || len(prev.parts) == 0 {
		return false
	}
	last := prev.parts[len(prev.parts)-1]
	return prev.role == roleUser || last.kind == kResult && last.server
}

// rolesBehind returns, for each item, the role of the first one behind it that is no
// instruction.
func (w *work) rolesBehind() []role {
	behind := make([]role, len(w.nodes))
	next := roleOther
	for i := len(w.nodes) - 1; i >= 0; i-- {
		behind[i] = next
		if r := w.nodes[i].role; r != roleSystem && r != roleSkip {
			next = r
		}
	}
	return behind
}

// systemsToUser makes words of the user of the instructions that the model does not
// take. One that stands between a step and its results goes behind those.
func (w *work) systemsToUser() {
	out := make([]*node, 0, len(w.nodes))
	var late []*node
	results := w.resultsBehind()
	for i, n := range w.nodes {
		if n.role == roleModel {
			out, late = append(out, late...), nil
		}
		if n.role != roleSystem || w.opt.MidSystem && !n.homeless {
			if out = append(out, n); len(late) > 0 && !results[i] {
				out, late = append(out, late...), nil
			}
			continue
		}
		w.log(actSystemToUser, n.pos, "")
		n.asUser()
		if results[i] {
			late = append(late, n)
			continue
		}
		out = append(out, n)
	}
	w.nodes = append(out, late...)
}

// asUser turns an instruction into words of the user.
func (n *node) asUser() {
	o, _ := asObject(n.raw)
	text := reminder(o.get("content"))
	o, _ = asObject(o.with("role", []byte(`"user"`)))
	n.raw = o.with("content", array{}.text([]json.RawMessage{obj("type", "text", "text", json.RawMessage(text))}))
	n.role, n.in, n.bare = roleUser, -1, false
	n.parts = []*part{{node: n, raw: obj("type", "text", "text", json.RawMessage(text))}}
	n.edit(0)
}

// resultsBehind tells, for each item, whether the user's turn that it stands in has
// results behind it.
func (w *work) resultsBehind() []bool {
	behind := make([]bool, len(w.nodes))
	some := false
	for i := len(w.nodes) - 1; i >= 0; i-- {
		behind[i] = some
		n := w.nodes[i]
		if n.role == roleModel {
			some = false
		} else if count, _ := n.results(); count > 0 {
			some = true
		}
	}
	return behind
}

func (a anthropic) notice(w *work) {
	last := w.last()
	if last != nil && last.role != roleModel && len(last.parts) > 0 {
		end := last.parts[len(last.parts)-1].raw
		if b, _ := asObject(end); w.says(b.str("text")) || w.says(unquote(end)) {
			return
		}
	}
	switch {
	case last != nil && w.opt.MidSystem && (last.role == roleUser || last.role == roleSystem):
		n := w.push(fresh(a, obj("role", "system", "content", w.notice_)))
		w.log(actNotice, n.pos, "")
	case last != nil && last.role == roleUser:
		last.add(len(last.parts), &part{raw: obj("type", "text", "text", w.notice_)})
		w.log(actNotice, last.pos, "")
	default:
		n := w.push(fresh(a, a.turn(obj("type", "text", "text", w.notice_))))
		w.log(actNotice, n.pos, "")
	}
}
