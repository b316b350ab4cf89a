package convo

import (
	"encoding/json"
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// Histories are drawn in no format, as turns, and then written in one. Every text in
// them is used once, so that it can be looked for.

type genCall struct {
	id, name, result string
}

type genStep struct {
	think string
	text  string
	calls []genCall
	order []int // in which the results come
	apart bool  // results in messages of their own, where the format lets them
	group string
}

type genTurn struct {
	user  string
	steps []genStep
}

type generated struct {
	format Format
	turns  []genTurn
	items  []json.RawMessage
}

var allFormats = []Format{OpenAIChat, Responses, Anthropic, Gemini, LangChain, Mistral, Ollama, ClaudeCode, Codex}

// drawHistory draws a valid history: one that ends in a finished answer or in results.
func drawHistory(t *rapid.T, f Format) generated {
	g := generated{format: f}
	n := 0
	next := func() int { n++; return n }
	think := rapid.Bool().Draw(t, "think")
	turns := rapid.IntRange(1, 4).Draw(t, "turns")
	for range turns {
		turn := genTurn{user: fmt.Sprintf("U%d.", next())}
		steps := rapid.IntRange(0, 3).Draw(t, "steps")
		for range steps {
			s := genStep{group: fmt.Sprintf("msg_%d", next()), apart: rapid.Bool().Draw(t, "apart")}
			if think && rapid.Bool().Draw(t, "thinks") {
				s.think = fmt.Sprintf("K%d.", next())
			}
			if rapid.Bool().Draw(t, "talks") {
				s.text = fmt.Sprintf("T%d <\"\u00e9\u2028\">.", next())
			}
			for range rapid.IntRange(1, 4).Draw(t, "calls") {
				k := next()
				s.calls = append(s.calls, genCall{id: callID(f, k), name: rapid.SampledFrom([]string{"bash", "write"}).Draw(t, "tool"), result: fmt.Sprintf("R%d.", k)})
			}
			s.order = rapid.Permutation(seq(len(s.calls))).Draw(t, "order")
			turn.steps = append(turn.steps, s)
		}
		if steps == 0 || rapid.Bool().Draw(t, "finishes") {
			turn.steps = append(turn.steps, genStep{group: fmt.Sprintf("msg_%d", next()), text: fmt.Sprintf("F%d.", next())})
		}
		g.turns = append(g.turns, turn)
	}
	g.items = render(g)
	return g
}

// callID makes an id of the kind that the format's provider makes.
func callID(f Format, k int) string {
	if f == Mistral {
		return fmt.Sprintf("a1b2c%04d", k)
	}
	return fmt.Sprintf("call_%d", k)
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func raw(format string, args ...any) json.RawMessage {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = string(quote(s))
		}
	}
	return json.RawMessage(fmt.Sprintf(format, args...))
}

// text marks raw JSON among the arguments of raw.
type text []byte

func (x text) String() string { return string(x) }

func joined(parts []json.RawMessage) text {
	s := make([]string, len(parts))
	for i, p := range parts {
		s[i] = string(p)
	}
	return text(strings.Join(s, ", "))
}

func render(g generated) []json.RawMessage {
	switch g.format {
	case Responses:
		return renderResponses(g)
	case Codex:
		out := []json.RawMessage{raw(`{"timestamp":"2026-11-29T16:00:00Z","type":"session_meta","payload":{"id":"old","session_id":"old","n":1.0e2}}`)}
		for i, it := range renderResponses(g) {
			if i%3 == 0 {
				out = append(out, raw(`{"timestamp":"2026-11-29T16:00:00Z","type":"event_msg","payload":{"type":"task_started"}}`))
			}
			out = append(out, raw(`{"timestamp":"2026-11-29T16:00:01Z", "type":"response_item","payload": %s}`, text(it)))
		}
		return out
	case Anthropic:
		return renderAnthropic(g)
	case Gemini:
		return renderGemini(g)
	case ClaudeCode:
		return renderClaude(g)
	}
	return renderChat(g)
}

// renderChat writes the formats in which a message carries its calls.
func renderChat(g generated) []json.RawMessage {
	var out []json.RawMessage
	for _, turn := range g.turns {
		if g.format == Mistral && len(out) > 0 && strings.Contains(string(out[len(out)-1]), `"tool_call_id"`) {
			out = append(out, raw(`{"role":"assistant","content":"ok"}`))
		}
		if g.format == LangChain {
			out = append(out, raw(`{"type":"human","data":{"content":%s,"type":"human","id":null}}`, turn.user))
		} else {
			out = append(out, raw(`{"role":"user", "content":%s,"x_unknown":1.50}`, turn.user))
		}
		for _, s := range turn.steps {
			var calls []json.RawMessage
			for _, c := range s.calls {
				switch g.format {
				case LangChain:
					calls = append(calls, raw(`{"name":%s,"args":{},"id":%s,"type":"tool_call"}`, c.name, c.id))
				case Ollama:
					calls = append(calls, raw(`{"function":{"name":%s,"arguments":{"n":1e3}}}`, c.name))
				default:
					calls = append(calls, raw(`{"id":%s,"type":"function","function":{"name":%s,"arguments":"{}"}}`, c.id, c.name))
				}
			}
			switch {
			case g.format == LangChain:
				out = append(out, raw(`{"type":"ai","data":{"content":%s,"type":"ai","id":null,"tool_calls":[%s],"invalid_tool_calls":[]}}`, s.text, joined(calls)))
			case len(calls) == 0:
				out = append(out, raw(`{"role":"assistant","content":%s}`, s.text))
			default:
				out = append(out, raw(`{"role":"assistant","content":%s,"tool_calls":[ %s ]}`, s.text, joined(calls)))
			}
			for i := range s.calls {
				c := s.calls[s.order[i]]
				switch g.format {
				case LangChain:
					out = append(out, raw(`{"type":"tool","data":{"content":%s,"type":"tool","tool_call_id":%s,"status":"success"}}`, c.result, c.id))
				case Ollama: // two calls of one tool are told apart by order only
					c = s.calls[i]
					out = append(out, raw(`{"role":"tool","tool_name":%s,"content":%s}`, c.name, c.result))
				case Mistral:
					c = s.calls[i]
					out = append(out, raw(`{"role":"tool","tool_call_id":%s,"name":%s,"content":%s}`, c.id, c.name, c.result))
				default:
					out = append(out, raw(`{"role":"tool","tool_call_id":%s,"content":%s}`, c.id, c.result))
				}
			}
		}
	}
	return out
}

func renderResponses(g generated) []json.RawMessage {
	var out []json.RawMessage
	for _, turn := range g.turns {
		out = append(out, raw(`{"type":"message","role":"user","content":[{"type":"input_text","text":%s}]}`, turn.user))
		for _, s := range turn.steps {
			if s.think != "" {
				out = append(out, raw(`{"type":"reasoning","id":%s,"summary":[],"encrypted_content":%s}`, "rs_"+s.group, s.think))
			}
			if s.text != "" {
				out = append(out, raw(`{"type":"message","id":%s,"role":"assistant","content":[{"type":"output_text","text":%s}]}`, "m_"+s.group, s.text))
			}
			for _, c := range s.calls {
				out = append(out, raw(`{"type":"function_call","id":%s,"call_id":%s,"name":%s,"arguments":"{}"}`, "fc_"+c.id, c.id, c.name))
			}
			for _, i := range s.order {
				out = append(out, raw(`{"type":"function_call_output","call_id":%s,"output":%s}`, s.calls[i].id, s.calls[i].result))
			}
		}
	}
	return out
}

// anthropicStep writes the blocks of one response.
func anthropicStep(s genStep) (blocks, results []json.RawMessage) {
	if s.think != "" {
		blocks = append(blocks, raw(`{"type":"thinking","thinking":%s,"signature":"sig"}`, s.think))
	}
	if s.text != "" {
		blocks = append(blocks, raw(`{"type":"text","text":%s}`, s.text))
	}
	for _, c := range s.calls {
		blocks = append(blocks, raw(`{"type":"tool_use","id":%s,"name":%s,"input":{"n":1.0}}`, c.id, c.name))
	}
	for _, i := range s.order {
		results = append(results, raw(`{"type":"tool_result","tool_use_id":%s,"content":%s}`, s.calls[i].id, s.calls[i].result))
	}
	return blocks, results
}

func renderAnthropic(g generated) []json.RawMessage {
	var out []json.RawMessage
	for i, turn := range g.turns {
		if i%2 == 0 {
			out = append(out, raw(`{"role":"user","content":%s}`, turn.user))
		} else {
			out = append(out, raw(`{"role":"user","content":[ {"type":"text","text":%s} ]}`, turn.user))
		}
		for _, s := range turn.steps {
			blocks, results := anthropicStep(s)
			out = append(out, raw(`{"role":"assistant","content":[%s],"id":"x"}`, joined(blocks)))
			if s.apart {
				for _, r := range results {
					out = append(out, raw(`{"role":"user","content":[%s]}`, text(r)))
				}
			} else if len(results) > 0 {
				out = append(out, raw(`{"role":"user","content":[%s]}`, joined(results)))
			}
		}
	}
	return out
}

func renderGemini(g generated) []json.RawMessage {
	var out []json.RawMessage
	for _, turn := range g.turns {
		if len(out) > 0 && strings.Contains(string(out[len(out)-1]), `"user"`) {
			out = append(out, raw(`{"role":"model","parts":[{"text":"ok"}]}`))
		}
		out = append(out, raw(`{"role":"user","parts":[{"text":%s}]}`, turn.user))
		for _, s := range turn.steps {
			var parts, results []json.RawMessage
			if s.think != "" {
				parts = append(parts, raw(`{"text":%s,"thought":true}`, s.think))
			}
			if s.text != "" {
				parts = append(parts, raw(`{"text":%s}`, s.text))
			}
			for i, c := range s.calls {
				sign := text("")
				if i == 0 {
					sign = text(`,"thoughtSignature":"sig"`)
				}
				if s.apart { // without ids
					parts = append(parts, raw(`{"functionCall":{"name":%s,"args":{}}%s}`, c.name, sign))
					results = append(results, raw(`{"functionResponse":{"name":%s,"response":{"output":%s}}}`, c.name, c.result))
				} else {
					parts = append(parts, raw(`{"functionCall":{"id":%s,"name":%s,"args":{}}%s}`, c.id, c.name, sign))
					results = append(results, raw(`{"functionResponse":{"id":%s,"name":%s,"response":{"output":%s}}}`, c.id, c.name, c.result))
				}
			}
			out = append(out, raw(`{"role":"model", "parts":[ %s ]}`, joined(parts)))
			if len(results) > 0 {
				out = append(out, raw(`{"role":"user","parts":[%s]}`, joined(results)))
			}
		}
	}
	return out
}

func renderClaude(g generated) []json.RawMessage {
	out := []json.RawMessage{raw(`{"type":"queue-operation","operation":"enqueue","sessionId":"old"}`)}
	n, parent := 0, text("null")
	row := func(on text, typ string, message json.RawMessage, more string) text {
		n++
		id := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
		out = append(out, raw(`{"parentUuid":%s,"isSidechain":false,"cwd":"/p","version":"2.1","timestamp":"2026-11-29T10:00:00Z","sessionId":"old","type":%s,"message":%s,"uuid":%s%s}`,
			on, typ, text(message), id, text(more)))
		return text(quote(id))
	}
	for _, turn := range g.turns {
		parent = row(parent, "user", raw(`{"role":"user","content":%s}`, turn.user), "")
		n++
		id := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
		out = append(out, raw(`{"parentUuid":%s,"type":"attachment","uuid":%s,"sessionId":"old"}`, parent, id))
		parent = text(quote(id))
		for _, s := range turn.steps {
			blocks, results := anthropicStep(s)
			rows := map[int]text{}
			for i, b := range blocks {
				parent = row(parent, "assistant", raw(`{"id":%s,"type":"message","role":"assistant","content":[%s]}`, s.group, text(b)), "")
				rows[i-(len(blocks)-len(s.calls))] = parent
			}
			out = append(out, raw(`{"type":"last-prompt","leafUuid":%s,"sessionId":"old"}`, parent))
			for i, r := range results {
				on := rows[s.order[i]]
				parent = row(on, "user", raw(`{"role":"user","content":[%s]}`, text(r)), fmt.Sprintf(`,"sourceToolAssistantUUID":%s`, on))
			}
		}
	}
	return out
}
