package valid

import (
	"encoding/json"
	"fmt"
)

// checkClaudeCode holds a Claude Code transcript (CONVERSATIONS 2.1) to what the client
// would send when it resumes it. The file is a tree: the conversation is what leads to
// the last message, with the rows of one response put together by the response's id.
// Rows of subagents, of branches that were left, and of types without a message are no
// part of it.
//
// Two things that the API refuses are let through, since the client mends them: text in front of a
// result in one user turn, and a response of nothing but thinking with later messages behind it.
func checkClaudeCode(items []json.RawMessage, o Options) *Error {
	t := transcript{uuids: map[string]int{}}
	for i, raw := range items {
		if err := t.read(i, raw); err != nil {
			return err
		}
	}
	for i := range t.rows {
		t.rows[i].active = t.rows[i].uuid == "" // it has no place in the tree and counts as it stands
	}
	for _, from := range []int{t.last, t.word} {
		if err := t.walk(from - 1); err != nil {
			return err
		}
	}
	t.siblings()
	return checkTurns(t.wire(), turns{opts: Options{MidSystem: o.MidSystem}, client: true})
}

// transcript is the main line of a file: its rows without those of subagents.
type transcript struct {
	rows  []row
	uuids map[string]int // index into rows
	first int            // index into rows of the first row with a uuid, plus 1; 0: there is none
	last  int            // the same of the last message
	word  int            // the same of the last message that is no result: a result may be written late
}

type row struct {
	at           int
	uuid, parent string
	role         string // "": the row has no message
	id           string // of the response that the message is part of
	content      json.RawMessage
	active       bool // part of the conversation
}

func (t *transcript) read(i int, raw json.RawMessage) *Error {
	o, err := message(i, raw)
	if err != nil {
		return err
	}
	where := fmt.Sprintf("row %d", i)
	if err := o.needText(i, where, "type"); err != nil {
		return err
	}
	if o.truth("isSidechain") {
		return nil
	}
	for _, key := range []string{"uuid", "parentUuid"} {
		if err := o.maybe(i, where, key, `"`); err != nil {
			return err
		}
	}
	r := row{at: i, uuid: o.str("uuid"), parent: o.str("parentUuid")}
	if typ := o.str("type"); typ == "user" || typ == "assistant" {
		if err := o.need(i, where, "message", "{"); err != nil {
			return err
		}
		m, _ := asObject(o["message"])
		if role := m.str("role"); role != typ {
			return refuse(i, RuleRole, "%s.message.role: expected '%s' as in the row's type, not '%s'", where, typ, role)
		}
		r.role, r.id, r.content = typ, m.str("id"), m["content"]
	}
	if r.uuid != "" {
		if _, twice := t.uuids[r.uuid]; twice {
			return refuse(i, RuleDupID, "%s: the uuid %s stands in the file already", where, r.uuid)
		}
		t.uuids[r.uuid] = len(t.rows)
	}
	t.rows = append(t.rows, r)
	if r.uuid == "" {
		return nil
	}
	if t.first == 0 {
		t.first = len(t.rows)
	}
	if r.role != "" {
		t.last = len(t.rows)
		if r.role == "assistant" || !holdsResult(r.content) {
			t.word = len(t.rows)
		}
	}
	return nil
}

// walk marks what leads to rows[i]; nothing does if i is negative.
func (t *transcript) walk(i int) *Error {
	seen := map[int]bool{}
	for i >= 0 {
		r := &t.rows[i]
		if seen[i] {
			return refuse(r.at, RuleChain, "row %d: its parents lead back to itself: the client would not resume this file", r.at)
		}
		if r.active { // an earlier walk went on from here
			return nil
		}
		r.active, seen[i] = true, true
		if r.parent == "" {
			return nil
		}
		next, ok := t.uuids[r.parent]
		if !ok {
			if i == t.first-1 { // the front was cut away, nothing in the file is lost
				return nil
			}
			return refuse(r.at, RuleChain, "row %d: its parent %s is not in the file, so the client would lose every row in front of it", r.at, r.parent)
		}
		i = next
	}
	return nil
}

// siblings adds what parallel calls leave beside the line: the other rows of a response,
// and the results that hang on them.
func (t *transcript) siblings() {
	responses := map[string]bool{}
	for _, r := range t.rows {
		if r.active && r.role == "assistant" && r.id != "" {
			responses[r.id] = true
		}
	}
	for i := range t.rows {
		if r := &t.rows[i]; r.role == "assistant" && responses[r.id] {
			r.active = true
		}
	}
	for i := range t.rows {
		r := &t.rows[i]
		if r.active || r.role != "user" {
			continue
		}
		if p, ok := t.uuids[r.parent]; ok && t.rows[p].active && t.rows[p].role == "assistant" && holdsResult(r.content) {
			r.active = true
		}
	}
}

func holdsResult(content json.RawMessage) bool {
	blocks, _ := asArray(content)
	for _, raw := range blocks {
		if o, ok := asObject(raw); ok && o.str("type") == "tool_result" {
			return true
		}
	}
	return false
}

// wire is the conversation as the client would send it: in the order of the file, but with a
// response's later rows behind its earlier ones, whatever was written between them.
func (t *transcript) wire() []wireMessage {
	var groups [][]wireMessage
	latest, id := -1, "" // the last response: its index in groups
	for _, r := range t.rows {
		if !r.active || r.role == "" {
			continue
		}
		m := wireMessage{r.at, r.role, r.content}
		if r.role == "assistant" && r.id != "" && r.id == id {
			groups[latest] = append(groups[latest], m)
			continue
		}
		if r.role == "assistant" {
			latest, id = len(groups), r.id
		}
		groups = append(groups, []wireMessage{m})
	}
	var all []wireMessage
	for i, g := range groups {
		if i < len(groups)-1 && g[0].role == "assistant" && onlyThinking(g) {
			continue
		}
		all = append(all, g...)
	}
	return all
}

// onlyThinking: the rows of a response hold thinking and nothing else.
func onlyThinking(g []wireMessage) bool {
	n := 0
	for _, m := range g {
		blocks, ok := asArray(m.content)
		if !ok {
			return false
		}
		for _, raw := range blocks {
			o, ok := asObject(raw)
			if !ok || !isThinking(o.str("type")) {
				return false
			}
			n++
		}
	}
	return n > 0
}
