package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// commit returns the answer, and what was sent before it.
func (r *rig) commit(t *testing.T, q control.CommitRequest) (*control.Committed, []control.CommitChange) {
	t.Helper()
	var all []control.CommitChange
	res, err := r.Commit(t.Context(), q, func(c control.CommitChange) error { all = append(all, c); return nil }, nil)
	if err != nil {
		t.Fatalf("commit %+v: %v", q, err)
	}
	return res, all
}

// host holds a file of the base against text; "-" for none.
func (r *rig) host(t *testing.T, path, text string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(r.o.Base, path))
	if got := string(b); (errors.Is(err, os.ErrNotExist) && text != "-") || err == nil && got != text {
		t.Fatalf("%s on the host is %q (%v), want %q", path, got, err, text)
	}
}

func TestCommit(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "a.txt", "one\n")
	res, all := r.commit(t, control.CommitRequest{DryRun: true, List: true})
	if res.Done || res.Paths != 1 || len(all) != 1 || all[0].Path != "a.txt" || all[0].Status != "M" || len(r.labels(t, true)) != 0 {
		t.Fatalf("dry run: %+v, %+v", res, all)
	}
	r.host(t, "a.txt", "base a\n")
	if res, _ = r.commit(t, control.CommitRequest{}); !res.Done || res.Paths != 1 || res.Bytes != 4 || !res.CanUndo {
		t.Fatalf("commit: %+v", res)
	}
	r.host(t, "a.txt", "one\n")
	checkpoints := len(r.labels(t, true))
	if res, _ = r.commit(t, control.CommitRequest{}); res.Done || !res.Noop || len(r.labels(t, true)) != checkpoints {
		t.Fatalf("a commit of nothing: %+v", res)
	}
	d, err := r.Diff(t.Context(), control.DiffRequest{}, func(control.Change) error { return nil })
	if err != nil || d.Total != 0 {
		t.Errorf("diff after a commit: %+v, %v", d, err)
	}
	st, err := r.Status(t.Context())
	if err != nil || st.ChangedPaths != 0 || len(st.Drift) != 0 || st.Lifecycle != lifeCommitted {
		t.Errorf("status after a commit: %+v, %v", st, err)
	}

	r.checkpoint(t, "c1")
	r.write(t, "a.txt", "two\n")
	r.write(t, "new", "n")
	for path, text := range map[string]string{"a.txt": "user\n", "user": "u"} {
		if err := os.WriteFile(filepath.Join(r.o.Base, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	res, all = r.commit(t, control.CommitRequest{})
	if res.Done || res.Conflicts != 1 || len(all) != 1 || all[0].Left != "conflict" || all[0].Path != "a.txt" {
		t.Fatalf("conflict: %+v, %+v", res, all)
	}
	r.host(t, "new", "-")
	if res, _ = r.commit(t, control.CommitRequest{Paths: [][]byte{[]byte("new")}}); res.Paths != 1 {
		t.Fatalf("a part: %+v", res)
	}
	r.commit(t, control.CommitRequest{OnConflict: "theirs"})
	r.host(t, "a.txt", "user\n")
	r.host(t, "new", "n")
	if res, _ = r.commit(t, control.CommitRequest{OnConflict: "ours"}); res.Overridden != 1 {
		t.Fatalf("ours: %+v", res)
	}
	r.host(t, "a.txt", "two\n")
	r.commit(t, control.CommitRequest{Undo: true})
	r.host(t, "a.txt", "user\n")
	r.commit(t, control.CommitRequest{Undo: true})
	r.host(t, "new", "-")
	r.commit(t, control.CommitRequest{Undo: true, OnConflict: "ours"})
	r.host(t, "a.txt", "base a\n")
	r.host(t, "user", "u")
	_, err = r.Commit(t.Context(), control.CommitRequest{Undo: true}, nil, nil)
	wantCode(t, err, control.CodeNothing)
	r.want(t, "", "a.txt", "two\n")
	r.want(t, "c1", "a.txt", "one\n")
	r.want(t, "base", "a.txt", "base a\n")
}

func TestCommitsOfBranches(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "a.txt", "start\n")
	r.checkpoint(t, "start")
	r.fork(t, "start", "try")
	try := r.on("try")
	try.write(t, "a.txt", "try\n")
	r.write(t, "a.txt", "main\n")
	r.commit(t, control.CommitRequest{})
	// What one branch brought is no less the host's than the user's own edits.
	if res, _ := try.commit(t, control.CommitRequest{}); res.Conflicts != 1 {
		t.Fatalf("the other branch: %+v", res)
	}
	r.commit(t, control.CommitRequest{Undo: true})
	r.commit(t, control.CommitRequest{Ref: "start"})
	if res, _ := try.commit(t, control.CommitRequest{}); !res.Done { // it stands on what is there
		t.Fatalf("the other branch, on a commit below it: %+v", res)
	}
	r.host(t, "a.txt", "try\n")
	r.fork(t, "base", "later") // shows the base as it is now
	r.on("later").want(t, "", "a.txt", "try\n")
	r.on("later").write(t, "a.txt", "later\n")
	r.on("later").commit(t, control.CommitRequest{})
	r.host(t, "a.txt", "later\n")
}

func TestCommitRefusals(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "a.txt", "one\n")
	for _, c := range []struct {
		q    control.CommitRequest
		code control.Code
	}{
		{control.CommitRequest{Ref: "nope"}, control.CodeUnknownCheckpoint},
		{control.CommitRequest{Ref: "base"}, control.CodeBadRequest},
		{control.CommitRequest{OnConflict: "x"}, control.CodeBadRequest},
		{control.CommitRequest{Undo: true, Ref: "base"}, control.CodeBadRequest},
		{control.CommitRequest{To: "rel"}, control.CodeBadRequest},
		{control.CommitRequest{To: r.o.Base + "/sub"}, control.CodeBadPath},
		{control.CommitRequest{To: filepath.Dir(r.o.Base)}, control.CodeBadPath},
		{control.CommitRequest{To: r.o.Mountpoint + "/x"}, control.CodeBadPath},
		{control.CommitRequest{To: r.o.Store + "/x"}, control.CodeBadPath},
		{control.CommitRequest{Paths: [][]byte{[]byte("../x")}}, control.CodeBadPath},
	} {
		_, err := r.Commit(t.Context(), c.q, nil, nil)
		wantCode(t, err, c.code)
	}
	hold := filepath.Join(r.o.Store, holdName)
	if err := os.WriteFile(hold, []byte("[\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := r.Commit(t.Context(), control.CommitRequest{}, nil, nil)
	if wantCode(t, err, control.CodeBadRequest); !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a bad list: %v", err)
	}
	if err := os.WriteFile(hold, []byte("a.*\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if res, all := r.commit(t, control.CommitRequest{}); !res.Noop || len(all) != 1 || all[0].Left != "held" {
		t.Errorf("the user's list: %+v, %+v", res, all)
	}
	r.s.committing.Lock()
	_, err = r.Commit(t.Context(), control.CommitRequest{}, nil, nil)
	wantCode(t, err, control.CodeBusy)
	r.s.committing.Unlock()
	r.host(t, "a.txt", "base a\n")
}

// A daemon that was killed in the middle of a commit takes it back at its next start, and records that.
func TestCommitCutOff(t *testing.T) {
	o := options(t)
	r := start(t, o)
	for _, name := range []string{"a.txt", "b.txt", "c.txt"} {
		r.write(t, name, "new\n")
	}
	l := layers.Layer(r.checkpoint(t, "c").Layer)
	a := apply.New(r.s.db, r.s.tree, r.s.base, slog.New(slog.DiscardHandler), time.Now)
	killed, renames := errors.New("killed"), 0
	a.StopAt(func(call, _ string) error {
		if call == "rename" {
			renames++
		}
		if renames > 2 {
			return killed
		}
		return nil
	})
	c, err := a.PlanBase(t.Context(), apply.Request{Layer: l, Branch: MainBranch}, apply.Record{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Do(context.Background(), nil, nil); !errors.Is(err, killed) {
		t.Fatalf("the commit: %v", err)
	}
	c.Close()
	r.host(t, "a.txt", "new\n")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.host(t, "a.txt", "base a\n")
	r.host(t, "b.txt", "-")
	r.want(t, "", "c.txt", "new\n")
	var lines []*ledger.Record
	err = ledger.Read(LedgerDir(r.o.Store), ledger.Filter{Kinds: []ledger.Kind{ledger.KindCommit}}, func(l *ledger.Record) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil || len(lines) != 1 || lines[0].Details["recovered"] != "taken_back" || lines[0].Details["taken_back"] != true {
		t.Errorf("the ledger: %+v, %v", lines, err)
	}
	if res, _ := r.commit(t, control.CommitRequest{Ref: "c"}); !res.Done || res.Paths != 3 {
		t.Errorf("the commit after all: %+v", res)
	}
	r.host(t, "c.txt", "new\n")
}
