package convo

import (
	"encoding/json"
	"errors"
	"fmt"
)

// langchain is LangChain's message dicts (CONVERSATIONS 1.5): {"type","data"}. Calls
// whose arguments could not be parsed need an answer as well, as they are sent as calls.
type langchain struct{ plain }

func (langchain) traits() traits { return traits{} }

func (langchain) read(raw json.RawMessage) (*node, error) {
	o, ok := asObject(raw)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	if !isString(o.get("type")) {
		return nil, errors.New("its type is not a string")
	}
	d, ok := asObject(o.get("data"))
	if !ok {
		return nil, errors.New("its data are not an object")
	}
	n := &node{role: roleOther, uuid: d.str("id")}
	switch o.str("type") {
	case "human":
		n.role = roleUser
	case "system":
		n.role = roleSystem
	case "chat":
		switch d.str("role") {
		case "user", "human":
			n.role = roleUser
		case "system", "developer":
			n.role = roleSystem
		}
	case "ai", "AIMessageChunk":
		n.role = roleModel
		for _, key := range []string{"tool_calls", "invalid_tool_calls"} {
			if err := readLangChainCalls(d, key, n); err != nil {
				return nil, err
			}
		}
		if len(n.parts) == 0 || hasContent(d) {
			n.parts = append(n.parts, &part{kind: kText})
		}
	case "tool":
		n.role = roleTool
		n.parts = []*part{{kind: kResult, id: d.str("tool_call_id"), name: d.str("name")}}
	}
	return n, nil
}

func readLangChainCalls(d object, key string, n *node) error {
	raw := d.get(key)
	if raw == nil {
		return nil
	}
	list, ok := asArray(raw)
	if !ok {
		return fmt.Errorf("its %s are not a list", key)
	}
	for i, it := range list.items {
		c, ok := asObject(it)
		if !ok {
			return fmt.Errorf("entry %d of %s is not an object", i, key)
		}
		if id := c.get("id"); id != nil && !isString(id) {
			return fmt.Errorf("the id of entry %d of %s is not a string", i, key)
		}
		if c.str("id") == "" && key == "invalid_tool_calls" {
			continue // never sent as a call
		}
		n.parts = append(n.parts, &part{kind: kCall, id: c.str("id"), name: c.str("name")})
	}
	return nil
}

// synthetic marks what was made here, as LangChain's own additions are marked.
const synthetic = `{"rewindfs_synthetic":true}`

func (langchain) answer(w *work, c *part, text string, _ *node) json.RawMessage {
	name, null := json.RawMessage("null"), json.RawMessage("null")
	if c.name != "" {
		name = quote(c.name)
	}
	return obj("type", "tool", "data", obj("content", text, "additional_kwargs", json.RawMessage(synthetic), "response_metadata", json.RawMessage("{}"),
		"type", "tool", "name", name, "id", w.newID(c.ref()), "tool_call_id", c.id, "artifact", null, "status", "error"))
}

func (l langchain) notice(w *work) {
	if n := w.last(); n != nil && n.role == roleUser {
		o, _ := asObject(n.raw)
		if w.says(lastText(o.get("data"))) {
			return
		}
	}
	null := json.RawMessage("null")
	n := w.push(fresh(l, obj("type", "human", "data", obj("content", w.notice_, "additional_kwargs", json.RawMessage(synthetic), "response_metadata", json.RawMessage("{}"),
		"type", "human", "name", null, "id", w.newID("notice")))))
	w.log(actNotice, n.pos, "")
}
