package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

// forHosts are the routes that a command in a sandbox must not call: what they do reaches the host, other branches or the rules, or cannot be taken
// back. All others are for agents, too.
var forHosts = []string{
	"POST Unmount", "POST Commit", "POST Runs", "POST RunsEnd", "POST Policy", "POST Budget", "POST Collect", "POST Delete", "POST GC", "POST Fsck",
	"POST Merge", "POST Fork", "POST BranchMount", "POST BranchDrop", "GET Export", "PUT Import",
	"POST Verification", // what a verifier says is not for the one that is verified to say
}

// forAgents are those that only look, and those whose effect can be taken back.
var forAgents = []string{
	"GET Status", "POST Log", "POST Diff", "POST Patch", "GET File", "PUT File", "GET Memory", "PUT Memory", "GET Policy", "GET Budget", "GET Current", "GET Branches",
	"POST Checkpoint", "POST Attach", "POST Reject", "POST Rollback", "POST Undo", "POST Redo", "POST Restore", "POST ToolBegin", "POST ToolEnd", "POST ToolReset",
}

// TestAgentSocket calls everything through the socket that commands in a sandbox see.
func TestAgentSocket(t *testing.T) {
	r := newRig(t)
	requests := mutating(prepare(r))
	for _, route := range routes(t) {
		if slices.Contains(forHosts, route) == slices.Contains(forAgents, route) {
			t.Errorf("the daemon has a call %s: put it into either forHosts or forAgents, and in session/agentsocket.go", route)
		}
	}
	whole := r.c.Socket
	agent := session.AgentSocket(r.m.Store)
	before := r.state()
	for _, q := range requests {
		if !slices.Contains(forHosts, q.route) {
			continue
		}
		r.c.Socket = agent
		code, answer := r.send(q, fmt.Sprint(r.status().Generation), !q.raw)
		r.c.Socket = whole
		wantForbidden(t, q.route, code, answer)
		if how := before.differs(r.state()); how != "" {
			t.Fatalf("%s was refused, but %s", q.route, how)
		}
	}
	r.c.Socket = agent
	for call, method := range map[string]string{
		control.PathExport + "?ref=two": "GET", control.PathFsck: "POST", control.PathMetrics: "GET", control.PathPprof: "GET", control.PathPprof + "profile": "GET",
		"/v1/nothing": "GET", "/v1/../metrics": "GET", "//metrics": "GET",
	} {
		code, answer := r.call(method, call, "")
		if code == 200 || code >= 500 {
			t.Errorf("%s %s: %d %.200s", method, call, code, answer)
		}
	}
	for _, route := range reading {
		if method, name, _ := strings.Cut(route, " "); slices.Contains(forAgents, route) && method == "GET" && name != "File" && name != "Memory" {
			if code, answer := r.call(method, "/v1/"+map[string]string{"Current": "checkpoint/current"}[name]+strings.ToLower(map[bool]string{true: name}[name != "Current"]), ""); code != 200 {
				t.Errorf("%s: %d %s", route, code, answer)
			}
		}
	}
	carried := 0
	for _, q := range requests {
		if slices.Contains(forAgents, q.route) {
			if code, answer := r.send(q, fmt.Sprint(r.status().Generation), !q.raw); code == 403 {
				t.Errorf("%s: %d %s", q.route, code, answer)
			} else if code == 200 {
				carried++
			}
		}
	}
	if carried < 10 {
		t.Errorf("only %d calls were carried out", carried)
	}
	r.c.Socket = whole
}

func wantForbidden(t *testing.T, route string, code int, answer string) {
	t.Helper()
	var got struct{ Error struct{ Code string } }
	if err := json.Unmarshal([]byte(answer), &got); err != nil || code != 403 || got.Error.Code != string(control.CodeForbidden) {
		t.Errorf("%s through the socket for agents: %d %s", route, code, answer)
	}
}
