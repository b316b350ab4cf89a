package valid

import (
	"encoding/json"
	"fmt"
)

// place is an item and where it stands in the history.
type place struct {
	at  int
	raw json.RawMessage
}

// places gives every item its own index.
func places(items []json.RawMessage) []place {
	all := make([]place, len(items))
	for i, raw := range items {
		all[i] = place{i, raw}
	}
	return all
}

// checkResponses holds OpenAI Responses items to the rules of CONVERSATIONS 1.2.
func checkResponses(items []json.RawMessage, o Options) *Error {
	return checkItems(places(items), o)
}

// itemCheck is what has been seen of a list of items so far.
type itemCheck struct {
	opts      Options
	ids       map[string]bool   // item ids: each may stand once
	calls     []itemCall        // every call that the client answers, in order
	waiting   map[callKey][]int // unanswered calls: indices into calls, oldest first
	asked     map[callKey]bool
	reasoning string // id of the reasoning item right in front; "": none, or one sent by value
	at        int    // index of that item
}

type callKey struct{ typ, id string }

type itemCall struct {
	at   int
	key  callKey
	done bool
}

func checkItems(all []place, o Options) *Error {
	c := itemCheck{opts: o, ids: map[string]bool{}, waiting: map[callKey][]int{}, asked: map[callKey]bool{}}
	for _, p := range all {
		if err := c.item(p); err != nil {
			return err
		}
	}
	if c.reasoning != "" {
		return c.alone()
	}
	for _, call := range c.calls {
		if !call.done {
			return refuse(call.at, RuleOpen, "No tool output found for %s %s.", noun(call.key.typ), call.key.id)
		}
	}
	return nil
}

func (c *itemCheck) item(p place) *Error {
	where := fmt.Sprintf("input[%d]", p.at)
	o, ok := asObject(p.raw)
	if !ok {
		return refuse(p.at, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(p.raw)))
	}
	if err := o.maybe(p.at, where, "type", `"`); err != nil {
		return err
	}
	typ := o.str("type")
	switch {
	case typ == "" && !absent(o["role"]):
		typ = "message"
	case typ == "" && !absent(o["id"]):
		typ = "item_reference"
	case typ == "":
		return refuse(p.at, RuleShape, "%s.type: missing required field: expected a string", where)
	}
	if err := itemShape(p.at, where, typ, o, c.opts); err != nil {
		return err
	}
	if c.reasoning != "" && !fromModel(typ, o) {
		return c.alone()
	}
	c.reasoning = ""
	if err := c.unique(p.at, typ, o); err != nil {
		return err
	}
	switch {
	case typ == "reasoning":
		c.reasoning, c.at = o.str("id"), p.at
	case byServer(typ, o):
	case noun(typ) != "":
		key := callKey{typ, itemKey(typ, o)}
		c.asked[key] = true
		c.waiting[key] = append(c.waiting[key], len(c.calls))
		c.calls = append(c.calls, itemCall{at: p.at, key: key})
	case len(answers(typ)) > 0:
		return c.output(p.at, typ, itemKey(typ, o))
	}
	return nil
}

// alone refuses the reasoning item that the present item, or the end, comes behind.
func (c *itemCheck) alone() *Error {
	return refuse(c.at, RuleReasoning, "Item '%s' of type 'reasoning' was provided without its required following item.", c.reasoning)
}

func (c *itemCheck) unique(at int, typ string, o object) *Error {
	id := o.str("id")
	if id == "" || typ == "local_shell_call_output" { // there it is the id of the call
		return nil
	}
	if c.ids[id] {
		return refuse(at, RuleDupID, "Duplicate item found with id %s. Remove duplicate items from your input and try again.", id)
	}
	c.ids[id] = true
	return nil
}

// output takes a result. It may stand anywhere behind its call.
func (c *itemCheck) output(at int, typ, id string) *Error {
	repeat := false
	for _, call := range answers(typ) {
		key := callKey{call, id}
		if w := c.waiting[key]; len(w) > 0 {
			c.calls[w[0]].done = true
			c.waiting[key] = w[1:]
			return nil
		}
		repeat = repeat || c.asked[key]
	}
	if repeat {
		return refuse(at, RuleTwice, "Duplicate %s output found for call_id %s: the call has one already.", noun(answers(typ)[0]), id)
	}
	return refuse(at, RuleOrphan, "No tool call found for %s output with call_id %s.", noun(answers(typ)[0]), id)
}

// noun names a call that the client has to answer; "" for every other item.
func noun(typ string) string {
	switch typ {
	case "function_call":
		return "function call"
	case "custom_tool_call":
		return "custom tool call"
	case "local_shell_call":
		return "local shell call"
	case "shell_call":
		return "shell call"
	case "apply_patch_call":
		return "apply patch call"
	case "computer_call":
		return "computer call"
	case "tool_search_call":
		return "tool search call"
	case "program":
		return "program"
	case "mcp_approval_request":
		return "mcp approval request"
	}
	return ""
}

// answers lists the calls that an item of this type may be the result of.
func answers(typ string) []string {
	switch typ {
	case "function_call_output": // Codex answers its shell calls with it, too
		return []string{"function_call", "local_shell_call"}
	case "custom_tool_call_output":
		return []string{"custom_tool_call"}
	case "local_shell_call_output":
		return []string{"local_shell_call"}
	case "shell_call_output":
		return []string{"shell_call"}
	case "apply_patch_call_output":
		return []string{"apply_patch_call"}
	case "computer_call_output":
		return []string{"computer_call"}
	case "tool_search_output":
		return []string{"tool_search_call"}
	case "program_output":
		return []string{"program"}
	case "mcp_approval_response":
		return []string{"mcp_approval_request"}
	}
	return nil
}

// itemKey is the id that pairs a call with its result.
func itemKey(typ string, o object) string {
	switch typ {
	case "mcp_approval_request":
		return o.str("id")
	case "mcp_approval_response":
		return o.str("approval_request_id")
	case "local_shell_call_output": // its id is the call_id
		if id := o.str("id"); id != "" {
			return id
		}
	case "local_shell_call": // older Codex transcripts know only the id
		if absent(o["call_id"]) {
			return o.str("id")
		}
	}
	return o.str("call_id")
}

// byServer: the item is one half of a search that the provider itself runs and answers.
func byServer(typ string, o object) bool {
	return (typ == "tool_search_call" || typ == "tool_search_output") &&
		(o.str("execution") == "server" || absent(o["call_id"]))
}

// fromModel: the model may have produced the item, so reasoning may stand in front of
// it. Types that are not known here get the benefit of the doubt.
func fromModel(typ string, o object) bool {
	switch typ {
	case "message":
		return o.str("role") == "assistant"
	case "additional_tools", "compaction_trigger":
		return false
	}
	return len(answers(typ)) == 0
}
