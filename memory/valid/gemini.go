package valid

import (
	"encoding/json"
	"fmt"
)

// checkGemini holds Gemini contents to the rules of CONVERSATIONS 1.4, those of Gemini 3
// for thought signatures included. Keys may be spelled as in REST (functionCall) or as
// the Python client dumps them (function_call).
func checkGemini(items []json.RawMessage, o Options) *Error {
	all := make([]content, len(items))
	turn := -1 // where the current turn begins: the last content in which the user says something
	for i, raw := range items {
		c, err := geminiContent(i, raw, o)
		if err != nil {
			return err
		}
		if all[i] = c; c.role == "user" && c.plain {
			turn = i
		}
	}
	if all[0].role != "user" {
		text := "Please ensure that multiturn requests start with a user turn."
		if len(all[0].calls) > 0 {
			text += " " + callPlace
		}
		return refuse(0, RuleFirst, "%s", text)
	}
	for i, c := range all {
		var before content
		if i > 0 {
			before = all[i-1]
		}
		if err := geminiPair(i, before, c); err != nil {
			return err
		}
		if i > turn && len(c.calls) > 0 && !c.calls[0].signed {
			return refuse(i, RuleSignature, "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Function call `%s`, position %d.", c.calls[0].name, i)
		}
	}
	end := len(all) - 1
	if len(all[end].calls) > 0 {
		return geminiCount(end, RuleOpen, len(all[end].calls), 0)
	}
	if o.Send && all[end].role == "model" {
		return refuse(end, RuleEnd, "Please ensure that multiturn requests end with a user turn or a function response.")
	}
	return nil
}

const callPlace = "Please ensure that function call turn comes immediately after a user turn or after a function response turn."

// content is what the rules look at in one of the contents.
type content struct {
	role      string
	calls     []called
	responses []called
	plain     bool // it holds a part that is no response
	late      bool // a response stands behind such a part
}

type called struct {
	id, name string
	signed   bool
}

func geminiContent(i int, raw json.RawMessage, opts Options) (content, *Error) {
	where := fmt.Sprintf("contents[%d]", i)
	o, ok := asObject(raw)
	if !ok {
		return content{}, refuse(i, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
	}
	if absent(o["role"]) && opts.Roles || opts.Roles && o.str("role") == "function" {
		o["role"] = json.RawMessage(`"user"`)
	}
	if err := o.need(i, where, "role", `"`); err != nil {
		return content{}, err
	}
	c := content{role: o.str("role")}
	if c.role != "user" && c.role != "model" {
		return c, refuse(i, RuleRole, "Please use a valid role: user, model. %s has %q.", where, c.role)
	}
	if err := o.need(i, where, "parts", "["); err != nil {
		return c, err
	}
	list, _ := asArray(o["parts"])
	if len(list) == 0 {
		return c, refuse(i, RuleEmpty, "%s.parts: contents.parts must not be empty.", where)
	}
	for j, raw := range list {
		if err := c.part(i, fmt.Sprintf("%s.parts[%d]", where, j), raw); err != nil {
			return c, err
		}
	}
	return c, nil
}

// either is the field under the first of its two names that is there.
func (o object) either(a, b string) json.RawMessage {
	if !absent(o[a]) {
		return o[a]
	}
	return o[b]
}

func (c *content) part(i int, where string, raw json.RawMessage) *Error {
	o, ok := asObject(raw)
	if !ok {
		return refuse(i, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
	}
	if len(o) == 0 {
		return refuse(i, RuleEmpty, "%s: a part must have one initialized field", where)
	}
	if err := o.maybe(i, where, "text", `"`); err != nil {
		return err
	}
	call, response := o.either("functionCall", "function_call"), o.either("functionResponse", "function_response")
	switch {
	case !absent(call):
		f, err := geminiFunction(i, where+".functionCall", call, "args")
		if err != nil {
			return err
		}
		if c.role != "model" {
			return refuse(i, RuleCallPlace, "%s: functionCall parts can only be in contents with role model.", where)
		}
		sig := o.either("thoughtSignature", "thought_signature")
		f.signed = kind(sig) == '"' && !isEmptyText(sig)
		c.calls, c.plain = append(c.calls, f), true
	case !absent(response):
		f, err := geminiFunction(i, where+".functionResponse", response, "response")
		if err != nil {
			return err
		}
		if c.role != "user" {
			return refuse(i, RuleOrphan, "Please ensure that function response turn comes immediately after a function call turn: %s is the model's.", where)
		}
		c.responses, c.late = append(c.responses, f), c.late || c.plain
	default:
		c.plain = true
	}
	return nil
}

// geminiFunction checks a call or a response; body is the key of its arguments or its outcome.
func geminiFunction(i int, where string, raw json.RawMessage, body string) (called, *Error) {
	o, ok := asObject(raw)
	if !ok {
		return called{}, refuse(i, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
	}
	if err := o.maybe(i, where, "id", `"`); err != nil {
		return called{}, err
	}
	if err := o.needText(i, where, "name"); err != nil {
		return called{}, err
	}
	check := o.need
	if body == "args" { // a function without parameters may be called without
		check = o.maybe
	}
	if err := check(i, where, body, "{"); err != nil {
		return called{}, err
	}
	return called{id: o.str("id"), name: o.str("name")}, nil
}

// geminiPair checks a content against the one right in front of it.
func geminiPair(i int, before, c content) *Error {
	switch {
	case len(before.calls) > 0 && c.role == "model":
		return geminiCount(i-1, RuleOpen, len(before.calls), 0)
	case len(c.calls) > 0 && before.role == "model":
		return refuse(i, RuleCallPlace, callPlace)
	case len(c.responses) > 0 && len(before.calls) == 0:
		return refuse(i, RuleOrphan, "Please ensure that function response turn comes immediately after a function call turn.")
	case len(c.responses) < len(before.calls):
		return geminiCount(i-1, RuleOpen, len(before.calls), len(c.responses))
	case len(c.responses) > len(before.calls):
		return geminiCount(i, RuleTwice, len(before.calls), len(c.responses))
	}
	for j, r := range c.responses {
		call := before.calls[j]
		if r.name != call.name || r.id != "" && call.id != "" && r.id != call.id {
			return refuse(i, RuleOrder, "Please ensure that the function response parts are in the order of the function call parts: response %d is for `%s` %s, the call is `%s` %s.", j, r.name, r.id, call.name, call.id)
		}
	}
	if c.late {
		return refuse(i, RuleLate, "Please ensure that function response parts come before any other part of their turn.")
	}
	return nil
}

func geminiCount(at int, rule string, calls, responses int) *Error {
	return refuse(at, rule, "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn: %d calls, %d responses.", calls, responses)
}
