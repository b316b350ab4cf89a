package valid

import (
	"bytes"
	"encoding/json"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// CheckEdit returns an *Error if after, which was made from before, lost or kept
// reasoning that a provider would miss or refuse. No single history shows that: whether an item
// was made with reasoning, and what a thinking block was made behind, only the
// history that it comes from can say. At is an index into after.
//
// Formats without such reasoning have no rule here. The rest of after is for Check.
func CheckEdit(f convo.Format, before, after []json.RawMessage) error {
	e := grammatical(after)
	if e == nil && grammatical(before) != nil {
		e = refuse(-1, RuleShape, "the history before the edit is not valid JSON")
	}
	if e != nil {
		return e
	}
	switch f {
	case convo.Responses:
		e = reasoningKept(places(before), places(after))
	case convo.Codex:
		// Rows that cannot be read hold no reasoning; that they are refused is for Check.
		b, _ := codexItems(before)
		a, _ := codexItems(after)
		e = reasoningKept(b, a)
	case convo.Anthropic:
		e = thinkingKept(messageBlocks(before), messageBlocks(after), true)
	case convo.ClaudeCode:
		// The client sends rows in an order of its own, so what stands in front of a block is not compared.
		e = thinkingKept(rowBlocks(before), rowBlocks(after), false)
	}
	if e != nil {
		return e
	}
	return nil
}

// reasoningKept: an item that is sent with its id has the reasoning in front that it had.
func reasoningKept(before, after []place) *Error {
	had := map[string][]string{}
	eachReasoned(before, func(_ int, id, _ string, front []string) *Error {
		had[id] = front
		return nil
	})
	return eachReasoned(after, func(at int, id, typ string, front []string) *Error {
		has := map[string]bool{}
		for _, r := range front {
			has[r] = true
		}
		for _, r := range had[id] {
			if !has[r] {
				return refuse(at, RuleDropped, "Item '%s' of type '%s' was provided without its required 'reasoning' item: '%s'.", id, typ, r)
			}
		}
		return nil
	})
}

// eachReasoned calls visit for every item with an id that is no reasoning itself, with
// the ids of the reasoning items right in front of it, until visit returns an error.
func eachReasoned(all []place, visit func(at int, id, typ string, front []string) *Error) *Error {
	var front []string
	for _, p := range all {
		o, _ := asObject(p.raw)
		typ, id := o.str("type"), o.str("id")
		if typ == "reasoning" {
			if id != "" {
				front = append(front, id)
			}
			continue
		}
		if id != "" {
			if err := visit(p.at, id, typ, front); err != nil {
				return err
			}
		}
		front = nil
	}
	return nil
}

// block is a content block in one spelling, so that equal ones compare equal.
type block struct {
	at       int
	text     string
	thinking bool
}

func messageBlocks(items []json.RawMessage) []block {
	var all []block
	for i, raw := range items {
		o, _ := asObject(raw)
		all = append(all, blocksOf(i, o.str("role"), o["content"])...)
	}
	return all
}

func rowBlocks(rows []json.RawMessage) []block {
	var all []block
	for i, raw := range rows {
		o, _ := asObject(raw)
		m, _ := asObject(o["message"])
		all = append(all, blocksOf(i, m.str("role"), m["content"])...)
	}
	return all
}

func blocksOf(at int, role string, content json.RawMessage) []block {
	list, ok := asArray(content)
	if !ok {
		list = []json.RawMessage{[]byte(`{"type":"text","text":` + string(content) + `}`)}
	}
	all := make([]block, 0, len(list))
	for _, raw := range list {
		var buf bytes.Buffer
		if json.Compact(&buf, raw) != nil {
			continue
		}
		o, _ := asObject(raw)
		all = append(all, block{at, role + " " + buf.String(), isThinking(o.str("type"))})
	}
	return all
}

// thinkingKept: every thinking block of after was in before, byte for byte but for
// spaces; with prefix, also behind the same blocks.
func thinkingKept(before, after []block, prefix bool) *Error {
	had := map[string]int{}
	for _, b := range before {
		if b.thinking {
			had[b.text]++
		}
	}
	same := true // so far after is as before
	for i, b := range after {
		same = same && i < len(before) && before[i].text == b.text
		if !b.thinking {
			continue
		}
		if had[b.text]--; had[b.text] < 0 {
			return refuse(b.at, RuleAltered, "%s: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.", messages(b.at))
		}
		if prefix && !same {
			return refuse(b.at, RulePrefix, "%s: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, since something in front of it was changed.", messages(b.at))
		}
	}
	return nil
}
