package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const (
	sayPass = `echo '{"status":"pass","summary":"all good"}'`
	// sayFresh says fail when there is a file "bad".
	sayFresh = `test -e bad && echo '{"status":"fail","summary":"bad is there","errors":["one",{"file":"bad","line":3,"message":"two\u001b"}]}' || ` + sayPass
	sayNone  = `echo about to crash >&2; exit 3`
)

// A call that ends with an error takes files and conversation back, when the policy says so.
func TestToolCalls(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo one >$M/f")
	w.rewind("checkpoint", "good").want(t, 0)
	one := w.file("one.json", array(msgUser, msgCall))
	begun := w.rewind("tool", "begin", "write", "--call", "c1", "--step", "s", "--messages", one, "--json").data(t)
	if begun["sealed"] != true || begun["call"] != "c1" || dig(begun, "checkpoint", "tool", "pending") != "c1" || dig(begun, "checkpoint", "conversation", "messages") != 2.0 {
		t.Errorf("%v", begun)
	}
	w.rewind("tool", "begin", "write", "--call", "c1").want(t, exitConflict, "under way")
	w.rewind("tool", "begin", "bash", "--call", "c2").want(t, 0, "joins the calls in flight (c1).", "rewindfs rollback "+dig(begun, "checkpoint", "id").(string))
	w.rewind("tool", "begin", "read", "--call", "c3", "--readonly").want(t, 0, "Call c3 of read may start", "changes no file")
	w.rewind("status").want(t, 0, "in flight: c1, c2, c3")
	w.sh("echo bad >$M/bad")
	w.rewind("tool", "end", "--call", "c3").want(t, 0, "Call c3 has ended", "in flight: c1, c2")
	w.rewind("tool", "end", "--call", "c1", "--error", "boom").want(t, 0, "in flight: c2")
	w.rewind("tool", "end", "--json").data(t)
	w.rewind("tool", "end").want(t, 0, "No such call was in flight")
	w.same("cat $M/bad", "bad\n")
	w.rewind("status").want(t, 0, "ERRORED")

	w.rewind("policy", "auto-rollback", "--on", "exception", "--to", "good").want(t, 0, "on exception, to 'good'")
	w.rewind("policy", "no-rollback", "grep", "ls").want(t, 0, "grep, ls")
	w.rewind("tool", "begin", "grep").want(t, 0)
	w.rewind("tool", "end", "--error", "exit status 1").want(t, 0)
	w.rewind("tool", "begin", "bash").want(t, 0)
	w.rewind("tool", "end", "--error", "exit status 1", "--no-rollback").want(t, 0)
	w.same("cat $M/bad", "bad\n")
	w.rewind("tool", "begin", "look", "--readonly").want(t, 0)
	w.sh("echo mine >$M/mine")
	w.rewind("tool", "end", "--error", "not found").want(t, 0, "look began with --readonly and has changed files", "nothing was rolled back")
	w.same("cat $M/mine", "mine\n")
	w.sh("rm $M/mine")
	w.rewind("tool", "begin", "bash").want(t, 0)
	w.rewind("tool", "end", "--error", "no such file \x1b[31m\xff").want(t, exitFailed, "went back to 'good'", "Back at 'good'. 1 path")
	w.sh("test ! -e $M/bad")
	w.rewind("status").want(t, 0, "to 'good' by itself", "on exception of bash: \"no such file")
	w.rewind("tool", "begin", "bash").want(t, 0)
	w.rewind("tool", "end", "--error", "again").want(t, 0, "nothing to take back")
	w.rewind("tool", "end", "--error", "again").want(t, 0, "No such call was in flight", "nothing was rolled back")
	w.rewind("tool", "begin", "bash").want(t, 0)
	if d := w.rewind("tool", "end", "--error", "again", "--json").data(t); d["skipped_noop"] != true || d["rolled_back"] != nil {
		t.Errorf("%v", d)
	}
	w.sh("echo bad >$M/bad")
	w.rewind("tool", "begin", "bash").want(t, 0)
	f := w.rewind("tool", "end", "--error", "", "--json").failed(t, exitFailed)
	if dig(f.Data, "rolled_back", "checkpoint") != "good" || dig(f.Data, "rolled_back", "changed_paths") != 1.0 {
		t.Errorf("%v", f.Data)
	}
	w.rewind("tool", "begin", "bash", "--call", "lost").want(t, 0)
	w.rewind("tool", "reset").want(t, 0, "No call is in flight")
	if d := w.rewind("tool", "reset", "--json").data(t); len(d["inflight"].([]any)) != 0 {
		t.Errorf("%v", d)
	}
	if got := w.rewind("status").out; strings.Contains(got, "in flight") {
		t.Errorf("%s", got)
	}
	w.unmount()
}

// The policy's verifiers run at the end of a call, and what they say is acted on.
func TestToolEndVerifies(t *testing.T) {
	w := newWorld(t)
	w.mount()
	one := w.file("one.json", array(msgUser, msgCall))
	w.rewind("checkpoint", "good", "--messages", one).want(t, 0)
	w.rewind("policy", "auto-rollback", "--on", "test_failure", "--to", "good", "--verifier", sayPass, "--verifier", sayFresh, "--timeout", "1m").want(t, 0)
	call := func(args ...string) outcome {
		t.Helper()
		w.rewind("tool", "begin", "write", "--call", "c1").want(t, 0)
		w.sh("echo x >$M/f")
		return w.rewind(append([]string{"tool", "end", "--call", "c1"}, args...)...)
	}
	o := call().want(t, 0, "PASS", "all good")
	if strings.Count(o.out, "PASS") != 2 {
		t.Errorf("%s", o.out)
	}
	w.rewind("tool", "begin", "look", "--readonly").want(t, 0)
	if o := w.rewind("tool", "end").want(t, 0); strings.Contains(o.out, "PASS") {
		t.Errorf("a call that changes nothing is verified: %s", o.out)
	}
	w.rewind("tool", "begin", "look", "--readonly").want(t, 0)
	w.sh("echo y >$M/f")
	w.rewind("tool", "end").want(t, 0, "PASS", "look began with --readonly and has changed files")
	w.sh("echo bad >$M/bad")
	o = call().want(t, exitFailed, "FAIL", "bad is there", "  one\n", `two\x1b`, "Back at 'good'", "drop_step at 1: c1")
	if strings.Contains(o.out+o.err, "\x1b") {
		t.Errorf("%q", o.out)
	}
	w.sh("test ! -e $M/bad; test ! -e $M/f")
	w.sh("echo bad >$M/bad")
	f := call("--json").failed(t, exitFailed)
	if dig(f.Data, "rolled_back", "checkpoint") != "good" || dig(f.Data, "verifications", 1, "verdict", "errors", 1, "line") != 3.0 || dig(f.Data, "status") != "fail" {
		t.Errorf("%v", f.Data)
	}
	w.rewind("status", "--json").want(t, 0, `"last_auto_rollback":{`, "bad is there")

	w.rewind("policy", "auto-rollback", "--on", "test_failure", "--to", "good", "--verifier", sayNone, "--verifier", "touch $REWINDFS_SESSION.ran", "--retries", "2", "--retry-delay", "1ms").want(t, 0)
	call().want(t, exitHalted, "UNKNOWN", "Attempt 2 of 3", "stderr: about to crash", "halted: no verdict")
	w.same("cat $M/f; ls $M", "x\na.txt\nf\nsub\n")
	f = call("--json").failed(t, exitHalted)
	if dig(f.Data, "decision") != "stop" || dig(f.Data, "rolled_back") != nil || len(dig(f.Data, "verifications", 0, "attempts").([]any)) != 3 {
		t.Errorf("%v", f.Data)
	}
	w.rewind("ledger", "--event", "escalation").want(t, 0, "decision=stop")
	call("--no-rollback").want(t, 0)
	w.rewind("tool", "end", "--usage", "{").want(t, exitUsage)
	w.rewind("tool", "end", "--usage", `{"input_tokens":"many"}`).want(t, 0, "usage is not counted")
	w.rewind("tool", "end", "--mode", "guess").want(t, exitUsage)
	w.unmount()
}

func TestBudgetEndToEnd(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("budget", "set").want(t, exitUsage, "name a ceiling")
	for _, args := range [][]string{{"--usd", "-1"}, {"--usd", "x"}, {"--usd", ""}, {"--bytes", "much"}, {"--wall", "1us"}, {"--unknown-cost", "guess"}, {"--checkpoints", "-1"}, {"x"}} {
		w.rewind(append([]string{"budget", "set"}, args...)...).want(t, exitUsage)
	}
	w.rewind("budget", "set", "--usd", "0.50", "--bytes", "10MB", "--unknown-cost", "note").want(t, 0, "$0.50", "10.0 MiB")
	d := w.rewind("budget", "set", "--input-tokens", "100", "--output-tokens", "1000", "--wall", "2h", "--checkpoints", "50", "--json").data(t)
	for name, want := range map[string]any{"input_tokens": 100.0, "output_tokens": 1000.0, "wall_ms": 7.2e6, "checkpoints": 50.0, "bytes_written": float64(10 << 20), "usd": "$0.50"} {
		if got := dig(d, "limits", name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	w.rewind("tool", "begin", "t").want(t, 0)
	w.rewind("tool", "end", "--usage", `{"model":"m","input_tokens":150,"output_tokens":2,"cost_usd":0.01}`).want(t, 0, "warning: the next call will be refused")
	w.rewind("tool", "begin", "t").want(t, exitHalted, "budget", "rewindfs budget set")
	w.rewind("tool", "begin", "t", "--json").failed(t, exitHalted)
	w.rewind("budget", "show").want(t, 0, "input tokens   150", "Reached:")
	w.rewind("ledger", "--event", "budget_stop").want(t, 0, "tool t")
	w.rewind("budget", "set", "--input-tokens", "0").want(t, 0)
	w.rewind("tool", "begin", "t").want(t, 0)
	w.rewind("tool", "reset").want(t, 0)
	w.unmount()
	w.mount()
	if d := w.rewind("budget", "show", "--json").data(t); dig(d, "used", "input_tokens") != 150.0 || dig(d, "limits", "output_tokens") != 1000.0 || dig(d, "limits", "input_tokens") != nil {
		t.Errorf("%v", d)
	}
	if d := w.rewind("budget", "set", "--reset", "--json").data(t); dig(d, "used", "input_tokens") != nil || dig(d, "limits", "output_tokens") != 1000.0 {
		t.Errorf("%v", d)
	}
	w.unmount()
}

func TestPolicyEndToEnd(t *testing.T) {
	w := newWorld(t)
	w.mount()
	for _, args := range [][]string{
		{"auto-checkpoint"}, {"auto-checkpoint", "--off", "--keep-last", "1"}, {"auto-checkpoint", "--keep-last", "0"}, {"auto-checkpoint", "--trigger", "noon"}, {"auto-checkpoint", "x"},
		{"auto-rollback"}, {"auto-rollback", "--on", "exception"}, {"auto-rollback", "--to", "x"}, {"auto-rollback", "--on", "rain", "--to", "x"}, {"auto-rollback", "--off", "--to", "x"},
		{"auto-rollback", "--on", "test_failure", "--to", "x", "--verifier", " "}, {"auto-rollback", "--on", "test_failure", "--to", "x", "--verifier", "x", "--retries", "-1"},
		{"auto-rollback", "--on", "test_failure", "--to", "x", "--verifier", "x", "--timeout", "0"}, {"no-rollback"}, {"no-rollback", "x", "--off"}, {"no-rollback", ""}, {"frob"}, {"show", "x"},
	} {
		w.rewind(append([]string{"policy"}, args...)...).want(t, exitUsage)
	}
	w.rewind("policy", "show").want(t, 0, "auto-checkpoint  off", "auto-rollback    off", "no-rollback      no tool")
	w.rewind("policy", "auto-rollback", "--on", "exception,test_failure", "--to", "latest", "--verifier", "make test", "--retries", "2", "--retry-delay", "3s").want(t, 0,
		"warning: \"latest\" moves with every checkpoint", "on exception, test_failure, to 'latest'", "verifier: make test, 2 retries after 3s")
	w.rewind("policy", "auto-rollback", "--on", "test_failure", "--to", "soon").want(t, 0, "does not exist yet", "nothing will be tested")
	w.rewind("policy", "auto-checkpoint", "--trigger", "before_tool_call", "--keep-last", "2").want(t, 0, "the last 2 are kept")
	w.unmount()
	w.mount()
	o := w.rewind("policy", "show", "--json").want(t, 0, "warning: automatic rollbacks go to \"soon\"")
	if !strings.Contains(o.out, `"keep_last":2`) || !strings.Contains(o.out, `"warnings":["`) {
		t.Errorf("%s", o.out)
	}
	calls := 0
	waitFor(t, "after five calls, only two automatic checkpoints are left", func() bool {
		w.sh(fmt.Sprintf("echo %d >$M/f", calls))
		w.rewind("tool", "begin", "t").want(t, 0)
		w.rewind("tool", "end").want(t, 0)
		calls++
		return calls >= 5 && strings.Count(w.rewind("checkpoint", "list", "--all").out, "pre_execute") == 2
	})
	w.rewind("policy", "auto-checkpoint", "--off").want(t, 0, "auto-checkpoint  off")
	w.rewind("policy", "auto-rollback", "--off").want(t, 0, "auto-rollback    off")
	if d := w.rewind("policy", "no-rollback", "--off", "--json").data(t); d["auto_rollback"] != nil || len(d["no_rollback"].([]any)) != 0 {
		t.Errorf("%v", d)
	}
	w.unmount()
}

func TestLedgerEndToEnd(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo one >$M/f")
	w.rewind("checkpoint", "A").want(t, 0)
	w.sh("echo two >$M/f")
	w.rewind("rollback", "A").want(t, 0)
	w.rewind("undo").want(t, 0)
	kinds := func(args ...string) string {
		t.Helper()
		var out []string
		for _, r := range w.rewind(append([]string{"ledger", "-s", "proj", "--json"}, args...)...).data(t)["records"].([]any) {
			out = append(out, dig(r, "event").(string))
		}
		return strings.Join(out, " ")
	}
	if got := kinds(); got != "mount checkpoint rollback undo" {
		t.Errorf("%s", got)
	}
	if got := kinds("-n", "2"); got != "rollback undo" {
		t.Errorf("%s", got)
	}
	if got := kinds("--event", "undo,mount", "--event", "checkpoint"); got != "mount checkpoint undo" {
		t.Errorf("%s", got)
	}
	if got := kinds("--checkpoint", "A", "--since", "1h", "-n", "1"); got != "rollback" && got != "undo" {
		t.Errorf("%s", got)
	}
	if got := kinds("--since", "2126-01-02T15:04:05Z"); got != "" {
		t.Errorf("%s", got)
	}
	for _, args := range [][]string{{"--event", "birth"}, {"--since", "noon"}, {"-n", "-1"}, {"x"}, {"verify", "x"}, {"verify", "--head", "7"}} {
		w.rewind(append([]string{"ledger"}, args...)...).want(t, exitUsage)
	}
	head := strings.TrimSpace(w.rewind("ledger", "verify").want(t, 0, "The ledger is whole: 4 lines in 1 file.").out)
	head = head[strings.LastIndex(head, " ")+1:]

	// Following shows what is there, then what comes.
	follow := w.command(t.Context(), "ledger", "--follow", "-n", "1")
	pipe, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := linesOf(pipe)
	if got := <-lines; !strings.Contains(got, "undo") {
		t.Errorf("%q", got)
	}
	w.rewind("checkpoint", "B").want(t, 0)
	if got := <-lines; !strings.Contains(got, "checkpoint") || !strings.Contains(got, "B") {
		t.Errorf("%q", got)
	}
	interrupt(t, follow)
	if err := follow.Wait(); err != nil {
		t.Errorf("following ended with %v", err)
	}

	// All of it needs no daemon.
	w.unmount()
	if got := kinds("--checkpoint", "B"); got != "checkpoint" {
		t.Errorf("%s", got)
	}
	if d := w.rewind("ledger", "verify", "-s", "proj", "--head", head, "--json").data(t); d["lines"].(float64) < 6 || dig(d, "damages") != 0.0 {
		t.Errorf("%v", d)
	}
	file := filepath.Join(w.store(), "ledger", "00000001.jsonl")
	w.sh(`sed -i '2s/"label":"A"/"label":"Z"/' ` + file)
	w.rewind("ledger", "verify", "-s", "proj").want(t, exitFailure, "Damage: ", "not as it was written")
	if f := w.rewind("ledger", "verify", "-s", "proj", "--json").failed(t, exitFailure); dig(f.Data, "damages").(float64) < 1 {
		t.Errorf("%v", f.Data)
	}
	w.sh(`sed -i '2s/"label":"Z"/"label":"A"/; 3s/.*/{"v":/' ` + file)
	w.rewind("ledger", "-s", "proj").want(t, exitFailure, "checkpoint", "rewindfs ledger verify")
	if f := w.rewind("ledger", "-s", "proj", "--json").failed(t, exitFailure); len(dig(f.Data, "records").([]any)) < 4 {
		t.Errorf("%v", f.Data)
	}
	w.rewind("ledger", "verify", "-s", "proj", "--head", "2:"+strings.Repeat("0", 64)).want(t, exitFailure, "Damage: ")
}
