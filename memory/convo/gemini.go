package convo

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// gemini is Gemini's contents (CONVERSATIONS 1.4): the one content behind a turn with
// calls has exactly their results, in their order; the first call of each step of the
// current turn is signed. Both spellings of keys are read; new parts follow what is there.
type gemini struct{ plain }

func (gemini) traits() traits {
	return traits{blocks: true, join: true, ordered: true, fragment: actDropThinking}
}

// skipSignature is what the provider's documentation gives for a lost signature.
const skipSignature = `"skip_thought_signature_validator"`

func (gemini) read(raw json.RawMessage) (*node, error) {
	o, ok := asObject(raw)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	if r := o.get("role"); r != nil && !isString(r) {
		return nil, errors.New("its role is not a string")
	}
	if !o.has("parts") && (o.has("content") || o.has("type") || o.has("data")) {
		return nil, errors.New("it has no parts, but what messages of other formats have")
	}
	n := &node{role: roleOther}
	switch o.str("role") {
	case "user", "function", "":
		n.role = roleUser
	case "model":
		n.role = roleModel
	}
	if parts := o.get("parts"); parts != nil {
		if n.list, ok = asArray(parts); !ok {
			return nil, errors.New("its parts are not a list")
		}
	}
	for i, raw := range n.list.items {
		p, err := readPart(raw)
		if err != nil {
			return nil, fmt.Errorf("part %d: %w", i, err)
		}
		n.parts = append(n.parts, p)
	}
	return n, nil
}

func readPart(raw json.RawMessage) (*part, error) {
	b, ok := asObject(raw)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	p := &part{raw: raw, loose: true}
	for _, typ := range []string{"functionCall", "function_call", "functionResponse", "function_response"} {
		v := b.get(typ)
		if v == nil {
			continue
		}
		f, ok := asObject(v)
		if !ok {
			return nil, errors.New("its " + typ + " is not an object")
		}
		p.typ, p.id, p.name = typ, f.str("id"), f.str("name")
		if p.kind = kResult; typ == "functionCall" || typ == "function_call" {
			p.kind = kCall
		}
		return p, nil
	}
	if b.truth("thought") {
		p.kind = kThink
	}
	return p, nil
}

func (gemini) answer(_ *work, c *part, text string, _ *node) json.RawMessage {
	key := "functionResponse"
	if c.typ == "function_call" {
		key = "function_response"
	}
	response := obj("error", text)
	if c.id == "" {
		return obj(key, obj("name", c.name, "response", response))
	}
	return obj(key, obj("id", c.id, "name", c.name, "response", response))
}

func (gemini) turn(parts ...json.RawMessage) json.RawMessage {
	return obj("role", "user", "parts", array{}.text(parts))
}

func (gemini) write(n *node) json.RawMessage {
	o, _ := asObject(n.raw)
	return o.with("parts", n.list.text(raws(n)))
}

// prepare takes out contents without parts.
func (gemini) prepare(w *work) {
	for _, n := range w.nodes {
		if len(n.parts) == 0 && n.role != roleOther {
			n.dead = true
			w.log(actDropEmpty, n.pos, "")
		}
	}
}

func (g gemini) rules(w *work) {
	w.merge()
	for _, n := range w.nodes {
		if n.role != roleUser || inOrder(n) {
			continue
		}
		if count, _ := n.results(); count > 0 {
			sortResults(n)
			w.log(actHoist, n.pos, "")
		}
	}
	if len(w.nodes) > 0 && w.nodes[0].role == roleModel {
		w.nodes = slices.Insert(w.nodes, 0, fresh(g, g.turn(obj("text", trimmed))))
		w.log(actPrependUser, 0, "")
		w.renumber()
	}
	w.sign()
}

// merge makes one content of neighbours of one role.
func (w *work) merge() {
	out := w.nodes[:0]
	for _, n := range w.nodes {
		if len(out) == 0 || n.role == roleOther || out[len(out)-1].role != n.role {
			n.pos = len(out)
			out = append(out, n)
			continue
		}
		into := out[len(out)-1]
		into.edit(len(into.parts))
		for _, p := range n.parts {
			p.node = into
		}
		into.parts = append(into.parts, n.parts...)
		w.log(actMergeRole, into.pos, "")
	}
	w.nodes = out
}

// sign gives the first call of each step of the current turn the placeholder for a
// signature, where it has none. The turn starts with the last plain words of the user.
func (w *work) sign() {
	start := len(w.nodes) - 1
	for ; start >= 0; start-- {
		n := w.nodes[start]
		if count, _ := n.results(); n.role == roleUser && count == 0 {
			break
		}
	}
	for _, n := range w.nodes[start+1:] {
		i := slices.IndexFunc(n.parts, func(p *part) bool { return p.kind == kCall })
		if n.role != roleModel || i < 0 {
			continue
		}
		o, _ := asObject(n.parts[i].raw)
		key := "thoughtSignature"
		if n.parts[i].typ == "function_call" {
			key = "thought_signature"
		}
		if o.str("thoughtSignature") != "" || o.str("thought_signature") != "" {
			continue
		}
		n.edit(i)
		n.parts[i].raw = o.with(key, []byte(skipSignature))
		w.log(actSkipSignature, n.pos, "")
	}
}

func (g gemini) notice(w *work) {
	last := w.last()
	if last == nil || last.role != roleUser {
		n := w.push(fresh(g, g.turn(obj("text", w.notice_))))
		w.log(actNotice, n.pos, "")
		return
	}
	if k := len(last.parts) - 1; k >= 0 {
		if b, _ := asObject(last.parts[k].raw); w.says(b.str("text")) {
			return
		}
	}
	last.add(len(last.parts), &part{raw: obj("text", w.notice_)})
	w.log(actNotice, last.pos, "")
}
