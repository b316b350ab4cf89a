package session

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
)

// What a tester broke by hand, each as a scene.

func (r *rig) stage(t *testing.T, messages string) map[string]control.Thread {
	t.Helper()
	th, err := r.PutMemory(t.Context(), "", "", true, strings.NewReader(messages))
	if err != nil {
		t.Fatalf("stage: %v", err)
	}
	return map[string]control.Thread{"main": *th}
}

func (r *rig) policySet(t *testing.T, p control.PolicyRequest) {
	t.Helper()
	if _, err := r.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// An error of a call that nobody knows to be in flight, or that only read, takes no work back.
func TestLateAndReadingCallsTakeNothingBack(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "f", "good")
	r.checkpoint(t, "good")
	r.policySet(t, control.PolicyRequest{AutoRollback: &control.AutoRollback{On: []string{"exception"}, To: "good"}, NoRollback: []string{"ls"}})
	kept := func(what string, e control.ToolEnd, warned bool) {
		t.Helper()
		out := r.end(t, e)
		if out.RolledBack != nil || (len(out.Warnings) > 0) != warned {
			t.Errorf("%s: %+v", what, out)
		}
		r.want(t, "", "f", "precious")
	}
	r.begin(t, control.ToolBegin{Name: "write", Call: "c1"})
	r.begin(t, control.ToolBegin{Name: "write", Call: "c2"})
	r.write(t, "f", "bad")
	if out := r.end(t, control.ToolEnd{Call: "c1", Error: "boom"}); out.RolledBack == nil || len(out.Inflight) != 0 {
		t.Fatalf("%+v", out)
	}
	r.write(t, "f", "precious")
	kept("a call of the state that is gone", control.ToolEnd{Call: "c2", Error: "late"}, true)
	r.begin(t, control.ToolBegin{Name: "grep", Call: "g", ReadOnly: true})
	kept("a call that only reads", control.ToolEnd{Call: "g", Error: "no match"}, false)
	r.begin(t, control.ToolBegin{Name: "ls", Call: "l"})
	kept("a tool that rolls nothing back", control.ToolEnd{Call: "l", Error: "exit 1"}, false)
	kept("its end once more", control.ToolEnd{Call: "l", Error: "exit 1"}, true)
	r.begin(t, control.ToolBegin{Name: "ls", Call: "l2"})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	kept("its end after a restart", control.ToolEnd{Call: "l2", Error: "exit 1"}, true)
}

// Tokens count when a conversation comes with a checkpoint or a tool call, as when it is synced.
func TestUsageOfStagedConversations(t *testing.T) {
	r := start(t, options(t))
	answer := `[{"role":"user","content":"u"},{"role":"assistant","content":"x","usage":{"input_tokens":1000,"output_tokens":5}}]`
	if _, err := r.SetBudget(t.Context(), control.BudgetRequest{Limits: &control.Limits{InputTokens: 500}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Threads: r.stage(t, answer)}); err != nil {
		t.Fatal(err)
	}
	_, err := r.ToolBegin(t.Context(), control.ToolBegin{Name: "write"})
	var e *control.Error
	if !errors.As(err, &e) || e.Code != control.CodeBudget {
		t.Errorf("a call over the ceiling: %v", err)
	}
}

// What is kept of a budget is what was used up to then, whatever is being set.
func TestBudgetIsKept(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", strings.Repeat("x", 100_000))
	kept := func(what string, want int64) {
		t.Helper()
		var st budgetState
		if err := r.s.loadState(stateBudget, &st); err != nil || st.Bytes != want || st.Since.IsZero() {
			t.Errorf("%s: kept %+v, %v; want %d bytes", what, st, err, want)
		}
	}
	kept("before anything was set", 0)
	if _, err := r.SetBudget(t.Context(), control.BudgetRequest{Limits: &control.Limits{BytesWritten: 1 << 30}}); err != nil {
		t.Fatal(err)
	}
	kept("set", 100_000)
	if _, err := r.SetBudget(t.Context(), control.BudgetRequest{Reset: true}); err != nil {
		t.Fatal(err)
	}
	kept("reset", 0)
	r.write(t, "f", strings.Repeat("x", 1000))
	if b, err := r.Budget(t.Context()); err != nil || b.Used.BytesWritten != 1000 {
		t.Errorf("used %+v, %v", b, err)
	}
}

// A price that is added to the table counts for the next call.
func TestPricesAreReadAgain(t *testing.T) {
	conf := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", conf)
	r := start(t, options(t))
	if _, err := r.SetBudget(t.Context(), control.BudgetRequest{Limits: &control.Limits{USD: "1"}}); err != nil {
		t.Fatal(err)
	}
	r.begin(t, control.ToolBegin{Name: "x", Call: "c"})
	r.end(t, control.ToolEnd{Call: "c", Usage: []byte(`{"model":"acme-1","input_tokens":1000,"output_tokens":10}`)})
	path := filepath.Join(conf, "rewindfs", "prices.json")
	if _, err := r.ToolBegin(t.Context(), control.ToolBegin{Name: "x"}); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("a call with unknown costs: %v, want one that names %s", err, path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"format":1,"models":[{"names":["acme-1"],"input":"1","output":"1"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	r.begin(t, control.ToolBegin{Name: "x"})
}

// A conversation that could not be read is missing in the checkpoint, and not taken from who talks on.
func TestMissingStaysLive(t *testing.T) {
	r := start(t, options(t))
	r.sync(t, "", say(2, ""))
	c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Missing: []string{"main", "other"}})
	if err != nil || c.Conversation.State != journal.ConversationMissing {
		t.Fatalf("%+v, %v", c, err)
	}
	r.wantMessages(t, 5)
	if c := r.checkpoint(t, "next"); c.Conversation.State != journal.ConversationPresent || len(c.Conversation.Threads) != 0 {
		t.Errorf("the next one has %+v", c.Conversation)
	}
}

// A rollback does not move the pointer to the current checkpoint. It is said that it went past that, and
// its label still names it to reject.
func TestCurrentBehindARollback(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "1")
	one := r.checkpoint(t, "one")
	r.write(t, "f", "2")
	two := r.checkpoint(t, "two")
	if c, err := r.Current(t.Context()); err != nil || c.ID != two.ID || c.Dropped {
		t.Errorf("current: %+v, %v", c, err)
	}
	r.rollback(t, "one")
	if c, err := r.Current(t.Context()); err != nil || c.ID != two.ID || !c.Dropped {
		t.Errorf("current: %+v, %v", c, err)
	}
	if out, err := r.Reject(t.Context(), control.CheckpointRef{Ref: "two"}); err != nil || !out.Moved || out.Current == nil || out.Current.ID != one.ID {
		t.Errorf("reject: %+v, %v", out, err)
	}
}

// A rollback that will be refused says so before, and so does the sync of its conversation.
func TestRefusalIsForeseen(t *testing.T) {
	r := start(t, options(t))
	bad := `[{"role":"user","content":"u"},{"role":"assistant","content":"","tool_calls":[{"id":"call_1","type":"function","function":{"name":"w","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_1","content":"ok"},{"role":"assistant","content":"done"}]`
	th, err := r.PutMemory(t.Context(), "", "mistral", false, strings.NewReader(bad))
	if err != nil || !strings.Contains(th.Warning, "--files-only") {
		t.Fatalf("%+v, %v", th, err)
	}
	r.checkpoint(t, "mm")
	r.write(t, "f", "x")
	for name, req := range map[string]control.RollbackRequest{"a dry run": {Ref: "mm", DryRun: true}, "a rollback": {Ref: "mm"}} {
		var e *control.Error
		if _, err := r.Rollback(t.Context(), req); !errors.As(err, &e) || e.Code != control.CodeUnrepairable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if res, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "mm", DryRun: true, FilesOnly: true}); err != nil || res.ChangedPaths != 1 {
		t.Errorf("the files alone: %+v, %v", res, err)
	}
}

// texts are the messages that r has live, as text.
func (r *rig) texts(t *testing.T) string {
	t.Helper()
	var out []string
	for _, m := range r.live(t, "").Messages {
		out = append(out, string(m))
	}
	return strings.Join(out, "\n")
}

const twoCalls = `[{"role":"user","content":"first task"},
 {"role":"assistant","content":null,"tool_calls":[{"id":"a1","type":"function","function":{"name":"w","arguments":"{}"}},{"id":"a2","type":"function","function":{"name":"w","arguments":"{}"}}]}]`

// The results of calls that had ended may not be in the conversation yet; their step stays.
func TestStepsThatRanStay(t *testing.T) {
	scenes := map[string]func(r *rig) string{ // each returns the checkpoint to go back to
		"in front of the second call": func(r *rig) string {
			r.begin(t, control.ToolBegin{Name: "w", Call: "a1", Step: "S"})
			r.write(t, "f", "by a1")
			r.end(t, control.ToolEnd{Call: "a1"})
			return r.begin(t, control.ToolBegin{Name: "w", Call: "a2", Step: "S"}).Checkpoint.ID
		},
		"in front of the next step, which is not in it either": func(r *rig) string {
			for _, id := range []string{"a1", "a2"} {
				r.begin(t, control.ToolBegin{Name: "w", Call: id, Step: "S"})
				r.write(t, "f", "by "+id)
				r.end(t, control.ToolEnd{Call: id})
			}
			return r.begin(t, control.ToolBegin{Name: "w", Call: "b1", Step: "T"}).Checkpoint.ID
		},
		"by hand, during the call": func(r *rig) string {
			r.begin(t, control.ToolBegin{Name: "w", Call: "a1", Step: "S"})
			r.write(t, "f", "by a1")
			return r.checkpoint(t, "hand").ID
		},
		"by hand, behind it": func(r *rig) string {
			r.begin(t, control.ToolBegin{Name: "w", Call: "a1", Step: "S"})
			r.write(t, "f", "by a1")
			r.end(t, control.ToolEnd{Call: "a1"})
			return r.checkpoint(t, "hand").ID
		},
	}
	for name, scene := range scenes {
		t.Run(name, func(t *testing.T) {
			r := start(t, options(t))
			r.sync(t, "", twoCalls)
			id := scene(r)
			r.write(t, "f", "bad")
			res := r.rollback(t, id)
			if got := r.texts(t); !strings.Contains(got, `"a1"`) || !strings.Contains(got, "not recorded") && !strings.Contains(got, "was running") {
				t.Errorf("the step that ran is gone (%+v):\n%s", res.Conversation, got)
			}
		})
	}
}

// A call id that was used before does not make a rollback take later turns away.
func TestReusedCallID(t *testing.T) {
	r := start(t, options(t))
	r.sync(t, "", `[{"role":"user","content":"first task"},
 {"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"w","arguments":"{}"}}]},
 {"role":"tool","tool_call_id":"call_1","content":"important result"},
 {"role":"assistant","content":"done"},{"role":"user","content":"second task"}]`)
	id := r.begin(t, control.ToolBegin{Name: "w", Call: "call_1"}).Checkpoint.ID
	r.write(t, "f", "bad")
	r.end(t, control.ToolEnd{Call: "call_1"})
	r.rollback(t, id)
	got := r.texts(t)
	for _, want := range []string{"first task", "important result", "done", "second task"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is gone:\n%s", want, got)
		}
	}
}
