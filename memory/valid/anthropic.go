package valid

import (
	"encoding/json"
	"fmt"
	"strings"
)

// wireMessage is one message as it goes out, and the item that it came from.
type wireMessage struct {
	at      int
	role    string
	content json.RawMessage
}

// checkAnthropic holds Anthropic messages to the rules of CONVERSATIONS 1.3.
func checkAnthropic(items []json.RawMessage, o Options) *Error {
	all := make([]wireMessage, len(items))
	for i, raw := range items {
		m, err := message(i, raw)
		if err != nil {
			return err
		}
		if err := m.need(i, messages(i), "role", `"`); err != nil {
			return err
		}
		all[i] = wireMessage{i, m.str("role"), m["content"]}
	}
	return checkTurns(all, turns{opts: o})
}

// turns reads messages as turns: the API joins neighbours of one role before it looks.
type turns struct {
	opts Options
	// client: Claude Code sends the messages; it puts results first by itself.
	client bool

	role  string // of the present turn; "": nothing has been read
	at    int    // item that the last block came from
	last  string // type of the last block
	empty bool   // the present turn has no block yet
	other bool   // the present user turn holds a block that is no result

	ids    map[string]bool // every tool_use id so far: they are unique in the whole history
	calls  []toolUse       // calls of the assistant turn that the present turn is, or answers
	open   map[string]bool // of those: true as long as there is no result
	left   int             // how many of open are true
	server serverTools
}

// serverTools are the calls of tools that the provider runs. Their results stand in the
// assistant's own turn; one that is open may wait for a later one.
type serverTools struct {
	calls []toolUse
	open  map[string]int // by id: index into calls
}

type toolUse struct {
	at       int
	id, name string
}

func checkTurns(all []wireMessage, t turns) *Error {
	t.ids, t.open, t.server.open = map[string]bool{}, map[string]bool{}, map[string]int{}
	for _, m := range all {
		if err := t.message(m); err != nil {
			return err
		}
	}
	if err := t.end(""); err != nil {
		return err
	}
	if t.opts.Send && t.role == "assistant" && len(t.server.open) == 0 {
		return refuse(t.at, RuleEnd, "This model does not support assistant message prefill. The conversation must end with a user message.")
	}
	return nil
}

func (t *turns) message(m wireMessage) *Error {
	if err := t.mayFollow(m); err != nil {
		return err
	}
	if m.role != t.role {
		if err := t.end(m.role); err != nil {
			return err
		}
		t.begin(m.role)
	}
	where := messages(m.at)
	switch kind(m.content) {
	case '"':
		if isEmptyText(m.content) {
			return refuse(m.at, RuleEmpty, "%s: %s messages must have non-empty content", where, m.role)
		}
		return t.block(m.at, where, "text", object{})
	case '[':
	case 0:
		return refuse(m.at, RuleShape, "%s.content: missing required field: expected a string or an array", where)
	default:
		return refuse(m.at, RuleShape, "%s.content: expected a string or an array, but got %s instead", where, kindName(kind(m.content)))
	}
	blocks, _ := asArray(m.content)
	if len(blocks) == 0 {
		return refuse(m.at, RuleEmpty, "%s: %s messages must have non-empty content", where, m.role)
	}
	for j, raw := range blocks {
		path := fmt.Sprintf("%s.content.%d", where, j)
		o, typ, err := typed(m.at, path, raw)
		if err != nil {
			return err
		}
		if err := blockShape(m.at, path, m.role, typ, o); err != nil {
			return err
		}
		if err := t.block(m.at, path, typ, o); err != nil {
			return err
		}
	}
	return nil
}

// mayFollow says whether a message of this role may stand behind what has been read.
func (t *turns) mayFollow(m wireMessage) *Error {
	where := messages(m.at)
	switch m.role {
	case "user":
		return nil
	case "assistant":
		if t.role == "" {
			return refuse(m.at, RuleFirst, `messages: first message must use the "user" role`)
		}
		return nil
	case "system":
	default:
		return refuse(m.at, RuleRole, "%s.role: Input should be 'user', 'assistant' or 'system', not '%s'", where, m.role)
	}
	switch {
	case t.role == "":
		return refuse(m.at, RuleSystem, "%s: use the top-level 'system' parameter for the initial system prompt", where)
	case !t.opts.MidSystem:
		return refuse(m.at, RuleNoSystem, "%s: role 'system' is not supported on this model", where)
	case t.role == "assistant" && !isServerResult(t.last):
		return refuse(m.at, RuleSystem, "%s: role 'system' must follow a 'user' message or an assistant message that ends in a server tool result", where)
	case len(t.server.open) > 0:
		return t.serverOpen()
	}
	return nil
}

// begin starts a turn. A user turn answers the calls of the turn before.
func (t *turns) begin(role string) {
	t.role, t.empty, t.other = role, true, false
	if role == "assistant" {
		t.calls, t.open, t.left = nil, map[string]bool{}, 0
	}
}

// end closes the present turn; next is the role of the one behind, "" at the end of the history.
func (t *turns) end(next string) *Error {
	switch t.role {
	case "assistant":
		if isThinking(t.last) {
			return refuse(t.at, RuleThinking, "%s: The final block in an assistant message cannot be `thinking`.", messages(t.at))
		}
		if t.left > 0 && next != "user" {
			return t.unanswered()
		}
	case "user":
		if t.left > 0 {
			return t.unanswered()
		}
		t.calls, t.open = nil, map[string]bool{}
	case "system":
		if next == "user" {
			return refuse(t.at, RuleSystem, "%s: role 'system' must precede an 'assistant' message or end the array", messages(t.at))
		}
	}
	return nil
}

func (t *turns) unanswered() *Error {
	var ids []string
	at := -1
	for _, c := range t.calls {
		if t.open[c.id] {
			ids = append(ids, c.id)
			if at < 0 {
				at = c.at
			}
		}
	}
	return refuse(at, RuleOpen, "%s: `tool_use` ids were found without `tool_result` blocks immediately after: %s. Each `tool_use` block must have a corresponding `tool_result` block in the next message.", messages(at), strings.Join(ids, ", "))
}

func (t *turns) serverOpen() *Error {
	first := len(t.server.calls)
	for _, i := range t.server.open {
		first = min(first, i)
	}
	c := t.server.calls[first]
	result := "`" + c.name + "_tool_result`"
	return refuse(c.at, RuleServer, "%s: `%s` tool use with id `%s` was found without a corresponding %s block", messages(c.at), c.name, c.id, result)
}

// block takes one block of the present turn, in order.
func (t *turns) block(at int, path, typ string, o object) *Error {
	first := t.empty
	t.empty, t.at, t.last = false, at, typ
	if t.role == "user" && typ != "tool_result" {
		t.other = true
		if len(t.server.open) > 0 {
			return t.serverOpen()
		}
	}
	switch {
	case typ == "tool_use":
		return t.use(at, path, o)
	case typ == "tool_result":
		return t.result(at, path, o.str("tool_use_id"))
	case typ == "server_tool_use":
		t.server.add(toolUse{at, o.str("id"), o.str("name")})
	case typ == "mcp_tool_use":
		t.server.add(toolUse{at, o.str("id"), "mcp"})
	case isServerResult(typ):
		return t.serverResult(at, path, typ, o.str("tool_use_id"))
	case typ == "compaction" && !first:
		return refuse(at, RuleCompact, "%s: a `compaction` block must be the first block of its turn", path)
	}
	return nil
}

func (t *turns) use(at int, path string, o object) *Error {
	id := o.str("id")
	if t.ids[id] {
		return refuse(at, RuleDupID, "%s: `tool_use` ids must be unique: %s", path, id)
	}
	t.ids[id], t.open[id] = true, true
	t.calls = append(t.calls, toolUse{at, id, o.str("name")})
	t.left++
	return nil
}

func (t *turns) result(at int, path, id string) *Error {
	open, asked := t.open[id]
	switch {
	case !asked:
		return refuse(at, RuleOrphan, "%s: unexpected `tool_use_id` found in `tool_result` blocks: %s. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.", path, id)
	case !open:
		return refuse(at, RuleTwice, "%s: each tool_use must have a single result. Found multiple `tool_result` blocks with id: %s", path, id)
	case t.other && !t.client:
		return refuse(at, RuleLate, "%s: `tool_use` ids were found without `tool_result` blocks immediately after: %s. All `tool_result` blocks must stand in front of any other block of the message.", path, id)
	}
	t.open[id] = false
	t.left--
	return nil
}

func (t *turns) serverResult(at int, path, typ, id string) *Error {
	if _, ok := t.server.open[id]; ok {
		delete(t.server.open, id)
		return nil
	}
	return refuse(at, RuleServerRes, "%s: unexpected `tool_use_id` found in `%s` blocks: %s. Each must have a corresponding `server_tool_use` block before it.", path, typ, id)
}

func (s *serverTools) add(c toolUse) {
	s.open[c.id] = len(s.calls)
	s.calls = append(s.calls, c)
}

func isThinking(typ string) bool { return typ == "thinking" || typ == "redacted_thinking" }

// isServerResult: the result of a tool that the provider runs, which stands in the assistant's turn.
func isServerResult(typ string) bool { return strings.HasSuffix(typ, "_tool_result") }
