package convo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for _, c := range []struct {
		name, in string
		want     Format
		says     string
	}{
		{"nothing", "", "", "nothing in it"},
		{"binary", "\x7fELF\x02\x01\x01\x00", "", "starts with"},
		{"text", "hello", "", "starts with"},
		{"number", "12", "", "starts with"},
		{"open", `[{"role":"user"`, "", "no JSON"},
		{"deep", deep, "", "deeper than 512"},
		{"deep in a message", `[{"role":"user","content":` + deep + `}]`, OpenAIChat, "deeper than 512"},
		{"torn line", "{\"role\":\"user\",\"content\":\"a\"}\n{\"role\":\"us", "", "line 2, the last one, is not complete"},
		{"bad line", "{\"role\":\"user\"}\n{\"role\":}\n{}\n", "", "line 2 is no JSON"},
		{"numbers", "[1,2]", "", "item 0 is not an object"},
		{"a request", `{"model":"m","messages":[]}`, "", "the list of messages itself"},
		{"unknown rows", `[{"type":"thing"}]`, "", "known in no format"},
		{"role", `[{"role":1,"content":"x"}]`, OpenAIChat, "item 0, as openai-chat: its role is not a string"},
		{"content", `[{"role":"user","content":{}}]`, OpenAIChat, "neither a string nor a list"},
		{"calls", `[{"role":"assistant","tool_calls":{}}]`, OpenAIChat, "tool_calls are not a list"},
		{"call", `[{"role":"assistant","tool_calls":[1]}]`, OpenAIChat, "tool call 0 is not an object"},
		{"call id", `[{"role":"assistant","tool_calls":[{"id":5}]}]`, OpenAIChat, "id of tool call 0 is not a string"},
		{"block", `[{"role":"user","content":["x"]}]`, Anthropic, "block 0 of its content has no type"},
		{"block id", `[{"role":"user","content":[{"type":"tool_result","tool_use_id":7}]}]`, Anthropic, "tool_use_id of block 0"},
		{"parts", `[{"role":"user","parts":"x"}]`, Gemini, "parts are not a list"},
		{"other format", `[{"role":"user","content":"x"}]`, Gemini, "it has no parts, but what messages of other formats have"},
		{"part", `[{"role":"user","parts":["x"]}]`, Gemini, "part 0: it is not an object"},
		{"data", `[{"type":"ai","data":[]}]`, LangChain, "data are not an object"},
		{"payload", `[{"type":"response_item"}]`, Codex, "no payload"},
		{"item", `[{"type":"response_item","payload":{"type":"function_call","call_id":{}}}]`, Codex, "call_id is not a string"},
		{"message", `[{"type":"user","uuid":"1"}]`, ClaudeCode, "message is not an object"},
		{"twice in one message", `[{"role":"assistant","tool_calls":[{"id":"a"},{"id":"a"}]}]`, OpenAIChat, `the call id "a" is there twice`},
		{"twice in one response", `[{"type":"function_call","call_id":"a"},{"type":"function_call","call_id":"a"}]`, Responses, `the call id "a" is there twice`},
		{"no such format", `[]`, "chatml", "no such format"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.in), c.want)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v; want it to say %q", err, c.says)
			}
			if c.want != "chatml" && !errors.Is(err, ErrNotHistory) {
				t.Errorf("%v is not ErrNotHistory", err)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	big := bytes.Repeat([]byte(" "), MaxSize+1)
	if _, err := Parse(big, ""); !errors.Is(err, ErrNotHistory) || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("%d bytes: %v", len(big), err)
	}
	text := strings.Repeat("x\\n", 10<<20) // a tool result of 30 MB is one
	data := []byte(`[{"role":"assistant","tool_calls":[{"id":"a"}]},{"role":"tool","tool_call_id":"a","content":"` + text + `"}]`)
	h, err := Parse(data, "")
	if err != nil || h.Format != OpenAIChat || len(h.Items) != 2 {
		t.Fatalf("a large result: %v", err)
	}
	if out, changes, err := Repair(h, Options{}); err != nil || len(changes) > 0 || !same(out.Items, h.Items) {
		t.Errorf("a large result was repaired: %v %v", changes, err)
	}
}

func TestParseNumber(t *testing.T) {
	const row = `{"type":"user","uuid":"","a":1,"b":2,"message":{"content":"x"}}`
	some := MaxItems / 3 // fewer items than the bound, with more commas than it
	for _, in := range []string{
		strings.Repeat(row+"\n", some),
		"[" + strings.Repeat(row+",", some) + row + "]",
	} {
		if h, err := Parse([]byte(in), ClaudeCode); err != nil || len(h.Items) < some {
			t.Errorf("%d rows: %v", len(h.Items), err)
		}
	}
	for _, in := range []string{strings.Repeat("{}\n", MaxItems+1), "[" + strings.Repeat("{},", MaxItems) + "{}]"} {
		if _, err := Parse([]byte(in), ClaudeCode); !errors.Is(err, ErrNotHistory) || !strings.Contains(err.Error(), "more than") {
			t.Errorf("too many rows: %v", err)
		}
	}
}

// JSON is UTF-8 (RFC 8259, section 8.1): other bytes would make every answer that quotes them unreadable.
func TestParseRefusesOtherBytes(t *testing.T) {
	for _, in := range []string{"[{\"role\":\"user\",\"content\":\"\xff\"}]", "\xfe\xff[]"} {
		if _, err := Parse([]byte(in), ""); !errors.Is(err, ErrNotHistory) || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestParseKeepsBytes(t *testing.T) {
	one := `{"role":"user" , "content":"\ud800 \u00e9 é","n":1.00e+400,"Role":0,"role ":1}`
	two := `{"content":"ok","role":"assistant"}`
	for _, c := range []struct {
		in    string
		lines bool
	}{
		{"[" + one + "," + two + "]", false},
		{"\xef\xbb\xbf [\n " + one + " ,\n" + two + "\n]\n", false},
		{one + "\n" + two + "\n", true},
		{"\n" + one + "\r\n\n  " + two, true},
	} {
		h, err := Parse([]byte(c.in), "")
		if err != nil {
			t.Fatalf("%q: %v", c.in, err)
		}
		if h.Lines != c.lines || len(h.Items) != 2 || string(h.Items[0]) != one || string(h.Items[1]) != two {
			t.Errorf("%q gave %v %q", c.in, h.Lines, h.Items)
		}
		again, err := Parse(h.Encode(), h.Format)
		if err != nil || !same(again.Items, h.Items) || again.Lines != h.Lines {
			t.Errorf("%q was written as %q: %v", c.in, h.Encode(), err)
		}
	}
	for in, lines := range map[string]bool{"[]": false, " [ ] ": false} {
		if h, err := Parse([]byte(in), ""); err != nil || len(h.Items) != 0 || h.Lines != lines {
			t.Errorf("%q: %v %v", in, h, err)
		}
	}
	if h, err := Parse(nil, ClaudeCode); err != nil || !h.Lines || len(h.Items) != 0 {
		t.Errorf("an empty transcript: %v %v", h, err)
	}
}

func TestDetect(t *testing.T) {
	for in, want := range map[string]Format{
		`[{"role":"user","content":"hi"}]`:                                                                                   OpenAIChat,
		`[{"role":"user","content":[{"type":"text","text":"hi"}]}]`:                                                          OpenAIChat,
		`[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"text","text":"hi"}]}]`:                       Anthropic,
		`[{"role":"user","content":[{"type":"image","source":{}}]}]`:                                                         Anthropic,
		`[{"role":"user","content":[{"type":"image_url","image_url":{}}]},{"role":"assistant","content":[{"type":"text"}]}]`: OpenAIChat,
		`[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"x","arguments":{}}}]}]`:                        Ollama,
		`[{"role":"assistant","content":"","thinking":"hm"}]`:                                                                Ollama,
		`[{"role":"assistant","content":"","tool_calls":[{"id":"abcdefgh1","function":{"name":"x","arguments":"{}"}}]}]`:     Mistral,
		`[{"role":"assistant","content":"","tool_calls":[{"id":"call_abc1","function":{"name":"x","arguments":"{}"}}]}]`:     OpenAIChat,
		`[{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"x"}]}]}]`:                     Mistral,
		`[{"role":"user","content":[{"type":"input_text","text":"x"}]}]`:                                                     Responses,
		`[{"type":"message","role":"user","content":"x"}]`:                                                                   Responses,
		`[{"role":"user","content":"x"},{"type":"function_call","call_id":"a","name":"x","arguments":"{}"}]`:                 Responses,
		`[{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"x"}]}]`:                        Anthropic,
		`[{"role":"user","parts":[]}]`:              Gemini,
		`[{"type":"human","data":{"content":"x"}}]`: LangChain,
		`[{"type":"session_meta","payload":{}}]`:    Codex,
		`[{"type":"last-prompt","sessionId":"s"},{"type":"user","uuid":"1","message":{"role":"user","content":"x"}}]`:          ClaudeCode,
		`[{"type":"summary","summary":"x","leafUuid":"1"},{"type":"user","uuid":"1","message":{"role":"user","content":"x"}}]`: ClaudeCode,
	} {
		if h, err := Parse([]byte(in), ""); err != nil || h.Format != want {
			t.Errorf("%s is taken for %q, %v; want %q", in, h.Format, err, want)
		}
	}
}

// BenchmarkRepair is the measure of "well under 100 ms": 5,000 messages, cut inside of
// a batch, with a notice.
func BenchmarkRepair(b *testing.B) {
	for _, f := range []Format{OpenAIChat, Anthropic, ClaudeCode} {
		b.Run(string(f), func(b *testing.B) {
			g := generated{format: f}
			for i := 0; len(g.items) < 5000; i++ {
				g.turns = append(g.turns, genTurn{user: strings.Repeat("u", 200), steps: []genStep{{group: fmt.Sprint("m", i), think: "k", text: "t",
					calls: []genCall{{fmt.Sprintf("call_%da", i), "bash", strings.Repeat("r", 1000)}, {fmt.Sprintf("call_%db", i), "bash", "ok"}}, order: []int{1, 0}, apart: true}}})
				if i%100 == 0 || i > 1200 {
					g.items = render(g)
				}
			}
			h := History{Format: f, Items: g.items[:len(g.items)-1]}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Repair(h, Options{Checkpoint: "c1", Notice: "<n>x</n>"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHostile is input that is all damage: the time must grow as the input does.
func BenchmarkHostile(b *testing.B) {
	for _, n := range []int{20_000, 40_000} {
		for name, item := range map[string]func(i int) (Format, string){
			"orphans": func(i int) (Format, string) {
				return OpenAIChat, fmt.Sprintf(`{"role":"tool","tool_call_id":"c%d","content":"x"}`, i)
			},
			"dangling": func(i int) (Format, string) {
				return OpenAIChat, fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":"c%d"}]}`, i)
			},
			"systems": func(i int) (Format, string) { return Anthropic, `{"role":"system","content":"x"}` },
			"gone parents": func(i int) (Format, string) {
				return ClaudeCode, fmt.Sprintf(`{"type":"user","uuid":"u%d","parentUuid":"u%d","message":{"content":[{"type":"tool_result","tool_use_id":"x"}]}}`, i, i-1)
			},
			"same name": func(i int) (Format, string) {
				if i%2 == 0 {
					return Gemini, `{"role":"model","parts":[{"functionCall":{"name":"x"}},{"functionCall":{"name":"y"}}]}`
				}
				return Gemini, `{"role":"user","parts":[{"functionResponse":{"name":"y"}}]}`
			},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				var h History
				for i := range n {
					var s string
					h.Format, s = item(i)
					h.Items = append(h.Items, json.RawMessage(s))
				}
				for b.Loop() {
					if _, _, err := Repair(h, Options{Notice: "<n>x</n>", MidSystem: true}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
