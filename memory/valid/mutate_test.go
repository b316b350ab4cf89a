package valid

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// sample is a valid history with one step of two calls, both answered, and a last word of the
// model's behind it. Every way to break it is tried on it.
type sample struct {
	format  convo.Format
	history []string
	call    int    // index of the (last) item that calls
	results []int  // indices of the items with the results
	user    string // another message of the user's
	model   string // another message of the model's
	// rules are the breaks that give another rule than in most formats; "": it is no break here.
	rules map[string]string
	// edits replace text in the whole history once, and say which rule that breaks.
	edits []struct{ old, now, rule string }
}

func samples(t *testing.T) []sample {
	return slices.Concat(flatSamples(), turnSamples(), itemSamples(t))
}

// flatSamples are the formats whose results are messages of their own.
func flatSamples() []sample {
	shared := []struct{ old, now, rule string }{
		{`"user"`, `"robot"`, RuleRole}, {`"content":"go"`, `"was":"go"`, RuleShape}, {`"content":"go"`, `"content":5`, RuleShape},
	}
	chatUser, chatModel := `{"role":"user","content":"go"}`, `{"role":"assistant","content":"done"}`
	return []sample{{
		format: convo.OpenAIChat, call: 1, results: []int{2, 3}, user: chatUser, model: chatModel,
		history: []string{chatUser, `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"c2","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
			`{"role":"tool","tool_call_id":"c1","content":"ok"}`, `{"role":"tool","tool_call_id":"c2","content":"ok"}`, chatModel},
		edits: append(shared, []struct{ old, now, rule string }{
			{`"tool_call_id":"c2"`, `"tool_call_id":"c1"`, RuleTwice}, {`"tool_call_id":"c2"`, `"tool_call_id":"c3"`, RuleOrphan},
			{`"content":"done"`, `"content":null`, RuleEmpty},
		}...),
	}, {
		format: convo.Mistral, call: 1, results: []int{2, 3}, user: chatUser, model: chatModel,
		history: []string{chatUser, `{"role":"assistant","content":"","tool_calls":[{"id":"aaaaaaaa1","function":{"name":"f","arguments":"{}"}},{"id":"aaaaaaaa2","function":{"name":"f","arguments":"{}"}}]}`,
			`{"role":"tool","tool_call_id":"aaaaaaaa1","name":"f","content":"ok"}`, `{"role":"tool","tool_call_id":"aaaaaaaa2","name":"f","content":"ok"}`, chatModel},
		rules: map[string]string{"user behind the results": RuleAfterTool},
		edits: append(shared, []struct{ old, now, rule string }{
			{`"tool_call_id":"aaaaaaaa2"`, `"tool_call_id":"aaaaaaaa1"`, RuleTwice}, {`"id":"aaaaaaaa1"`, `"id":"call_1"`, RuleCallID},
			{`"content":"done"`, `"content":""`, RuleEmpty}, {`"user"`, `"assistant"`, RuleFirst}, {`"assistant","content":"done"`, `"system","content":"done"`, RuleSystem},
		}...),
	}, {
		format: convo.Ollama, call: 1, results: []int{2, 3}, user: chatUser, model: chatModel,
		history: []string{chatUser, `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{}}}]}`,
			`{"role":"tool","tool_name":"f","content":"ok"}`, `{"role":"tool","tool_name":"g","content":"ok"}`, chatModel},
		edits: []struct{ old, now, rule string }{
			{`"user"`, `"robot"`, RuleRole}, {`"tool_name":"f"`, `"tool_name":"h"`, RuleOrphan}, {`"tool_name":"f"`, `"tool_name":"g"`, RuleTwice}, {`"arguments":{}`, `"arguments":"{}"`, RuleShape},
		},
	}, {
		format: convo.LangChain, call: 1, results: []int{2, 3}, user: `{"type":"human","data":{"content":"x"}}`, model: `{"type":"ai","data":{"content":"x"}}`,
		history: []string{`{"type":"human","data":{"content":"go"}}`, `{"type":"ai","data":{"content":"","tool_calls":[{"name":"f","args":{},"id":"c1"}],"invalid_tool_calls":[{"name":"f","args":"{","id":"c2"}]}}`,
			`{"type":"tool","data":{"content":"ok","tool_call_id":"c1"}}`, `{"type":"tool","data":{"content":"ok","tool_call_id":"c2"}}`, `{"type":"ai","data":{"content":"done"}}`},
		edits: []struct{ old, now, rule string }{
			{`"human"`, `"robot"`, RuleRole}, {`"tool_call_id":"c2"`, `"tool_call_id":"c1"`, RuleTwice}, {`"tool_call_id":"c2"`, `"tool_call_id":"c3"`, RuleOrphan},
			{`"content":"go"`, `"content":null`, RuleShape}, {`"args":{}`, `"args":"{}"`, RuleShape},
		},
	}}
}

func turnSamples() []sample {
	return []sample{{
		format: convo.Anthropic, call: 1, results: []int{2, 3}, user: aUser, model: aText,
		history: []string{aUser, aCalls, aRes1, aRes2, aText},
		rules:   map[string]string{"user between": RuleLate},
		edits: []struct{ old, now, rule string }{
			{`"user"`, `"robot"`, RuleRole}, {`"user"`, `"assistant"`, RuleFirst}, {`"user"`, `"system"`, RuleSystem}, {`"content":"go"`, `"content":""`, RuleEmpty}, {`"content":"go"`, `"content":[]`, RuleEmpty},
			{`"text":"hi"`, `"text":""`, RuleEmpty}, {`"tool_use_id":"t2"`, `"tool_use_id":"t1"`, RuleTwice}, {`"tool_use_id":"t2"`, `"tool_use_id":"t9"`, RuleOrphan},
			{`"id":"t2"`, `"id":"t1"`, RuleDupID}, {`{"type":"text","text":"hi"}`, `{"type":"thinking","thinking":"","signature":""}`, RuleThinking}, {`"signature":"s"`, `"was":"s"`, RuleShape},
		},
	}, {
		format: convo.Gemini, call: 1, results: []int{2}, user: `{"role":"user","parts":[{"text":"x"}]}`, model: `{"role":"model","parts":[{"text":"x"}]}`,
		history: []string{`{"role":"user","parts":[{"text":"go"}]}`, `{"role":"model","parts":[{"functionCall":{"name":"f"},"thoughtSignature":"s"},{"functionCall":{"name":"g"}}]}`,
			`{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}},{"functionResponse":{"name":"g","response":{}}}]}`, `{"role":"model","parts":[{"text":"done"}]}`},
		rules: map[string]string{"result doubled": RuleOrphan},
		edits: []struct{ old, now, rule string }{
			{`"user"`, `"robot"`, RuleRole}, {`"user"`, `"model"`, RuleFirst}, {`"thoughtSignature":"s"`, `"was":"s"`, RuleSignature}, {`"thoughtSignature":"s"`, `"thoughtSignature":""`, RuleSignature},
			{`{"functionResponse":{"name":"f","response":{}}},`, ``, RuleOpen}, {`{"functionResponse":{"name":"f"`, `{"functionResponse":{"name":"g"`, RuleOrder},
			{`{"functionResponse":{"name":"f","response":{}}},`, `{"functionResponse":{"name":"f","response":{}}},{"functionResponse":{"name":"f","response":{}}},`, RuleTwice},
			{`{"functionResponse":{"name":"f","response":{}}},`, `{"functionResponse":{"name":"f","response":{}}},{"text":"x"},`, RuleLate}, {`[{"text":"done"}]`, `[]`, RuleEmpty},
		},
	}, {
		format: convo.ClaudeCode, call: 5, results: []int{6, 7}, user: `{"type":"user","message":{"role":"user","content":"x"}}`, model: `{"type":"assistant","message":{"role":"assistant","content":"x"}}`,
		history: []string{cOp, cPrompt, cAttach, cThink, cCall1, cCall2, cRes1, cRes2, cRow("a4", "a3", "assistant", "msg_2", `"done"`)},
		// The client finds a result by its parent, so a row between is only text that it moves behind.
		rules: map[string]string{"user between": "", "call dropped": RuleChain},
		edits: []struct{ old, now, rule string }{
			{`"role":"user"`, `"role":"robot"`, RuleRole}, {`"make it"`, `""`, RuleEmpty}, {`"tool_use_id":"t2"`, `"tool_use_id":"t1"`, RuleTwice}, {`"tool_use_id":"t2"`, `"tool_use_id":"t9"`, RuleOrphan},
			{`"parentUuid":"a1"`, `"parentUuid":"a0"`, RuleChain}, {`"parentUuid":"a1"`, `"parentUuid":"a3"`, RuleChain}, {`"uuid":"r1"`, `"uuid":"r2"`, RuleDupID}, {`"done"`, `""`, RuleEmpty},
		},
	}}
}

// itemSamples are the Responses items, as they are and in a rollout.
func itemSamples(t *testing.T) []sample {
	rolloutRows := func(list string) (rows []string) {
		for _, raw := range items(t, rollout(t, list)) {
			rows = append(rows, string(raw))
		}
		return rows
	}
	reasoned := []string{
		`{"type":"message","role":"user","content":"go"}`,
		`{"type":"reasoning","id":"rs_1","summary":[]}`,
		`{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}"}`,
		`{"type":"function_call","id":"fc_2","call_id":"c2","name":"f","arguments":"{}"}`,
		`{"type":"function_call_output","call_id":"c1","output":"ok"}`,
		`{"type":"function_call_output","call_id":"c2","output":"ok"}`,
		`{"type":"reasoning","id":"rs_2","summary":[]}`,
		`{"type":"message","id":"msg_1","role":"assistant","content":"done"}`,
	}
	// Outputs need not stand next to their calls.
	apart := map[string]string{"result moved to the end": "", "user between": "", "model between": "", "call dropped": RuleOrphan}
	reasonedEdits := []struct{ old, now, rule string }{
		{`"rs_2"`, `"rs_1"`, RuleDupID},
		{`"output":"ok"`, `"was":"ok"`, RuleShape},
		{`"call_id":"c1","output"`, `"call_id":"c9","output"`, RuleOrphan},
		{`"role":"assistant"`, `"role":"user"`, RuleReasoning},
		{`"role":"assistant"`, `"role":"robot"`, RuleRole},
	}
	return []sample{{
		format: convo.Responses, call: 3, results: []int{4, 5}, user: `{"role":"user","content":"x"}`, model: `{"role":"assistant","content":"x"}`,
		history: reasoned, rules: apart, edits: append(reasonedEdits, struct{ old, now, rule string }{`{"type":"message","id":"msg_1","role":"assistant","content":"done"}`, `{"role":"user","content":"x"}`, RuleReasoning}),
	}, {
		format: convo.Codex, call: 4, results: []int{5, 6}, user: rolloutRows(`[{"role":"user","content":"x"}]`)[1], model: rolloutRows(`[{"role":"assistant","content":"x"}]`)[1],
		history: rolloutRows(array(reasoned...)), rules: map[string]string{"result moved to the end": "", "user between": "", "model between": "", "result moved to the front": RuleMeta},
		edits: append(reasonedEdits, struct{ old, now, rule string }{`"session_meta"`, `"meta"`, RuleMeta}),
	}}
}

// breaks are the ways to break any history: the rule is the one of most formats.
var breaks = []struct {
	name string
	rule string
	do   func(s sample, h []string, result int) []string
}{
	{"result dropped", RuleOpen, func(_ sample, h []string, r int) []string { return slices.Delete(h, r, r+1) }},
	{"result doubled", RuleTwice, func(s sample, h []string, r int) []string {
		copied := h[r]
		if s.format == convo.ClaudeCode { // two rows cannot have one uuid
			copied = strings.Replace(copied, `"uuid":"`, `"uuid":"copy-`, 1)
		}
		return slices.Insert(h, s.results[len(s.results)-1]+1, copied)
	}},
	{"result moved to the front", RuleOrphan, func(_ sample, h []string, r int) []string {
		moved := h[r]
		return slices.Insert(slices.Delete(h, r, r+1), 0, moved)
	}},
	{"result moved to the end", RuleOpen, func(_ sample, h []string, r int) []string {
		moved := h[r]
		return append(slices.Delete(h, r, r+1), moved)
	}},
	{"user between", RuleOpen, func(s sample, h []string, _ int) []string { return slices.Insert(h, s.call+1, s.user) }},
	{"model between", RuleOpen, func(s sample, h []string, _ int) []string {
		return slices.Insert(h, s.results[len(s.results)-1], s.model)
	}},
	{"call dropped", RuleOrphan, func(s sample, h []string, _ int) []string { return slices.Delete(h, s.call, s.call+1) }},
	{"cut in front of the result", RuleOpen, func(_ sample, h []string, r int) []string { return h[:r] }},
	{"user behind the results", "", func(s sample, h []string, _ int) []string {
		return slices.Insert(h, s.results[len(s.results)-1]+1, s.user)
	}},
}

func raws(h []string) []json.RawMessage {
	all := make([]json.RawMessage, len(h))
	for i, s := range h {
		all[i] = json.RawMessage(s)
	}
	return all
}

func wantRule(t *testing.T, f convo.Format, h []string, rule string) {
	t.Helper()
	err := Check(f, raws(h), Options{MidSystem: true})
	switch e, _ := err.(*Error); {
	case rule == "" && err != nil:
		t.Errorf("refused: %v", err)
	case rule != "" && err == nil:
		t.Errorf("accepted, want rule %s, in %s", rule, h)
	case rule != "" && e.Rule != rule:
		t.Errorf("got rule %s, want %s: %v", e.Rule, rule, e)
	}
}

func TestEveryBreakIsRefused(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(string(s.format), func(t *testing.T) {
			wantRule(t, s.format, s.history, "")
			for _, b := range breaks {
				rule := b.rule
				if other, ok := s.rules[b.name]; ok {
					rule = other
				}
				for _, r := range s.results {
					t.Run(fmt.Sprintf("%s %d", b.name, r), func(t *testing.T) {
						wantRule(t, s.format, b.do(s, slices.Clone(s.history), r), rule)
					})
				}
			}
			for i, e := range s.edits {
				t.Run(fmt.Sprintf("edit %d %s", i, e.rule), func(t *testing.T) {
					all := array(s.history...)
					broken := strings.Replace(all, e.old, e.now, 1)
					if broken == all {
						t.Fatalf("no %s in the history", e.old)
					}
					var h []string
					for _, raw := range items(t, broken) {
						h = append(h, string(raw))
					}
					wantRule(t, s.format, h, e.rule)
				})
			}
			for i := range s.history {
				for _, junk := range []string{`null`, `"x"`, `[]`, `1`, `true`, `{}`, `{"role":null,"type":null}`, `{`, ``} {
					h := slices.Clone(s.history)
					h[i] = junk
					wantRule(t, s.format, h, RuleShape)
				}
			}
		})
	}
}

// A history may be cut anywhere but between a call and its last result.
func TestCuts(t *testing.T) {
	for _, s := range samples(t) {
		first := s.call // the first of the calls, which may be items of their own
		switch s.format {
		case convo.Responses, convo.Codex:
			first -= 2 // and the reasoning in front of them
		case convo.ClaudeCode:
			first -= 2
		}
		for cut := range len(s.history) + 1 {
			err := Check(s.format, raws(s.history[:cut]), Options{})
			open := cut > first && cut <= s.results[len(s.results)-1]
			if s.format == convo.Responses || s.format == convo.Codex {
				open = open || cut == len(s.history)-1 // behind the second reasoning item
			}
			if open != (err != nil) {
				t.Errorf("%s cut at %d: %v", s.format, cut, err)
			}
		}
	}
}
