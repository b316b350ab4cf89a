package valid

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// These histories are written as short names, put together by array.
const (
	aUser    = `{"role":"user","content":"go"}`
	aText    = `{"role":"assistant","content":[{"type":"text","text":"hi"}]}`
	aThink   = `{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"}]}`
	aCalls   = `{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"t1","name":"f","input":{}},{"type":"tool_use","id":"t2","name":"f","input":{}}]}`
	aCall3   = `{"role":"assistant","content":[{"type":"tool_use","id":"t3","name":"f","input":{}}]}`
	aRes1    = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"ok"}]}`
	aRes2    = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","is_error":true}]}`
	aRes3    = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t3","content":[{"type":"text","text":""}]}]}`
	aSys     = `{"role":"system","content":"note"}`
	aServer  = `{"role":"assistant","content":[{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}]}`
	aBoth    = `{"role":"assistant","content":[{"type":"server_tool_use","id":"s1","name":"web_search","input":{}},{"type":"tool_use","id":"t1","name":"f","input":{}}]}`
	aServRes = `{"role":"assistant","content":[{"type":"web_search_tool_result","tool_use_id":"s1","content":[]}]}`
	aMCP     = `{"role":"assistant","content":[{"type":"mcp_tool_use","id":"m1","name":"f","server_name":"x","input":{}},{"type":"mcp_tool_result","tool_use_id":"m1","content":[]}]}`
)

func array(elements ...string) string { return "[" + strings.Join(elements, ",") + "]" }

func assistant(blocks ...string) string {
	return `{"role":"assistant","content":` + array(blocks...) + `}`
}

func TestAnthropicRules(t *testing.T) {
	mid := Options{MidSystem: true}
	text := `{"type":"text","text":"x"}`
	compact := `{"type":"compaction","content":"c"}`
	good := array(aUser, aCalls, aRes2, aRes1, aUser, aText)
	runRules(t, convo.Anthropic, []ruleCase{
		{"answered", good, array(aUser, aCalls, aRes2, aUser, aText), RuleOpen, 1, "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1.", Options{}},
		{"open at the end", good, array(aUser, aCalls), RuleOpen, 1, "t1, t2", Options{}},
		{"answered in the next turn", good, array(aUser, aCalls, aRes1, aText, aRes2), RuleOpen, 1, "t2", Options{}},
		{"two assistant messages are one turn", array(aUser, aCalls, aCall3, aRes3, aRes2, aRes1), array(aUser, aCall3, aText, aCalls, aRes3), RuleOpen, 3, "t1, t2", Options{}},
		{"orphan", good, array(aRes1, aText), RuleOrphan, 0, "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t1", Options{}},
		{"result of an earlier turn", good, array(aUser, aCalls, aRes2, aRes1, aText, aRes1), RuleOrphan, 5, "t1", Options{}},
		{"twice", good, array(aUser, aCalls, aRes2, aRes1, aRes1), RuleTwice, 4, "each tool_use must have a single result", Options{}},
		{"results first", good, array(aUser, aCalls, aRes1, aUser, aRes2), RuleLate, 4, "without `tool_result` blocks immediately after: t2", Options{}},
		{"results first in a message", array(aUser, aCall3, `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t3"},`+text+`]}`),
			array(aUser, aCall3, `{"role":"user","content":[`+text+`,{"type":"tool_result","tool_use_id":"t3"}]}`), RuleLate, 2, "t3", Options{}},
		{"ids", array(aUser, aCall3, aRes3), array(aUser, aCall3, aRes3, aCall3, aRes3), RuleDupID, 3, "`tool_use` ids must be unique", Options{}},
		{"first", good, array(aText, aUser), RuleFirst, 0, `first message must use the "user" role`, Options{}},
		{"empty text", good, array(aUser, `{"role":"assistant","content":""}`), RuleEmpty, 1, "must have non-empty content", Options{}},
		{"empty list", good, array(aUser, `{"role":"user","content":[]}`), RuleEmpty, 1, "messages.1: user messages must have non-empty content", Options{}},
		{"empty block", good, array(aUser, assistant(`{"type":"text","text":""}`)), RuleEmpty, 1, "text content blocks must be non-empty", Options{}},
		{"ends in thinking", array(aUser, aThink, aText, aUser), array(aUser, aThink, aUser), RuleThinking, 1, "The final block in an assistant message cannot be `thinking`", Options{}},
		{"history ends in thinking", array(aUser, aText), array(aUser, aText, assistant(`{"type":"redacted_thinking","data":"x"}`)), RuleThinking, 2, "final block", Options{}},
		{"pause", array(aUser, aServer), array(aUser, aServer, aUser), RuleServer, 1, "`web_search` tool use with id `s1` was found without a corresponding `web_search_tool_result` block", Options{}},
		{"server tool beside a result", array(aUser, aBoth, aRes1, aServRes, aUser), array(aUser, aBoth, `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1"},`+text+`]}`),
			RuleServer, 1, "s1", Options{}},
		{"server tool stays open", array(aUser, aBoth, aRes1, aServRes), array(aUser, aBoth, aRes1, aText, aUser), RuleServer, 1, "s1", Options{}},
		{"server result", array(aUser, aServer, aServRes, aMCP), array(aUser, aServRes), RuleServerRes, 1, "`server_tool_use` block before it", Options{}},
		{"server result twice", array(aUser, aServer, aServRes), array(aUser, aServer, aServRes, aServRes), RuleServerRes, 3, "s1", Options{}},
		{"compaction", array(aUser, assistant(compact, text)), array(aUser, assistant(text, compact)), RuleCompact, 1, "first block", Options{}},
		{"system at the end", array(aUser, aSys, aSys), array(aSys, aUser), RuleSystem, 0, "top-level 'system' parameter", mid},
		{"system first on older models", array(aUser), array(aSys, aUser), RuleSystem, 0, "top-level 'system' parameter", Options{}},
		{"system behind user", array(aUser, aSys, aText), array(aUser, aText, aSys), RuleSystem, 2, "must follow a 'user' message", mid},
		{"system behind a server result", array(aUser, aServer, aServRes, aSys, aText), array(aUser, aServer, aSys), RuleSystem, 2, "server tool result", mid},
		{"system with a server tool open", array(aUser, aBoth, aRes1, aServRes, aSys), array(aUser, aBoth, aRes1, aSys), RuleServer, 1, "s1", mid},
		{"system before user", array(aUser, aSys, aText, aUser), array(aUser, aSys, aUser), RuleSystem, 1, "must precede an 'assistant' message or end the array", mid},
		{"system between call and result", array(aUser, aCalls, aRes1, aRes2, aSys), array(aUser, aCalls, aRes1, aSys, aRes2), RuleOpen, 1, "t2", mid},
		{"system not supported", array(aUser), array(aUser, aSys), RuleNoSystem, 1, "role 'system' is not supported on this model", Options{}},
		{"system is text", array(aUser, `{"role":"system","content":[`+text+`,{"type":"tool_removal","name":"f"}]}`), array(aUser, `{"role":"system","content":[{"type":"image","source":{}}]}`),
			RuleShape, 1, "`image` blocks", mid},
		{"end", array(aUser, aText, aUser), array(aUser, aText), RuleEnd, 1, "prefill", Options{Send: true}},
		{"pause is sent again", array(aUser, aServer), array(aUser, aServer, aServRes), RuleEnd, 2, "prefill", Options{Send: true}},
		{"role", good, array(`{"role":"tool","content":"x"}`), RuleRole, 0, "'tool'", Options{}},
		{"no content", good, array(`{"role":"user"}`), RuleShape, 0, "messages.0.content", Options{}},
		{"content of a wrong type", good, array(`{"role":"user","content":null}`), RuleShape, 0, "null", Options{}},
		{"block is no object", good, array(`{"role":"user","content":["x"]}`), RuleShape, 0, "messages.0.content.0", Options{}},
		{"block without type", good, array(`{"role":"user","content":[{"text":"x"}]}`), RuleShape, 0, "type", Options{}},
		{"unknown blocks pass", array(`{"role":"user","content":[{"type":"hologram"}]}`), array(`{"role":"user","content":[{"type":7}]}`), RuleShape, 0, "a number", Options{}},
		{"tool_use is the assistant's", good, array(`{"role":"user","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}`), RuleShape, 0, "can only be in `assistant` messages", Options{}},
		{"tool_result is the user's", good, array(aUser, assistant(`{"type":"tool_result","tool_use_id":"t1"}`)), RuleShape, 1, "can only be in `user` messages", Options{}},
		{"call without input", good, array(aUser, assistant(`{"type":"tool_use","id":"a","name":"f"}`)), RuleShape, 1, "input", Options{}},
		{"call without id", good, array(aUser, assistant(`{"type":"tool_use","id":"","name":"f","input":{}}`)), RuleShape, 1, "id", Options{}},
		{"result without id", good, array(`{"role":"user","content":[{"type":"tool_result"}]}`), RuleShape, 0, "tool_use_id", Options{}},
		{"is_error", good, array(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":"yes"}]}`), RuleShape, 0, "is_error", Options{}},
		{"thinking without signature", good, array(aUser, assistant(`{"type":"thinking","thinking":"t"}`, text)), RuleShape, 1, "signature", Options{}},
		{"redacted thinking without data", good, array(aUser, assistant(`{"type":"redacted_thinking"}`, text)), RuleShape, 1, "data", Options{}},
	})
}

func TestGeminiRules(t *testing.T) {
	const (
		user  = `{"role":"user","parts":[{"text":"go"}]}`
		model = `{"role":"model","parts":[{"text":"hi"}]}`
		calls = `{"role":"model","parts":[{"text":"t","thought":true},{"functionCall":{"id":"g1","name":"f","args":{}},"thoughtSignature":"s"},{"functionCall":{"id":"g2","name":"g"}}]}`
		bare  = `{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}}]}`
		snake = `{"role":"model","parts":[{"function_call":{"name":"f","args":{}},"thought_signature":"s","text":null}]}`
		r1    = `{"functionResponse":{"id":"g1","name":"f","response":{}}}`
		r2    = `{"functionResponse":{"name":"g","response":{}}}`
		rBare = `{"role":"user","parts":[{"function_response":{"name":"f","response":{}}}]}`
	)
	parts := func(p ...string) string { return `{"role":"user","parts":` + array(p...) + `}` }
	good := array(user, calls, parts(r1, r2, `{"text":"x"}`), model)
	runRules(t, convo.Gemini, []ruleCase{
		{"count", good, array(user, calls, parts(r1)), RuleOpen, 1, "number of function response parts is equal to the number of function call parts", Options{}},
		{"open at the end", good, array(user, calls), RuleOpen, 1, "2 calls, 0 responses", Options{}},
		{"answered by one content", good, array(user, calls, parts(r1), parts(r2)), RuleOpen, 1, "number of function response parts", Options{}},
		{"too many", good, array(user, calls, parts(r1, r2, r2)), RuleTwice, 2, "number of function response parts", Options{}},
		{"model behind its calls", good, array(user, calls, model), RuleOpen, 1, "number", Options{}},
		{"calls behind model", good, array(user, model, calls, parts(r1, r2)), RuleCallPlace, 2, "function call turn comes immediately after a user turn", Options{}},
		{"orphan", good, array(user, model, parts(r1)), RuleOrphan, 2, "function response turn comes immediately after a function call turn", Options{}},
		{"orphan at the front", good, array(parts(r1), model), RuleOrphan, 0, "function response turn", Options{}},
		{"order", good, array(user, calls, parts(r2, r1)), RuleOrder, 2, "order", Options{}},
		{"order by id", good, array(user, calls, parts(strings.Replace(r1, "g1", "g9", 1), r2)), RuleOrder, 2, "g9", Options{}},
		{"responses first", good, array(user, calls, parts(r1, `{"text":"x"}`, r2)), RuleLate, 2, "before any other part", Options{}},
		{"first", good, array(model, user), RuleFirst, 0, "start with a user", Options{}},
		{"calls first", good, array(calls, parts(r1, r2)), RuleFirst, 0, "immediately after a user turn", Options{}},
		{"role", good, array(`{"role":"function","parts":[{"text":"x"}]}`), RuleRole, 0, "Please use a valid role: user, model.", Options{}},
		{"signature", array(user, snake, rBare), array(user, bare, rBare), RuleSignature, 1, "missing a thought_signature", Options{}},
		{"signature of each step", array(user, snake, rBare, snake, rBare), array(user, snake, rBare, bare, rBare), RuleSignature, 3, "position 3", Options{}},
		{"signature of the current turn only", array(user, bare, rBare, user, snake, rBare), array(user, snake, rBare, user, bare, rBare), RuleSignature, 4, "missing", Options{}},
		{"end", array(user, calls, parts(r1, r2)), array(user, model), RuleEnd, 1, "end with a user turn or a function response", Options{Send: true}},
		{"no parts", good, array(`{"role":"user"}`), RuleShape, 0, "contents[0].parts", Options{}},
		{"empty parts", good, array(`{"role":"user","parts":[]}`), RuleEmpty, 0, "contents.parts must not be empty", Options{}},
		{"empty part", good, array(`{"role":"user","parts":[{}]}`), RuleEmpty, 0, "one initialized field", Options{}},
		{"part is no object", good, array(`{"role":"user","parts":["x"]}`), RuleShape, 0, "parts[0]", Options{}},
		{"text", good, array(`{"role":"user","parts":[{"text":1}]}`), RuleShape, 0, "text", Options{}},
		{"content is no object", good, array(user, `"x"`), RuleShape, 1, "contents[1]", Options{}},
		{"call of the user's", good, array(user, parts(`{"functionCall":{"name":"f"}}`)), RuleCallPlace, 1, "role model", Options{}},
		{"response of the model's", good, array(user, `{"role":"model","parts":[`+r1+`]}`), RuleOrphan, 1, "model", Options{}},
		{"call without name", good, array(user, `{"role":"model","parts":[{"functionCall":{"args":{}}}]}`), RuleShape, 1, "name", Options{}},
		{"args", good, array(user, `{"role":"model","parts":[{"functionCall":{"name":"f","args":"{}"}}]}`), RuleShape, 1, "args", Options{}},
		{"response is an object", good, array(user, calls, parts(`{"functionResponse":{"name":"f","response":"ok"}}`)), RuleShape, 2, "response", Options{}},
	})
}

func TestResponsesRules(t *testing.T) {
	runRules(t, convo.Responses, responsesCases())
	// The same items in a rollout, behind its first row.
	wrapped := responsesCases()
	for i := range wrapped {
		c := &wrapped[i]
		c.good, c.bad = rollout(t, c.good), rollout(t, c.bad)
		if c.at >= 0 {
			c.at++
		}
	}
	runRules(t, convo.Codex, wrapped)
}

// rollout puts Responses items into the rows of a Codex transcript.
func rollout(t *testing.T, list string) string {
	rows := []string{`{"timestamp":"2026-11-29T16:00:00Z","type":"session_meta","payload":{"id":"s1"}}`}
	for _, raw := range items(t, list) {
		// Such items have no type, which only the API lets pass.
		var o map[string]json.RawMessage
		if json.Unmarshal(raw, &o) == nil && o != nil && o["type"] == nil {
			o["type"] = json.RawMessage(`"message"`)
			raw, _ = json.Marshal(o)
		}
		rows = append(rows, fmt.Sprintf(`{"timestamp":"2026-11-29T16:00:01Z","type":"response_item","payload":%s}`, raw))
	}
	return array(rows...)
}

func responsesCases() []ruleCase {
	const (
		user = `{"role":"user","content":"go"}`
		rs1  = `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}`
		rsV  = `{"type":"reasoning","summary":[],"encrypted_content":"e"}`
		fc1  = `{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}"}`
		fc2  = `{"type":"function_call","id":"fc_2","call_id":"c2","name":"f","arguments":"{}"}`
		out1 = `{"type":"function_call_output","call_id":"c1","output":"ok"}`
		out2 = `{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"ok"}]}`
		msg  = `{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]}`
		appr = `{"type":"mcp_approval_request","id":"a1","server_label":"s","name":"f","arguments":"{}"}`
	)
	good := array(user, rs1, fc1, fc2, out2, out1, msg)
	kinds := []struct{ call, out, noun string }{
		{`{"type":"custom_tool_call","call_id":"c1","name":"p","input":"x"}`, `{"type":"custom_tool_call_output","call_id":"c1","output":"ok"}`, "custom tool call c1"},
		{`{"type":"local_shell_call","id":"ls_1","call_id":"c1","action":{}}`, `{"type":"local_shell_call_output","id":"c1","output":"{}"}`, "local shell call c1"},
		{`{"type":"local_shell_call","id":"ls_1","call_id":"c1","action":{}}`, out1, "local shell call c1"},
		{`{"type":"shell_call","call_id":"c1","action":{}}`, `{"type":"shell_call_output","call_id":"c1","output":[]}`, "shell call c1"},
		{`{"type":"apply_patch_call","call_id":"c1","operation":{}}`, `{"type":"apply_patch_call_output","call_id":"c1","status":"failed"}`, "apply patch call c1"},
		{`{"type":"computer_call","call_id":"c1"}`, `{"type":"computer_call_output","call_id":"c1","output":{}}`, "computer call c1"},
		{`{"type":"tool_search_call","call_id":"c1","execution":"client"}`, `{"type":"tool_search_output","call_id":"c1","tools":[]}`, "tool search call c1"},
		{`{"type":"program","id":"p1","call_id":"c1","code":""}`, `{"type":"program_output","call_id":"c1","result":"ok"}`, "program c1"},
		{appr, `{"type":"mcp_approval_response","approval_request_id":"a1","approve":false}`, "mcp approval request a1"},
	}
	cases := []ruleCase{
		{"answered", good, array(user, rs1, fc1, fc2, out1, msg), RuleOpen, 3, "No tool output found for function call c2.", Options{}},
		{"anywhere behind", array(fc1, user, msg, out1), array(fc1, user, msg), RuleOpen, 0, "c1", Options{}},
		{"orphan", good, array(user, out1), RuleOrphan, 1, "No tool call found for function call output with call_id c1.", Options{}},
		{"result before its call", good, array(user, out1, rs1, fc1), RuleOrphan, 1, "c1", Options{}},
		{"of another kind", good, array(user, fc1, `{"type":"custom_tool_call_output","call_id":"c1","output":""}`, out1), RuleOrphan, 2, "custom tool call output", Options{}},
		{"twice", good, array(user, rs1, fc1, out1, out1), RuleTwice, 4, "c1", Options{}},
		{"a call_id used again", array(fc1, out1, strings.Replace(fc1, "fc_1", "fc_9", 1), out1), array(fc1, strings.Replace(fc1, "fc_1", "fc_9", 1), out1), RuleOpen, 1, "c1", Options{}},
		{"reasoning at the end", good, array(user, rs1), RuleReasoning, 1, "Item 'rs_1' of type 'reasoning' was provided without its required following item.", Options{}},
		{"reasoning before a message of the user's", array(rs1, msg), array(rs1, user, msg), RuleReasoning, 0, "required following item", Options{}},
		{"reasoning before a result", array(fc1, rs1, fc2, out1, out2), array(fc1, fc2, rs1, out1, out2), RuleReasoning, 2, "rs_1", Options{}},
		{"reasoning by value is free", array(user, rsV, rsV), array(user, rsV, rs1), RuleReasoning, 2, "rs_1", Options{}},
		{"reasoning twice in a row", array(rs1, strings.Replace(rs1, "rs_1", "rs_2", 1), msg), array(rs1, strings.Replace(rs1, "rs_1", "rs_2", 1)), RuleReasoning, 1, "rs_2", Options{}},
		{"item twice", array(rs1, msg), array(rs1, msg, rs1, msg), RuleDupID, 2, "Duplicate item found with id rs_1", Options{}},
		{"role", good, array(`{"type":"message","role":"tool","content":""}`), RuleRole, 0, "'tool'", Options{}},
		{"self-contained items", array(`{"type":"mcp_call","id":"m1"}`, `{"type":"web_search_call","id":"w1"}`, `{"type":"hologram"}`, `{"type":"tool_search_call","execution":"server"}`), array(appr), RuleOpen, 0, "mcp approval request", Options{}},
		{"message without content", good, array(`{"role":"user"}`), RuleShape, 0, "content", Options{}},
		{"content of a wrong type", good, array(`{"role":"user","content":1}`), RuleShape, 0, "content", Options{}},
		{"part without type", good, array(`{"role":"user","content":[{"text":""}]}`), RuleShape, 0, "type", Options{}},
		{"reasoning without summary", good, array(`{"type":"reasoning","id":"r"}`, msg), RuleShape, 0, "summary", Options{}},
		{"call without call_id", good, array(`{"type":"function_call","name":"f","arguments":""}`), RuleShape, 0, "call_id", Options{}},
		{"call without name", good, array(`{"type":"function_call","call_id":"c1","arguments":""}`), RuleShape, 0, "name", Options{}},
		{"arguments are text", good, array(`{"type":"function_call","call_id":"c1","name":"f","arguments":{}}`), RuleShape, 0, "arguments", Options{}},
		{"output", good, array(fc1, `{"type":"function_call_output","call_id":"c1"}`), RuleShape, 1, "output", Options{}},
		{"status of a patch", good, array(`{"type":"apply_patch_call_output","call_id":"c1","status":"no"}`), RuleShape, 0, "'completed' and 'failed'", Options{}},
		{"approve", good, array(appr, `{"type":"mcp_approval_response","approval_request_id":"a1","approve":"no"}`), RuleShape, 1, "approve", Options{}},
		{"id", good, array(`{"type":"message","id":1,"role":"user","content":""}`), RuleShape, 0, "id", Options{}},
	}
	for _, k := range kinds {
		cases = append(cases, ruleCase{k.noun + " by " + k.out[9:30], array(user, k.call, k.out), array(user, k.call), RuleOpen, 1, "No tool output found for " + k.noun, Options{}},
			ruleCase{k.noun + " twice", array(user, k.call, k.out), array(user, k.call, k.out, k.out), RuleTwice, 3, "Duplicate", Options{}})
	}
	return cases
}
