package valid

import (
	"encoding/json"
	"fmt"
	"strings"
)

// checkLangChain holds the dicts of messages_to_dict to the rules of CONVERSATIONS 1.5. Calls
// that could not be parsed (invalid_tool_calls) go out as calls, too, so they need results.
func checkLangChain(items []json.RawMessage, o Options) *Error {
	var (
		b        batch
		systems  int  // runs of system messages
		inSystem bool // the message before was one
		late     = -1 // index of the first system message outside of the first run
		claude   bool // the history says that it was made with ChatAnthropic
	)
	for i, raw := range items {
		typ, data, err := langChainMessage(i, raw, o)
		if err != nil {
			return err
		}
		if typ == "tool" {
			err = langChainResult(i, data, &b)
		} else if err = chatOpen(b); err == nil {
			b = batch{}
			if typ == "ai" {
				b, err = langChainAI(i, data)
			}
		}
		if err != nil {
			return err
		}
		if typ == "system" && !inSystem {
			if systems++; systems > 1 && late < 0 {
				late = i
			}
		}
		inSystem = typ == "system"
		claude = claude || typ == "ai" && byClaude(data)
	}
	if late >= 0 && claude {
		return refuse(late, RuleSystem, "Received multiple non-consecutive system messages.")
	}
	return chatOpen(b)
}

// langChainMessage decodes a message and gives its type without the suffix that chunks have.
func langChainMessage(i int, raw json.RawMessage, o Options) (string, object, *Error) {
	m, err := message(i, raw)
	if err != nil {
		return "", nil, err
	}
	if err := m.needText(i, messages(i), "type"); err != nil {
		return "", nil, err
	}
	if err := m.need(i, messages(i), "data", "{"); err != nil {
		return "", nil, err
	}
	data, _ := asObject(m["data"])
	typ, chunk := strings.CutSuffix(m.str("type"), "MessageChunk")
	if chunk {
		typ = strings.ToLower(typ)
	}
	switch typ {
	case "remove":
		return typ, data, nil
	case "human", "ai", "system", "tool", "function", "chat":
	default:
		if o.Roles {
			return typ, data, nil
		}
		return "", nil, refuse(i, RuleRole, "Got unexpected message type: %s. Expected one of human, ai, system, tool, function, chat, remove.", m.str("type"))
	}
	if err := data.need(i, messages(i)+".data", "content", `"[`); err != nil {
		return "", nil, err
	}
	_, err = parts(i, messages(i)+".data", data, true)
	return typ, data, err
}

func langChainResult(i int, data object, b *batch) *Error {
	if err := data.need(i, messages(i)+".data", "tool_call_id", `"`); err != nil {
		return err
	}
	return chatAnswer(i, data.str("tool_call_id"), b)
}

func langChainAI(i int, data object) (batch, *Error) {
	var ids []string
	for _, key := range []string{"tool_calls", "invalid_tool_calls"} {
		list, err := data.list(i, messages(i)+".data", key)
		if err != nil {
			return batch{}, err
		}
		for j, raw := range list {
			where := fmt.Sprintf("%s.data.%s.%d", messages(i), key, j)
			c, ok := asObject(raw)
			if !ok {
				return batch{}, refuse(i, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
			}
			if err := langChainCall(i, where, key, c); err != nil {
				return batch{}, err
			}
			if key == "tool_calls" || c.str("id") != "" {
				ids = append(ids, c.str("id"))
			}
		}
	}
	if ids == nil {
		ids = langChainOld(data)
	}
	return newBatch(i, ids), nil
}

func langChainCall(i int, where, key string, c object) *Error {
	if err := c.maybe(i, where, "id", `"`); err != nil {
		return err
	}
	if key == "invalid_tool_calls" { // whatever could not be parsed
		return c.maybe(i, where, "args", `"`)
	}
	if err := c.needText(i, where, "name"); err != nil {
		return err
	}
	return c.need(i, where, "args", "{")
}

// langChainOld finds the calls of messages from before tool_calls was a field of its own; LangChain
// reads them from there when it loads such a message.
func langChainOld(data object) []string {
	kwargs, _ := asObject(data["additional_kwargs"])
	calls, _ := asArray(kwargs["tool_calls"])
	var ids []string
	for _, raw := range calls {
		if c, ok := asObject(raw); ok {
			ids = append(ids, c.str("id"))
		}
	}
	return ids
}

// byClaude: the message says that ChatAnthropic made it.
func byClaude(data object) bool {
	meta, _ := asObject(data["response_metadata"])
	return meta.str("model_provider") == "anthropic" ||
		strings.HasPrefix(meta.str("model_name"), "claude") || strings.HasPrefix(meta.str("model"), "claude")
}
