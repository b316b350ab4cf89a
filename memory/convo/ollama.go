package convo

import (
	"encoding/json"
)

// ollama is Ollama's own API (CONVERSATIONS 1.6): OpenAI's shape, arguments as objects,
// ids optional. Without them a result belongs to the oldest call of its tool.
type ollama struct{ chat }

func (ollama) read(raw json.RawMessage) (*node, error) {
	o, n, err := readMessage(raw)
	if err != nil {
		return nil, err
	}
	switch o.str("role") {
	case "assistant":
		n.role = roleModel
		if err := readCalls(o, n, true); err != nil {
			return nil, err
		}
		if len(n.parts) == 0 || hasContent(o) {
			n.parts = append(n.parts, &part{kind: kText, empty: !hasContent(o) && !o.speaks("thinking", "images")})
		}
	case "tool":
		n.role = roleTool
		name := o.str("tool_name")
		if name == "" {
			name = o.str("name")
		}
		n.parts = []*part{{kind: kResult, id: o.str("tool_call_id"), name: name, loose: true}}
	}
	return n, nil
}

func (ollama) answer(_ *work, c *part, text string, _ *node) json.RawMessage {
	if c.id != "" {
		return obj("role", "tool", "tool_call_id", c.id, "tool_name", c.name, "content", text)
	}
	return obj("role", "tool", "tool_name", c.name, "content", text)
}
