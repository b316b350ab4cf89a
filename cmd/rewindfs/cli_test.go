package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

// daemon is a control server without a tree behind it: it answers what a test wants.
type daemon struct {
	srv      *control.Server
	requests []any
	files    map[string]string
	rollback control.Rollback
	before   *control.Movement
	changes  []control.Change
	patches  []control.FilePatch
}

func newDaemon() *daemon {
	d := &daemon{srv: control.NewServer(control.Identity{Session: "proj", Generation: 3}, nil), files: map[string]string{}}
	control.Handle(d.srv, "GET "+control.PathStatus, func(context.Context, *control.None) (*control.Status, error) {
		return &control.Status{
			Session: "proj", Base: "/home/u/proj", Mountpoint: "/home/u/proj.rewind", Generation: 3, State: "live",
			Head: control.Head{Layer: 9, ID: "01ID", Label: "stable"}, Checkpoints: 2, ChangedPaths: 1,
			Requests: map[string]uint64{"LOOKUP": 5, "READ": 7}, Drift: []control.Drift{{PathName: control.NameOf("x\x1b[31m"), Reason: "changed"}},
		}, nil
	})
	control.Handle(d.srv, "POST "+control.PathCheckpoint, func(_ context.Context, r *control.CheckpointRequest) (*control.Checkpoint, error) {
		d.requests = append(d.requests, *r)
		if r.Label != nil && *r.Label == "taken" {
			return nil, &control.Error{Code: control.CodeDuplicateLabel, Message: "label is taken"}
		}
		c := &control.Checkpoint{ID: "01ID", Layer: 4, ChangedPaths: 12, EngineUS: 700}
		if r.Label != nil {
			c.Label = *r.Label
		}
		return c, nil
	})
	control.Handle(d.srv, "POST "+control.PathRollback, func(_ context.Context, r *control.RollbackRequest) (*control.Rollback, error) {
		d.requests = append(d.requests, *r)
		if r.Ref == "nope" {
			return nil, &control.Error{Code: control.CodeUnknownCheckpoint, Message: "no such checkpoint"}
		}
		res := d.rollback
		res.Checkpoint, res.DryRun = r.Ref, r.DryRun
		return &res, nil
	})
	walk := func(_ context.Context, r *control.UndoRequest) (*control.Rollback, error) {
		d.requests = append(d.requests, *r)
		return &control.Rollback{ChangedPaths: 3, Before: d.before}, nil
	}
	control.Handle(d.srv, "POST "+control.PathUndo, walk)
	control.Handle(d.srv, "POST "+control.PathRedo, walk)
	control.Handle(d.srv, "POST "+control.PathLog, func(context.Context, *control.LogRequest) (*control.Log, error) {
		return &control.Log{Checkpoints: []control.Checkpoint{
			{ID: "01B", Label: "two words", ChangedPaths: 3, Message: "first line\nsecond", CreatedAt: time.Now()}, {ID: "01A", ChangedPaths: 1},
		}}, nil
	})
	control.HandleStream(d.srv, "POST "+control.PathDiff, func(_ context.Context, r *control.DiffRequest, out *control.Stream[control.Change]) (*control.DiffSummary, error) {
		d.requests = append(d.requests, *r)
		for _, c := range d.changes {
			if err := out.Emit(c); err != nil {
				return nil, err
			}
		}
		return &control.DiffSummary{From: "stable", To: "head", Total: len(d.changes), Counts: map[string]int{"A": 1, "M": 1, "R": 1}}, nil
	})
	control.HandleStream(d.srv, "POST "+control.PathPatch, func(_ context.Context, r *control.PatchRequest, out *control.Stream[control.FilePatch]) (*control.DiffSummary, error) {
		for _, p := range d.patches {
			if err := out.Emit(p); err != nil {
				return nil, err
			}
		}
		return &control.DiffSummary{From: "stable", To: "head", Total: len(d.patches)}, nil
	})
	control.HandleRaw(d.srv, "GET "+control.PathFile, func(w http.ResponseWriter, r *http.Request) error {
		p, err := control.PathQuery(r)
		if err != nil {
			return err
		}
		ref := r.URL.Query().Get("ref")
		if strings.HasPrefix(ref, "no") {
			return &control.Error{Code: control.CodeUnknownCheckpoint, Message: "no such checkpoint"}
		}
		text, found := d.files[ref+"|"+p]
		if !found {
			return &control.Error{Code: control.CodeBadPath, Message: p + " does not exist"}
		}
		_, err = io.WriteString(w, text)
		return err
	})
	control.HandleRaw(d.srv, "PUT "+control.PathFile, func(w http.ResponseWriter, r *http.Request) error {
		p, err := control.PathQuery(r)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		d.files["|"+p] = string(b)
		return json.NewEncoder(w).Encode(control.FileWritten{Size: int64(len(b))})
	})
	return d
}

// serve puts the daemon on a socket of a session's store below a state root of
// the test's own, so that it is found as a real one is.
func (d *daemon) serve(t *testing.T, rec session.Record) session.Listed {
	t.Helper()
	l := record(t, rec)
	sock, err := control.Listen(l.Socket())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.srv.Serve(sock) }()
	t.Cleanup(func() {
		d.srv.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// record writes a session's record without a daemon.
func record(t *testing.T, rec session.Record) session.Listed {
	t.Helper()
	root, err := session.StateRoot()
	if err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(root, rec.Name+"-"+fmt.Sprintf("%012x", len(rec.Base)))
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
	rec.Format = 1
	b, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store, "session.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return session.Listed{Record: rec, Store: store}
}

func home(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("REWINDFS_SESSION", "")
}

func proj() session.Record {
	return session.Record{Name: "proj", Base: "/home/u/proj", Mountpoint: "/home/u/proj.rewind", State: session.StateMounted, PID: 42, Generation: 3}
}

type outcome struct {
	code     int
	out, err string
}

func rewind(stdin string, args ...string) outcome {
	var out, errs bytes.Buffer
	code := run(args, strings.NewReader(stdin), &out, &errs)
	return outcome{code, out.String(), errs.String()}
}

// want checks the exit code and that the texts appear in stdout and stderr together.
func (o outcome) want(t *testing.T, code int, texts ...string) outcome {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", o.code, code, o.out, o.err)
	}
	for _, s := range texts {
		if !strings.Contains(o.out+o.err, s) {
			t.Errorf("%q is missing\nstdout: %s\nstderr: %s", s, o.out, o.err)
		}
	}
	return o
}

func (o outcome) data(t *testing.T) map[string]any {
	t.Helper()
	var r struct {
		Success bool
		Data    map[string]any
	}
	if err := json.Unmarshal([]byte(o.out), &r); err != nil || !r.Success || o.code != 0 || o.err != "" {
		t.Fatalf("code %d, %v\nstdout: %s\nstderr: %s", o.code, err, o.out, o.err)
	}
	return r.Data
}

func TestUsage(t *testing.T) {
	home(t)
	for _, args := range [][]string{
		{"frobnicate"}, {"checkpoint", "a", "b"}, {"checkpoint", "--nope"}, {"rollback"}, {"rollback", "a", "b"}, {"undo", "x"}, {"undo", "0"}, {"undo", "--", "-1"},
		{"mount"}, {"mount", "a", "b", "c"}, {"mount", ".", "--log-level", "loud"}, {"mount", ".", "--cache", "x"}, {"mount", ".", "/mnt", "--over"}, {"cat", "nocolon"}, {"cat", ":x"}, {"log", "x"}, {"diff", "a", "b", "c"},
		{"diff", "-z"}, {"diff", "--stat", "--name-status"}, {"diff", "--stat", "-p"}, {"diff", "--binary"}, {"log", "--ops", "--graph"}, {"restore", "x"}, {"checkpoint", "--meta", "novalue"}, {"checkpoint", "--meta", "a=1", "--meta", "a=2"}, {"checkpoint", "-m", "\xff"}, {"checkpoint", "--meta", "a=\xff"}, {"version", "x"}, {"read"}, {"write"}, {"list", "x"}, {"doctor", "x"},
	} {
		o := rewind("", args...)
		if o.code != exitUsage || o.out != "" || !strings.HasPrefix(o.err, "rewindfs: ") {
			t.Errorf("%q: code %d\nstdout: %s\nstderr: %s", args, o.code, o.out, o.err)
		}
		o = rewind("", append([]string{"--json"}, args...)...)
		var f failure
		if json.Unmarshal([]byte(o.out), &f) != nil || f.Success || f.Code != exitUsage || f.Error == "" || o.err != "" {
			t.Errorf("--json %q: code %d\nstdout: %s\nstderr: %s", args, o.code, o.out, o.err)
		}
	}
	rewind("", "--help").want(t, 0, "Exit codes", "stale generation", "mount ~/proj")
	rewind("").want(t, 0, "Exit codes")
	rewind("", "completion", "bash").want(t, 0, "complete")
	rewind("", "version").want(t, 0, "rewindfs "+version)
	if v := rewind("", "version", "--json").data(t); v["version"] != version {
		t.Errorf("%v", v)
	}
}

func TestNoSession(t *testing.T) {
	home(t)
	for _, args := range [][]string{{"status"}, {"checkpoint", "x"}, {"rollback", "x"}, {"unmount"}, {"destroy", "--yes"}, {"read", "x"}, {"diff"}, {"-s", "nope", "log"}} {
		rewind("", args...).want(t, exitNoSession, "rewindfs mount DIR")
	}
	rewind("", "list").want(t, 0, "")
	record(t, proj())
	rewind("", "-s", "proj", "status").want(t, exitNoSession, "pid 42", "is gone", "rewindfs mount /home/u/proj")
	rec := proj()
	rec.State = session.StateUnmounted
	record(t, rec)
	rewind("", "-s", "proj", "checkpoint").want(t, exitNoSession, "is not mounted", "rewindfs mount /home/u/proj")
	rewind("", "-s", "proj", "unmount").want(t, exitNoSession, "is not mounted")
	o := rewind("", "-s", "proj", "status", "--json")
	var f failure
	if json.Unmarshal([]byte(o.out), &f) != nil || f.Code != 2 || f.Kind != control.CodeNoSession {
		t.Errorf("%+v", o)
	}
}

func TestChoosing(t *testing.T) {
	home(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rec := func(name string) session.Record {
		r := proj()
		r.Name, r.Base, r.Mountpoint = name, filepath.Join(dir, name), filepath.Join(dir, name+".rewind")
		for _, d := range []string{filepath.Join(r.Base, "sub"), r.Mountpoint} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	one, two := newDaemon(), newDaemon()
	one.serve(t, rec("first"))
	chosen := func(args ...string) string {
		t.Helper()
		a, b := len(one.requests), len(two.requests)
		o := rewind("", append(args, "checkpoint")...)
		switch {
		case o.code != 0:
			return fmt.Sprint(o.code)
		case len(one.requests) > a:
			return "first"
		case len(two.requests) > b:
			return "second"
		}
		return "none"
	}
	t.Chdir(t.TempDir())
	if got := chosen(); got != "first" {
		t.Errorf("the only one running: %s", got)
	}
	second := two.serve(t, rec("second"))
	record(t, rec("stopped third"))
	link := filepath.Join(dir, "link")
	if err := os.Symlink("second", link); err != nil {
		t.Fatal(err)
	}
	for say, want := range map[string]string{
		"": "2", "first": "first", "second": "second", dir + "/first": "first", dir + "/second.rewind": "second", dir + "/second.rewind/": "second",
		dir + "/first/sub": "first", link: "second", second.Store: "second", "sec": "2", dir: "2", "stopped third": "2",
	} {
		args := []string{"-s", say}
		if say == "" {
			args = nil
		}
		if got := chosen(args...); got != want {
			t.Errorf("-s %q: %s, want %s", say, got, want)
		}
	}
	for cwd, want := range map[string]string{"first": "first", "first/sub": "first", "second.rewind": "second", ".": "2", "stopped third/sub": "2"} {
		t.Chdir(filepath.Join(dir, cwd))
		if got := chosen(); got != want {
			t.Errorf("in %s: %s, want %s", cwd, got, want)
		}
	}
	t.Chdir(filepath.Join(dir, "first"))
	for say, want := range map[string]string{"typo": "2", "sub": "2", "./sub": "first", ".": "first"} {
		if got := chosen("-s", say); got != want {
			t.Errorf("-s %q in a base: %s, want %s", say, got, want)
		}
	}
	t.Setenv("REWINDFS_SESSION", "typo")
	if got := chosen(); got != "2" {
		t.Errorf("mistyped in the environment: %s", got)
	}
	t.Setenv("REWINDFS_SESSION", "second")
	if got := chosen(); got != "second" {
		t.Errorf("by the environment: %s", got)
	}
	if got := chosen("-s", "first"); got != "first" {
		t.Errorf("the option goes before the environment: %s", got)
	}
	gone := filepath.Join(dir, "gone")
	if err := os.Mkdir(gone, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if got := chosen("-s", "second"); got != "second" {
		t.Errorf("in a directory that is gone: %s", got)
	}
}

func TestCheckpointCommand(t *testing.T) {
	home(t)
	d := newDaemon()
	d.serve(t, proj())
	rewind("", "checkpoint", "a b", "-m", "msg", "--meta", "k=v=w", "--meta", "e=", "--phase", "p", "--turn", "t", "--tool-call", "c", "--durable").
		want(t, 0, "'a b' (01ID)", "12 paths", "rewindfs rollback 'a b'", "0.70 ms")
	got := d.requests[0].(control.CheckpointRequest)
	if *got.Label != "a b" || got.Message != "msg" || got.Metadata["k"] != "v=w" || got.Metadata["e"] != "" || len(got.Metadata) != 2 || got.Phase != "p" || got.Turn != "t" || got.ToolCall != "c" || !got.Durable {
		t.Errorf("%+v", got)
	}
	data := rewind("", "checkpoint", "--json").data(t)
	for _, k := range []string{"id", "label", "layer", "parent", "created_at", "changed_paths", "engine_us", "conversation"} {
		if _, there := data[k]; !there {
			t.Errorf("no %s in %v", k, data)
		}
	}
	if d.requests[1].(control.CheckpointRequest).Label != nil {
		t.Error("no label became one")
	}
	if rewind("", "checkpoint", ""); *d.requests[2].(control.CheckpointRequest).Label != "" {
		t.Error("an empty label became none")
	}
	rewind("", "checkpoint", "taken").want(t, exitCheckpoint, "label is taken")
	rewind("", "checkpoint", "--generation", "2").want(t, exitStale, "generation 2")
	rewind("", "checkpoint", "--generation", "3").want(t, 0)
	o := rewind("", "checkpoint", "--generation", "2", "--json").want(t, exitStale)
	var f failure
	if err := json.Unmarshal([]byte(o.out), &f); err != nil || f.Details["current"] != 3.0 || f.Details["carried"] != 2.0 || f.Details["sandbox"] != "proj" {
		t.Errorf("%v %+v", err, f)
	}
}

func TestRollbackCommands(t *testing.T) {
	home(t)
	d := newDaemon()
	d.serve(t, proj())
	n := int64(5)
	d.rollback = control.Rollback{
		ChangedPaths: 412, EngineUS: 12_000,
		Changes: []control.Change{{PathName: control.NameOf("evil\x1b]0;x\x07"), Status: "D", Type: "file", OldSize: &n}},
		Dropped: []control.Checkpoint{{ID: "01X", Label: "later"}},
		Busy:    []control.Process{{PID: 77, Command: "vi\x1bm", Uses: []string{"cwd"}}},
	}
	rewind("", "rollback", "stable").want(t, 0, "Back at 'stable'. 412 paths restored in 12ms.", "Undo with: rewindfs undo", "'later' (01X)", "77", "cwd")
	o := rewind("", "rollback", "stable", "--dry-run").want(t, 0, "would change 412 paths", "Nothing was done", `"evil\x1b]0;x\a"`, "'later' (01X)")
	if strings.ContainsAny(o.out, "\x1b\x07") {
		t.Errorf("escape sequences reach the terminal: %q", o.out)
	}
	rewind("", "rollback", "stable", "--touch").want(t, 0)
	want := []control.RollbackRequest{{Ref: "stable"}, {Ref: "stable", DryRun: true}, {Ref: "stable", Touch: true}}
	for i, w := range want {
		if d.requests[i] != any(w) {
			t.Errorf("request %d: %+v", i, d.requests[i])
		}
	}
	data := rewind("", "rollback", "stable", "--json").data(t)
	for _, k := range []string{"checkpoint", "layer", "changed_paths", "engine_us", "busy", "messages", "changes", "notice"} {
		if _, there := data[k]; !there {
			t.Errorf("no %s in %v", k, data)
		}
	}
	d.rollback = control.Rollback{Noop: true}
	rewind("", "rollback", "stable").want(t, 0, "Already at 'stable'")
	rewind("", "rollback", "nope").want(t, exitCheckpoint)
	rewind("", "undo").want(t, 0, "3 paths", "rewindfs redo")
	rewind("", "redo", "4").want(t, 0, "Done: 4 steps forward. 3 paths", "rewindfs undo") // as an older daemon answers
	d.before = &control.Movement{Kind: "rollback", Label: "a b"}
	rewind("", "undo").want(t, 0, "Done: 1 step back, as it was before the rollback to 'a b'. 3 paths")
	d.before = &control.Movement{Kind: "undo", Label: "a b"}
	rewind("", "redo").want(t, 0, "Done: 1 step forward, as it was before the undo. 3 paths")
	rewind("", "redo", "4").want(t, 0, "Done: 4 steps forward, as it was before the undo. 3 paths")
	if got := d.requests[len(d.requests)-1].(control.UndoRequest).N; got != 4 {
		t.Errorf("redo 4 asked for %d", got)
	}
}

func TestLogCommand(t *testing.T) {
	home(t)
	newDaemon().serve(t, proj())
	o := rewind("", "log").want(t, 0, "two words  01B", "first line", "-          01A")
	if strings.Contains(o.out, "second") {
		t.Errorf("more than the first line: %s", o.out)
	}
	if got := rewind("", "log", "--json").data(t)["checkpoints"].([]any); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

func TestDiffCommand(t *testing.T) {
	home(t)
	d := newDaemon()
	d.serve(t, proj())
	two, three := int64(2), int64(3000)
	d.changes = []control.Change{
		{PathName: control.NameOf("a\tb"), Status: "A", Type: "file", NewSize: &three, Content: true},
		{PathName: control.NameOf("m\xff"), Status: "M", Type: "file", OldSize: &two, NewSize: &three, Content: true},
		{PathName: control.NameOf("new"), OldPath: "old", Status: "R", Type: "dir"},
	}
	o := rewind("", "diff").want(t, 0, `"a\tb"  (2.9 KiB)`, `"m\xff"  (2 B -> 2.9 KiB)`, "old -> new/", "3 paths between 'stable' and now: 1 added, 1 modified, 1 renamed")
	d.patches = []control.FilePatch{
		{PathName: control.NameOf("a"), Patch: "diff --git a/a b/a\n", Added: 3, Removed: 1},
		{PathName: control.NameOf("m\xff"), PatchB64: base64.StdEncoding.EncodeToString([]byte("+\xff\n")), Binary: true, OldSize: 2, NewSize: 3000},
	}
	if o := rewind("", "diff", "-p").want(t, 0); o.out != "diff --git a/a b/a\n+\xff\n" {
		t.Errorf("%q", o.out)
	}
	rewind("", "diff", "--stat").want(t, 0, " a       |   4 +++-\n", ` "m\xff" | Bin 2 -> 3000 bytes`, " 2 files changed, 3 insertions(+), 1 deletion(-)\n")
	rewind("", "diff", "--stat", "--json").want(t, 0, `"files":[{"path":"a"`, `"changes":[{"path":"a\tb"`, `"total":3`)
	o = rewind("", "diff", "--name-status")
	if want := "A\t\"a\\tb\"\nM\t\"m\\xff\"\nR\told\tnew\n"; o.out != want {
		t.Errorf("%q, want %q", o.out, want)
	}
	o = rewind("", "diff", "--name-status", "-z")
	if want := "A\x00a\tb\x00M\x00m\xff\x00R\x00old\x00new\x00"; o.out != want {
		t.Errorf("%q, want %q", o.out, want)
	}
	data := rewind("", "diff", "--json").data(t)
	changes := data["changes"].([]any)
	if c := changes[1].(map[string]any); c["path_b64"] != "bf8=" || c["old_size"] != 2.0 || c["status"] != "M" || c["type"] != "file" {
		t.Errorf("%v", c)
	}
	d.requests = nil
	rewind("", "diff", "x", "y", "--", "p", "q r").want(t, 0)
	rewind("", "diff", "--", "p").want(t, 0)
	first, second := d.requests[0].(control.DiffRequest), d.requests[1].(control.DiffRequest)
	if first.From != "x" || first.To != "y" || string(first.Paths[1]) != "q r" || second.From != "" || string(second.Paths[0]) != "p" {
		t.Errorf("%+v", d.requests)
	}
	rewind("", "diff", "").want(t, exitCheckpoint)
}

func TestFileCommands(t *testing.T) {
	home(t)
	d := newDaemon()
	d.serve(t, proj())
	rewind("", "write", "a", "text").want(t, 0, "Wrote 4 B to a.")
	rewind("from stdin", "write", "b").want(t, 0)
	rewind("from -", "write", "c", "-").want(t, 0)
	rewind("", "write", "/home/u/proj.rewind/x/../d", "abs").want(t, 0)
	rewind("", "write", "/home/u/proj/e", "base").want(t, 0)
	for path, text := range map[string]string{"a": "text", "b": "from stdin", "c": "from -", "d": "abs", "e": "base"} {
		if o := rewind("", "read", path); o.out != text || o.code != 0 {
			t.Errorf("%s: %+v", path, o)
		}
	}
	rewind("", "write", "/etc/passwd", "x").want(t, exitPath, "/home/u/proj.rewind")
	rewind("", "read", "/home/u/proj.rewind-not/x").want(t, exitPath)
	rewind("", "read", "nope").want(t, exitPath)
	d.files["stable|p:q"] = "one"
	d.files["12:30|f"] = "two"
	d.files["|bin"] = "\xff\x00"
	rewind("", "cat", "stable:p:q").want(t, 0, "one")
	rewind("", "cat", "no:such:f").want(t, exitCheckpoint)
	if data := rewind("", "read", "bin", "--json").data(t); data["content_b64"] != "/wA=" || data["size"] != 2.0 {
		t.Errorf("%v", data)
	}
	if data := rewind("", "read", "a", "--json").data(t); data["content"] != "text" {
		t.Errorf("%v", data)
	}
}

func TestStatusCommand(t *testing.T) {
	home(t)
	newDaemon().serve(t, proj())
	o := rewind("", "status").want(t, 0, "proj (live, generation 3", "1 path changed since 'stable'", "12 (READ 7, LOOKUP 5)", `changed   "x\x1b[31m"`)
	if strings.Contains(o.out, "\x1b") {
		t.Errorf("%q", o.out)
	}
	data := rewind("", "status", "proj", "--json").data(t)
	for _, k := range []string{"session", "branch", "base", "mountpoint", "store", "pid", "generation", "state", "head", "checkpoints", "changed_paths", "store_bytes", "reclaimable_bytes", "requests", "drift"} {
		if _, there := data[k]; !there {
			t.Errorf("no %s in %v", k, data)
		}
	}
	rewind("", "status", "proj", "-s", "other").want(t, exitUsage)
	if fields := strings.Fields(strings.Split(rewind("", "list").want(t, 0).out, "\n")[1]); !slices.Equal(fields, []string{"proj", "live", "/home/u/proj.rewind", "/home/u/proj"}) {
		t.Errorf("list: %q", fields)
	}
	list := rewind("", "list", "--json").data(t)["sessions"].([]any)
	if !slices.ContainsFunc(list, func(s any) bool { return s.(map[string]any)["session"] == "proj" }) {
		t.Errorf("%v", list)
	}
}

func TestDestroyAsks(t *testing.T) {
	home(t)
	rec := proj()
	rec.State = session.StateUnmounted
	l := record(t, rec)
	rewind("proj\n", "destroy", "proj").want(t, exitUsage, "--yes", l.Store)
	if _, err := os.Stat(l.Store); err != nil {
		t.Fatal(err)
	}
	rewind("", "destroy", "proj", "--yes").want(t, 0, "Deleted", "/home/u/proj is as it was")
	if _, err := os.Stat(l.Store); !os.IsNotExist(err) {
		t.Fatalf("the store is still there: %v", err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, net.ErrClosed }

func TestOutputThatCannotBeWritten(t *testing.T) {
	home(t)
	newDaemon().serve(t, proj())
	for _, args := range [][]string{{"status"}, {"status", "--json"}, {"log"}, {"checkpoint"}} {
		var errs bytes.Buffer
		if code := run(args, nil, brokenPipe{}, &errs); code == 0 {
			t.Errorf("%v succeeded without its output", args)
		}
	}
}

func TestShow(t *testing.T) {
	for in, want := range map[string]string{"a b": "a b", "é日": "é日", "": "", "a\nb": `"a\nb"`, "\xff": `"\xff"`, "a\u202eb": `"a\u202eb"`, "\x1b[0m": `"\x1b[0m"`} {
		if got := show(in); got != want {
			t.Errorf("show(%q) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"a é\tb\nc": "a é\tb\nc", "\x1b]0;x\a\xff\ufffd\u202e": `\x1b]0;x\a\xff` + "\ufffd" + `\u202e`} {
		if got := harmless(in); got != want {
			t.Errorf("harmless(%q) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"a-b/c.d@x": "a-b/c.d@x", "a b": "'a b'", "@{2}": "'@{2}'", "$(id)": "'$(id)'", "`x`'y": `'` + "`x`" + `'\''y'`, "": "''", "-x": "'-x'", "~": "'~'", "é~1": "é~1"} {
		if got := quoteArg(in); got != want {
			t.Errorf("quoteArg(%q) = %s, want %s", in, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 40: "5.0 TiB", 1 << 62: "4096.0 PiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}
