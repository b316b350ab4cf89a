package budget

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func usd(s string) *USD {
	d, err := parseReported(s)
	if err != nil {
		panic(err)
	}
	return &d
}

// formats are messages with usage, one for each place and family, with what must be read.
func formats() []struct {
	name, in string
	want     Record // its key is not compared
} {
	return []struct {
		name, in string
		want     Record
	}{
		{"OpenAI chat response", `{"id":"chatcmpl-1","object":"chat.completion","model":"gpt-x","service_tier":"default","choices":[],
			"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":60,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":15}}}`,
			Record{Model: "gpt-x", Tokens: Tokens{Input: 100, Output: 20, CacheRead: 60}}},
		{"OpenAI chat message", `{"role":"assistant","content":"hi","usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":null}}`,
			Record{Tokens: Tokens{Input: 7, Output: 3}}},
		{"reasoning beside the completion", `{"model":"g","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}}`,
			Record{Model: "g", Tokens: Tokens{Input: 10, Output: 30}}},
		{"other tier", `{"id":"c","model":"g","service_tier":"flex","usage":{"prompt_tokens":1,"completion_tokens":1}}`,
			Record{Model: "g", Tier: "flex", Tokens: Tokens{Input: 1, Output: 1}}},
		{"cache hits at the top", `{"model":"d","usage":{"prompt_tokens":10,"completion_tokens":1,"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":2}}`,
			Record{Model: "d", Tokens: Tokens{Input: 10, Output: 1, CacheRead: 8}}},
		{"cost of a router", `{"id":"gen-1","model":"a/b","usage":{"prompt_tokens":10,"completion_tokens":1,"cost":0.00014,"cost_details":{"x":1}}}`,
			Record{Model: "a/b", Tokens: Tokens{Input: 10, Output: 1}, Reported: usd("0.00014")}},
		{"OpenAI responses", `{"id":"resp_1","object":"response","model":"gpt-y","service_tier":"priority","output":[],
			"usage":{"input_tokens":500,"input_tokens_details":{"cached_tokens":200,"cache_write_tokens":100},"output_tokens":50,"output_tokens_details":{"reasoning_tokens":40},"total_tokens":550}}`,
			Record{Model: "gpt-y", Tier: "priority", Tokens: Tokens{Input: 500, Output: 50, CacheRead: 200, CacheWrite: 100}}},
		{"Anthropic", `{"id":"msg_1","type":"message","role":"assistant","model":"claude-z","content":[],
			"usage":{"input_tokens":10,"cache_creation_input_tokens":300,"cache_read_input_tokens":1000,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},
			"output_tokens":40,"service_tier":"standard","inference_geo":"not_available","server_tool_use":{"web_search_requests":0,"web_fetch_requests":3}}}`,
			Record{Model: "claude-z", Tokens: Tokens{Input: 1310, Output: 40, CacheRead: 1000, CacheWrite: 100, CacheWrite1h: 200}}},
		{"Anthropic, older", `{"id":"m","role":"assistant","model":"c","usage":{"input_tokens":10,"cache_creation_input_tokens":300,"cache_read_input_tokens":0,"output_tokens":4}}`,
			Record{Model: "c", Tokens: Tokens{Input: 310, Output: 4, CacheWrite: 300}}},
		{"Anthropic without cache", `{"id":"m","role":"assistant","model":"c","usage":{"input_tokens":10,"output_tokens":4}}`,
			Record{Model: "c", Tokens: Tokens{Input: 10, Output: 4}}},
		{"Anthropic, dearer ways", `{"id":"m","model":"c","usage":{"input_tokens":1,"output_tokens":1,"cache_read_input_tokens":0,"service_tier":"batch","speed":"fast","inference_geo":"us"}}`,
			Record{Model: "c", Tier: "batch+fast+geo-us", Tokens: Tokens{Input: 1, Output: 1}}},
		{"Anthropic with a web search", `{"id":"m","model":"c","usage":{"input_tokens":1,"output_tokens":1,"server_tool_use":{"web_search_requests":2}}}`,
			Record{Model: "c", Tokens: Tokens{Input: 1, Output: 1}, Extra: "web_search"}},
		{"Anthropic with a compaction", `{"id":"m","model":"c","usage":{"input_tokens":5,"output_tokens":6,"iterations":[
			{"type":"compaction","input_tokens":1000,"output_tokens":100},{"type":"message","input_tokens":5,"output_tokens":6}]}}`,
			Record{Model: "c", Tokens: Tokens{Input: 1005, Output: 106}}},
		{"Gemini", `{"responseId":"r1","modelVersion":"gemini-q","candidates":[],"usageMetadata":{"promptTokenCount":90,"cachedContentTokenCount":50,"candidatesTokenCount":10,"thoughtsTokenCount":30,"toolUsePromptTokenCount":5,"totalTokenCount":135}}`,
			Record{Model: "gemini-q", Tokens: Tokens{Input: 95, Output: 40, CacheRead: 50}}},
		{"Gemini content", `{"role":"model","parts":[{"text":"x"}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":null}}`,
			Record{Tokens: Tokens{Input: 9}}},
		{"Gemini in Python", `{"response_id":"r","model_version":"gemini-q","usage_metadata":{"prompt_token_count":9,"candidates_token_count":2,"cached_content_token_count":4}}`,
			Record{Model: "gemini-q", Tokens: Tokens{Input: 9, Output: 2, CacheRead: 4}}},
		{"Gemini CLI", `{"id":"u1","timestamp":"t","type":"gemini","content":"x","model":"gemini-q","tokens":{"input":80,"output":10,"cached":20,"thoughts":7,"tool":1,"total":98}}`,
			Record{Model: "gemini-q", Tokens: Tokens{Input: 81, Output: 17, CacheRead: 20}}},
		{"LangChain", `{"type":"ai","data":{"content":"","type":"ai","id":"run-1","response_metadata":{"model_name":"gpt-x","token_usage":{"prompt_tokens":1,"completion_tokens":1}},
			"usage_metadata":{"input_tokens":350,"output_tokens":240,"total_tokens":590,"input_token_details":{"audio":10,"cache_creation":200,"cache_read":100},"output_token_details":{"reasoning":200}}}}`,
			Record{Model: "gpt-x", Tokens: Tokens{Input: 350, Output: 240, CacheRead: 100, CacheWrite: 200}}},
		{"LangChain, kinds of cache", `{"type":"ai","data":{"id":"run-2","response_metadata":{"model":"claude-z"},
			"usage_metadata":{"input_tokens":350,"output_tokens":1,"input_token_details":{"cache_creation":0,"cache_read":0,"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":20}}}}`,
			Record{Model: "claude-z", Tokens: Tokens{Input: 350, Output: 1, CacheWrite: 30, CacheWrite1h: 20}}},
		{"LangChain, only response_metadata", `{"type":"ai","data":{"id":"run-3","usage_metadata":null,"response_metadata":{"model_name":"gpt-x","token_usage":{"prompt_tokens":5,"completion_tokens":6}}}}`,
			Record{Model: "gpt-x", Tokens: Tokens{Input: 5, Output: 6}}},
		{"LangChain with Anthropic's block", `{"type":"ai","data":{"id":"run-4","response_metadata":{"model":"claude-z","usage":{"input_tokens":5,"cache_read_input_tokens":100,"output_tokens":6}}}}`,
			Record{Model: "claude-z", Tokens: Tokens{Input: 105, Output: 6, CacheRead: 100}}},
		{"LangChain with Ollama", `{"type":"ai","data":{"id":"run-5","response_metadata":{"model":"llama","prompt_eval_count":5,"eval_count":6}}}`,
			Record{Model: "llama", Tokens: Tokens{Input: 5, Output: 6}}},
		{"LangChain serialised", `{"lc":1,"type":"constructor","id":["langchain","schema","messages","AIMessage"],"kwargs":{"id":"run-6","usage_metadata":{"input_tokens":2,"output_tokens":3}}}`,
			Record{Tokens: Tokens{Input: 2, Output: 3}}},
		{"Mistral", `{"id":"abc","object":"chat.completion","model":"mistral-m","usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"num_cached_tokens":4}}`,
			Record{Model: "mistral-m", Tokens: Tokens{Input: 12, Output: 3, CacheRead: 4}}},
		{"Ollama", `{"model":"llama","created_at":"t","message":{"role":"assistant","content":"x"},"done":true,"prompt_eval_count":26,"eval_count":298,"total_duration":5}`,
			Record{Model: "llama", Tokens: Tokens{Input: 26, Output: 298}}},
		{"Claude Code", `{"type":"assistant","uuid":"u","requestId":"req","costUSD":0.25,"message":{"id":"msg_2","model":"claude-z","role":"assistant","usage":{"input_tokens":3,"cache_read_input_tokens":7,"cache_creation_input_tokens":0,"output_tokens":5}}}`,
			Record{Model: "claude-z", Tokens: Tokens{Input: 10, Output: 5, CacheRead: 7}, Reported: usd("0.25")}},
		{"parts counted beside the whole", `{"type":"ai","data":{"id":"r","usage_metadata":{"input_tokens":3,"output_tokens":1,"input_token_details":{"cache_read":100}}}}`,
			Record{Tokens: Tokens{Input: 103, Output: 1, CacheRead: 100}}},
		{"numbers with a fraction", `{"id":"f","usage":{"prompt_tokens":3.0,"completion_tokens":1.0}}`, Record{Tokens: Tokens{Input: 3, Output: 1}}},
	}
}

func TestReader(t *testing.T) {
	keys := make(map[string]string)
	for _, c := range formats() {
		t.Run(c.name, func(t *testing.T) {
			var r Reader
			got, ok, err := r.Read([]byte(c.in))
			if err != nil || !ok {
				t.Fatalf("found %t, %v", ok, err)
			}
			if len(got.Key) != 32 {
				t.Errorf("the key is %q", got.Key)
			}
			if len(keys[got.Key]) > 0 && !strings.Contains(c.in, `"m"`) && !strings.Contains(c.in, `"r"`) {
				t.Errorf("it has the key of %q", keys[got.Key])
			}
			keys[got.Key] = c.name
			got.Key = ""
			if !got.equal(c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			// The same, given at the end of a tool call.
			end, err := FromToolEnd([]byte(c.in), "call_1")
			end.Key = ""
			if err != nil || !end.equal(c.want) {
				t.Errorf("at the end of a tool call: %+v, %v", end, err)
			}
		})
	}
}

func TestReaderFindsNothing(t *testing.T) {
	for _, in := range []string{
		`{"role":"user","content":"what is the usage of tokens?"}`,
		`{"role":"tool","tool_call_id":"c","content":"{\"usage\":{\"prompt_tokens\":5}}"}`,
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","usage":{"input_tokens":5}}]}`,
		`{"usage":null}`, `{"usage":{}}`, `{"usage":[1]}`, `{"usage":"12"}`, `{"usage":{"unit":"kWh"}}`, `{"usage_metadata":null,"response_metadata":{}}`,
		`{"usage":{"input_tokens":0,"output_tokens":0}}`, // an error row of Claude Code
		`{"type":"result","total_cost_usd":1.5,"usage":{"input_tokens":5,"output_tokens":5}}`,
		`[]`, `"usage"`, `12`, ``, `{"usage":`, `{"message":"usage"}`,
		`{"type":"event_msg","payload":{"type":"token_count","info":null}}`,
	} {
		var r Reader
		if rec, ok, err := r.Read([]byte(in)); ok || err != nil {
			t.Errorf("%s: found %+v, %t, %v", in, rec, ok, err)
		}
	}
}

func TestReaderRefusesNonsense(t *testing.T) {
	for _, in := range []string{
		`{"usage":{"prompt_tokens":-1,"completion_tokens":1}}`, `{"usage":{"prompt_tokens":1.5}}`, `{"usage":{"prompt_tokens":"many"}}`,
		`{"usage":{"prompt_tokens":99999999999999999999}}`, `{"usage":{"prompt_tokens":1e3}}`, `{"usageMetadata":{"promptTokenCount":{}}}`,
		`{"usage":{"input_tokens":1,"iterations":"x"}}`, `{"usage":{"prompt_tokens":1,"cost_usd":"free"}}`, `{"usage":{"cost_usd":-1}}`,
	} {
		var r Reader
		if rec, ok, err := r.Read([]byte(in)); err == nil || ok {
			t.Errorf("%s: read as %+v, %t", in, rec, ok)
		}
		if rec, err := FromToolEnd([]byte(in), "c"); err == nil {
			t.Errorf("%s: read as %+v at the end of a tool call", in, rec)
		}
	}
}

func TestFromToolEnd(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     Record
	}{
		{"our own", `{"model":"m","input_tokens":10,"output_tokens":2,"cache_read_tokens":4,"cache_write_tokens":1,"cost_usd":"0.5"}`,
			Record{Model: "m", Tokens: Tokens{Input: 10, Output: 2, CacheRead: 4, CacheWrite: 1}, Reported: usd("0.5")}},
		{"only a cost", `{"cost_usd":1.2e-05}`, Record{Reported: usd("0.000012")}},
		{"chat block", `{"prompt_tokens":10,"completion_tokens":2}`, Record{Tokens: Tokens{Input: 10, Output: 2}}},
		{"Anthropic block", `{"input_tokens":10,"cache_read_input_tokens":5,"output_tokens":2}`, Record{Tokens: Tokens{Input: 15, Output: 2, CacheRead: 5}}},
		{"Gemini block", `{"promptTokenCount":10,"candidatesTokenCount":2}`, Record{Tokens: Tokens{Input: 10, Output: 2}}},
		{"nothing used", `{"input_tokens":0,"output_tokens":0}`, Record{}},
		{"result of claude -p", `{"type":"result","session_id":"s","total_cost_usd":1.5,"usage":{"input_tokens":5,"cache_read_input_tokens":1,"output_tokens":5}}`,
			Record{Tokens: Tokens{Input: 6, Output: 5, CacheRead: 1}, Reported: usd("1.5")}},
	} {
		got, err := FromToolEnd([]byte(c.in), "call_1")
		if got.Key != key("call", "call_1") {
			t.Errorf("%s: the key does not come from the call", c.name)
		}
		got.Key = ""
		if err != nil || !got.equal(c.want) {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	for _, in := range []string{"", "x", "[]", "3", "null", "{}", `{"usage":{}}`, `{"tokens":5}`, `{"input_tokens":1}{}`, `{"total_cost_usd":"?"}`} {
		if rec, err := FromToolEnd([]byte(in), "c"); err == nil {
			t.Errorf("%q: read as %+v", in, rec)
		}
	}
	// One answer, told by the tool call and by the history.
	in := []byte(`{"id":"msg_9","usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	end, _ := FromToolEnd(in, "call_1")
	var r Reader
	if synced, _, _ := r.Read(in); synced.Key != end.Key || end.Key == "" {
		t.Errorf("keys %q and %q", end.Key, synced.Key)
	}
}

// rollout is a Codex session: two answers of two turns, each told by a usage record and by an event, one event twice.
const rollout = `{"timestamp":"1","type":"session_meta","payload":{"id":"th","cwd":"/x"}}
{"timestamp":"2","type":"turn_context","payload":{"model":"gpt-a","turn_id":"t1"}}
{"timestamp":"3","type":"event_msg","payload":{"type":"token_count","info":null,"rate_limits":{}}}
{"timestamp":"4","type":"token_usage_record","payload":{"thread_id":"th","turn_id":"t1","response_id":"resp_a","usage":{"input_tokens":100,"cached_input_tokens":40,"cache_write_input_tokens":10,"output_tokens":5,"reasoning_output_tokens":2,"total_tokens":105},"thread_token_usage":{"total_tokens":105}}}
{"timestamp":"5","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":100,"cached_input_tokens":40,"output_tokens":5,"total_tokens":105},"last_token_usage":{"input_tokens":100,"cached_input_tokens":40,"output_tokens":5,"total_tokens":105}}}}
{"timestamp":"6","type":"turn_context","payload":{"model":"gpt-b","turn_id":"t2"}}
{"timestamp":"7","type":"token_usage_record","payload":{"thread_id":"th","turn_id":"t2","response_id":"resp_b","usage":{"input_tokens":200,"output_tokens":7,"total_tokens":207},"thread_token_usage":{"total_tokens":312}}}
{"timestamp":"8","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":300,"cached_input_tokens":40,"output_tokens":12,"total_tokens":312},"last_token_usage":{"input_tokens":200,"output_tokens":7,"total_tokens":207}}}}
{"timestamp":"9","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":300,"cached_input_tokens":40,"output_tokens":12,"total_tokens":312},"last_token_usage":{"input_tokens":200,"output_tokens":7,"total_tokens":207}}}}
{"timestamp":"10","type":"compacted","payload":{"replacement_history":[],"latest_token_usage_record":{"response_id":"resp_b","usage":{"input_tokens":200}}}}`

// meterOf counts the lines of a conversation, several times.
func meterOf(t *testing.T, text string) Usage {
	t.Helper()
	m := NewMeter(testPrices(t))
	for range 3 {
		var r Reader
		for line := range strings.Lines(text) {
			rec, ok, err := r.Read([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				if _, _, err := m.Add(rec); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return m.Usage()
}

func TestCodex(t *testing.T) {
	u := meterOf(t, rollout)
	if u.Answers != 2 || u.InputTokens != 300 || u.OutputTokens != 12 || u.CacheReadTokens != 40 || u.CacheWriteTokens != 10 {
		t.Errorf("got %+v", u)
	}
	if len(u.Unpriced) != 2 || u.Unpriced[0].Why != "there is no price for gpt-a" || u.Unpriced[1].Why != "there is no price for gpt-b" {
		t.Errorf("the models were not taken from the turns: %+v", u.Unpriced)
	}
	// Older versions write only the events.
	var events []string
	for line := range strings.Lines(rollout) {
		if !strings.Contains(line, `"token_usage_record","payload"`) {
			events = append(events, line)
		}
	}
	u = meterOf(t, strings.Join(events, ""))
	if u.Answers != 2 || u.InputTokens != 300 || u.OutputTokens != 12 {
		t.Errorf("by events alone: %+v", u)
	}
}

func TestClaudeCodeCountsAnAnswerOnce(t *testing.T) {
	row := func(uuid string, output int) string {
		return fmt.Sprintf(`{"type":"assistant","uuid":"%s","message":{"id":"msg_1","model":"m-1","usage":{"input_tokens":10,"cache_read_input_tokens":0,"output_tokens":%d}}}`+"\n", uuid, output)
	}
	other := `{"type":"assistant","uuid":"u9","message":{"id":"msg_2","model":"m-1","usage":{"input_tokens":1,"output_tokens":1}}}`
	u := meterOf(t, row("u1", 1)+row("u2", 5)+row("u3", 20)+row("u4", 20)+other)
	if u.Answers != 2 || u.InputTokens != 11 || u.OutputTokens != 21 {
		t.Errorf("got %+v", u)
	}
}

func TestAnswersWithoutAnID(t *testing.T) {
	a := `{"model":"llama","created_at":"1","prompt_eval_count":5,"eval_count":1}` + "\n"
	b := strings.Replace(a, `"1"`, `"2"`, 1)
	if u := meterOf(t, a+b+a); u.Answers != 2 || u.InputTokens != 10 {
		t.Errorf("got %+v", u)
	}
}

// TestLargeMessages: a tool result without usage must not be taken apart.
func TestLargeMessages(t *testing.T) {
	big := []byte(`{"role":"tool","content":"` + strings.Repeat("x", 30<<20) + `"}`)
	var r Reader
	// Of ten runs, because what the runtime allocates meanwhile (a worker of the garbage collector) counts, too.
	if n := testing.AllocsPerRun(10, func() { r.Read(big) }); n > 0 {
		t.Errorf("%v allocations for a message that has no usage", n)
	}
}

func FuzzReader(f *testing.F) {
	for _, c := range formats() {
		f.Add([]byte(c.in))
	}
	for line := range strings.Lines(rollout) {
		f.Add([]byte(line))
	}
	prices, err := DefaultPrices()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		var r, again Reader
		m := NewMeter(prices)
		rec, ok, err := r.Read(in)
		end, endErr := FromToolEnd(in, "c")
		if !bytes.Equal(in, before) {
			t.Fatal("the message was changed")
		}
		if err != nil && ok {
			t.Fatalf("found with error %v", err)
		}
		for _, x := range []struct {
			rec Record
			ok  bool
		}{{rec, ok}, {end, endErr == nil}} {
			if !x.ok {
				continue
			}
			if !json.Valid(in) {
				t.Fatal("usage in what is not JSON")
			}
			k := x.rec.Tokens
			if x.rec.Key == "" || min(k.Input, k.Output, k.CacheRead, k.CacheWrite, k.CacheWrite1h) < 0 || k.CacheRead+k.CacheWrite+k.CacheWrite1h > k.Input {
				t.Fatalf("read as %+v", x.rec)
			}
			if _, _, err := m.Add(x.rec); err != nil {
				t.Fatal(err)
			}
			first := m.Usage()
			if _, changed, _ := m.Add(x.rec); changed {
				t.Fatal("counted twice")
			}
			if second := m.Usage(); first.Cost != second.Cost || first.InputTokens != second.InputTokens || first.Cost < 0 {
				t.Fatalf("%+v became %+v", first, second)
			}
		}
		if rec2, ok2, _ := again.Read(in); ok2 != ok || !rec2.equal(rec) {
			t.Fatal("two readings differ")
		}
	})
}
