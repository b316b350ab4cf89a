package session

import (
	"fmt"
	"maps"
	"strings"
	"testing"

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
	if next := r.checkpoint(t, "next"); next.Conversation.Messages != 13 { // what is live stays live
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
