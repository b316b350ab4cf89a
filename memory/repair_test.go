package memory

import (
	"errors"
	"testing"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// A role that the provider does not have came with the history: it stays, byte for byte, and what is around it is repaired as ever.
func TestRepairKeepsUnknownRoles(t *testing.T) {
	for _, c := range []struct {
		f        convo.Format
		in, want string // want "": what came in
	}{
		{convo.OpenAIChat, `[{"role":"user","content":"a"}, {"role":"ipython","content":"b","n":1.0}]`, ""},
		{convo.OpenAIChat, `[{"role":"critic","content":null},{"role":"tool","tool_call_id":"c1","content":"x"}]`, `[{"role":"critic","content":null}]`},
		{convo.Mistral, `[{"role":"user","content":"a"},{"role":"critic","content":"b"}]`, ""},
		{convo.Ollama, `[{"role":"developer","content":"a"},{"role":"user","content":"b"}]`, ""},
		{convo.Responses, `[{"type":"message","role":"critic","content":"a"}]`, ""},
		{convo.Codex, `[{"timestamp":"t","type":"session_meta","payload":{"id":"x"}},{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"critic","content":[]}}]`, ""},
		{convo.LangChain, `[{"type":"human","data":{"content":"a"}},{"type":"critic","data":{"x":1}}]`, ""},
		{convo.Gemini, `[{"parts":[{"text":"a"}]},{"role":"model","parts":[{"functionCall":{"name":"f"},"thoughtSignature":"s"}]},{"role":"function","parts":[{"functionResponse":{"name":"f","response":{}}}]}]`, ""},
	} {
		h, err := convo.Parse([]byte(c.in), c.f)
		if err != nil {
			t.Errorf("%s: %s: %v", c.f, c.in, err)
			continue
		}
		if c.want == "" {
			c.want = c.in
		}
		want, err := convo.Parse([]byte(c.want), c.f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Repair(h, convo.Options{})
		if err != nil {
			t.Errorf("%s: %s: %v", c.f, c.in, err)
			continue
		}
		if len(got.History.Items) != len(want.Items) {
			t.Errorf("%s: got %s, want %s", c.f, got.History.Items, c.want)
			continue
		}
		for i, m := range got.History.Items {
			if string(m) != string(want.Items[i]) {
				t.Errorf("%s: message %d is %s, want %s", c.f, i, m, want.Items[i])
			}
		}
	}
	// Where the turns depend on roles, it is refused.
	h, err := convo.Parse([]byte(`[{"role":"user","content":"a"},{"role":"critic","content":"b"}]`), convo.Anthropic)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(h, convo.Options{}); !errors.Is(err, ErrUnrepairable) {
		t.Errorf("an unknown role in an Anthropic history: %v", err)
	}
}
