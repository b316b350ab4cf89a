package valid

import (
	"encoding/json"
	"fmt"
	"strings"
)

// checkOllama holds the native /api/chat of CONVERSATIONS 1.6 to what its cloud back ends
// want; a local model takes anything.
func checkOllama(items []json.RawMessage, o Options) *Error {
	var b namedBatch
	for i, raw := range items {
		m, err := message(i, raw)
		if err != nil {
			return err
		}
		if err := m.need(i, messages(i), "role", `"`); err != nil {
			return err
		}
		if err := m.maybe(i, messages(i), "content", `"`); err != nil {
			return err
		}
		role := m.str("role")
		if role == "tool" {
			if err := ollamaResult(i, m, &b); err != nil {
				return err
			}
			continue
		}
		if err := b.unanswered(); err != nil {
			return err
		}
		b = namedBatch{}
		switch role {
		case "system", "user":
		case "assistant":
			b, err = ollamaAssistant(i, m)
		default:
			if o.Roles {
				continue
			}
			err = refuse(i, RuleRole, "invalid role: %s, expected one of: system, user, assistant, tool", role)
		}
		if err != nil {
			return err
		}
	}
	return b.unanswered()
}

// namedBatch holds the calls of one message. Ids are optional: with ids a result is found by its id,
// without by the name of its tool; one that has neither may answer any call.
type namedBatch struct {
	at     int
	keys   []string // of each call: its id, or where the calls have no ids, the tool's name
	open   map[string]int
	asked  map[string]bool
	withID bool
	left   int
}

func ollamaAssistant(i int, m object) (namedBatch, *Error) {
	calls, err := m.list(i, messages(i), "tool_calls")
	if err != nil {
		return namedBatch{}, err
	}
	b := namedBatch{at: i, open: map[string]int{}, asked: map[string]bool{}, left: len(calls)}
	var ids, names []string
	for j, raw := range calls {
		where := fmt.Sprintf("messages.%d.tool_calls.%d", i, j)
		c, ok := asObject(raw)
		if !ok {
			return b, refuse(i, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
		}
		f, ok := asObject(c["function"])
		if !ok {
			return b, refuse(i, RuleShape, "%s.function: missing required field: expected an object", where)
		}
		if err := c.maybe(i, where, "id", `"`); err != nil {
			return b, err
		}
		if err := f.needText(i, where+".function", "name"); err != nil {
			return b, err
		}
		if err := f.need(i, where+".function", "arguments", "{"); err != nil {
			return b, err
		}
		b.withID = b.withID || c.str("id") != ""
		ids, names = append(ids, c.str("id")), append(names, f.str("name"))
	}
	if b.keys = names; b.withID {
		b.keys = ids
	}
	for _, k := range b.keys {
		b.open[k]++
		b.asked[k] = true
	}
	return b, nil
}

func ollamaResult(i int, m object, b *namedBatch) *Error {
	for _, key := range []string{"tool_name", "tool_call_id"} {
		if err := m.maybe(i, messages(i), key, `"`); err != nil {
			return err
		}
	}
	key := m.str("tool_name")
	if b.withID {
		key = m.str("tool_call_id")
	}
	switch {
	case b.left > 0 && key == "":
		b.left--
	case b.left > 0 && b.open[key] > 0:
		b.open[key]--
		b.left--
	case b.asked[key]:
		return refuse(i, RuleTwice, "messages.%d: a second result for the call %q", i, key)
	default:
		return refuse(i, RuleOrphan, "messages.%d: a result without a call in the message before: %q", i, key)
	}
	return nil
}

func (b *namedBatch) unanswered() *Error {
	if b.left == 0 {
		return nil
	}
	var keys []string
	for _, k := range b.keys {
		if b.open[k] > 0 {
			b.open[k]--
			keys = append(keys, k)
		}
	}
	return refuse(b.at, RuleOpen, "messages.%d: calls without results: %s", b.at, strings.Join(keys, ", "))
}
