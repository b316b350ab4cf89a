package session

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// say is an OpenAI chat of n exchanges, the last of which may call a tool without a result.
func say(n int, call string) string {
	msgs := []string{`{"role":"system","content":"You <edit>."}`}
	for i := range n {
		msgs = append(msgs, fmt.Sprintf(`{"role":"user","content":"do %d"}`, i), fmt.Sprintf(`{"role":"assistant","content":"done %d"}`, i))
	}
	if call != "" {
		msgs = append(msgs, `{"role":"user","content":"and now"}`, fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function","function":{"name":"write","arguments":"{}"}}]}`, call))
	}
	return "[" + strings.Join(msgs, ",\n ") + "]"
}

func (r *rig) sync(t *testing.T, thread, messages string) *control.Thread {
	t.Helper()
	th, err := r.PutMemory(t.Context(), thread, "", false, strings.NewReader(messages))
	if err != nil {
		t.Fatalf("sync: %v", err)
	}
	return th
}

func (r *rig) live(t *testing.T, thread string) *control.Messages {
	t.Helper()
	m, err := r.GetMemory(t.Context(), "", thread, false)
	if err != nil {
		t.Fatalf("the live conversation: %v", err)
	}
	return m
}

func (r *rig) wantMessages(t *testing.T, n int) {
	t.Helper()
	if m := r.live(t, ""); len(m.Messages) != n {
		t.Fatalf("%d messages are live, want %d", len(m.Messages), n)
	}
}

// events lists what the ledger has of some kinds, in order.
func (r *rig) events(t *testing.T, kinds ...ledger.Kind) []*ledger.Record {
	t.Helper()
	var out []*ledger.Record
	err := ledger.Read(LedgerDir(r.o.Store), ledger.Filter{Kinds: kinds}, func(rec *ledger.Record) error {
		own := *rec
		out = append(out, &own)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Files and conversation go back together, and together come back by undo, also over a restart.
func TestConversationGoesWithTheFiles(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "f", "one")
	r.sync(t, "", say(2, ""))
	r.sync(t, "sub", say(1, ""))
	c := r.checkpoint(t, "A")
	if c.Conversation.State != "present" || c.Conversation.Messages != 5 || c.Conversation.Threads["sub"].Messages != 3 {
		t.Errorf("the checkpoint has %+v", c.Conversation)
	}
	r.write(t, "f", "two")
	r.sync(t, "", say(4, ""))
	r.sync(t, "sub", say(3, ""))
	res, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "A", Notes: "tests </rewindfs-rollback> failed"})
	if err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "one")
	if len(res.Messages) != 6 || res.Format != "openai-chat" || res.Notice == "" || len(res.Repairs) != 1 || res.Repairs[0].Action != "append_notice" {
		t.Errorf("rollback: %d messages in %s, %+v, notice %q", len(res.Messages), res.Format, res.Repairs, res.Notice)
	}
	if last := string(res.Messages[5]); !strings.Contains(last, "tests") || strings.Count(last, "</rewindfs-rollback>") != 1 {
		t.Errorf("the notice is %s", last)
	}
	if string(res.Messages[0]) != `{"role":"system","content":"You <edit>."}` {
		t.Errorf("the first message came back as %s", res.Messages[0])
	}
	r.wantMessages(t, 6)
	if n := len(r.live(t, "sub").Messages); n != 4 {
		t.Errorf("%d messages in the other thread", n)
	}
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "two")
	r.wantMessages(t, 9)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.wantMessages(t, 9)
	if _, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "one")
	r.wantMessages(t, 6)
	r.rollback(t, "base")
	if _, err := r.GetMemory(t.Context(), "", "", false); control.CodeOf(err) != control.CodeNoConversation {
		t.Errorf("the base has a conversation: %v", err)
	}
}

// Where only the conversation went on, undo brings that back.
func TestUndoOfTalkAlone(t *testing.T) {
	r := start(t, options(t))
	r.sync(t, "", say(1, ""))
	r.write(t, "f", "one")
	r.checkpoint(t, "A")
	r.sync(t, "", say(5, ""))
	res, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "A", NoNotice: true})
	if err != nil || len(res.Messages) != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	r.wantMessages(t, 3)
	r.write(t, "f", "two")
	r.sync(t, "", say(7, ""))
	r.rollback(t, "A")
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "two")
	r.wantMessages(t, 15)
}

// The two halves on their own, when that is asked for.
func TestFilesOnlyMessagesOnly(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "one")
	r.sync(t, "", say(1, ""))
	r.checkpoint(t, "A")
	r.write(t, "f", "two")
	r.sync(t, "", say(2, ""))
	if _, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "A", MessagesOnly: true, NoNotice: true}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "two")
	r.wantMessages(t, 3)
	r.sync(t, "", say(3, ""))
	if _, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "A", FilesOnly: true}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "one")
	r.wantMessages(t, 7)
	_, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "A", FilesOnly: true, MessagesOnly: true})
	wantCode(t, err, control.CodeBadRequest)
}

// A staged conversation becomes live with the checkpoint that names it, and only then;
// one that could not be read is missing, never an older one.
func TestCheckpointWithMessages(t *testing.T) {
	r := start(t, options(t))
	r.sync(t, "", say(1, ""))
	th, err := r.PutMemory(t.Context(), "", "", true, strings.NewReader(say(6, "")))
	if err != nil {
		t.Fatal(err)
	}
	r.wantMessages(t, 3)
	c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Threads: map[string]control.Thread{"main": *th}})
	if err != nil || c.Conversation.Messages != 13 {
		t.Fatalf("%+v, %v", c, err)
	}
	r.wantMessages(t, 13)
	bad := *th
	bad.Messages++
	_, err = r.Checkpoint(t.Context(), control.CheckpointRequest{Threads: map[string]control.Thread{"main": bad}})
	wantCode(t, err, control.CodeBadRequest)
	m, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Missing: []string{"main"}})
	if err != nil || m.Conversation.State != "missing" {
		t.Fatalf("%+v, %v", m, err)
	}
	r.write(t, "f", "x")
	if next := r.checkpoint(t, "next"); next.Conversation.State != "missing" {
		t.Errorf("a checkpoint after it: %+v", next.Conversation)
	}
	res := r.rollback(t, m.ID)
	if res.Messages != nil || res.Conversation.State != "missing" {
		t.Errorf("rollback to it: %d messages, %+v", len(res.Messages), res.Conversation)
	}
	r.sync(t, "", say(2, ""))
	if c := r.checkpoint(t, "read again"); c.Conversation.State != "present" {
		t.Errorf("after a sync: %+v", c.Conversation)
	}
}

// What is no conversation is refused, and nothing of it is kept.
func TestNoConversation(t *testing.T) {
	r := start(t, options(t))
	r.sync(t, "", say(1, ""))
	for name, data := range map[string]string{
		"empty": "", "binary": "\x00\x01\xff\xfe", "a number": "7", "cut off": say(2, "")[:50],
		"deep": strings.Repeat("[", 100_000), "words": "hello", "wrong types": `[{"role":7}]`,
	} {
		_, err := r.PutMemory(t.Context(), "", "", false, strings.NewReader(data))
		if control.CodeOf(err) != control.CodeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.wantMessages(t, 3)
	_, err := r.PutMemory(t.Context(), "bad\nname", "", false, strings.NewReader(say(1, "")))
	wantCode(t, err, control.CodeBadRequest)
}

func (r *rig) begin(t *testing.T, b control.ToolBegin) *control.ToolBegun {
	t.Helper()
	out, err := r.ToolBegin(t.Context(), b)
	if err != nil {
		t.Fatalf("tool begin %s: %v", b.Name, err)
	}
	return out
}

func (r *rig) end(t *testing.T, e control.ToolEnd) *control.ToolEnded {
	t.Helper()
	out, err := r.ToolEnd(t.Context(), e)
	if err != nil {
		t.Fatalf("tool end %s: %v", e.Call, err)
	}
	return out
}

// A layer in front of each call, unless another one is writing; none for calls that did
// nothing; and the conversation is cut where the call was.
func TestToolCalls(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "before")
	r.sync(t, "", say(1, "c1"))
	first := r.begin(t, control.ToolBegin{Name: "write", Call: "c1", Step: "s1"})
	if !first.Sealed || first.Checkpoint == nil || !first.Checkpoint.Tool.BatchStart || first.Checkpoint.Tool.Pending != "c1" {
		t.Fatalf("%+v %+v", first, first.Checkpoint)
	}
	second := r.begin(t, control.ToolBegin{Name: "write", Call: "c2", Step: "s1"})
	if second.Sealed || second.Checkpoint.ID != first.Checkpoint.ID || !slices.Equal(second.Inflight, []string{"c1", "c2"}) {
		t.Errorf("a call beside it: %+v", second)
	}
	_, err := r.ToolBegin(t.Context(), control.ToolBegin{Name: "write", Call: "c2"})
	wantCode(t, err, control.CodeConflict)
	r.write(t, "f", "after")
	r.end(t, control.ToolEnd{Call: "c1"})
	r.end(t, control.ToolEnd{Call: "c2"})
	if out := r.end(t, control.ToolEnd{Call: "c2"}); out.Known {
		t.Error("a call ended twice")
	}
	res := r.rollback(t, first.Checkpoint.ID)
	r.want(t, "", "f", "before")
	if res.Repairs[0].Action != "drop_step" {
		t.Errorf("the step is not dropped: %+v", res.Repairs)
	}
	// Calls that do nothing share the layer.
	before := r.begin(t, control.ToolBegin{Name: "write", Call: "c3"})
	r.end(t, control.ToolEnd{})
	r.sync(t, "", say(2, ""))
	again := r.begin(t, control.ToolBegin{Name: "write", Call: "c4"})
	if before.Checkpoint.Layer != again.Checkpoint.Layer || again.Checkpoint.ID == before.Checkpoint.ID || again.Checkpoint.Seq == 0 {
		t.Errorf("%+v, then %+v", before.Checkpoint, again.Checkpoint)
	}
	r.write(t, "f", "wrecked")
	r.end(t, control.ToolEnd{Call: "c4"})
	res = r.rollback(t, again.Checkpoint.ID)
	r.want(t, "", "f", "before")
	if res.CheckpointID != again.Checkpoint.ID {
		t.Errorf("rollback to %s says %s", again.Checkpoint.ID, res.CheckpointID)
	}
	r.wantMessages(t, 6)
	if r.begin(t, control.ToolBegin{Name: "read", Call: "c5", ReadOnly: true}).Sealed {
		t.Error("a reader got a layer")
	}
	st, err := r.Status(t.Context())
	if err != nil || !slices.Equal(st.Inflight, []string{"c5"}) {
		t.Errorf("status: %v in flight, %v", st.Inflight, err)
	}
	if _, err := r.ToolReset(t.Context(), control.None{}); err != nil {
		t.Fatal(err)
	}
}

func TestAutoRollback(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "good")
	r.sync(t, "", say(1, ""))
	r.checkpoint(t, "good")
	p, err := r.SetPolicy(t.Context(), control.PolicyRequest{
		AutoRollback: &control.AutoRollback{On: []string{"exception", "test_failure"}, To: "good", Verifiers: []control.Verifier{{Command: "make check"}}},
		NoRollback:   []string{"search"},
	})
	if err != nil || len(p.Warnings) != 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	r.begin(t, control.ToolBegin{Name: "search", Call: "c0"})
	r.write(t, "f", "bad")
	if out := r.end(t, control.ToolEnd{Call: "c0", Error: "nothing found"}); out.RolledBack != nil || len(out.Verify) != 0 {
		t.Errorf("a tool that rolls nothing back did: %+v", out)
	}
	r.begin(t, control.ToolBegin{Name: "write", Call: "c1"})
	out := r.end(t, control.ToolEnd{Call: "c1", Error: "disk on fire"})
	if out.RolledBack == nil || !strings.Contains(out.RolledBack.Notice, "disk on fire") {
		t.Fatalf("%+v", out)
	}
	r.want(t, "", "f", "good")
	r.begin(t, control.ToolBegin{Name: "write", Call: "c2"})
	if out := r.end(t, control.ToolEnd{Call: "c2", Error: "again"}); out.RolledBack != nil || !out.Skipped {
		t.Errorf("a second one in a row: %+v", out.RolledBack)
	}
	if n := len(r.events(t, ledger.KindSkippedNoop)); n != 1 {
		t.Errorf("%d skipped rollbacks in the ledger", n)
	}
	r.begin(t, control.ToolBegin{Name: "write", Call: "c3"})
	r.write(t, "f", "bad again")
	if out := r.end(t, control.ToolEnd{Call: "c3"}); len(out.Verify) != 1 || out.Verify[0].Command != "make check" {
		t.Fatalf("nothing to verify: %+v", out)
	}
	v, err := r.Verification(t.Context(), control.Verification{Command: "make check", Status: "fail", Summary: "3 tests fail", To: "good", Auto: true, Call: "c3"})
	if err != nil || v.RolledBack == nil {
		t.Fatalf("%+v, %v", v, err)
	}
	r.want(t, "", "f", "good")
	st, err := r.Status(t.Context())
	if err != nil || st.LastAutoRollback == nil || st.LastAutoRollback.Reason != "3 tests fail" || st.Lifecycle != lifeRolledBack {
		t.Errorf("status: %+v, %v", st.LastAutoRollback, err)
	}
	// To what failed itself: it changes nothing, and that is said.
	r.write(t, "f", "bad for good")
	r.checkpoint(t, "later")
	v, err = r.Verification(t.Context(), control.Verification{Command: "x", Status: "fail", To: "latest"})
	if err != nil || !v.Skipped || v.RolledBack != nil || len(v.Warnings) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	p, err = r.SetPolicy(t.Context(), control.PolicyRequest{AutoRollback: &control.AutoRollback{On: []string{"exception"}, To: "latest"}})
	if err != nil || len(p.Warnings) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	// To the call itself.
	if p, err = r.SetPolicy(t.Context(), control.PolicyRequest{AutoRollback: &control.AutoRollback{On: []string{"exception"}, To: "@call"}}); err != nil || len(p.Warnings) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	r.begin(t, control.ToolBegin{Name: "write", Call: "c9"})
	r.write(t, "f", "worse")
	out = r.end(t, control.ToolEnd{Call: "c9", Error: "oops"})
	if out.RolledBack == nil || !strings.Contains(out.RolledBack.Notice, "before the tool call c9") {
		t.Errorf("%+v", out.RolledBack)
	}
	r.want(t, "", "f", "bad for good")
	for _, bad := range []control.PolicyRequest{
		{AutoRollback: &control.AutoRollback{On: []string{"rain"}, To: "x"}}, {AutoRollback: &control.AutoRollback{On: []string{"exception"}}},
		{AutoCheckpoint: &control.AutoCheckpoint{KeepLast: -1}}, {AutoCheckpoint: &control.AutoCheckpoint{Triggers: []string{"noon"}}}, {Off: []string{"lights"}},
	} {
		_, err := r.SetPolicy(t.Context(), bad)
		wantCode(t, err, control.CodeBadRequest)
	}
}

// An unknown verdict is never a pass, and goes back only when somebody decided so.
func TestVerificationUnknown(t *testing.T) {
	r := start(t, options(t))
	r.checkpoint(t, "A")
	r.write(t, "f", "x")
	for _, decision := range []string{"", "continue", "stop"} {
		v, err := r.Verification(t.Context(), control.Verification{Command: "x", Status: "unknown", To: "A", Decision: decision})
		if err != nil || v.RolledBack != nil {
			t.Errorf("%q: %+v, %v", decision, v, err)
		}
	}
	r.want(t, "", "f", "x")
	if v, err := r.Verification(t.Context(), control.Verification{Command: "x", Status: "unknown", To: "A", Decision: "rollback"}); err != nil || v.RolledBack == nil {
		t.Errorf("%+v, %v", v, err)
	}
	r.wantNone(t, "f")
	_, err := r.Verification(t.Context(), control.Verification{Command: "x", Status: "great"})
	wantCode(t, err, control.CodeBadRequest)
	if n := len(r.events(t, ledger.KindEscalation)); n != 3 {
		t.Errorf("%d escalations in the ledger", n)
	}
}

// Of the automatic checkpoints only the newest few are kept, and the space of the others is given back.
func TestKeepLast(t *testing.T) {
	r := start(t, options(t))
	if _, err := r.SetPolicy(t.Context(), control.PolicyRequest{AutoCheckpoint: &control.AutoCheckpoint{KeepLast: 3}}); err != nil {
		t.Fatal(err)
	}
	named := 0
	for i := range 30 {
		call := fmt.Sprint("c", i)
		r.begin(t, control.ToolBegin{Name: "write", Call: call})
		r.write(t, "big", strings.Repeat(fmt.Sprintf("%08d", i), 100_000))
		r.end(t, control.ToolEnd{Call: call})
		if i%10 == 0 {
			r.checkpoint(t, fmt.Sprint("named", i))
			named++
		}
	}
	auto := func() (n int) {
		for _, e := range r.s.journal.List(nil) {
			if e.Auto {
				n++
			}
		}
		return n
	}
	for deadline := time.Now().Add(20 * time.Second); auto() > 3; {
		if time.Now().After(deadline) {
			t.Fatalf("%d automatic checkpoints are kept", auto())
		}
		r.begin(t, control.ToolBegin{Name: "write", Call: "again"})
		r.end(t, control.ToolEnd{Call: "again"})
	}
	r.s.background.Wait()
	if _, err := r.s.tree.Reclaim(); err != nil {
		t.Fatal(err)
	}
	st, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := r.s.chunks.DiskBytes()
	if err != nil || bytes > int64(named+5)*900_000 {
		t.Errorf("%d bytes of chunks for %d versions that are needed (%v)", bytes, named+4, err)
	}
	_ = st
	for i := 0; i < 30; i += 10 {
		r.want(t, fmt.Sprint("named", i), "big", strings.Repeat(fmt.Sprintf("%08d", i), 100_000))
	}
}

func TestTwoSteps(t *testing.T) {
	o := options(t)
	r := start(t, o)
	record := func(label string) *control.Checkpoint {
		t.Helper()
		c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label, Pending: true})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	current := func(want string) {
		t.Helper()
		c, err := r.Current(t.Context())
		if want == "" {
			wantCode(t, err, control.CodeUnknownCheckpoint)
			return
		}
		if err != nil || c.Label != want {
			t.Errorf("the current one is %+v, %v, want %s", c, err, want)
		}
	}
	ref := func(s string) control.CheckpointRef { return control.CheckpointRef{Ref: s} }
	r.write(t, "f", "1")
	one := record("one")
	if one.State != "recorded" || one.Existing {
		t.Errorf("%+v", one)
	}
	if again := record("one"); again.ID != one.ID || !again.Existing {
		t.Errorf("the same revision again: %+v", again)
	}
	current("")
	r.write(t, "f", "2")
	record("two")
	r.write(t, "f", "3")
	three := record("three")
	for _, label := range []string{"one", "two", "three"} {
		if c, err := r.Attach(t.Context(), ref(label)); err != nil || c.State != "attached" {
			t.Fatalf("attach %s: %+v, %v", label, c, err)
		}
	}
	current("three")
	if rej, err := r.Reject(t.Context(), ref("two")); err != nil || rej.Moved || rej.Current.Label != "three" {
		t.Errorf("rejecting what something newer decided about: %+v, %v", rej, err)
	}
	if rej, err := r.Reject(t.Context(), ref("three")); err != nil || !rej.Moved || rej.Current.Label != "two" || rej.Rejected.State != "rejected" {
		t.Errorf("%+v, %v", rej, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	current("two")
	r.write(t, "f", "4")
	r.checkpoint(t, "plain")
	current("plain")
	r.write(t, "f", "5")
	record("five")
	r.write(t, "f", "6")
	record("six")
	got, err := r.Collect(t.Context(), control.CollectRequest{Limit: 1})
	if err != nil || len(got.Checkpoints) != 1 || got.Checkpoints[0].Label != "five" || !got.More {
		t.Errorf("collected %+v, %v", got, err)
	}
	if got, err := r.Collect(t.Context(), control.CollectRequest{BeforeMS: time.Hour.Milliseconds()}); err != nil || len(got.Checkpoints) != 0 {
		t.Errorf("collected what is young: %+v, %v", got, err)
	}
	if got, err := r.Collect(t.Context(), control.CollectRequest{}); err != nil || len(got.Checkpoints) != 1 || got.More {
		t.Errorf("collected %+v, %v", got, err)
	}
	_, err = r.Rollback(t.Context(), control.RollbackRequest{Ref: "five"})
	wantCode(t, err, control.CodeUnknownCheckpoint)
	if _, err := r.Delete(t.Context(), ref("plain")); err != nil {
		t.Fatal(err)
	}
	current("two")
	r.want(t, "", "f", "6")
	r.rollback(t, "one")
	r.want(t, "", "f", "1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	current("two")
	r.rollback(t, three.ID)
	r.want(t, "", "f", "3")
}

func TestBudgets(t *testing.T) {
	o := options(t)
	r := start(t, o)
	if _, err := r.SetBudget(t.Context(), control.BudgetRequest{Limits: &control.Limits{InputTokens: 1000}}); err != nil {
		t.Fatal(err)
	}
	r.begin(t, control.ToolBegin{Name: "write", Call: "c1"})
	out := r.end(t, control.ToolEnd{Call: "c1", Usage: json.RawMessage(`{"input_tokens":600,"output_tokens":5}`)})
	if out.Budget != "" {
		t.Errorf("over already: %s", out.Budget)
	}
	r.begin(t, control.ToolBegin{Name: "write", Call: "c2"})
	if out := r.end(t, control.ToolEnd{Call: "c2", Usage: json.RawMessage(`{"input_tokens":"many"}`)}); len(out.Warnings) != 1 || len(out.Inflight) != 0 {
		t.Errorf("a call that ends with a usage that cannot be read: %+v", out)
	}
	if out := r.end(t, control.ToolEnd{Call: "c2", Usage: json.RawMessage(`{"input_tokens":500}`)}); out.Budget == "" {
		t.Error("not over")
	}
	for range 2 {
		_, err := r.ToolBegin(t.Context(), control.ToolBegin{Name: "write", Call: "c3"})
		wantCode(t, err, control.CodeBudget)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, o)
	}
	if n := len(r.events(t, ledger.KindBudgetStop)); n != 2 {
		t.Errorf("%d stops in the ledger", n)
	}
	b, err := r.SetBudget(t.Context(), control.BudgetRequest{Limits: &control.Limits{Checkpoints: 2, BytesWritten: 10_000}, Reset: true})
	if err != nil || b.Used.InputTokens != 0 || b.Exceeded != "" {
		t.Fatalf("%+v, %v", b, err)
	}
	r.checkpoint(t, "A")
	r.begin(t, control.ToolBegin{Name: "write", Call: "c4"})
	r.write(t, "f", strings.Repeat("x", 10_001))
	if b, err := r.Budget(t.Context()); err != nil || b.Exceeded == "" || b.Used.BytesWritten < 10_001 {
		t.Errorf("%+v, %v", b, err)
	}
	for _, bad := range []control.Limits{{USD: "lots"}, {InputTokens: -1}} {
		_, err := r.SetBudget(t.Context(), control.BudgetRequest{Limits: &bad})
		wantCode(t, err, control.CodeBadRequest)
	}
}

// Everything that matters is in the ledger, unasked, and a crash between the store and
// the ledger is made up for.
func TestLedgerHasItAll(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "f", "1")
	r.checkpoint(t, "A")
	r.write(t, "f", "2")
	r.rollback(t, "A")
	if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	// As if the daemon had been killed before it could write this down.
	if err := r.s.ledger.Close(); err != nil {
		t.Fatal(err)
	}
	r.checkpoint(t, "B")
	if st, err := r.Status(t.Context()); err != nil || st.Unaudited == 0 {
		t.Errorf("status does not say that the ledger misses something: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Logf("stop: %v", err)
	}
	r = start(t, o)
	var got []string
	for _, rec := range r.events(t) {
		got = append(got, string(rec.Kind)+":"+rec.Label)
	}
	want := []string{"mount:", "checkpoint:A", "rollback:A", "undo:A", "redo:A", "checkpoint:B", "mount:"}
	if !slices.Equal(got, want) {
		t.Errorf("the ledger has\n%q, want\n%q", got, want)
	}
	id, err := LedgerID(r.o.Store)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := ledger.Verify(LedgerDir(r.o.Store), id)
	if err != nil || !rep.OK() {
		t.Errorf("%+v, %v", rep, err)
	}
	if filepath.Dir(LedgerDir(r.o.Store)) != r.o.Store {
		t.Error("the ledger is elsewhere")
	}
}

// Snapshots hold all threads, whatever the order in which they come.
func TestSnapshotOfThreads(t *testing.T) {
	now := memory.Threads{"main": {Format: "anthropic", Messages: 2, Digest: "ab"}, "a": {Format: "gemini", Messages: 1, Digest: "cd"}, "b": {Missing: true}}
	for range 50 {
		if got := threadsOf(snapshotOf(now)); !maps.Equal(got, now) {
			t.Fatalf("%v became %v", now, got)
		}
	}
	if got := threadsOf(snapshotOf(nil)); len(got) != 0 {
		t.Errorf("nothing became %v", got)
	}
}

// A conversation that goes back without the files is taken back by undo as well, and what
// undo brings back is what there was, byte for byte.
func TestUndoOfMessagesAlone(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "zero")
	r.sync(t, "", say(1, ""))
	r.checkpoint(t, "A")
	r.write(t, "f", "one")
	r.rollback(t, "A") // an older movement, which must stay out of it
	undo := func() {
		t.Helper()
		if _, err := r.Undo(t.Context(), control.UndoRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	precious := say(5, "open")
	r.sync(t, "", precious)
	if res := r.rollback(t, "A"); res.Noop || len(res.Messages) != 4 {
		t.Errorf("a rollback of the conversation alone: noop %v, %d messages", res.Noop, len(res.Messages))
	}
	undo()
	r.want(t, "", "f", "zero")
	r.wantMessages(t, 13) // with the open call
	r.write(t, "f", "two")
	res, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "A", MessagesOnly: true})
	if err != nil || !strings.Contains(res.Notice, "The files are as they were") {
		t.Fatalf("%+v, %v", res, err)
	}
	r.wantMessages(t, 4)
	r.want(t, "", "f", "two")
	r.write(t, "f", "three")
	undo()
	r.want(t, "", "f", "two")
	r.wantMessages(t, 13)
	if _, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	r.want(t, "", "f", "three")
	r.wantMessages(t, 4)
	if n := len(r.events(t, ledger.KindSkippedNoop)); n != 0 {
		t.Errorf("%d movements are called skipped", n)
	}
}

// The checkpoint that automatic rollbacks go to is not thinned out; and one that cannot be
// made is in the ledger.
func TestPolicyKeepsItsTarget(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "good")
	good := r.begin(t, control.ToolBegin{Name: "write", Call: "c0"}).Checkpoint
	r.end(t, control.ToolEnd{})
	_, err := r.SetPolicy(t.Context(), control.PolicyRequest{
		AutoCheckpoint: &control.AutoCheckpoint{KeepLast: 1}, AutoRollback: &control.AutoRollback{On: []string{"exception"}, To: good.ID},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		r.begin(t, control.ToolBegin{Name: "write", Call: fmt.Sprint("d", i)})
		r.write(t, "f", fmt.Sprint(i))
		r.end(t, control.ToolEnd{})
		r.s.background.Wait()
	}
	r.begin(t, control.ToolBegin{Name: "write", Call: "bad"})
	if out := r.end(t, control.ToolEnd{Call: "bad", Error: "boom"}); out.RolledBack == nil {
		t.Fatalf("%+v", out)
	}
	r.want(t, "", "f", "good")
	if out := r.end(t, control.ToolEnd{Call: "never begun"}); out.Known || len(out.Verify) != 0 {
		t.Errorf("the end of a call that never began: %+v", out)
	}
	_, err = r.Verification(t.Context(), control.Verification{Command: "x", Status: "fail", To: "nowhere", Auto: true})
	wantCode(t, err, control.CodeUnknownCheckpoint)
	if n := len(r.events(t, ledger.KindEscalation)); n != 1 {
		t.Errorf("%d failed rollbacks in the ledger", n)
	}
}
