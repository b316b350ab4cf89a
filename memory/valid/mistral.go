package valid

import (
	"encoding/json"
	"fmt"
)

// checkMistral holds a history to the rules of CONVERSATIONS 1.6: those of the older
// validators, which refuse a user message behind a result.
func checkMistral(items []json.RawMessage, o Options) *Error {
	var (
		b     batch
		prev  string // role of the message before
		begun bool   // a message that is not the system's has been seen
		last  object
	)
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
			err = mistralResult(i, m, &b)
		} else if err = mistralOpen(b); err == nil {
			b = batch{}
			if err = mistralOrder(i, prev, role, begun); err == nil {
				b, err = mistralMessage(i, role, m, o)
			}
		}
		if err != nil {
			return err
		}
		begun = begun || role != "system"
		prev, last = role, m
	}
	if err := mistralOpen(b); err != nil {
		return err
	}
	if o.Send && prev == "assistant" && !last.truth("prefix") {
		return refuse(len(items)-1, RuleEnd, "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant")
	}
	return nil
}

func mistralOpen(b batch) *Error {
	if b.left == 0 {
		return nil
	}
	return refuse(b.at, RuleOpen, "Not the same number of function calls and responses: no response for %s", b.missing())
}

func mistralOrder(i int, prev, role string, begun bool) *Error {
	switch {
	case role == "system" && begun:
		return refuse(i, RuleSystem, "Unexpected role 'system' after role '%s': system messages only at the start", prev)
	case role == "assistant" && !begun:
		return refuse(i, RuleFirst, "Conversation must start with a user message or system message: the first message that is not the system's must be the user's")
	case role == "user" && prev == "tool":
		return refuse(i, RuleAfterTool, "Unexpected role 'user' after role 'tool'")
	}
	return nil
}

func mistralResult(i int, m object, b *batch) *Error {
	if err := m.need(i, messages(i), "tool_call_id", `"`); err != nil {
		return err
	}
	if err := m.maybe(i, messages(i), "name", `"`); err != nil {
		return err
	}
	if err := m.need(i, messages(i), "content", `"[`); err != nil {
		return err
	}
	if _, err := parts(i, messages(i), m, false); err != nil {
		return err
	}
	id := m.str("tool_call_id")
	if err := mistralID(i, id); err != nil {
		return err
	}
	switch b.answer(id) {
	case repeated:
		return refuse(i, RuleTwice, "Not the same number of function calls and responses: %s has a response already", id)
	case unknown:
		return refuse(i, RuleOrphan, "Not the same number of function calls and responses: no call for tool_call_id %s", id)
	}
	return nil
}

func mistralMessage(i int, role string, m object, o Options) (batch, *Error) {
	switch role {
	case "system", "user":
		return batch{}, chatInput(i, m)
	case "assistant":
		return mistralAssistant(i, m)
	}
	if o.Roles {
		return batch{}, nil
	}
	return batch{}, refuse(i, RuleRole, "Unexpected role '%s': expected system, user, assistant or tool", role)
}

func mistralAssistant(i int, m object) (batch, *Error) {
	holds, err := parts(i, messages(i), m, false)
	if err != nil {
		return batch{}, err
	}
	calls, err := m.list(i, messages(i), "tool_calls")
	if err != nil {
		return batch{}, err
	}
	if (!holds || isEmptyText(m["content"])) && len(calls) == 0 {
		return batch{}, refuse(i, RuleEmpty, "Assistant message must have either content or tool_calls")
	}
	ids := make([]string, 0, len(calls))
	for j, raw := range calls {
		where := fmt.Sprintf("messages.%d.tool_calls.%d", i, j)
		c, ok := asObject(raw)
		if !ok {
			return batch{}, refuse(i, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
		}
		if err := c.need(i, where, "id", `"`); err != nil {
			return batch{}, err
		}
		if err := mistralID(i, c.str("id")); err != nil {
			return batch{}, err
		}
		f, ok := asObject(c["function"])
		if !ok {
			return batch{}, refuse(i, RuleShape, "%s.function: missing required field: expected an object", where)
		}
		if err := f.needText(i, where+".function", "name"); err != nil {
			return batch{}, err
		}
		if err := f.need(i, where+".function", "arguments", `"{`); err != nil {
			return batch{}, err
		}
		ids = append(ids, c.str("id"))
	}
	return newBatch(i, ids), nil
}

func mistralID(i int, id string) *Error {
	ok := len(id) == 9
	for _, c := range []byte(id) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9')
	}
	if !ok {
		return refuse(i, RuleCallID, "Tool call id was %s but must be a-z, A-Z, 0-9, with a length of 9.", id)
	}
	return nil
}
