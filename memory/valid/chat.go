package valid

import (
	"encoding/json"
	"fmt"
)

// checkChat holds OpenAI Chat Completions and what calls itself compatible to the rules
// of CONVERSATIONS 1.1. System and developer messages are free, except between a call and its
// results: templates that want them first are a matter of where a notice is put.
func checkChat(items []json.RawMessage, o Options) *Error {
	var b batch
	for i, raw := range items {
		m, err := message(i, raw)
		if err != nil {
			return err
		}
		if err := m.need(i, messages(i), "role", `"`); err != nil {
			return err
		}
		role := m.str("role")
		if role == "tool" {
			if err := chatResult(i, m, &b); err != nil {
				return err
			}
			continue
		}
		if err := chatOpen(b); err != nil {
			return err
		}
		b = batch{}
		switch role {
		case "system", "developer", "user":
			err = chatInput(i, m)
		case "assistant":
			b, err = chatAssistant(i, m)
		case "function": // the older form of a result, never matched by id
			err = m.needText(i, messages(i), "name")
		default:
			if o.Roles {
				continue
			}
			err = refuse(i, RuleRole, "messages.[%d].role: Invalid value: '%s'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.", i, role)
		}
		if err != nil {
			return err
		}
	}
	return chatOpen(b)
}

// chatOpen refuses a batch that a message which is no result comes behind too early.
func chatOpen(b batch) *Error {
	if b.left == 0 {
		return nil
	}
	return refuse(b.at, RuleOpen, "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: %s", b.missing())
}

func chatResult(i int, m object, b *batch) *Error {
	if err := m.need(i, messages(i), "tool_call_id", `"`); err != nil {
		return err
	}
	if err := m.need(i, messages(i), "content", `"[`); err != nil {
		return err
	}
	if _, err := parts(i, messages(i), m, false); err != nil {
		return err
	}
	return chatAnswer(i, m.str("tool_call_id"), b)
}

// chatAnswer takes the result with this id; LangChain goes by the same rule.
func chatAnswer(i int, id string, b *batch) *Error {
	switch b.answer(id) {
	case repeated:
		return refuse(i, RuleTwice, "Invalid parameter: duplicate tool message: tool_call_id '%s' has a response already.", id)
	case unknown:
		return refuse(i, RuleOrphan, "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'. There is none for tool_call_id '%s'.", id)
	}
	return nil
}

func chatInput(i int, m object) *Error {
	if err := m.need(i, messages(i), "content", `"[`); err != nil {
		return err
	}
	holds, err := parts(i, messages(i), m, false)
	if err == nil && !holds {
		err = refuse(i, RuleEmpty, "Invalid 'messages[%d].content': empty array. Expected an array with minimum length 1.", i)
	}
	return err
}

func chatAssistant(i int, m object) (batch, *Error) {
	holds, err := parts(i, messages(i), m, false)
	if err != nil {
		return batch{}, err
	}
	calls, err := m.list(i, messages(i), "tool_calls")
	if err != nil {
		return batch{}, err
	}
	if !holds && len(calls) == 0 && absent(m["refusal"]) && absent(m["audio"]) && absent(m["function_call"]) {
		return batch{}, refuse(i, RuleEmpty, "Invalid value for 'content': expected a string, got null. Invalid assistant message: content or tool_calls must be set (messages.[%d].content).", i)
	}
	ids := make([]string, 0, len(calls))
	for j, raw := range calls {
		id, err := chatCall(i, fmt.Sprintf("messages.%d.tool_calls.%d", i, j), raw)
		if err != nil {
			return batch{}, err
		}
		ids = append(ids, id)
	}
	return newBatch(i, ids), nil
}

// chatCall checks one entry of tool_calls and returns its id, which local servers may leave empty.
func chatCall(i int, where string, raw json.RawMessage) (string, *Error) {
	c, ok := asObject(raw)
	if !ok {
		return "", refuse(i, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
	}
	if err := c.need(i, where, "id", `"`); err != nil {
		return "", err
	}
	if err := c.maybe(i, where, "type", `"`); err != nil {
		return "", err
	}
	body, text := "function", "arguments"
	switch c.str("type") {
	case "", "function":
	case "custom":
		body, text = "custom", "input"
	default:
		return "", refuse(i, RuleShape, "%s.type: Invalid value: '%s'. Supported values are: 'function' and 'custom'.", where, c.str("type"))
	}
	f, ok := asObject(c[body])
	if !ok {
		return "", refuse(i, RuleShape, "%s.%s: missing required field: expected an object", where, body)
	}
	if err := f.needText(i, where+"."+body, "name"); err != nil {
		return "", err
	}
	if err := f.need(i, where+"."+body, text, `"`); err != nil {
		return "", err
	}
	return c.str("id"), nil
}
