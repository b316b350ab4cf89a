package convo

import (
	"encoding/json"
	"errors"
	"fmt"
)

// chat is OpenAI Chat Completions and what copies it (CONVERSATIONS 1.1): an assistant
// message carries its calls, and a tool message for each stands right behind it.
type chat struct{ plain }

func (chat) traits() traits { return traits{} }

func (chat) read(raw json.RawMessage) (*node, error) {
	o, n, err := readMessage(raw)
	if err != nil {
		return nil, err
	}
	switch o.str("role") {
	case "assistant":
		n.role = roleModel
		if err := readCalls(o, n, false); err != nil {
			return nil, err
		}
		if f, ok := asObject(o.get("function_call")); ok {
			n.parts = append(n.parts, &part{kind: kCall, name: f.str("name"), typ: "function_call"})
		}
		if len(n.parts) == 0 || hasContent(o) {
			n.parts = append(n.parts, &part{kind: kText, empty: !hasContent(o) && !o.speaks("refusal", "audio", "reasoning_content", "reasoning")})
		}
	case "tool":
		n.role = roleTool
		n.parts = []*part{{kind: kResult, id: o.str("tool_call_id"), name: o.str("name")}}
	case "function":
		n.role = roleTool
		n.parts = []*part{{kind: kResult, name: o.str("name")}}
	}
	return n, nil
}

func (chat) answer(_ *work, c *part, text string, _ *node) json.RawMessage {
	if c.typ == "function_call" {
		return obj("role", "function", "name", c.name, "content", text)
	}
	return obj("role", "tool", "tool_call_id", c.id, "content", text)
}

func (chat) prepare(w *work) { w.dropEmptyAssistants() }

func (chat) notice(w *work) { w.userNotice() }

// readMessage reads what all formats with role and content have in common.
func readMessage(raw json.RawMessage) (object, *node, error) {
	o, ok := asObject(raw)
	if !ok {
		return o, nil, errors.New("it is not an object")
	}
	if !isString(o.get("role")) {
		return o, nil, errors.New("its role is not a string")
	}
	if c := o.get("content"); c != nil && c[0] != '"' && c[0] != '[' {
		return o, nil, errors.New("its content is neither a string nor a list")
	}
	n := &node{role: roleOther}
	switch o.str("role") {
	case "user":
		n.role = roleUser
	case "system", "developer":
		n.role = roleSystem
	}
	return o, n, nil
}

// readCalls adds the calls of an assistant message.
func readCalls(o object, n *node, loose bool) error {
	raw := o.get("tool_calls")
	if raw == nil {
		return nil
	}
	list, ok := asArray(raw)
	if !ok {
		return errors.New("its tool_calls are not a list")
	}
	for i, it := range list.items {
		c, ok := asObject(it)
		if !ok {
			return fmt.Errorf("tool call %d is not an object", i)
		}
		if id := c.get("id"); id != nil && !isString(id) {
			return fmt.Errorf("the id of tool call %d is not a string", i)
		}
		name := c.sub("function").str("name")
		if name == "" {
			name = c.sub("custom").str("name")
		}
		n.parts = append(n.parts, &part{kind: kCall, id: c.str("id"), name: name, loose: loose})
	}
	return nil
}

// hasContent tells whether a message says anything.
func hasContent(o object) bool {
	c := o.get("content")
	if c == nil || string(c) == `""` {
		return false
	}
	list, ok := asArray(c)
	return !ok || len(list.items) > 0
}

// speaks tells whether a message says something in another member than content.
func (o object) speaks(keys ...string) bool {
	for _, k := range keys {
		if v := o.get(k); v != nil && string(v) != `""` && string(v) != "[]" {
			return true
		}
	}
	return false
}

// dropEmptyAssistants takes out assistant messages with neither calls nor anything said.
func (w *work) dropEmptyAssistants() {
	for _, n := range w.nodes {
		if n.role == roleModel && len(n.parts) == 1 && n.parts[0].empty {
			n.dead = true
			w.log(actDropEmpty, n.pos, "")
		}
	}
}

// userNotice adds the notice as a user's message at the end.
func (w *work) userNotice() {
	if n := w.last(); n != nil && (n.role == roleUser || n.role == roleSystem) && w.says(lastText(n.raw)) {
		return
	}
	n := w.push(fresh(w.adapter, obj("role", "user", "content", w.notice_)))
	w.log(actNotice, n.pos, "")
}

// lastText returns the content of a message: the string, or the text of its last block.
func lastText(raw json.RawMessage) string {
	o, _ := asObject(raw)
	c := o.get("content")
	if list, ok := asArray(c); ok && len(list.items) > 0 {
		block, _ := asObject(list.items[len(list.items)-1])
		return block.str("text")
	}
	return unquote(c)
}
