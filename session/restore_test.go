package session

import (
	"context"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/ledger"
)

func (r *rig) restore(t *testing.T, ref string, paths ...string) *control.Restored {
	t.Helper()
	req := control.RestoreRequest{Ref: ref}
	for _, p := range paths {
		req.Paths = append(req.Paths, []byte(p))
	}
	res, err := r.Restore(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Files come back, the conversation goes on, and undo and redo leave it alone as well: also after a restart.
func TestRestoreLeavesTheConversation(t *testing.T) {
	o := options(t)
	r := start(t, o)
	talk := func(n int) {
		t.Helper()
		r.sync(t, "", say(n, ""))
	}
	messages := func() int {
		t.Helper()
		st, err := r.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Conversation.Messages
	}
	r.write(t, "f", "one")
	r.write(t, "g", "one")
	talk(1)
	cp := r.checkpoint(t, "A")
	r.write(t, "f", "two")
	r.write(t, "g", "two")
	talk(3)
	res := r.restore(t, "A", "f")
	if res.CheckpointID != cp.ID || res.ChangedPaths != 1 || len(res.Changes) != 1 || res.Saved == "" || res.Op == 0 {
		t.Errorf("%+v", res)
	}
	r.want(t, "", "f", "one")
	r.want(t, "", "g", "two")
	r.want(t, res.Saved, "f", "two")
	if n := messages(); n != 7 {
		t.Errorf("%d messages after a restore", n)
	}
	talk(5)
	for _, step := range []struct {
		call func(context.Context, control.UndoRequest) (*control.Rollback, error)
		f    string
	}{{r.Undo, "two"}, {r.Redo, "one"}, {r.Undo, "two"}} {
		got, err := step.call(t.Context(), control.UndoRequest{})
		if err != nil || !got.FilesOnly || got.Conversation.Messages != 11 {
			t.Fatalf("%+v, %v", got, err)
		}
		r.want(t, "", "f", step.f)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	if got, err := r.Redo(t.Context(), control.UndoRequest{}); err != nil || !got.FilesOnly {
		t.Fatalf("%+v, %v", got, err)
	}
	r.want(t, "", "f", "one")

	// A rollback after it takes the conversation along, and so does its undo; both steps at once bring back what the rollback left.
	r.rollback(t, "A")
	if n := messages(); n > 4 {
		t.Errorf("%d messages after a rollback", n)
	}
	if got, err := r.Undo(t.Context(), control.UndoRequest{N: 2}); err != nil || got.FilesOnly || got.Conversation.Messages != 11 {
		t.Fatalf("%+v, %v", got, err)
	}
	r.want(t, "", "f", "two")

	if events := r.events(t, ledger.KindRestore); len(events) != 1 || events[0].Checkpoint != cp.ID || events[0].Op != res.Op {
		t.Errorf("the ledger says %+v", events)
	}
}

func TestRestoreRefusals(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "one")
	r.checkpoint(t, "A")
	for path, code := range map[string]control.Code{
		"": control.CodeBadPath, "/f": control.CodeBadPath, "../f": control.CodeBadPath, "nowhere": control.CodeBadPath,
		".rewind/checkpoints": control.CodeBadPath, "f\x00": control.CodeBadPath,
	} {
		_, err := r.Restore(t.Context(), control.RestoreRequest{Ref: "A", Paths: [][]byte{[]byte(path)}})
		wantCode(t, err, code)
	}
	_, err := r.Restore(t.Context(), control.RestoreRequest{Ref: "A"})
	wantCode(t, err, control.CodeBadRequest)
	_, err = r.Restore(t.Context(), control.RestoreRequest{Ref: "none", Paths: [][]byte{[]byte("f")}})
	wantCode(t, err, control.CodeUnknownCheckpoint)
	if res := r.restore(t, "A", "f"); !res.Noop || res.Op != 0 || res.Saved != "" {
		t.Errorf("%+v", res)
	}
	if res := r.restore(t, "base", "./f//"); res.Noop || res.Saved != "" { // nothing had changed since A
		t.Errorf("%+v", res)
	}
	r.wantNone(t, "f")
	if st, err := r.Status(t.Context()); err != nil || st.Undo != 1 {
		t.Errorf("%+v, %v", st, err)
	}
}
