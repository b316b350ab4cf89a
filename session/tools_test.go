package session

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/ledger"
)

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
