package convo

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// claudeCode is the session file of Claude Code (CONVERSATIONS 2.1): a row for each
// block of a response, all with one message id; each result is a row of its own that
// hangs on the row of its call; bookkeeping rows between them. Rows name the one they
// hang on, so what is taken out is bridged.
type claudeCode struct{ plain }

func (claudeCode) traits() traits {
	return traits{bound: true, countRows: true, fragment: actDropThinking}
}

func (claudeCode) read(raw json.RawMessage) (*node, error) {
	o, ok := asObject(raw)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	if !isString(o.get("type")) {
		return nil, errors.New("its type is not a string")
	}
	n := &node{raw: raw, role: roleSkip, uuid: o.str("uuid"), parent: o.str("parentUuid")}
	n.follows = n.uuid != ""
	typ := o.str("type")
	if n.side = o.truth("isSidechain"); n.side || typ != "user" && typ != "assistant" {
		return n, nil // a subagent's rows are a conversation of their own
	}
	m, ok := asObject(o.get("message"))
	if !ok {
		return nil, errors.New("its message is not an object")
	}
	if c := m.get("content"); c != nil && c[0] != '"' && c[0] != '[' {
		return nil, errors.New("the content of its message is neither a string nor a list")
	}
	n.follows = false
	if n.role = roleUser; typ == "assistant" {
		n.role, n.group = roleModel, m.str("id")
	}
	if err := readBlocks(m, n); err != nil {
		return nil, fmt.Errorf("in its message: %w", err)
	}
	if n.role == roleUser && n.answers(nil) {
		n.role = roleTool
	}
	return n, nil
}

// row makes a row of the user's that hangs on parent and looks like the one in front of
// it. It has the members that the client needs, in the client's order.
func (claudeCode) row(w *work, uuid, parent string, like *node, message json.RawMessage, more ...any) json.RawMessage {
	var o object
	if like != nil {
		o, _ = asObject(like.raw)
	}
	up := json.RawMessage("null")
	if parent != "" {
		up = quote(parent)
	}
	pairs := []any{"parentUuid", up, "isSidechain", json.RawMessage("false")}
	for _, key := range []string{"userType", "cwd", "version", "gitBranch", "timestamp", "sessionId"} {
		if v := o.get(key); v != nil {
			pairs = append(pairs, key, v)
		} else if key == "sessionId" && w.opt.NewID != "" {
			pairs = append(pairs, key, w.opt.NewID)
		}
	}
	pairs = append(pairs, "type", "user", "message", message, "uuid", uuid)
	return obj(append(pairs, more...)...)
}

func (c claudeCode) answer(w *work, call *part, text string, prev *node) json.RawMessage {
	if prev.role == roleSkip {
		prev = call.node
	}
	message := anthropic{}.turn(anthropic{}.answer(w, call, text, nil))
	on := call.node.uuid
	return c.row(w, w.newID(call.ref()), on, prev, message, "toolUseResult", "Error: "+text, "sourceToolAssistantUUID", on)
}

func (claudeCode) write(n *node) json.RawMessage {
	o, _ := asObject(n.raw)
	m := o.sub("message")
	return o.with("message", m.with("content", content(n)))
}

// prepare takes out rows that are there twice, as in a file that was put together from
// two. Which of two results stays is for the pairing to say.
func (claudeCode) prepare(w *work) {
	w.dropTwins(func(n *node) (string, []byte) {
		if count, _ := n.results(); count > 0 {
			return "", nil
		}
		return n.uuid, n.raw
	})
}

func (c claudeCode) rules(w *work) {
	for _, n := range w.nodes {
		if n.role == roleUser && hoist(n) {
			w.log(actHoist, n.pos, "")
		}
	}
	// Of rows that are there twice, one lost its result to the other: now the rest goes.
	seen := map[string]bool{}
	for _, n := range w.nodes {
		if count, _ := n.results(); n.uuid != "" && count == 0 && seen[n.uuid] {
			n.dead = true
			w.log(actDropDuplicate, n.pos, n.uuid)
		}
		seen[n.uuid] = true
	}
	w.endsInThinking()
	w.renumber()
	if i := w.first(); i < len(w.nodes) && w.nodes[i].role == roleModel {
		first := w.nodes[i]
		message := obj("role", "user", "content", trimmed)
		n := fresh(c, c.row(w, w.newID("first"), first.parent, first, message, "isMeta", json.RawMessage("true")))
		w.nodes = slices.Insert(w.nodes, i, n)
		w.hang(first, n.uuid)
		w.renumber()
		w.log(actPrependUser, n.pos, "")
	}
}

// hang makes a row hang on another one.
func (w *work) hang(n *node, on string) {
	value := json.RawMessage("null")
	if on != "" {
		value = quote(on)
	}
	o, _ := asObject(n.raw)
	n.raw, n.parent = o.with("parentUuid", value), on
}

// finish mends the links between rows and, when there is an id for one, makes it the
// file of a new session.
func (claudeCode) finish(w *work) error {
	kept := map[string]bool{}
	for _, n := range w.nodes {
		kept[n.uuid] = true
	}
	w.rehang(kept)
	for _, n := range w.nodes {
		o, _ := asObject(n.raw)
		if leaf := o.str("leafUuid"); leaf != "" && !kept[leaf] && w.ids[leaf] {
			n.dead = true
			continue
		}
		if w.opt.NewID == "" {
			continue
		}
		if n.uuid == "" && ofSession[o.str("type")] || n.side {
			n.dead = true
			continue
		}
		if id := o.get("sessionId"); isString(id) && unquote(id) != w.opt.NewID {
			n.raw = o.with("sessionId", quote(w.opt.NewID))
		}
	}
	return nil
}

// ofSession are the rows, without a place in the chain, that tell of one run of the
// client and mean nothing in another session.
var ofSession = map[string]bool{
	"queue-operation": true, "last-prompt": true, "atis-latch": true, "tools-used": true, "api-request": true,
	"api-request-blob": true, "api-request-shape": true, "cost-state": true, "file-history-snapshot": true,
}

// rehang lets rows that hung on one that is gone hang on what that one hung on; and rows
// behind an invented result on that result, so that the chain leads through it.
func (w *work) rehang(kept map[string]bool) {
	up := map[string]string{} // rows that are gone, and what they hung on
	for _, n := range w.input {
		if n.uuid != "" && !kept[n.uuid] {
			up[n.uuid] = n.parent
		}
	}
	for _, n := range w.nodes {
		on := n.parent
		var path []string
		for next, gone := up[on]; gone && len(path) <= len(up); next, gone = up[on] {
			path = append(path, on)
			on = next
		}
		if len(path) > len(up) {
			on = "" // they hang on each other
		}
		for _, p := range path {
			up[p] = on // the next row that hung there need not walk again
		}
		if on != n.parent && on != n.uuid {
			w.hang(n, on)
		}
	}
	w.relink(kept)
	through := map[string]*part{} // by the row of the call: the invented result
	for _, n := range w.nodes {
		if r := through[n.parent]; r != nil && n.in >= 0 && n.role != roleTool && n.step != r.call.node.step {
			w.hang(n, r.node.uuid)
		}
		if n.in < 0 && n.role == roleTool {
			through[n.parent] = n.parts[0]
		}
	}
}

// relink mends rows whose parent never was in the file, as behind a trimmed front: the
// client would lose all that is in front of them. They hang on the row before them.
func (w *work) relink(kept map[string]bool) {
	var before, beside string // the last row of the conversation, and of a subagent's
	for _, n := range w.nodes {
		if n.uuid == "" {
			continue
		}
		last := &before
		if n.side {
			last = &beside
		}
		if n.parent != "" && !kept[n.parent] {
			w.hang(n, *last)
			w.log(actRelink, n.pos, n.uuid)
		}
		if n.role != roleSkip || n.parent != "" || *last == "" {
			*last = n.uuid // not bookkeeping that starts a chain of its own
		}
	}
}

func (c claudeCode) notice(w *work) {
	last := w.last()
	if last != nil && last.role == roleUser && len(last.parts) > 0 {
		end := last.parts[len(last.parts)-1].raw
		if b, _ := asObject(end); w.says(b.str("text")) || w.says(unquote(end)) {
			return
		}
	}
	on := ""
	var like *node
	for _, n := range w.nodes {
		if n.uuid != "" && !n.side {
			on, like = n.uuid, n
		}
	}
	message := obj("role", "user", "content", w.notice_)
	n := w.push(fresh(c, c.row(w, w.newID("notice"), on, like, message, "isMeta", json.RawMessage("true"))))
	w.log(actNotice, n.pos, "")
}
