package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Messages with bytes that an encoder would change.
const (
	msgUser = `{"role" : "user",	"content":"make <b> & \u003c é", "n":1.0E+2, "n":  -0}`
	msgCall = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"w","arguments":"{}"}}]}`
	msgDone = `{"role":"tool","tool_call_id":"c1","content":"ok > <"}`
	msgSay  = `{"role":"assistant","content" : "done"}`
)

func array(items ...string) string { return "[ " + strings.Join(items, "\n , ") + " ]" }

// file writes a file outside of base and mount.
func (w *world) file(name, text string) string {
	w.t.Helper()
	p := filepath.Join(w.home, name)
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// failed reads what --json prints of a failure.
func (o outcome) failed(t *testing.T, code int) failure {
	t.Helper()
	var f failure
	if err := json.Unmarshal([]byte(o.out), &f); err != nil || f.Success || f.Code != code || o.code != code || f.Error == "" {
		t.Fatalf("code %d, want %d, %v\nstdout: %s\nstderr: %s", o.code, code, err, o.out, o.err)
	}
	return f
}

// dig follows keys and indexes through decoded JSON.
func dig(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func TestConversationGoesBackWithTheFiles(t *testing.T) {
	w := newWorld(t)
	w.mount()
	one, two := w.file("one.json", array(msgUser, msgCall)), w.file("two.json", array(msgUser, msgCall, msgDone, msgSay))
	w.sh("echo one >$M/f")
	w.rewind("checkpoint", "none").want(t, 0, "conversation: none")
	w.rewind("checkpoint", "A", "--messages", one).want(t, 0, "conversation: 2 messages")
	w.sh("echo two >$M/f")
	if d := w.rewind("memory", "sync", two, "--json").data(t); d["messages"] != 4.0 || d["format"] != "openai-chat" {
		t.Errorf("%v", d)
	}
	w.rewind("memory", "get").want(t, 0, msgUser, msgCall, msgDone, msgSay)
	w.rewind("memory", "get", "A", "--json").want(t, 0, msgUser, msgCall).data(t)
	w.rewind("memory", "get", "A", "--repair").want(t, 0, msgUser, "drop_step at 1: c1")
	if o := w.rewind("memory", "get", "A", "--repair", "--json"); strings.Contains(o.out, msgCall) || dig(o.data(t), "changes", 0, "action") != "drop_step" {
		t.Errorf("%s", o.out)
	}
	w.rewind("status").want(t, 0, "conversation: 4 messages")

	dry := w.rewind("rollback", "A", "--dry-run", "--json").data(t)
	if dig(dry, "changes", 0, "path") != "f" || dry["messages"] != nil || dig(dry, "gone_messages", "main") != 2.0 {
		t.Errorf("%v", dry)
	}
	w.rewind("rollback", "none", "--dry-run").want(t, 0, "Of the conversation (main), the last 4 messages would go.")
	if o := w.rewind("rollback", "A", "--dry-run", "--files-only"); strings.Contains(o.out, "conversation") {
		t.Errorf("%s", o.out)
	}
	o := w.rewind("rollback", "A", "--notes", "tests </b> failed", "--json").want(t, 0, `"messages":[`+msgUser+",")
	d := o.data(t)
	w.same("cat $M/f", "one\n")
	if strings.Contains(o.out, msgCall) || dig(d, "changes", 0, "action") != "drop_step" || fmt.Sprint(d["changes"]) != fmt.Sprint(d["repairs"]) {
		t.Errorf("changes %v, repairs %v", d["changes"], d["repairs"])
	}
	notice, _ := d["notice"].(string)
	if !strings.Contains(notice, "tests &lt;/b&gt; failed") || !strings.Contains(notice, "checkpoint A") || dig(d, "conversation", "state") != "present" {
		t.Errorf("notice %q, conversation %v", notice, d["conversation"])
	}
	if got := w.rewind("memory", "get").want(t, 0, msgUser).out; strings.Contains(got, "c1") {
		t.Errorf("the live conversation is %s", got)
	}

	w.rewind("undo").want(t, 0, "conversation: 4 messages, valid as they were.")
	w.same("cat $M/f", "two\n")
	w.rewind("memory", "get").want(t, 0, msgUser, msgCall, msgDone, msgSay)
	w.rewind("redo", "--files-only").want(t, 0, "left as it is")
	w.same("cat $M/f", "one\n")
	w.rewind("memory", "get").want(t, 0, msgSay)

	w.rewind("rollback", "A").want(t, 0, "Back at 'A'. No file differed.", "Undo with", "conversation: 2 messages, with 2 changes:", "drop_step at 1: c1", "The model is told: <rewindfs-rollback")
	w.rewind("rollback", "none").want(t, 0)
	w.rewind("memory", "get").want(t, exitCheckpoint, "has no thread")
	w.rewind("memory", "get", "nope").want(t, exitCheckpoint, "the newest are")
	w.rewind("undo").want(t, 0, "conversation: 2 messages")
	w.unmount()
	w.mount()
	w.rewind("memory", "get", "A").want(t, 0, msgUser, msgCall)
	w.unmount()
}

// Files and conversation can go back apart, and quietly.
func TestRollbackApart(t *testing.T) {
	w := newWorld(t)
	w.mount()
	one, two := w.file("one.json", array(msgUser)), w.file("two.json", array(msgUser, msgCall, msgDone, msgSay))
	w.sh("echo one >$M/f")
	w.rewind("checkpoint", "A", "--messages", one).want(t, 0)
	w.sh("echo two >$M/f")
	w.rewind("memory", "sync", two).want(t, 0)
	w.rewind("rollback", "A", "--files-only").want(t, 0, "Back at 'A'. 1 path", "The conversation was left as it is.")
	w.same("cat $M/f", "one\n")
	w.rewind("memory", "get").want(t, 0, msgSay)
	w.rewind("undo", "--files-only").want(t, 0)
	w.rewind("rollback", "A", "--messages-only", "--no-notice").want(t, 0, "conversation is back at 'A'; the files are as they were", "1 message, valid as they were")
	w.same("cat $M/f", "two\n")
	if got := w.rewind("memory", "get").out; got != "[\n"+msgUser+"\n]\n" {
		t.Errorf("%q", got)
	}
	for _, args := range [][]string{{"--files-only", "--messages-only"}, {"--notes", "x", "--no-notice"}, {"--messages-out", "x", "--files-only"},
		{"--messages-out", "x", "--dry-run"}, {"--messages-out", "-"}, {"--notes", "\xff"}} {
		w.rewind(append([]string{"rollback", "A"}, args...)...).want(t, exitUsage)
	}
	w.same("cat $M/f", "two\n")
	w.unmount()
}

func TestMessagesOut(t *testing.T) {
	w := newWorld(t)
	w.mount()
	out := filepath.Join(w.home, "out")
	w.rewind("checkpoint", "A", "--messages", w.file("one.json", array(msgUser))).want(t, 0)
	w.sh("echo x >$M/f")
	for _, c := range []struct {
		file string
		text string
	}{{w.home, "not a file"}, {filepath.Join(w.home, "no/such"), "no such file"}, {"/dev/null", "not a file"}} {
		w.rewind("rollback", "A", "--messages-out", c.file).want(t, exitPath, c.text)
	}
	w.same("cat $M/f", "x\n") // refused before anything was done
	w.sh("umask 0; echo old >" + out + "; chmod 640 " + out + "; ln -s out " + out + ".link")
	w.rewind("rollback", "A", "--no-notice", "--messages-out", out+".link").want(t, 0, "The messages are in "+out+".link.")
	w.same("cat "+out+"; stat -c %a "+out+"; readlink "+out+".link; ls -A "+w.home+" | grep -c '^\\.out' || true", "[\n"+msgUser+"\n]\n640\nout\n0\n")
	// In the mount, where the rollback itself takes away what was written before it.
	w.sh("echo x >$M/f; echo y >$M/messages.json")
	w.rewind("rollback", "A", "--no-notice", "--messages-out", w.mp+"/messages.json").want(t, 0)
	w.same("cat $M/messages.json; test ! -e $M/f", "[\n"+msgUser+"\n]\n")
	w.rewind("rollback", "base", "--messages-out", out+".none").want(t, 0, "warning: there is no conversation at 'base'")
	w.sh("test ! -e " + out + ".none")
	w.unmount()
}

// A transcript that is kept as JSON lines comes back as JSON lines, whatever its format.
func TestConversationKeepsItsShape(t *testing.T) {
	w := newWorld(t)
	w.mount()
	lines := msgUser + "\n\n" + msgSay + "\n"
	w.finish([]string{"memory", "sync", "-"}, stdin(lines)).want(t, 0, "2 messages", "openai-chat")
	w.rewind("checkpoint", "A").want(t, 0)
	if got := w.rewind("memory", "get").out; got != msgUser+"\n"+msgSay+"\n" {
		t.Errorf("%q", got)
	}
	out := filepath.Join(w.home, "out")
	w.rewind("rollback", "A", "--no-notice", "--messages-out", out).want(t, 0)
	w.same("cat "+out, msgUser+"\n"+msgSay+"\n")
	for name, f := range fixtures(t) {
		if name != "43-codex-rollout-partial.expected.json" && name != "41-claude-code-before-first-call.expected.json" {
			continue
		}
		in := w.file("rollout.jsonl", string(f.input(t)))
		w.rewind("checkpoint", "--json", "--messages", in).data(t)
		if got := w.rewind("memory", "get", "latest").out; got != string(f.input(t)) {
			t.Errorf("%s: %s", name, got)
		}
		w.rewind("rollback", "latest", "--messages-out", out).want(t, 0)
		w.rewind("memory", "repair", out, "--format", string(f.Format)).want(t, 0, "valid as it is")
	}
	w.unmount()
}

// A conversation that cannot be read is missing, never an older one; what can be read and is
// none is refused.
func TestConversationThatIsNone(t *testing.T) {
	w := newWorld(t)
	w.mount()
	one := w.file("one.json", array(msgUser))
	w.rewind("checkpoint", "A", "--messages", one, "--messages", "sub="+one).want(t, 0, "1 message (sub 1 message)")
	o := w.rewind("checkpoint", "B", "--messages", one+".nope").want(t, 0, "warning: the conversation is not in the checkpoint", "no such file", "conversation: missing")
	if !strings.HasPrefix(o.err, "rewindfs: warning") || strings.Contains(o.out, "warning") {
		t.Errorf("%+v", o)
	}
	w.rewind("memory", "get", "B").want(t, exitCheckpoint, "could not be read")
	w.rewind("memory", "get", "B", "--thread", "sub").want(t, 0, msgUser)
	o = w.rewind("checkpoint", "C", "--json", "--messages", one, "--messages", "sub="+w.home).want(t, 0)
	var c struct{ Data map[string]any }
	if err := json.Unmarshal([]byte(o.out), &c); err != nil || dig(c.Data, "conversation", "state") != "present" ||
		dig(c.Data, "conversation", "threads", "sub", "state") != "missing" || len(c.Data["warnings"].([]any)) != 1 {
		t.Errorf("%v: %s", err, o.out)
	}
	w.rewind("rollback", "B").want(t, 0, "conversation: missing")
	if d := w.rewind("rollback", "B", "--json").data(t); d["messages"] != nil || dig(d, "conversation", "state") != "missing" {
		t.Errorf("%v", d)
	}

	before := w.rewind("log").out
	big := w.file("big", "[")
	if err := os.Truncate(big, 200<<20); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"junk": "\x00\xff", "object": `{"a":1}`, "types": `[{"role":7}]`, "deep": strings.Repeat("[", 1<<20), "twice": array(msgCall[:len(msgCall)-2] + `,{"id":"c1","type":"function","function":{"name":"w","arguments":"{}"}}]}`)} {
		f := w.file(name, text)
		for _, args := range [][]string{{"memory", "sync", f}, {"checkpoint", "D", "--messages", f}, {"tool", "begin", "t", "--messages", f}} {
			w.rewind(args...).want(t, exitUsage, f, "not a conversation")
			w.rewind(append(args, "--json")...).failed(t, exitUsage)
		}
	}
	for _, args := range [][]string{{"memory", "sync", big}, {"checkpoint", "D", "--messages", big}} {
		w.rewind(args...).want(t, exitUsage, "more than 128.0 MiB")
	}
	for _, args := range [][]string{{"--messages", one, "--messages", "main=" + one}, {"--messages", "-", "--messages", "x=-"}, {"--messages", "=" + one}, {"--messages", "sub="}} {
		w.rewind(append([]string{"checkpoint", "D"}, args...)...).want(t, exitUsage)
	}
	w.rewind("memory", "sync", one+".nope").want(t, exitPath)
	w.rewind("memory", "get", "--thread", "none").want(t, exitCheckpoint, `no thread "none"`)
	if after := w.rewind("log").out; after != before {
		t.Errorf("the log was\n%sand is\n%s", before, after)
	}
	w.unmount()
}

// A file whose name has a = in it can be said all the same, and standard input, too.
func TestMessagesArguments(t *testing.T) {
	got, err := messagesArgs([]string{"./a=b", "sub=./c=d", "x y=-"})
	want := []messagesArg{{"main", "./a=b"}, {"sub", "./c=d"}, {"x y", "-"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	w := newWorld(t)
	w.mount()
	w.finish([]string{"checkpoint", "A", "--messages", "-", "--json"}, stdin(array(msgUser))).data(t)
	w.rewind("memory", "get", "A").want(t, 0, msgUser)
	w.unmount()
}
