package valid

import (
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// ruleCase is one rule of one format: a history that keeps it, and one that breaks it
// and nothing else.
type ruleCase struct {
	name string
	good string
	bad  string
	rule string
	at   int
	says string // a part of the provider's message
	opts Options
}

func runRules(t *testing.T, f convo.Format, cases []ruleCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := Check(f, items(t, c.good), c.opts); err != nil {
				t.Errorf("the good one: %v", err)
			}
			err := Check(f, items(t, c.bad), c.opts)
			wantRefused(t, err, c.rule, c.at)
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %q, want %q in it", err, c.says)
			}
		})
	}
}

func TestChatRules(t *testing.T) {
	const (
		user  = `{"role":"user","content":"go"}`
		call  = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}`
		calls = `{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{"}},{"id":"c2","type":"custom","custom":{"name":"p","input":"x"}}]}`
		res1  = `{"role":"tool","tool_call_id":"c1","content":"ok"}`
		res2  = `{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"ok"}]}`
		done  = `{"role":"assistant","content":"done"}`
	)
	runRules(t, convo.OpenAIChat, []ruleCase{
		{"answered in any order", "[" + user + "," + calls + "," + res2 + "," + res1 + "]", "[" + user + "," + calls + "," + res2 + "]",
			RuleOpen, 1, "did not have response messages: c1", Options{}},
		{"open at the end", "[" + user + "," + call + "," + res1 + "]", "[" + user + "," + call + "]", RuleOpen, 1, "c1", Options{}},
		{"nothing between", "[" + user + "," + call + "," + res1 + "," + user + "]", "[" + user + "," + call + "," + user + "," + res1 + "]",
			RuleOpen, 1, "must be followed by tool messages", Options{}},
		{"no system between", `[{"role":"system","content":"s"},` + user + `,{"role":"developer","content":"late"}]`,
			"[" + user + "," + call + `,{"role":"system","content":"late"},` + res1 + "]", RuleOpen, 1, "c1", Options{}},
		{"no function message between", `[` + user + `,{"role":"assistant","content":null,"function_call":{"name":"f","arguments":""}},{"role":"function","name":"f","content":"1"}]`,
			"[" + user + "," + call + `,{"role":"function","name":"f","content":"1"},` + res1 + "]", RuleOpen, 1, "c1", Options{}},
		{"orphan", "[" + call + "," + res1 + "]", "[" + res1 + "]", RuleOrphan, 0, "must be a response to a preceeding message", Options{}},
		{"orphan in a batch", "[" + call + "," + res1 + "]", "[" + call + "," + res2 + "," + res1 + "]", RuleOrphan, 1, "c2", Options{}},
		{"orphan behind its batch", "[" + call + "," + res1 + "," + done + "]", "[" + call + "," + res1 + "," + done + "," + res1 + "]", RuleOrphan, 3, "preceeding", Options{}},
		{"twice", "[" + call + "," + res1 + "]", "[" + call + "," + res1 + "," + res1 + "]", RuleTwice, 2, "duplicate tool message", Options{}},
		{"empty ids by position", strings.ReplaceAll("["+call+","+res1+"]", "c1", ""), strings.ReplaceAll("["+call+","+res1+","+res1+"]", "c1", ""),
			RuleTwice, 2, "duplicate", Options{}},
		{"an id used again", "[" + call + "," + res1 + "," + call + "," + res1 + "]", "[" + call + "," + call + "," + res1 + "]", RuleOpen, 0, "c1", Options{}},
		{"content null only with calls", `[{"role":"assistant","content":null,"refusal":"no"}]`, `[{"role":"assistant","content":null}]`, RuleEmpty, 0, "content or tool_calls", Options{}},
		{"no calls in tool_calls", `[{"role":"assistant","content":"","tool_calls":[]}]`, `[{"role":"assistant","content":null,"tool_calls":[]}]`, RuleEmpty, 0, "content", Options{}},
		{"empty parts", `[{"role":"user","content":[{"type":"text","text":""}]}]`, `[{"role":"user","content":[]}]`, RuleEmpty, 0, "minimum length 1", Options{}},
		{"role", "[" + user + "]", `[{"role":"narrator","content":"x"}]`, RuleRole, 0, "'narrator'", Options{}},
		{"to be sent", "[" + user + "]", "[]", RuleEmpty, -1, "at least one message", Options{Send: true}},
		{"no role", "[" + user + "]", `[{"content":"x"}]`, RuleShape, 0, "messages.0.role", Options{}},
		{"role is no string", "[" + user + "]", `[{"role":1,"content":"x"}]`, RuleShape, 0, "a number", Options{}},
		{"keys are exact", "[" + user + "]", `[{"Role":"user","content":"x"}]`, RuleShape, 0, "role", Options{}},
		{"not an object", "[" + user + "]", `[` + user + `,["user","x"]]`, RuleShape, 1, "an array", Options{}},
		{"null", "[" + user + "]", `[null]`, RuleShape, 0, "null", Options{}},
		{"user without content", "[" + user + "]", `[{"role":"user"}]`, RuleShape, 0, "content", Options{}},
		{"content of a wrong type", "[" + user + "]", `[{"role":"user","content":{}}]`, RuleShape, 0, "an object", Options{}},
		{"part without a type", "[" + user + "]", `[{"role":"user","content":[{"text":"x"}]}]`, RuleShape, 0, "messages.0.content.0.type", Options{}},
		{"part is no object", "[" + user + "]", `[{"role":"user","content":["x"]}]`, RuleShape, 0, "messages.0.content.0", Options{}},
		{"result without id", "[" + call + "," + res1 + "]", "[" + call + `,{"role":"tool","content":"ok"}]`, RuleShape, 1, "tool_call_id", Options{}},
		{"result without content", "[" + call + "," + res1 + "]", "[" + call + `,{"role":"tool","tool_call_id":"c1"}]`, RuleShape, 1, "content", Options{}},
		{"tool_calls is no array", "[" + done + "]", `[{"role":"assistant","content":"x","tool_calls":{}}]`, RuleShape, 0, "tool_calls", Options{}},
		{"call is no object", "[" + done + "]", `[{"role":"assistant","tool_calls":["c1"]}]`, RuleShape, 0, "tool_calls.0", Options{}},
		{"call without id", "[" + done + "]", `[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":""}}]}]`, RuleShape, 0, "id", Options{}},
		{"call without function", "[" + done + "]", `[{"role":"assistant","tool_calls":[{"id":"c1"}]}]`, RuleShape, 0, "function", Options{}},
		{"call without name", "[" + done + "]", `[{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"","arguments":""}}]}]`, RuleShape, 0, "name", Options{}},
		{"arguments are text", "[" + call + "," + res1 + "]", `[{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f","arguments":{}}}]}]`, RuleShape, 0, "arguments", Options{}},
		{"type of a call", "[" + call + "," + res1 + "]", `[{"role":"assistant","tool_calls":[{"id":"c1","type":"magic"}]}]`, RuleShape, 0, "'magic'", Options{}},
		{"function message without name", "[" + user + "]", `[{"role":"function","content":"1"}]`, RuleShape, 0, "name", Options{}},
	})
}

func TestMistralRules(t *testing.T) {
	const (
		user = `{"role":"user","content":"go"}`
		call = `{"role":"assistant","content":"","tool_calls":[{"id":"aaaaaaaa1","function":{"name":"f","arguments":"{}"}},{"id":"aaaaaaaa2","function":{"name":"f","arguments":{}}}]}`
		res1 = `{"role":"tool","tool_call_id":"aaaaaaaa1","name":"f","content":"ok"}`
		res2 = `{"role":"tool","tool_call_id":"aaaaaaaa2","content":"ok"}`
		done = `{"role":"assistant","content":"done"}`
		good = "[" + user + "," + call + "," + res1 + "," + res2 + "]"
	)
	sys := `{"role":"system","content":"s"}`
	runRules(t, convo.Mistral, []ruleCase{
		{"count", good, "[" + user + "," + call + "," + res1 + "]", RuleOpen, 1, "Not the same number of function calls and responses", Options{}},
		{"orphan", good, "[" + user + "," + res1 + "]", RuleOrphan, 1, "Not the same number", Options{}},
		{"twice", good, "[" + user + "," + call + "," + res1 + "," + res1 + "]", RuleTwice, 3, "Not the same number", Options{}},
		{"nothing between", good, "[" + user + "," + call + "," + res1 + "," + user + "," + res2 + "]", RuleOpen, 1, "aaaaaaaa2", Options{}},
		{"user behind a result", "[" + user + "," + call + "," + res1 + "," + res2 + "," + done + "," + user + "]",
			"[" + user + "," + call + "," + res1 + "," + res2 + "," + user + "]", RuleAfterTool, 4, "Unexpected role 'user' after role 'tool'", Options{}},
		{"system first", "[" + sys + "," + sys + "," + user + "," + user + "]", "[" + user + "," + sys + "]", RuleSystem, 1, "Unexpected role 'system' after role 'user'", Options{}},
		{"user first", "[" + sys + "," + user + "," + done + "," + done + "]", "[" + sys + "," + done + "]", RuleFirst, 1, "must start with a user", Options{}},
		{"ids of calls", good, strings.ReplaceAll(good, "aaaaaaaa1", "call_1"), RuleCallID, 1, "with a length of 9", Options{}},
		{"ids of results", good, "[" + user + "," + call + `,{"role":"tool","tool_call_id":"aaaaaaa-1","content":""}]`, RuleCallID, 2, "a-z, A-Z, 0-9", Options{}},
		{"content or calls", "[" + user + "," + done + "]", "[" + user + `,{"role":"assistant","content":""}]`, RuleEmpty, 1, "either content or tool_calls", Options{}},
		{"end", "[" + user + `,{"role":"assistant","content":"{","prefix":true}]`, "[" + user + "," + done + "]", RuleEnd, 1, "Expected last role User or Tool", Options{Send: true}},
		{"role", good, `[{"role":"developer","content":"x"}]`, RuleRole, 0, "'developer'", Options{}},
		{"call is no object", good, "[" + user + `,{"role":"assistant","tool_calls":[1]}]`, RuleShape, 1, "tool_calls.0", Options{}},
		{"call without id", good, "[" + user + `,{"role":"assistant","tool_calls":[{}]}]`, RuleShape, 1, "id", Options{}},
		{"call without function", good, "[" + user + `,{"role":"assistant","tool_calls":[{"id":"aaaaaaaa1"}]}]`, RuleShape, 1, "function", Options{}},
		{"result without content", good, "[" + user + "," + call + `,{"role":"tool","tool_call_id":"aaaaaaaa1"}]`, RuleShape, 2, "content", Options{}},
	})
}

func TestOllamaRules(t *testing.T) {
	const (
		user  = `{"role":"user","content":"go"}`
		calls = `{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{}}}]}`
		ids   = `{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f","arguments":{}}},{"id":"c2","function":{"name":"f","arguments":{}}}]}`
		resF  = `{"role":"tool","tool_name":"f","content":"ok"}`
		resG  = `{"role":"tool","tool_name":"g","content":"ok"}`
		plain = `{"role":"tool","content":"ok"}`
		res1  = `{"role":"tool","tool_name":"f","tool_call_id":"c1","content":"ok"}`
		res2  = `{"role":"tool","tool_name":"f","tool_call_id":"c2","content":"ok"}`
		good  = "[" + user + "," + calls + "," + resG + "," + resF + "]"
		byID  = "[" + user + "," + ids + "," + res2 + "," + res1 + "]"
	)
	runRules(t, convo.Ollama, []ruleCase{
		{"by name", good, "[" + user + "," + calls + "," + resG + "]", RuleOpen, 1, "calls without results: f", Options{}},
		{"by id", byID, "[" + user + "," + ids + "," + res2 + "," + user + "]", RuleOpen, 1, "calls without results: c1", Options{}},
		{"by position", "[" + user + "," + calls + "," + plain + "," + resF + "]", "[" + user + "," + calls + "," + plain + "," + resF + "," + plain + "]", RuleOrphan, 4, "without a call", Options{}},
		{"nothing between", good, "[" + user + "," + calls + "," + resF + "," + user + "," + resG + "]", RuleOpen, 1, "g", Options{}},
		{"twice by name", good, "[" + user + "," + calls + "," + resF + "," + resF + "]", RuleTwice, 3, "second result", Options{}},
		{"twice by id", byID, "[" + user + "," + ids + "," + res1 + "," + res1 + "]", RuleTwice, 3, "second result", Options{}},
		{"orphan", good, "[" + user + "," + resF + "]", RuleOrphan, 1, "without a call", Options{}},
		{"orphan by id", byID, "[" + user + "," + ids + `,{"role":"tool","tool_call_id":"c9","content":""}]`, RuleOrphan, 2, "c9", Options{}},
		{"arguments are an object", good, `[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]`, RuleShape, 0, "arguments", Options{}},
		{"call without name", good, `[{"role":"assistant","tool_calls":[{"function":{"arguments":{}}}]}]`, RuleShape, 0, "name", Options{}},
		{"call without function", good, `[{"role":"assistant","tool_calls":[{}]}]`, RuleShape, 0, "function", Options{}},
		{"call is no object", good, `[{"role":"assistant","tool_calls":[null]}]`, RuleShape, 0, "null", Options{}},
		{"content is text", good, `[{"role":"user","content":[]}]`, RuleShape, 0, "content", Options{}},
		{"role", good, `[{"role":"developer","content":""}]`, RuleRole, 0, "invalid role", Options{}},
	})
}

func TestLangChainRules(t *testing.T) {
	const (
		human = `{"type":"human","data":{"content":"go"}}`
		ai    = `{"type":"ai","data":{"content":"","response_metadata":{"model_provider":"anthropic"},"tool_calls":[{"name":"f","args":{},"id":"c1"}],"invalid_tool_calls":[{"name":null,"args":"{","id":"c2"},{"args":null,"id":null}]}}`
		chunk = `{"type":"AIMessageChunk","data":{"content":["x",{"type":"text","text":"y"}],"tool_calls":[{"name":"f","args":{},"id":"c1"}]}}`
		old   = `{"type":"ai","data":{"content":"","additional_kwargs":{"tool_calls":[{"id":"c1","function":{"name":"f"}}]}}}`
		res1  = `{"type":"tool","data":{"content":"ok","tool_call_id":"c1","status":"success"}}`
		res2  = `{"type":"tool","data":{"content":[],"tool_call_id":"c2"}}`
		good  = "[" + human + "," + ai + "," + res2 + "," + res1 + "]"
	)
	sys := `{"type":"system","data":{"content":"s"}}`
	runRules(t, convo.LangChain, []ruleCase{
		{"calls", good, "[" + human + "," + ai + "," + res2 + "]", RuleOpen, 1, "must be followed by tool messages", Options{}},
		{"invalid calls", good, "[" + human + "," + ai + "," + res1 + "]", RuleOpen, 1, "c2", Options{}},
		{"chunks", "[" + chunk + "," + res1 + "]", "[" + chunk + "]", RuleOpen, 0, "c1", Options{}},
		{"calls of old messages", "[" + old + "," + res1 + "]", "[" + old + "," + human + "," + res1 + "]", RuleOpen, 0, "c1", Options{}},
		{"nothing between", good, "[" + ai + "," + res1 + "," + human + "," + res2 + "]", RuleOpen, 0, "c2", Options{}},
		{"orphan", good, "[" + human + "," + res1 + "]", RuleOrphan, 1, "preceeding", Options{}},
		{"twice", good, "[" + ai + "," + res1 + "," + res1 + "]", RuleTwice, 2, "duplicate", Options{}},
		{"systems of ChatAnthropic", "[" + sys + "," + sys + "," + ai + "," + res1 + "," + res2 + "]", "[" + sys + "," + human + "," + sys + "," + ai + "," + res1 + "," + res2 + "]",
			RuleSystem, 2, "multiple non-consecutive system messages", Options{}},
		{"systems elsewhere", "[" + sys + "," + human + "," + sys + "," + chunk + "," + res1 + "]", "[" + sys + "," + human + "," + sys + "," + chunk + "]", RuleOpen, 3, "c1", Options{}},
		{"type", `[{"type":"remove","data":{"id":"x"}},{"type":"chat","data":{"content":"x","role":"r"}},{"type":"function","data":{"content":"x","name":"f"}}]`,
			`[{"type":"robot","data":{"content":""}}]`, RuleRole, 0, "robot", Options{}},
		{"no data", good, `[{"type":"human","content":"x"}]`, RuleShape, 0, "messages.0.data", Options{}},
		{"no content", good, `[{"type":"ai","data":{"tool_calls":[]}}]`, RuleShape, 0, "content", Options{}},
		{"result without id", good, "[" + ai + `,{"type":"tool","data":{"content":""}}]`, RuleShape, 1, "tool_call_id", Options{}},
		{"args are an object", good, `[{"type":"ai","data":{"content":"","tool_calls":[{"name":"f","args":"{}","id":"c1"}]}}]`, RuleShape, 0, "args", Options{}},
		{"call without name", good, `[{"type":"ai","data":{"content":"","tool_calls":[{"args":{},"id":"c1"}]}}]`, RuleShape, 0, "name", Options{}},
		{"call is no object", good, `[{"type":"ai","data":{"content":"","invalid_tool_calls":[[]]}}]`, RuleShape, 0, "invalid_tool_calls.0", Options{}},
		{"args of an invalid call", good, `[{"type":"ai","data":{"content":"","invalid_tool_calls":[{"args":{},"id":"c1"}]}}]`, RuleShape, 0, "args", Options{}},
	})
}

func TestUnknownFormat(t *testing.T) {
	wantRefused(t, Check("cobol", nil, Options{}), RuleFormat, -1)
}

func TestEmptyHistoryIsValidUntilItIsSent(t *testing.T) {
	for _, f := range formats {
		if err := Check(f, nil, Options{}); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		wantRefused(t, Check(f, nil, Options{Send: true}), RuleEmpty, -1)
	}
}

var formats = []convo.Format{convo.OpenAIChat, convo.Responses, convo.Anthropic, convo.Gemini, convo.LangChain,
	convo.Mistral, convo.Ollama, convo.ClaudeCode, convo.Codex}
