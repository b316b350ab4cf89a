package valid

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// cRow is a row of a Claude Code transcript; an id "" leaves the response's id out.
func cRow(uuid, parent, role, id, content string) string {
	p := "null"
	if parent != "" {
		p = fmt.Sprintf("%q", parent)
	}
	return fmt.Sprintf(`{"uuid":%q,"parentUuid":%s,"isSidechain":false,"sessionId":"s","type":%q,"message":{"id":%q,"role":%q,"content":%s}}`,
		uuid, p, role, id, role, content)
}

func cUse(id string) string {
	return fmt.Sprintf(`[{"type":"tool_use","id":%q,"name":"f","input":{}}]`, id)
}

func cResult(id string) string {
	return fmt.Sprintf(`[{"type":"tool_result","tool_use_id":%q,"content":"ok"}]`, id)
}

// The rows of one turn with two parallel calls, as the client writes them (CONVERSATIONS 2.1).
var (
	cOp     = `{"type":"queue-operation","operation":"enqueue"}`
	cPrompt = cRow("u", "", "user", "", `"make it"`)
	cAttach = `{"uuid":"x","parentUuid":"u","type":"attachment"}`
	cThink  = cRow("a1", "x", "assistant", "msg_1", `[{"type":"thinking","thinking":"t","signature":"s"}]`)
	cCall1  = cRow("a2", "a1", "assistant", "msg_1", cUse("t1"))
	cCall2  = cRow("a3", "a2", "assistant", "msg_1", cUse("t2"))
	cRes1   = cRow("r1", "a2", "user", "", cResult("t1"))
	cRes2   = cRow("r2", "a3", "user", "", cResult("t2"))
	cDone   = cRow("a4", "r2", "assistant", "msg_2", `[{"type":"text","text":"done"}]`)
	cStop   = `{"uuid":"y","parentUuid":"a4","type":"system","subtype":"stop_hook_summary"}`
)

func cGood() string {
	return array(cOp, cPrompt, cAttach, cThink, cCall1, cCall2, cRes1, cRes2, cDone, cStop)
}

func TestClaudeCodeRules(t *testing.T) {
	side := strings.Replace(cRow("z", "u", "assistant", "msg_9", cUse("t9")), `"isSidechain":false`, `"isSidechain":true`, 1)
	left := cRow("l1", "u", "assistant", "msg_8", cUse("t8")) // a branch that was left
	runRules(t, convo.ClaudeCode, []ruleCase{
		{"answered", cGood(), array(cOp, cPrompt, cAttach, cThink, cCall1, cCall2, cRes2, cDone), RuleOpen, 4, "t1", Options{}},
		{"open at the end", cGood(), array(cPrompt, cAttach, cThink, cCall1, cCall2, cRes1), RuleOpen, 4, "t2", Options{}},
		{"result between the rows of a response", array(cPrompt, cAttach, cThink, cCall1, cRes1, cCall2, cRes2, cDone),
			array(cPrompt, cAttach, cThink, cCall1, cRes1, cCall2), RuleOpen, 5, "t2", Options{}},
		{"orphan", cGood(), array(cPrompt, cRow("r9", "u", "user", "", cResult("t9"))), RuleOrphan, 1, "t9", Options{}},
		{"twice", cGood(), array(cPrompt, cAttach, cThink, cCall1, cRes1, cRow("r9", "r1", "user", "", cResult("t1"))), RuleTwice, 5, "t1", Options{}},
		{"text between results is the client's to mend", array(cPrompt, cAttach, cRow("a2", "x", "assistant", "m", cUse("t1")),
			cRow("n", "a2", "user", "", `"note"`), cRow("r1", "n", "user", "", cResult("t1"))), array(cPrompt, cAttach, cThink, cCall1, cRow("n", "a2", "user", "", `"note"`)), RuleOpen, 3, "t1", Options{}},
		{"first", cGood(), array(cRow("a", "", "assistant", "m", `[{"type":"text","text":"x"}]`)), RuleFirst, 0, "first message", Options{}},
		{"thinking at the end", array(cPrompt, cAttach, cThink, cRow("u2", "a1", "user", "", `"stop"`)), array(cPrompt, cAttach, cThink), RuleThinking, 2, "final block", Options{}},
		{"sidechains are not part of it", array(cPrompt, side), array(cPrompt, strings.Replace(side, "true", "false", 1)), RuleOpen, 1, "t9", Options{}},
		{"branches that were left are not part of it", array(cPrompt, left, cRow("u2", "u", "user", "", `"again"`)), array(cPrompt, left, cRow("u2", "l1", "user", "", `"again"`)), RuleOpen, 1, "t8", Options{}},
		{"parents", array(cRes1, cPrompt), array(cPrompt, cAttach, cRow("u2", "gone", "user", "", `"x"`)), RuleChain, 2, "parent gone is not in the file", Options{}},
		{"the front may be cut", array(cOp, cRow("u", "gone", "user", "", `"x"`)), array(cOp, cRow("u", "u", "user", "", `"x"`)), RuleChain, 1, "lead back to itself", Options{}},
		{"uuids", cGood(), array(cPrompt, cPrompt), RuleDupID, 1, "uuid u", Options{}},
		{"rows without a uuid", array(`{"type":"user","message":{"role":"user","content":"x"}}`), array(`{"type":"user","message":{"role":"user","content":""}}`), RuleEmpty, 0, "non-empty", Options{}},
		{"empty block", cGood(), array(cPrompt, cRow("a", "u", "assistant", "m", `[{"type":"text","text":""}]`)), RuleEmpty, 1, "non-empty", Options{}},
		{"role and type", cGood(), array(`{"type":"user","message":{"role":"assistant","content":"x"}}`), RuleRole, 0, "'assistant'", Options{}},
		{"no message", cGood(), array(`{"type":"assistant","uuid":"a"}`), RuleShape, 0, "message", Options{}},
		{"no type", cGood(), array(`{"uuid":"a"}`), RuleShape, 0, "type", Options{}},
		{"uuid is text", cGood(), array(`{"type":"user","uuid":7}`), RuleShape, 0, "uuid", Options{}},
		{"row is no object", cGood(), array(cPrompt, `[]`), RuleShape, 1, "an array", Options{}},
	})
}

func TestCodexRules(t *testing.T) {
	const (
		meta = `{"timestamp":"t","type":"session_meta","payload":{"id":"s1"}}`
		ui   = `{"timestamp":"t","type":"event_msg","payload":{"type":"task_started"}}`
	)
	row := func(payload string) string {
		return `{"timestamp":"t","type":"response_item","payload":` + payload + `}`
	}
	call := row(`{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}"}`)
	out := row(`{"type":"function_call_output","call_id":"c1","output":"ok"}`)
	rs := row(`{"type":"reasoning","id":"rs_1","summary":[]}`)
	old := row(`{"type":"local_shell_call","id":"c1","call_id":null,"action":{}}`)
	compacted := `{"timestamp":"t","type":"compacted","payload":{"message":"","replacement_history":[{"type":"message","role":"user","content":"x"}]}}`
	good := array(meta, rs, ui, call, row(`{"type":"ghost_snapshot"}`), out)
	runRules(t, convo.Codex, []ruleCase{
		{"answered", good, array(meta, ui, call), RuleOpen, 2, "No tool output found for function call c1.", Options{}},
		{"reasoning across other rows", good, array(meta, rs, ui), RuleReasoning, 1, "required following item", Options{}},
		{"shell calls by id", array(meta, old, out), array(meta, old), RuleOpen, 1, "local shell call c1", Options{}},
		{"what was compacted is not sent", array(meta, call, compacted), array(meta, compacted, call), RuleOpen, 2, "c1", Options{}},
		{"a result from before", array(meta, call, out, compacted), array(meta, call, compacted, out), RuleOrphan, 3, "c1", Options{}},
		{"compacted without a history", array(meta, call, `{"timestamp":"t","type":"compacted","payload":{"message":"m"}}`, out), array(meta, `{"type":"compacted"}`), RuleShape, 1, "payload", Options{}},
		{"meta first", good, array(ui, meta), RuleMeta, 0, "does not start with session metadata", Options{}},
		{"meta has an id", good, array(`{"timestamp":"t","type":"session_meta","payload":{}}`), RuleShape, 0, "id", Options{}},
		{"no payload", good, array(meta, `{"timestamp":"t","type":"response_item"}`), RuleShape, 1, "payload", Options{}},
		{"no timestamp", good, array(meta, `{"type":"response_item","payload":{}}`), RuleShape, 1, "timestamp", Options{}},
		{"no item type", good, array(meta, row(`{"role":"user","content":"x"}`)), RuleShape, 1, "payload.type", Options{}},
		{"row is no object", good, array(meta, `1`), RuleShape, 1, "a number", Options{}},
	})
}

func TestCheckEdit(t *testing.T) {
	load := func(name string) []json.RawMessage {
		var e expected
		readJSON(t, "testdata/"+name+".expected.json", &e)
		return e.History
	}
	without := func(all []json.RawMessage, i int) []json.RawMessage {
		return append(append([]json.RawMessage{}, all[:i]...), all[i+1:]...)
	}
	sub := func(all []json.RawMessage, i int, old, now string) []json.RawMessage {
		s := strings.Replace(string(all[i]), old, now, 1)
		if s == string(all[i]) {
			t.Fatalf("no %q in %s", old, s)
		}
		all = append([]json.RawMessage{}, all...)
		all[i] = json.RawMessage(s)
		return all
	}
	items := load("10-responses-valid")
	rows := load("43-codex-rollout-partial")
	turns := load("18-anthropic-valid-thinking")
	var claude fixture
	readJSON(t, "testdata/41-claude-code-before-first-call.json", &claude)
	cases := []struct {
		name          string
		f             convo.Format
		before, after []json.RawMessage
		rule          string // "": accepted
		at            int
	}{
		{"cut", convo.Responses, items, items[:6], "", 0},
		{"step dropped", convo.Responses, items, append(append([]json.RawMessage{}, items[:1]...), items[6:]...), "", 0},
		{"reasoning dropped", convo.Responses, items, without(items, 1), RuleDropped, 1},
		{"reasoning of a message dropped", convo.Responses, items, without(items, 6), RuleDropped, 6},
		{"sent by value", convo.Responses, items, sub(without(items, 6), 6, `"id"`, `"was"`), "", 0},
		{"codex", convo.Codex, rows, without(rows, 2), RuleDropped, 2},
		{"codex unchanged", convo.Codex, rows, rows, "", 0},
		{"notice behind", convo.Anthropic, turns, append(append([]json.RawMessage{}, turns...), json.RawMessage(`{"role":"user","content":"n"}`)), "", 0},
		{"thinking changed", convo.Anthropic, turns, sub(turns, 1, "sig-1", "sig-9"), RuleAltered, 1},
		{"thinking doubled", convo.Anthropic, turns, append(append([]json.RawMessage{}, turns...), turns[3]), RuleAltered, 4},
		{"something in front changed", convo.Anthropic, turns, sub(turns, 2, "exit 1", "exit 2"), RulePrefix, 3},
		{"and the thinking taken out", convo.Anthropic, turns, sub(sub(turns, 2, "exit 1", "exit 2"), 3, `"type": "thinking"`, `"type": "x"`), "", 0},
		{"claude code unchanged", convo.ClaudeCode, claude.History, claude.History, "", 0},
		{"claude code changed", convo.ClaudeCode, claude.History, sub(claude.History, 2, "plan 1", "plan 2"), RuleAltered, 2},
		{"other formats", convo.OpenAIChat, items, nil, "", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := CheckEdit(c.f, c.before, c.after)
			if c.rule == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantRefused(t, err, c.rule, c.at)
		})
	}
}
