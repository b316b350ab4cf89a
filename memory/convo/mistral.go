package convo

import (
	"encoding/json"
	"slices"
)

// mistral is OpenAI's shape with Mistral's rules (CONVERSATIONS 1.6): tool messages
// carry the tool's name and stand in the order of the calls, instructions stand only at
// the start, the first word is the user's, and a user may not speak right behind a tool.
type mistral struct{ chat }

func (mistral) traits() traits { return traits{ordered: true} }

func (mistral) answer(_ *work, c *part, text string, _ *node) json.RawMessage {
	return obj("role", "tool", "tool_call_id", c.id, "name", c.name, "content", text)
}

func (m mistral) rules(w *work) {
	w.lateSystems()
	w.sortToolMessages()
	w.renumber()
	start := slices.IndexFunc(w.nodes, func(n *node) bool { return n.role != roleSystem && n.role != roleSkip })
	if start >= 0 && w.nodes[start].role == roleModel {
		n := fresh(m, obj("role", "user", "content", trimmed))
		w.nodes = slices.Insert(w.nodes, start, n)
		w.log(actPrependUser, start, "")
	}
	out := make([]*node, 0, len(w.nodes)+4)
	for i, n := range w.nodes {
		if i > 0 && n.role == roleUser && w.nodes[i-1].role == roleTool {
			out = append(out, fresh(m, obj("role", "assistant", "content", bridge)))
			w.log(actBridge, len(out)-1, "")
		}
		out = append(out, n)
	}
	w.nodes = out
}

// bridge is what the model is made to say between a tool's result and the user.
const bridge = "Understood."

// lateSystems turns instructions behind the start into words of the user.
func (w *work) lateSystems() {
	start := true
	for _, n := range w.nodes {
		if n.role == roleSkip || n.role == roleSystem && start {
			continue
		}
		start = false
		if n.role != roleSystem {
			continue
		}
		o, _ := asObject(n.raw)
		n.raw = o.with("role", []byte(`"user"`))
		o, _ = asObject(n.raw)
		n.raw = o.with("content", reminder(o.get("content")))
		n.role = roleUser
		w.log(actSystemToUser, n.pos, "")
	}
}

// reminder wraps the text of an instruction for the user's turn. The text keeps the
// spelling it has.
func reminder(content []byte) []byte {
	const before, after = `"<system-reminder>\n`, `\n</system-reminder>"`
	inner := []byte{}
	if isString(content) {
		inner = content[1 : len(content)-1]
	}
	list, _ := asArray(content)
	for _, it := range list.items {
		o, _ := asObject(it)
		if t := o.get("text"); isString(t) {
			if len(inner) > 0 {
				inner = append(inner, `\n\n`...)
			}
			inner = append(inner, t[1:len(t)-1]...)
		}
	}
	return append(append([]byte(before), inner...), after...)
}

// sortToolMessages puts each run of tool messages into the order of their calls.
func (w *work) sortToolMessages() {
	seq := func(n *node) int {
		if len(n.parts) == 0 || n.parts[0].call == nil {
			return 0
		}
		return n.parts[0].call.seq
	}
	for i := 0; i < len(w.nodes); {
		j := i
		for j < len(w.nodes) && w.nodes[j].role == roleTool {
			j++
		}
		run := w.nodes[i:j]
		if j == i {
			i++
			continue
		}
		for k := 1; k < len(run); k++ {
			if seq(run[k]) < seq(run[k-1]) {
				w.log(actMoveResult, run[k].pos, run[k].parts[0].ref())
			}
		}
		slices.SortStableFunc(run, func(a, b *node) int { return seq(a) - seq(b) })
		i = j
	}
}

// notice goes into the last tool result, as a user may not speak behind one.
func (m mistral) notice(w *work) {
	last := w.last()
	if last == nil || last.role != roleTool {
		w.userNotice()
		return
	}
	if w.says(lastText(last.raw)) {
		return
	}
	o, _ := asObject(last.raw)
	content := o.get("content")
	if list, ok := asArray(content); ok {
		content = list.text(append(slices.Clone(list.items), obj("type", "text", "text", w.notice_)))
	} else {
		mark := quote("\n\n" + w.notice_)
		if content == nil {
			content = []byte(`""`)
		}
		content = append(slices.Clone(content[:len(content)-1]), mark[1:]...)
	}
	last.raw = o.with("content", content)
	w.log(actNoticeInLastTool, last.pos, "")
}
