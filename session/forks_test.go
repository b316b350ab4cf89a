package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

// branches are the names and states of all branches.
func (r *rig) branches(t *testing.T) string {
	t.Helper()
	all, err := r.Branches(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, b := range all.Branches {
		out = append(out, b.Branch+" "+b.State)
	}
	return strings.Join(out, ", ")
}

func (r *rig) wantBranches(t *testing.T, want string) {
	t.Helper()
	if got := r.branches(t); got != want {
		t.Fatalf("branches: %s; want %s", got, want)
	}
}

func (r *rig) ops(t *testing.T) string {
	t.Helper()
	l, err := r.Log(t.Context(), control.LogRequest{Ops: true})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, op := range l.Ops {
		out = append(out, op.Kind)
	}
	return strings.Join(out, " ")
}

func TestForksAreApart(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "a.txt", "one\n")
	c := r.checkpoint(t, "start")
	r.write(t, "a.txt", "main\n")
	f := r.fork(t, "start", "try")
	if f.Checkpoint != "start" || f.CheckpointID != c.ID || f.Layer != c.Layer || f.Mountpoint != r.o.Mountpoint+"-try" || f.EngineUS <= 0 {
		t.Fatalf("fork: %+v", f)
	}
	try := r.on("try")
	try.want(t, "", "a.txt", "one\n")
	try.write(t, "a.txt", "try\n")
	try.write(t, "new", "try")
	r.want(t, "", "a.txt", "main\n")
	r.wantNone(t, "new")

	// Checkpoints, rollbacks and the way back belong to one branch.
	try.checkpoint(t, "mine")
	r.checkpoint(t, "mine") // a label means something in each line
	try.write(t, "a.txt", "try, later\n")
	if res := try.rollback(t, "mine"); res.ChangedPaths != 1 {
		t.Fatalf("rollback: %+v", res)
	}
	try.want(t, "", "a.txt", "try\n")
	r.want(t, "", "a.txt", "main\n")
	_, err := r.Undo(t.Context(), control.UndoRequest{})
	wantCode(t, err, control.CodeNothing)
	if _, err := try.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	try.want(t, "", "a.txt", "try, later\n")
	for name, x := range map[string]*rig{"main": r, "try": try} {
		if got := fmt.Sprint(x.labels(t, false)); got != "[mine start]" {
			t.Errorf("log of %s: %s", name, got)
		}
	}
	if main, other := r.ops(t), try.ops(t); main != "checkpoint checkpoint mount" || other != "undo rollback checkpoint fork" {
		t.Errorf("operations: %s; %s", main, other)
	}
	st, err := try.Status(t.Context())
	if err != nil || st.Branch != "try" || st.Mountpoint != f.Mountpoint || st.Undo != 0 || st.Redo != 1 || st.Base != r.o.Base {
		t.Fatalf("status of the branch: %+v, %v", st, err)
	}
	r.wantBranches(t, "main mounted, try mounted")
	r.fork(t, "mine", "from-main")
	r.on("from-main").want(t, "", "a.txt", "main\n")
	_, err = r.on("from-main").Fork(t.Context(), control.ForkRequest{Ref: "later", Branch: "x"})
	wantCode(t, err, control.CodeUnknownCheckpoint)
	try.checkpoint(t, "later")
	r.fork(t, "later", "from-try") // known in one other branch only
	r.on("from-try").want(t, "", "a.txt", "try, later\n")
	r.fork(t, "base", "new")
	r.on("new").want(t, "", "a.txt", "base a\n")
}

func TestForkAtPresent(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "a.txt", "not in a checkpoint\n")
	r.putTalk(t, `[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]`)
	f := r.fork(t, "", "try")
	if f.Conversation.Messages != 2 || f.Notice != "" {
		t.Fatalf("fork: %+v", f)
	}
	r.write(t, "a.txt", "later\n")
	try := r.on("try")
	try.want(t, "", "a.txt", "not in a checkpoint\n")
	r.putTalk(t, `[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"},{"role":"user","content":"main"}]`)
	m, err := try.GetMemory(t.Context(), "", "", false)
	if err != nil || len(m.Messages) != 2 {
		t.Fatalf("the conversation of the fork: %+v, %v", m, err)
	}
	try.putTalk(t, `[{"role":"user","content":"other"}]`)
	if m, err = r.GetMemory(t.Context(), "", "", false); err != nil || len(m.Messages) != 3 {
		t.Fatalf("the conversation of main: %+v, %v", m, err)
	}
	if got := fmt.Sprint(r.labels(t, false)); got != "[]" {
		t.Fatalf("checkpoints: %s", got)
	}
	// At a checkpoint, the model is told, as by a rollback.
	r.checkpoint(t, "c")
	if f = r.fork(t, "c", "told"); !strings.Contains(f.Notice, "checkpoint c") {
		t.Fatalf("notice: %q", f.Notice)
	}
	if f = r.fork(t, control.RefHead, "again"); f.Checkpoint == "" {
		t.Fatalf("fork: %+v", f)
	}
}

func (r *rig) putTalk(t *testing.T, messages string) {
	t.Helper()
	if _, err := r.PutMemory(t.Context(), "", "", false, strings.NewReader(messages)); err != nil {
		t.Fatal(err)
	}
}

func TestForksAreRefused(t *testing.T) {
	r := start(t, options(t))
	r.checkpoint(t, "c")
	r.fork(t, "c", "try")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		ref, branch, at string
		code            control.Code
	}{
		{"c", "", "", control.CodeBadRequest},
		{"c", "a/b", "", control.CodeBadRequest},
		{"c", "-x", "", control.CodeBadRequest},
		{"c", strings.Repeat("x", 101), "", control.CodeBadRequest},
		{"c", "try", "", control.CodeConflict},
		{"c", "main", "", control.CodeConflict},
		{"nothing", "x", "", control.CodeUnknownCheckpoint},
		{"c", "x", "relative", control.CodeBadRequest},
		{"c", "x", "/a/../b", control.CodeBadRequest},
		{"c", "x", file, control.CodeBadPath},
		{"c", "x", r.o.Base, control.CodeBadPath},
		{"c", "x", filepath.Join(r.o.Base, "sub", "x"), control.CodeBadPath},
		{"c", "x", filepath.Dir(r.o.Base), control.CodeBadPath},
		{"c", "x", r.o.Mountpoint, control.CodeBadPath},
		{"c", "x", filepath.Join(r.o.Mountpoint, "x"), control.CodeBadPath},
		{"c", "x", filepath.Join(r.o.Mountpoint+"-try", "x"), control.CodeBadPath},
		{"c", "x", filepath.Join(r.o.Store, "x"), control.CodeBadPath},
		{"c", "x", filepath.Join(t.TempDir(), "none", "x"), control.CodeBadPath},
	} {
		_, err := r.Fork(t.Context(), control.ForkRequest{Ref: c.ref, Branch: c.branch, Mountpoint: c.at})
		if control.CodeOf(err) != c.code {
			t.Errorf("%d: %+v: %v", i, c, err)
		}
	}
	r.noFork = errors.New("no")
	if _, err := r.Fork(t.Context(), control.ForkRequest{Ref: "c", Branch: "x"}); err == nil {
		t.Fatal("a fork without a mount")
	}
	r.noFork = nil
	r.wantBranches(t, "main mounted, try mounted")
	if _, err := os.Lstat(r.o.Mountpoint + "-x"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a mount point stayed: %v", err)
	}
	_, err := r.on("x").Status(t.Context())
	wantCode(t, err, control.CodeUnknownBranch)
	if !strings.Contains(err.Error(), "main, try") {
		t.Fatalf("which there are is not said: %v", err)
	}
	r.fork(t, "c", "x") // and it can be made after all
}

func TestForksComeBack(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.checkpoint(t, "c")
	for _, b := range []string{"stays", "away", "gone"} {
		r.fork(t, "c", b)
		r.on(b).write(t, "who", b)
		r.on(b).checkpoint(t, "in "+b)
	}
	if _, err := r.on("stays").SetPolicy(t.Context(), control.PolicyRequest{NoRollback: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	u, err := r.on("away").Unmount(t.Context(), control.UnmountRequest{})
	if err != nil || u.Branch != "away" || u.Mountpoint != r.o.Mountpoint+"-away" {
		t.Fatalf("unmount: %+v, %v", u, err)
	}
	r.forks["gone"].end() // umount(8)
	eventually(t, "the branches are unmounted", func() bool {
		return r.branches(t) == "main mounted, away unmounted, gone unmounted, stays mounted"
	})
	for _, b := range []string{"away", "gone"} {
		eventually(t, "the mount point of "+b+" goes", func() bool { // after the branch has
			_, err := os.Lstat(r.o.Mountpoint + "-" + b)
			return errors.Is(err, os.ErrNotExist)
		})
	}
	_, err = r.on("away").Status(t.Context())
	wantCode(t, err, control.CodeUnknownBranch)
	if u, err = r.Unmount(t.Context(), control.UnmountRequest{}); err != nil || !slices.Equal(u.Forks, []string{r.o.Mountpoint + "-stays"}) {
		t.Fatalf("unmount: %+v, %v", u, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(r.o.Mountpoint + "-stays"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the mount point stayed: %v", err)
	}
	r = start(t, o)
	r.wantBranches(t, "main mounted, away unmounted, gone unmounted, stays mounted")
	r.on("stays").want(t, "", "who", "stays")
	r.wantNone(t, "who")
	r.want(t, "in away", "who", "away") // a label of a branch that is not mounted
	if l, err := r.Log(t.Context(), control.LogRequest{All: true}); err != nil || slices.ContainsFunc(l.Checkpoints, func(c control.Checkpoint) bool { return c.Dropped }) {
		t.Errorf("no rollback has dropped anything: %+v, %v", l, err)
	}
	for b, x := range map[string]*rig{"stays": r.on("stays"), "main": r} {
		p, err := x.Policy(t.Context())
		if err != nil || (len(p.NoRollback) == 1) != (b == "stays") {
			t.Errorf("policy of %s: %+v, %v", b, p, err)
		}
	}
	at := filepath.Join(filepath.Dir(o.Base), "else where")
	if b, err := r.MountBranch(t.Context(), control.BranchMountRequest{Branch: "away", Mountpoint: at}); err != nil || b.Mountpoint != at || b.State != "mounted" {
		t.Fatalf("mount of a branch: %+v, %v", b, err)
	}
	if b, err := r.MountBranch(t.Context(), control.BranchMountRequest{Branch: "gone"}); err != nil || b.Mountpoint != r.o.Mountpoint+"-gone" {
		t.Fatalf("mount of a branch: %+v, %v", b, err)
	}
	r.on("away").want(t, "", "who", "away")
	r.on("gone").want(t, "in gone", "who", "gone")
	_, err = r.MountBranch(t.Context(), control.BranchMountRequest{Branch: "gone"})
	wantCode(t, err, control.CodeConflict)
	_, err = r.MountBranch(t.Context(), control.BranchMountRequest{Branch: "nobody"})
	wantCode(t, err, control.CodeUnknownBranch)
}

// A fork that cannot come back keeps nobody else from it, and says why.
func TestForkCannotComeBack(t *testing.T) {
	o := options(t)
	r := start(t, o)
	f := r.fork(t, "base", "try")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(f.Mountpoint, "somebody's"), 0o755); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	all, err := r.Branches(t.Context())
	if err != nil || len(all.Branches) != 2 || all.Branches[1].State != "unmounted" || !strings.Contains(all.Branches[1].Problem, "not empty") {
		t.Fatalf("branches: %+v, %v", all, err)
	}
	if err := os.RemoveAll(f.Mountpoint); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	start(t, o).wantBranches(t, "main mounted, try mounted")
}

func TestUnmountWithForksInUse(t *testing.T) {
	r := start(t, options(t))
	for _, b := range []string{"a", "b", "c"} {
		r.fork(t, "base", b)
	}
	r.forks["b"].setBusy(Process{PID: 1 << 30, Command: "vi", Uses: []string{"open: x"}})
	_, err := r.Unmount(t.Context(), control.UnmountRequest{})
	wantCode(t, err, control.CodeBusy)
	if !strings.Contains(err.Error(), "vi (pid") || !strings.Contains(err.Error(), r.o.Mountpoint+"-b") {
		t.Fatalf("who uses what is not said: %v", err)
	}
	r.wantBranches(t, "main mounted, a mounted, b mounted, c mounted")
	_, err = r.on("b").Unmount(t.Context(), control.UnmountRequest{})
	wantCode(t, err, control.CodeBusy)
	_, err = r.DropBranch(t.Context(), control.BranchDropRequest{Branch: "b"})
	wantCode(t, err, control.CodeBusy)
	r.on("b").write(t, "still", "here")

	// Detached, what is open goes on until it is closed.
	if _, err := r.Unmount(t.Context(), control.UnmountRequest{Lazy: true}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.done:
		t.Fatalf("the daemon ended while a fork was in use: %v", err)
	case <-r.forks["a"].ended:
	}
	r.forks["b"].end()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestForksAreCutOff(t *testing.T) {
	for name, end := range map[string]func(*rig) error{
		"force": func(r *rig) error {
			_, err := r.Unmount(t.Context(), control.UnmountRequest{Force: true})
			return err
		},
		"lazily, then force": func(r *rig) error {
			if _, err := r.Unmount(t.Context(), control.UnmountRequest{Lazy: true}); err != nil {
				return err
			}
			_, err := r.Unmount(t.Context(), control.UnmountRequest{Force: true})
			return err
		},
		"two signals": func(r *rig) error { close(r.force); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, options(t))
			r.fork(t, "base", "try")
			r.forks["try"].setBusy(Process{PID: 1 << 30})
			if err := end(r); err != nil {
				t.Fatal(err)
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			<-r.forks["try"].ended
		})
	}
}

func TestDropBranch(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.checkpoint(t, "c")
	r.fork(t, "c", "try")
	try := r.on("try")
	try.write(t, "who", "try")
	try.checkpoint(t, "in try")
	try.rollback(t, "c")
	try.putTalk(t, `[{"role":"user","content":"hi"}]`)
	try.write(t, "who", "last")
	for _, b := range []string{"", "main"} {
		_, err := r.DropBranch(t.Context(), control.BranchDropRequest{Branch: b})
		wantCode(t, err, control.CodeBadRequest)
	}
	_, err := r.DropBranch(t.Context(), control.BranchDropRequest{Branch: "none"})
	wantCode(t, err, control.CodeUnknownBranch)
	gone, err := r.DropBranch(t.Context(), control.BranchDropRequest{Branch: "try"})
	if err != nil || gone.Checkpoint == nil || gone.Mountpoint != r.o.Mountpoint+"-try" {
		t.Fatalf("delete: %+v, %v", gone, err)
	}
	r.wantBranches(t, "main mounted")
	if _, err := os.Lstat(gone.Mountpoint); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the mount point stayed: %v", err)
	}
	if got := fmt.Sprint(r.labels(t, false)); got != "[c]" {
		t.Fatalf("log of main: %s", got)
	}
	// A branch of the same name begins anew; the last state of the old one can be had by its id.
	r.fork(t, gone.Checkpoint.ID, "try")
	try.want(t, "", "who", "last")
	if m, err := try.GetMemory(t.Context(), "", "", false); err != nil || len(m.Messages) == 0 {
		t.Fatalf("the conversation: %+v, %v", m, err)
	}
	_, err = try.Undo(t.Context(), control.UndoRequest{})
	wantCode(t, err, control.CodeNothing)
	_, err = try.Current(t.Context())
	wantCode(t, err, control.CodeUnknownCheckpoint)
	if _, err = try.Unmount(t.Context(), control.UnmountRequest{}); err != nil {
		t.Fatal(err)
	}
	if gone, err = r.DropBranch(t.Context(), control.BranchDropRequest{Branch: "try"}); err != nil || gone.Mountpoint != "" {
		t.Fatalf("delete of one that is not mounted: %+v, %v", gone, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.wantBranches(t, "main mounted")
	if len(r.forks) != 0 {
		t.Fatalf("mounted again: %v", r.forks)
	}
}

// Collections in one branch keep what another needs.
func TestCollectWithForks(t *testing.T) {
	r := start(t, options(t))
	r.write(t, "f", "1")
	r.checkpoint(t, "one")
	r.fork(t, "one", "try")
	try := r.on("try")
	try.write(t, "f", "try")
	try.checkpoint(t, "mine")
	try.write(t, "f", "try, left")
	try.rollback(t, "mine")
	r.write(t, "f", "2")
	r.checkpoint(t, "two")
	for _, label := range []string{"one", "two"} {
		if _, err := r.Delete(t.Context(), control.CheckpointRef{Ref: label}); err != nil {
			t.Fatal(err)
		}
	}
	try.want(t, "", "f", "try")
	if _, err := try.Undo(t.Context(), control.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	try.want(t, "", "f", "try, left")
	r.want(t, "", "f", "2")
	heads, err := r.s.tree.Heads()
	if err != nil || len(heads) != 2 {
		t.Fatalf("heads: %v, %v", heads, err)
	}
	if l := r.s.tree.Common(heads[0].Layer, heads[1].Layer); l == layers.BaseLayer || !r.s.tree.Has(l) {
		t.Fatalf("where the lines part, layer %d, is gone", l)
	}
}

// An operation that a kill kept from the ledger is added at the next start, also when one of another
// branch that came later was recorded.
func TestLedgerCatchesUpWithBranches(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.checkpoint(t, "c")
	r.fork(t, "c", "try")
	at := r.s.branch.HeadLayer()
	if _, err := r.s.noteOp(journal.Op{Kind: journal.OpUndo, Branch: MainBranch, From: uint64(at), To: uint64(at), Open: uint64(at), Label: "killed"}); err != nil {
		t.Fatal(err)
	}
	r.on("try").checkpoint(t, "later")
	for range 2 {
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, o)
		var found []string
		for _, e := range r.events(t, ledger.KindUndo) {
			found = append(found, fmt.Sprint(e.Label, " ", e.Branch, " ", e.Details["recovered"]))
		}
		if fmt.Sprint(found) != "[killed main true]" {
			t.Fatalf("in the ledger: %q", found)
		}
		if n := len(r.events(t, ledger.KindFork)) + len(r.events(t, ledger.KindCheckpoint)); n != 3 {
			t.Fatalf("%d lines of a fork and two checkpoints", n)
		}
	}
}

// 64 branches, all at work at the same time: each has its own files, history and conversation at the end.
func TestManyBranchesAtOnce(t *testing.T) {
	o := options(t)
	r := start(t, o)
	const many, rounds = 64, 5
	r.write(t, "f", "start")
	r.checkpoint(t, "start")
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	ctx := context.Background()
	for i := range many {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			name := fmt.Sprintf("b%02d", i)
			b := r.on(name)
			defer b.Close()
			check := func(err error) {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			_, err := r.Fork(ctx, control.ForkRequest{Ref: "start", Branch: name})
			check(err)
			for n := range rounds {
				text := fmt.Sprintf("%s %d", name, n)
				_, err := b.WriteFile(ctx, "f", strings.NewReader(text))
				check(err)
				_, err = b.WriteFile(ctx, name, strings.NewReader(text))
				check(err)
				label := fmt.Sprint("round ", n)
				_, err = b.Checkpoint(ctx, control.CheckpointRequest{Label: &label})
				check(err)
				_, err = b.PutMemory(ctx, "", "", false, strings.NewReader(`[{"role":"user","content":"`+text+`"}]`))
				check(err)
				_, err = b.WriteFile(ctx, "f", strings.NewReader("to be left"))
				check(err)
				_, err = b.Rollback(ctx, control.RollbackRequest{Ref: label, FilesOnly: true})
				check(err)
			}
		})
	}
	wg.Wait()
	for range 2 {
		for i := range many {
			name := fmt.Sprintf("b%02d", i)
			b := r.on(name)
			last := fmt.Sprintf("%s %d", name, rounds-1)
			b.want(t, "", "f", last)
			b.want(t, "round 0", name, name+" 0")
			b.wantNone(t, fmt.Sprintf("b%02d", (i+1)%many))
			if m, err := b.GetMemory(ctx, "", "", false); err != nil || len(m.Messages) != 1 || !strings.Contains(string(m.Messages[0]), last) {
				t.Fatalf("%s: %+v, %v", name, m, err)
			}
			if got := len(b.labels(t, false)); got != rounds+1 {
				t.Fatalf("%s has %d checkpoints", name, got)
			}
			b.Close()
		}
		r.want(t, "", "f", "start")
		seen := map[uint64]bool{}
		for _, op := range r.s.journal.Ops(0) {
			if seen[op.N] {
				t.Fatalf("two operations have the number %d", op.N)
			}
			seen[op.N] = true
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, o)
	}
}
