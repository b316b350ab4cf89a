package convo

import (
	"encoding/json"
	"fmt"

	"pgregory.net/rapid"
)

// oddities are items that a cut or an import may leave anywhere in a history.
func oddities(f Format) []string {
	switch f {
	case OpenAIChat:
		return []string{
			`{"role":"developer","content":"D%d"}`,
			`{"role":"assistant","content":null}`,
			`{"role":"assistant","content":null,"function_call":{"name":"old","arguments":"{}"}}`,
			`{"role":"assistant","content":null,"tool_calls":[{"id":"odd_%d","type":"custom","custom":{"name":"patch","input":""}}]}`,
			`{"role":"assistant","content":"again","tool_calls":[{"id":"odd_same","type":"function","function":{"name":"x","arguments":"{bad"}}]}`,
		}
	case Mistral:
		return []string{`{"role":"system","content":"D%d"}`, `{"role":"user","content":"odd"}`, `{"role":"assistant","content":""}`}
	case Ollama:
		return []string{
			`{"role":"system","content":"D%d"}`,
			`{"role":"assistant","content":"","tool_calls":[{"id":"odd_%d","function":{"name":"bash","arguments":{}}}]}`,
			`{"role":"tool","tool_name":"nobody","content":"x"}`,
		}
	case LangChain:
		return []string{
			`{"type":"system","data":{"content":"D%d","type":"system"}}`,
			`{"type":"ai","data":{"content":[{"type":"text","text":"x"}],"type":"ai","tool_calls":[],"invalid_tool_calls":[{"name":"run","args":"{","id":"odd_%d"},{"name":"run","args":"{","id":null}]}}`,
		}
	case Responses, Codex:
		items := []string{
			`{"type":"message","role":"developer","content":[{"type":"input_text","text":"D%d"}]}`,
			`{"type":"reasoning","id":"rs_odd_%d","summary":[]}`,
			`{"type":"computer_call","id":"cu_%[1]d","call_id":"odd_%[1]d","action":{}}`,
			`{"type":"mcp_approval_request","id":"odd_%d","name":"x","arguments":"{}"}`,
			`{"type":"mcp_call","id":"mcp_%d","name":"x","arguments":"{}","output":"y"}`,
			`{"type":"local_shell_call","id":"lsh_%[1]d","call_id":"odd_%[1]d","action":{}}`,
			`{"type":"function_call_output","call_id":"nobody","output":"x"}`,
		}
		if f == Codex {
			for i := range items {
				items[i] = `{"timestamp":"2026-11-29T16:00:02Z","type":"response_item","payload":` + items[i] + `}`
			}
			items = append(items, `{"timestamp":"2026-11-29T16:00:02Z","type":"turn_context","payload":{}}`)
		}
		return items
	case Anthropic:
		return []string{
			`{"role":"system","content":"D%d"}`,
			`{"role":"system","content":[{"type":"text","text":"D%d"}]}`,
			`{"role":"assistant","content":[{"type":"thinking","thinking":"odd","signature":"s"}]}`,
			`{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"server_tool_use","id":"srv_%d","name":"web_search","input":{}}]}`,
			`{"role":"assistant","content":[{"type":"tool_use","id":"odd_%[1]d","name":"b","input":{}},{"type":"server_tool_use","id":"srv_%[1]d","name":"web_search","input":{}}]}`,
			`{"role":"assistant","content":[{"type":"server_tool_use","id":"srv_%[1]d","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"srv_%[1]d","content":[]},{"type":"text","text":"x"}]}`,
			`{"role":"user","content":[{"type":"text","text":""}]}`,
			`{"role":"user","content":"bare"}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"nobody","content":"x"},{"type":"text","text":"y"}]}`,
		}
	case Gemini:
		return []string{
			`{"role":"model","parts":[{"text":"odd","thought":true}]}`,
			`{"role":"model","parts":[{"functionCall":{"name":"bash","args":{}}}]}`,
			`{"role":"model","parts":[{"function_call":{"id":"odd_%d","name":"write","args":{}}},{"text":"x"}]}`,
			`{"role":"user","parts":[]}`,
			`{"role":"user","parts":[{"text":"odd"},{"functionResponse":{"name":"nobody","response":{}}}]}`,
		}
	}
	return []string{ // Claude Code
		`{"parentUuid":null,"type":"user","message":{"role":"user","content":"odd"},"uuid":"odd-%d","sessionId":"old"}`,
		`{"parentUuid":"gone","type":"assistant","message":{"id":"msg_odd_%[1]d","role":"assistant","content":[{"type":"thinking","thinking":"odd","signature":"s"}]},"uuid":"odd-%[1]d","sessionId":"old"}`,
		`{"parentUuid":"gone","type":"assistant","message":{"id":"msg_odd_%[1]d","role":"assistant","content":[{"type":"tool_use","id":"odd_%[1]d","name":"b","input":{}}]},"uuid":"odd-%[1]d","sessionId":"old"}`,
		`{"parentUuid":null,"type":"system","subtype":"x","uuid":"odd-%d","sessionId":"old"}`,
		`{"parentUuid":null,"isSidechain":true,"type":"user","message":{"role":"user","content":"side"},"uuid":"odd-%d","sessionId":"old"}`,
		`{"parentUuid":null,"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"nobody","content":"x"},{"type":"text","text":"y"}]},"uuid":"odd-%d","sessionId":"old"}`,
	}
}

// drawOdd draws one of them.
func drawOdd(t *rapid.T, f Format, n int) json.RawMessage {
	s := rapid.SampledFrom(oddities(f)).Draw(t, "odd")
	out := fmt.Sprintf(s, n)
	if i := indexExtra(out); i >= 0 {
		out = out[:i]
	}
	return json.RawMessage(out)
}

// indexExtra finds what Sprintf says of an argument that was not asked for.
func indexExtra(s string) int {
	for i := range len(s) {
		if s[i:] != "" && len(s[i:]) > 8 && s[i:i+8] == "%!(EXTRA" {
			return i
		}
	}
	return -1
}
