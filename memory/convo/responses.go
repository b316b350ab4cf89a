package convo

import (
	"bytes"
	"encoding/json"
	"errors"
)

// responses is the items of OpenAI's Responses API (CONVERSATIONS 1.2): each call, each
// result and each piece of reasoning is an item; a result may stand anywhere behind its
// call; reasoning must stand in front of what it was produced with.
type responses struct{ plain }

func (responses) traits() traits {
	return traits{join: true, anywhere: true, fragment: actDropReasoning}
}

// callKinds are the items that ask for something, by type.
var callKinds = map[string]struct {
	key  string // the member by which the answer names it
	mute bool   // nobody but the tool can make its answer
}{
	"function_call":        {"call_id", false},
	"custom_tool_call":     {"call_id", false},
	"local_shell_call":     {"call_id", false},
	"shell_call":           {"call_id", false},
	"apply_patch_call":     {"call_id", false},
	"mcp_approval_request": {"id", false},
	"computer_call":        {"call_id", true},
	"tool_search_call":     {"call_id", true},
	"program":              {"call_id", true},
}

// answerKinds are the items that answer one, with the member that names it.
var answerKinds = map[string]string{
	"function_call_output":    "call_id",
	"custom_tool_call_output": "call_id",
	"local_shell_call_output": "id",
	"shell_call_output":       "call_id",
	"apply_patch_call_output": "call_id",
	"mcp_approval_response":   "approval_request_id",
	"computer_call_output":    "call_id",
	"tool_search_output":      "call_id",
	"program_output":          "call_id",
}

// wholeKinds are items of the model that need no answer.
var wholeKinds = map[string]bool{
	"mcp_call": true, "mcp_list_tools": true, "web_search_call": true, "file_search_call": true,
	"code_interpreter_call": true, "image_generation_call": true,
}

func (responses) read(raw json.RawMessage) (*node, error) {
	o, ok := asObject(raw)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	typ := o.str("type")
	if typ == "" && isString(o.get("role")) {
		typ = "message" // the short form of a message
	}
	n := &node{role: roleOther, parts: []*part{{kind: kText, typ: typ}}}
	p := n.parts[0]
	switch {
	case typ == "":
		return nil, errors.New("it has neither a type nor a role")
	case typ == "message":
		if !isString(o.get("role")) {
			return nil, errors.New("its role is not a string")
		}
		switch o.str("role") {
		case "assistant":
			n.role = roleModel
		case "system", "developer":
			n.role = roleSystem
		default:
			n.role = roleUser
		}
		return n, nil
	case typ == "reasoning":
		n.role, p.kind, p.id = roleModel, kThink, o.str("id")
		return n, nil
	case wholeKinds[typ]:
		n.role = roleModel
		return n, nil
	}
	return n, readCallItem(o, n, typ)
}

// readCallItem reads an item that is a call or a result, if it is one.
func readCallItem(o object, n *node, typ string) error {
	p := n.parts[0]
	if call, ok := callKinds[typ]; ok {
		n.role = roleModel
		if id := o.get(call.key); id != nil && !isString(id) {
			return errors.New("its " + call.key + " is not a string")
		}
		if p.id = o.str(call.key); p.id == "" && typ == "tool_search_call" || o.str("execution") == "server" {
			return nil // searched by the provider, which has the answer
		}
		p.kind, p.mute, p.name = kCall, call.mute, o.str("name")
		return nil
	}
	key, ok := answerKinds[typ]
	if !ok {
		return nil
	}
	if id := o.get(key); id != nil && !isString(id) {
		return errors.New("its " + key + " is not a string")
	}
	// The output of a local shell names its call by id; what Codex writes, by call_id.
	if p.id = o.str("call_id"); p.id == "" {
		p.id = o.str(key)
	}
	if p.id == "" && typ == "tool_search_output" || o.str("execution") == "server" {
		n.role = roleModel // of a search that the provider did
		return nil
	}
	n.role, p.kind = roleTool, kResult
	return nil
}

func (responses) answer(_ *work, c *part, text string, _ *node) json.RawMessage {
	switch c.typ {
	case "custom_tool_call":
		return obj("type", "custom_tool_call_output", "call_id", c.id, "output", text)
	case "local_shell_call":
		// Its output is a string that holds JSON.
		out := obj("stdout", "", "stderr", text, "exit_code", json.RawMessage("1"))
		return obj("type", "local_shell_call_output", "id", c.id, "output", string(out))
	case "shell_call":
		outcome := obj("type", "exit", "exit_code", json.RawMessage("1"))
		one := obj("stdout", "", "stderr", text, "outcome", outcome)
		return obj("type", "shell_call_output", "call_id", c.id, "output", array{}.text([]json.RawMessage{one}))
	case "apply_patch_call":
		return obj("type", "apply_patch_call_output", "call_id", c.id, "status", "failed", "output", text)
	case "mcp_approval_request":
		return obj("type", "mcp_approval_response", "approval_request_id", c.id, "approve", json.RawMessage("false"), "reason", text)
	}
	return obj("type", "function_call_output", "call_id", c.id, "output", text)
}

func (responses) write(n *node) json.RawMessage {
	o, _ := asObject(n.raw)
	if n.dropID {
		return o.without("id")
	}
	return n.raw
}

// prepare takes out items that are there twice: the provider refuses the second.
func (responses) prepare(w *work) {
	w.dropTwins(func(n *node) (string, []byte) { return itemID(n, n.raw), n.raw })
}

func itemID(n *node, item []byte) string {
	if n.role != roleModel {
		return ""
	}
	o, _ := asObject(item)
	return o.str("id")
}

// dropTwins drops every item that repeats an earlier one of the same id in all its bytes.
func (w *work) dropTwins(item func(*node) (id string, raw []byte)) {
	seen := map[string][]byte{}
	for _, n := range w.nodes {
		id, raw := item(n)
		if id == "" {
			continue
		}
		if earlier, ok := seen[id]; !ok {
			seen[id] = raw
		} else if bytes.Equal(earlier, raw) {
			n.dead = true
			w.log(actDropDuplicate, n.pos, id)
		}
	}
}

// rules drops reasoning that lost what it was produced with.
func (responses) rules(w *work) {
	var next *node // the next item that the model sees and that stays
	for i := len(w.nodes) - 1; i >= 0; i-- {
		n := w.nodes[i]
		if n.role == roleSkip {
			continue
		}
		if n.role == roleModel && n.parts[0].kind == kThink && (next == nil || next.role != roleOther && next.step != n.step) {
			n.dead = true
			if next == nil {
				w.log(actDropReasoning, n.pos, n.parts[0].id)
			} else {
				w.log(actOrphanReasoning, n.pos, n.parts[0].id)
			}
			continue
		}
		next = n
	}
}

func (r responses) notice(w *work) {
	last := w.last()
	if last != nil && (last.role == roleSystem || last.role == roleUser) && w.says(lastText(last.raw)) {
		return
	}
	n := w.push(fresh(r, r.noticeItem(w)))
	w.log(actNotice, n.pos, "")
}

func (responses) noticeItem(w *work) json.RawMessage {
	text := obj("type", "input_text", "text", w.notice_)
	return obj("type", "message", "role", "developer", "content", array{}.text([]json.RawMessage{text}))
}
