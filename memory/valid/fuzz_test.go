package valid

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// FuzzCheck: whatever the bytes, every format answers, the same each time, changes
// nothing, and a refusal can be acted upon.
func FuzzCheck(f *testing.F) {
	names, err := filepath.Glob("testdata/*.json")
	if err != nil || len(names) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range names {
		var in struct{ History []json.RawMessage }
		data := readAll(f, name)
		if err := json.Unmarshal(data, &in); err != nil {
			f.Fatal(err)
		}
		f.Add(array(texts(in.History)...))
	}
	f.Add("{\"role\":\"user\",\"content\":\"\xff\"}\n{")
	f.Fuzz(func(t *testing.T, text string) {
		var list []json.RawMessage
		if json.Unmarshal([]byte(text), &list) != nil {
			for _, line := range strings.Split(text, "\n") {
				list = append(list, json.RawMessage(line))
			}
		}
		before := slices.Clone(texts(list))
		for _, format := range formats {
			for _, o := range []Options{{}, {MidSystem: true}, {Send: true}} {
				err := Check(format, list, o)
				if again := Check(format, list, o); !reflect.DeepEqual(err, again) {
					t.Errorf("%s: %v, then %v", format, err, again)
				}
				wantUsable(t, err, len(list))
			}
			wantUsable(t, CheckEdit(format, list, list[:len(list)/2]), len(list))
			if err := CheckEdit(format, list, list); err != nil && Check(format, list, Options{}) == nil {
				t.Errorf("%s: a valid history that was not changed: %v", format, err)
			}
		}
		if !slices.Equal(before, texts(list)) {
			t.Error("the history was changed")
		}
	})
}

// FuzzSplit: the functions that take values apart see what the standard library sees.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{`{"a":1,"b":[true,null,{"c":"\\\""}],"a":-2e5}`, " [ 1 , [ ] , { } , \"],\" ]\n", `{"\u0061\"":{}}`, `"x"`, `7`, `{ "a" : "" }`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if json.Valid([]byte(text)) && utf8.ValidString(text) {
			sameSplit(t, json.RawMessage(text))
		}
	})
}

func sameBytes(a, b json.RawMessage) bool { return bytes.Equal(a, b) }

func sameSplit(t *testing.T, raw json.RawMessage) {
	var (
		wantO map[string]json.RawMessage
		wantA []json.RawMessage
		wantS *string
	)
	gotO, isO := asObject(raw)
	gotA, isA := asArray(raw)
	gotS, isS := asString(raw)
	if err := json.Unmarshal(raw, &wantO); isO != (err == nil && wantO != nil) || isO && !maps.EqualFunc(gotO, wantO, sameBytes) {
		t.Errorf("object %s: %s, want %s", raw, gotO, wantO)
	}
	if err := json.Unmarshal(raw, &wantA); isA != (err == nil && wantA != nil) || isA && !slices.EqualFunc(gotA, wantA, sameBytes) {
		t.Errorf("array %s: %s, want %s", raw, gotA, wantA)
	}
	if err := json.Unmarshal(raw, &wantS); isS != (err == nil && wantS != nil) || isS && gotS != *wantS {
		t.Errorf("string %s: %q", raw, gotS)
	}
	for _, v := range gotO {
		sameSplit(t, v)
	}
	for _, v := range gotA {
		sameSplit(t, v)
	}
}

func texts(list []json.RawMessage) []string {
	all := make([]string, len(list))
	for i, raw := range list {
		all[i] = string(raw)
	}
	return all
}

// wantUsable fails if err is a refusal that does not say where and why.
func wantUsable(t *testing.T, err error, n int) {
	t.Helper()
	if err == nil {
		return
	}
	var e *Error
	if !errors.As(err, &e) || e == nil {
		t.Fatalf("not a refusal: %v", err)
	}
	if e.At < -1 || e.At >= n || e.Rule == "" || e.Message == "" || len(e.Message) > maxMessage*4 {
		t.Errorf("of %d items: %+v", n, e)
	}
}

// A history is not trusted: deep nesting and many of a thing must cost no more than
// their bytes. If one of these were quadratic, the test would run for minutes.
func TestLargeAndDeep(t *testing.T) {
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	const n = 50_000
	many := func(one string) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	numbered := func(one string) string {
		var b bytes.Buffer
		for i := range n {
			b.WriteString(strings.ReplaceAll(one, "#", string(rune('0'+i%10))+strings.Repeat("x", i%40)+string(rune(0x4e00+i%20000))))
			b.WriteByte(',')
		}
		return "[" + strings.TrimSuffix(b.String(), ",") + "]"
	}
	cases := []struct {
		f    convo.Format
		item string
		rule string
	}{
		{convo.OpenAIChat, `{"role":"user","content":` + deep + `}`, RuleShape},
		{convo.OpenAIChat, `{"role":"user","content":"x","more":` + deep + `}`, ""},
		{convo.Anthropic, `{"role":"user","content":[{"type":"new","x":` + deep + `}]}`, ""},
		{convo.Gemini, `{"role":"user","parts":[{"new":` + deep + `}]}`, ""},
		{convo.Responses, `{"type":"new","x":` + deep + `}`, ""},
		{convo.OpenAIChat, `{"role":"assistant","tool_calls":` + many(`{"id":"c","function":{"name":"f","arguments":""}}`) + `}`, RuleOpen},
		{convo.Ollama, `{"role":"assistant","tool_calls":` + many(`{"function":{"name":"f","arguments":{}}}`) + `}`, RuleOpen},
		{convo.Anthropic, `{"role":"user","content":` + numbered(`{"type":"tool_result","tool_use_id":"#"}`) + `}`, RuleOrphan},
		{convo.Gemini, `{"role":"user","parts":` + many(`{"functionResponse":{"name":"f","response":{}}}`) + `}`, RuleOrphan},
		{convo.OpenAIChat, `{"role":"` + strings.Repeat("\u001b", 100) + strings.Repeat("r", 1<<20) + `","content":""}`, RuleShape},
		{convo.OpenAIChat, `{"role":"` + strings.Repeat("r", 1<<20) + `","content":""}`, RuleRole},
	}
	for i, c := range cases {
		err := Check(c.f, []json.RawMessage{json.RawMessage(c.item)}, Options{})
		if c.rule == "" {
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
			continue
		}
		wantRefused(t, err, c.rule, 0)
		wantUsable(t, err, 1)
	}
}

// Thousands of open calls of each kind, then their results from the last to the first.
func TestManyOpenCalls(t *testing.T) {
	const n = 20_000
	id := func(i int) string {
		return string(rune('a'+i%26)) + strings.Repeat("y", i/1000) + string(rune(0x4e00+i))
	}
	var items, server []json.RawMessage
	server = append(server, json.RawMessage(aUser))
	for i := range n {
		items = append(items, json.RawMessage(`{"type":"function_call","call_id":"`+id(i)+`","name":"f","arguments":""}`))
		server = append(server, json.RawMessage(assistant(`{"type":"server_tool_use","id":"`+id(i)+`","name":"web_search","input":{}}`)))
	}
	for i := n - 1; i >= 0; i-- {
		items = append(items, json.RawMessage(`{"type":"function_call_output","call_id":"`+id(i)+`","output":""}`))
		server = append(server, json.RawMessage(assistant(`{"type":"web_search_tool_result","tool_use_id":"`+id(i)+`","content":[]}`)))
	}
	if err := Check(convo.Responses, items, Options{}); err != nil {
		t.Error(err)
	}
	if err := Check(convo.Anthropic, server, Options{}); err != nil {
		t.Error(err)
	}
	wantRefused(t, Check(convo.Responses, items[:2*n-1], Options{}), RuleOpen, 0)
}

// A message is fit for a terminal, whatever the history holds.
func TestMessagesAreClean(t *testing.T) {
	err := Check(convo.OpenAIChat, []json.RawMessage{json.RawMessage(`{"role":"tool","tool_call_id":"\u001b[2J\n\u202e","content":""}`)}, Options{})
	wantRefused(t, err, RuleOrphan, 0)
	if s := err.Error(); strings.ContainsAny(s, "\x1b\n\u202e") {
		t.Errorf("%q", s)
	}
}

// BenchmarkCheck is a history of 5,000 messages with a call in every second one.
func BenchmarkCheck(b *testing.B) {
	body := strings.Repeat("x", 2000)
	list := []json.RawMessage{json.RawMessage(aUser)}
	for i := range 2500 {
		id := string(rune(0x4e00 + i))
		list = append(list,
			json.RawMessage(assistant(`{"type":"text","text":"`+body+`"}`, `{"type":"tool_use","id":"`+id+`","name":"f","input":{}}`)),
			json.RawMessage(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"`+id+`","content":"`+body+`"}]}`))
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := Check(convo.Anthropic, list, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
