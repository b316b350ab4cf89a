package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/session"
)

// request is a call that changes something when it is carried out.
type request struct {
	route string // as in session.routes: the method and the constant of the path
	path  string
	query string
	body  string // of a JSON call without its generation, else the raw bytes
	raw   bool
}

// reading are the routes that change nothing.
var reading = []string{
	"GET Export", "GET Status", "POST Log", "POST Diff", "POST Patch", "GET File", "GET Memory", "GET Policy", "GET Budget", "GET Current", "GET Branches",
	"POST Fsck", // it changes nothing that is not damaged
}

// mutating are requests that, in the state that prepare makes, would each change something.
// They come in an order in which each of them can be carried out.
func mutating(ids map[string]string) []request {
	staged := ids["staged"]
	return []request{
		{route: "PUT Memory", path: control.PathMemory, body: chat(9), raw: true},
		{route: "PUT Memory", path: control.PathMemory, query: "thread=other", body: chat(5), raw: true},
		{route: "PUT Memory", path: control.PathMemory, query: "stage=1", body: chat(77), raw: true},
		{route: "PUT File", path: control.PathFile, query: "path=f", body: "late", raw: true},
		{route: "PUT File", path: control.PathFile, query: "path=late", body: "late", raw: true},
		{route: "POST ToolEnd", path: control.PathToolEnd, body: `{"call":"open","usage":{"model":"m","input_tokens":5,"output_tokens":6}}`},
		{route: "POST ToolBegin", path: control.PathToolBegin, body: `{"name":"write","call":"late"}`},
		{route: "POST ToolBegin", path: control.PathToolBegin, body: `{"name":"read","call":"late, too","readonly":true,"threads":{"main":` + staged + `}}`},
		{route: "POST ToolReset", path: control.PathToolReset, body: `{}`},
		{route: "POST Policy", path: control.PathPolicy, body: `{"no_rollback":["late"],"off":["auto-rollback"]}`},
		{route: "POST Budget", path: control.PathBudget, body: `{"limits":{"checkpoints":9999},"reset":true}`},
		{route: "POST Attach", path: control.PathAttach, body: `{"ref":"` + ids["recorded"] + `"}`},
		{route: "POST Reject", path: control.PathReject, body: `{"ref":"` + ids["recorded"] + `"}`},
		{route: "POST Collect", path: control.PathCollect, body: `{"before_ms":0}`},
		{route: "POST Delete", path: control.PathDelete, body: `{"ref":"one"}`},
		{route: "POST Undo", path: control.PathUndo, body: `{}`},
		{route: "POST Redo", path: control.PathRedo, body: `{}`},
		{route: "POST Rollback", path: control.PathRollback, body: `{"ref":"base"}`},
		{route: "POST Restore", path: control.PathRestore, body: `{"ref":"` + ids["two"] + `","paths":["Zg=="]}`},
		{route: "POST Verification", path: control.PathVerification, body: `{"command":"late","status":"fail","to":"` + ids["two"] + `"}`},
		{route: "POST Checkpoint", path: control.PathCheckpoint, body: `{"label":"late","threads":{"main":` + staged + `}}`},
		{route: "POST Runs", path: control.PathRuns, body: `{"run":{"argv":["true"],"cwd":{"path":"/"},"sandbox":"none"}}`},
		{route: "POST RunsEnd", path: control.PathRunsEnd, body: `{"id":"x","checkpoint":"` + ids["two"] + `","run":{"argv":["true"],"cwd":{"path":"/"},"sandbox":"none"},"exit_code":0,"duration_ms":1}`},
		{route: "POST Fork", path: control.PathFork, body: `{"branch":"late"}`},
		{route: "POST Fork", path: control.PathFork, body: `{"ref":"` + ids["two"] + `","branch":"late, too"}`},
		{route: "PUT Import", path: control.PathImport, query: "name=imported", body: ids["archive"], raw: true},
		{route: "POST Merge", path: control.PathMerge, body: `{"branch":"imported"}`},
		{route: "POST BranchMount", path: control.PathBranchMount, body: `{"branch":"asleep"}`},
		{route: "POST BranchDrop", path: control.PathBranchDrop, body: `{"branch":"asleep"}`},
		{route: "POST Commit", path: control.PathCommit, body: `{"to":"` + ids["dir"] + `"}`},
		{route: "POST GC", path: control.PathGC, body: `{"keep":1,"forget_undo":true}`},
		{route: "POST Unmount", path: control.PathUnmount, body: `{"lazy":true}`},
	}
}

// prepare makes a state in which every call has something to do, and returns ids and the like.
func prepare(r *rig) map[string]string {
	r.Helper()
	ctx := context.Background()
	check := func(err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	r.write("f", "one")
	r.put("", false, strings.NewReader(chat(4)))
	r.put("other", false, strings.NewReader(chat(8)))
	ids := map[string]string{}
	for _, label := range []string{"one", "two", "recorded", "recorded too"} {
		c, err := r.c.Checkpoint(ctx, control.CheckpointRequest{Label: &label, Pending: strings.HasPrefix(label, "recorded")})
		check(err)
		ids[label] = c.ID
		r.write("f", "after "+label)
	}
	_, err := r.c.Fork(ctx, control.ForkRequest{Ref: "one", Branch: "asleep"})
	check(err)
	var file strings.Builder
	_, err = r.c.Export(ctx, control.ExportRequest{Ref: "two"}, &file)
	check(err)
	ids["archive"] = file.String()
	asleep := control.Client{Socket: r.c.Socket, Branch: "asleep"}
	defer asleep.Close()
	_, err = asleep.Unmount(ctx, control.UnmountRequest{})
	check(err)
	_, err = r.c.SetPolicy(ctx, control.PolicyRequest{AutoRollback: &control.AutoRollback{On: []string{"exception"}, To: "two"}})
	check(err)
	_, err = r.c.SetBudget(ctx, control.BudgetRequest{Limits: &control.Limits{InputTokens: 1e9}})
	check(err)
	r.write("f", "to be left")
	r.put("", false, strings.NewReader(chat(12)))
	for _, ref := range []string{"two", "one"} {
		_, err = r.c.Rollback(ctx, control.RollbackRequest{Ref: ref})
		check(err)
		r.write("f", "changed after "+ref)
	}
	_, err = r.c.Undo(ctx, control.UndoRequest{})
	check(err)
	th, err := json.Marshal(r.put("", true, strings.NewReader(chat(24))))
	check(err)
	ids["staged"] = string(th)
	ids["dir"] = r.TempDir()
	return ids
}

// state is all that a call could change, in text: the first difference can be shown.
type state struct {
	tree *fstree.Tree
	text string
}

func (r *rig) state() state {
	r.Helper()
	s := state{tree: r.m.Snapshot()}
	ctx := context.Background()
	add := func(what string, v any, err error) {
		r.Helper()
		if err != nil {
			v = err.Error()
		}
		b, err := json.Marshal(v)
		if err != nil {
			r.Fatal(err)
		}
		s.text += what + ": " + string(b) + "\n"
	}
	log, err := r.c.Log(ctx, control.LogRequest{All: true, Ops: true})
	add("log", log, err)
	policy, err := r.c.Policy(ctx)
	add("policy", policy, err)
	budget, err := r.c.Budget(ctx)
	if err == nil {
		budget.Used.WallMS = 0 // it goes on by itself
	}
	add("budget", budget, err)
	branches, err := r.c.Branches(ctx)
	add("branches", branches, err)
	current, err := r.c.Current(ctx)
	add("current", current, err)
	st := r.status()
	add("status", []any{
		st.Generation, st.State, st.Head, st.Checkpoints, st.ChangedPaths, st.Undo, st.Redo, st.Lifecycle, st.Inflight,
		st.Conversation, st.LastAutoRollback, st.Unaudited,
	}, nil)
	for _, thread := range []string{"main", "other"} {
		add("thread "+thread, r.raw("", thread), nil)
	}
	events := map[ledger.Kind]int{}
	err = ledger.Read(session.LedgerDir(r.m.Store), ledger.Filter{}, func(rec *ledger.Record) error {
		if rec.Kind != ledger.KindFenced { // that something was refused may be recorded
			events[rec.Kind]++
		}
		return nil
	})
	add("ledger", events, err)
	return s
}

// differs says what is not as in s any more, "" if nothing.
func (s state) differs(now state) string {
	if d := fstree.Diff(s.tree, now.tree, fstree.Exact, "before", "after"); len(d) > 0 {
		return d[0]
	}
	was := strings.Split(s.text, "\n")
	for i, line := range strings.Split(now.text, "\n") {
		if i >= len(was) || was[i] != line {
			return fmt.Sprintf("it was %s\nand is %s", was[min(i, len(was)-1)], line)
		}
	}
	return ""
}

// send sends q for a generation, in its body or in the query.
func (r *rig) send(q request, generation string, inBody bool) (int, string) {
	r.Helper()
	method, _, _ := strings.Cut(q.route, " ")
	query, body := q.query, q.body
	if inBody {
		body = strings.Replace(body, "{", `{"generation":`+generation+",", 1)
		body = strings.Replace(body, ",}", "}", 1)
	} else {
		query += "&generation=" + generation
	}
	return r.call(method, q.path+"?"+query, body)
}

// TestOldGenerationIsRefused has two clients: one that knows the daemon, and one that was there
// before it. No call of the latter is carried out; the same calls of the first all are.
func TestOldGenerationIsRefused(t *testing.T) {
	r := newRig(t)
	requests := mutating(prepare(r))
	everyRoute(t, requests)
	old := r.status().Generation
	r.m.Remount()
	r.connect()
	if _, err := r.c.ToolBegin(context.Background(), control.ToolBegin{Name: "write", Call: "open"}); err != nil {
		t.Fatal(err)
	}
	now := r.status().Generation
	if now <= old {
		t.Fatalf("the generation was %d and is %d", old, now)
	}
	before := r.state()
	refused := 0
	for _, q := range requests {
		for _, generation := range []uint64{old, 0, now + 1} {
			for _, inBody := range []bool{false, true} {
				if q.raw && inBody {
					continue
				}
				code, answer := r.send(q, fmt.Sprint(generation), inBody)
				wantFenced(t, q, code, answer, generation, now)
				refused++
			}
		}
		if how := before.differs(r.state()); how != "" {
			t.Fatalf("%s %s was refused, but %s", q.route, q.body, how)
		}
	}
	if !mounttest.Mounted(r.m.Dir) {
		t.Fatal("the mount is gone")
	}
	for _, q := range requests {
		last := r.state()
		code, answer := r.send(q, fmt.Sprint(now), !q.raw)
		if code != 200 {
			t.Fatalf("%s %s of the present generation: %d %s", q.route, q.body, code, answer)
		}
		staged := strings.Contains(q.query, "stage")
		if q.route == "POST Unmount" {
			if mounttest.Mounted(r.m.Dir) {
				t.Error("an unmount of the present generation did nothing")
			}
		} else if how := last.differs(r.state()); how == "" && !staged {
			t.Errorf("%s %s of the present generation changed nothing: the test shows nothing", q.route, q.body)
		}
	}
	t.Logf("%d requests, each of other generations refused without a trace (%d calls), and each of the present one carried out", len(requests), refused)
}

func wantFenced(t *testing.T, q request, code int, answer string, carried, now uint64) {
	t.Helper()
	var got struct {
		Error struct {
			Code    string
			Message string
			Details struct {
				Sandbox          string
				Current, Carried *uint64
			}
		}
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		t.Fatalf("%s: %v: %s", q.route, err, answer)
	}
	d := got.Error.Details
	if code != 409 || got.Error.Code != string(control.CodeStaleGeneration) || d.Sandbox == "" || d.Current == nil || *d.Current != now || d.Carried == nil || *d.Carried != carried {
		t.Fatalf("%s %s of generation %d, which is at %d: %d %s", q.route, q.body, carried, now, code, answer)
	}
}

// everyRoute fails the test unless requests has every call of the daemon that is not known to
// only read.
func everyRoute(t *testing.T, requests []request) {
	t.Helper()
	for _, route := range routes(t) {
		if !slices.Contains(reading, route) && !slices.ContainsFunc(requests, func(q request) bool { return q.route == route }) {
			t.Errorf("the daemon has a call %s: put it into mutating or reading", route)
		}
	}
}

// routes are the calls of the daemon: the method and the constant of the path.
func routes(t *testing.T) []string {
	t.Helper()
	src, err := os.ReadFile("../../session/serve.go")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile(`"(GET|PUT|POST|DELETE|PATCH) "\+control\.Path(\w+)`).FindAllStringSubmatch(string(src), -1) {
		out = append(out, m[1]+" "+m[2])
	}
	if len(out) < 20 {
		t.Fatalf("only %d routes found in session/serve.go", len(out))
	}
	return out
}
