package session

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/targets"
)

// app is a program with a database outside of the mount.
type app struct {
	path string
	*sql.DB
}

func newApp(t *testing.T, path string) *app {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	return &app{path, db}
}

func (a *app) do(t *testing.T, text string, args ...any) {
	t.Helper()
	if _, err := a.Exec(text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// has wants the row that set wrote, or no table.
func (a *app) has(t *testing.T, want string) {
	t.Helper()
	var got string
	if err := a.QueryRow("SELECT v FROM t").Scan(&got); err != nil {
		got = "no table"
	}
	if got != want {
		t.Errorf("%s holds %q, want %q", filepath.Base(a.path), got, want)
	}
}

func (a *app) set(t *testing.T, v string) {
	t.Helper()
	a.do(t, "CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)")
	a.do(t, "INSERT OR REPLACE INTO t VALUES(1, ?)", v)
}

// keep makes a checkpoint with databases.
func (r *rig) keep(t *testing.T, label string, apps ...*app) *control.Checkpoint {
	t.Helper()
	req := control.CheckpointRequest{Label: &label}
	for _, a := range apps {
		req.SQLite = append(req.SQLite, []byte(a.path))
	}
	c, err := r.Checkpoint(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (r *rig) undo(t *testing.T, n int) *control.Rollback {
	t.Helper()
	res, err := r.Undo(t.Context(), control.UndoRequest{N: n})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (r *rig) redo(t *testing.T, n int) *control.Rollback {
	t.Helper()
	res, err := r.Redo(t.Context(), control.UndoRequest{N: n})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func statuses(all []control.Target) (out string) {
	for _, t := range all {
		out += fmt.Sprintf("%s %s;", filepath.Base(t.Path), t.Status)
	}
	return out
}

func TestTargetsGoWithTheFiles(t *testing.T) {
	o := options(t)
	r := start(t, o)
	dir := t.TempDir()
	a, b := newApp(t, filepath.Join(dir, "a.db")), newApp(t, filepath.Join(dir, "b.db"))
	a.set(t, "1")
	r.write(t, "f", "1")
	c := r.keep(t, "one", a, b) // b is not there yet
	if got := statuses(c.Targets); got != "a.db copied;b.db copied;" || !c.Targets[1].Absent {
		t.Errorf("copied: %s %+v", got, c.Targets)
	}
	r.write(t, "f", "2")
	a.set(t, "2")
	b.set(t, "2")
	d, err := r.Diff(t.Context(), control.DiffRequest{From: "one"}, func(control.Change) error { return nil })
	if err != nil || statuses(d.Targets) != "a.db M;b.db A;" {
		t.Errorf("diff: %+v, %v", d, err)
	}
	dry, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "one", DryRun: true})
	if err != nil || statuses(dry.Targets) != "a.db would_restore;b.db would_restore;" {
		t.Errorf("dry run: %+v, %v", dry, err)
	}
	a.has(t, "2")
	res := r.rollback(t, "one")
	if got := statuses(res.Targets); got != "a.db restored;b.db removed;" {
		t.Errorf("rollback: %s", got)
	}
	a.has(t, "1")
	if _, err := os.Lstat(b.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("b.db: %v", err)
	}
	r.want(t, "", "f", "1")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	r.undo(t, 1)
	b = newApp(t, b.path)
	a.has(t, "2")
	b.has(t, "2")
	r.want(t, "", "f", "2")
	r.redo(t, 1)
	a.has(t, "1")
	r.undo(t, 1)
	a.has(t, "2")

	// Only a database changed: that is a movement, too, and a step of undo.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	r.rollback(t, "one")
	if again := r.rollback(t, "one"); !again.Noop || statuses(again.Targets) != "a.db unchanged;b.db unchanged;" {
		t.Errorf("again: %+v", again)
	}
	a.set(t, "3")
	if res = r.rollback(t, "one"); res.Noop || statuses(res.Targets) != "b.db unchanged;a.db restored;" {
		t.Errorf("of a database alone: %+v", res)
	}
	a.has(t, "1")
	r.undo(t, 1)
	a.has(t, "3")
	a.set(t, "4") // goes on, and back to both states all the same
	r.undo(t, 1)
	a.has(t, "2")
	r.redo(t, 1)
	a.has(t, "4")

	// Left alone when told so.
	if res, err := r.Rollback(t.Context(), control.RollbackRequest{Ref: "one", NoTargets: true}); err != nil || len(res.Targets) != 0 {
		t.Errorf("without targets: %+v, %v", res, err)
	}
	a.has(t, "4")
	if e := r.events(t, ledger.KindCheckpoint); !strings.Contains(fmt.Sprint(e[0].Details["targets"]), "a.db") {
		t.Errorf("ledger: %+v", e)
	}
	st, err := r.Status(t.Context())
	if err != nil || len(st.TargetsOwed) != 0 {
		t.Errorf("status: %+v, %v", st.TargetsOwed, err)
	}
	if left, err := os.ReadDir(filepath.Join(r.s.o.Store, targetsDir)); err != nil || len(left) != 0 {
		t.Errorf("left in the store: %v, %v", left, err)
	}
}

// The targets of rewindfs.toml are copied with every checkpoint, also those in front of tool calls.
func TestTargetsOfTheRules(t *testing.T) {
	o := options(t)
	a := newApp(t, filepath.Join(t.TempDir(), "a.db"))
	a.set(t, "1")
	rules := fmt.Sprintf("[[target]]\nsqlite = %q\n", a.path)
	if err := os.WriteFile(filepath.Join(o.Base, "rewindfs.toml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, o)
	if st, err := r.Status(t.Context()); err != nil || statuses(st.Targets) != "a.db ;" {
		t.Errorf("status: %+v, %v", st.Targets, err)
	}
	// What a program writes in the mount is no rule.
	r.write(t, "rewindfs.toml", "[[target]]\nsqlite = \"/etc/passwd\"\n")
	r.checkpoint(t, "one")
	a.set(t, "2")
	r.begin(t, control.ToolBegin{Name: "sh", Call: "c1"})
	a.do(t, "DROP TABLE t")
	r.rollback(t, refCall)
	a.has(t, "2")
	r.rollback(t, "one")
	a.has(t, "1")

	// Locked: a checkpoint that was asked for fails, or does without it; one in front of a call goes without.
	a.do(t, "BEGIN EXCLUSIVE")
	_, err := r.Checkpoint(t.Context(), control.CheckpointRequest{})
	wantCode(t, err, control.CodeBusy)
	c, err := r.Checkpoint(t.Context(), control.CheckpointRequest{SkipFailedTargets: true})
	if err != nil || statuses(c.Targets) != "a.db skipped;" {
		t.Errorf("%+v, %v", c, err)
	}
	if b := r.begin(t, control.ToolBegin{Name: "sh", Call: "c2"}); b.Checkpoint == nil || len(b.Checkpoint.Targets) != 0 {
		t.Errorf("begun: %+v", b)
	}
	_, err = r.Rollback(t.Context(), control.RollbackRequest{Ref: "one"})
	wantCode(t, err, control.CodeBusy)
	a.do(t, "COMMIT")
}

func TestTargetsThatAreNone(t *testing.T) {
	r := start(t, options(t))
	for _, bad := range []string{"", "relative.db", filepath.Join(r.s.o.Base, "x.db"), filepath.Join(r.s.o.Store, "x.db"), filepath.Join(r.s.o.Mountpoint, "x.db"), r.s.o.Store, "/no/such/dir/x.db", "a\x00b"} {
		_, err := r.Checkpoint(t.Context(), control.CheckpointRequest{SQLite: [][]byte{[]byte(bad)}})
		wantCode(t, err, control.CodeBadPath)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Checkpoint(t.Context(), control.CheckpointRequest{SQLite: [][]byte{[]byte(text)}}); err == nil || !strings.Contains(err.Error(), "not a database") {
		t.Errorf("a text: %v", err)
	}
	if n := len(r.labels(t, true)); n != 0 {
		t.Errorf("%d checkpoints were made", n)
	}
}

// Copies live as long as a checkpoint, or undo, needs them; fsck reads them; a sweep frees them.
func TestTargetsAndTheStore(t *testing.T) {
	o := options(t)
	r := start(t, o)
	a := newApp(t, filepath.Join(t.TempDir(), "a.db"))
	a.set(t, "1")
	a.do(t, "CREATE TABLE big AS WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i < 2000) SELECT i, randomblob(1000) FROM c")
	r.keep(t, "one", a)
	a.do(t, "DELETE FROM big")
	a.do(t, "VACUUM")
	a.set(t, "2")
	r.rollback(t, "one")
	a.do(t, "UPDATE big SET i = 0")
	collect := func(g control.GCRequest) {
		t.Helper()
		if _, err := r.GC(t.Context(), g, nil); err != nil {
			t.Fatal(err)
		}
	}
	clean := func() {
		t.Helper()
		res, err := r.Fsck(t.Context(), control.FsckRequest{}, func(f control.Finding) error { t.Errorf("found: %+v", f); return nil }, nil)
		if err != nil || !res.Clean {
			t.Errorf("fsck: %+v, %v", res, err)
		}
	}
	collect(control.GCRequest{})
	clean()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o) // the format was raised: it opens
	r.rollback(t, "one")
	a.has(t, "1")
	r.undo(t, 2)
	a.has(t, "2")
	r.redo(t, 2)
	nodes := func() (n int) {
		t.Helper()
		if err := r.s.db.Scan(kv.TargetNodePrefix(), nil, func(_, _ []byte) bool { n++; return true }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := nodes()
	collect(control.GCRequest{GCRules: control.GCRules{ForgetUndo: true}})
	if n := nodes(); n == 0 || n >= before {
		t.Errorf("%d nodes when undo is forgotten, %d before", n, before)
	}
	clean()
	r.rollback(t, "one")
	a.has(t, "1")

	// One node goes: fsck says what is lost, and nothing is put back from what is left.
	e, _ := r.s.journal.Resolve("one", r.s.line)
	var b kv.Batch
	if err := r.s.db.Scan(kv.TargetNodePrefix(), nil, func(k, _ []byte) bool { b.Delete(append([]byte(nil), k...)); return true }); err != nil {
		t.Fatal(err)
	}
	if err := r.s.db.Apply(&b); err != nil {
		t.Fatal(err)
	}
	found := 0
	res, err := r.Fsck(t.Context(), control.FsckRequest{}, func(f control.Finding) error { found++; return nil }, nil)
	if err != nil || res.Clean || found == 0 {
		t.Errorf("fsck: %+v, %v", res, err)
	}
	if err := r.s.targets.Check(targets.Content{Size: e.Entry.Targets[0].Size, Digest: e.Entry.Targets[0].Digest}); !errors.Is(err, targets.ErrCorrupt) {
		t.Errorf("a content without nodes: %v", err)
	}
	a.set(t, "5")
	r.write(t, "f", "5")
	_, err = r.Rollback(t.Context(), control.RollbackRequest{Ref: "one"})
	wantCode(t, err, control.CodeDamaged)
	a.has(t, "5")
	r.want(t, "", "f", "5")
}

// The head has moved, and a target cannot be put back: that is said, and to move again does it.
func TestTargetThatStaysBehind(t *testing.T) {
	r := start(t, options(t))
	dir := t.TempDir()
	a := newApp(t, filepath.Join(dir, "sub", "a.db"))
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.set(t, "1")
	r.write(t, "f", "1")
	r.keep(t, "one", a)
	a.set(t, "2")
	r.write(t, "f", "2")
	// Readers keep it from being written to, not from being read: it shows only when it is put back.
	a.do(t, "BEGIN")
	a.has(t, "2")
	res := r.rollback(t, "one")
	if got := statuses(res.Targets); got != "a.db failed;" || res.Targets[0].Error == "" {
		t.Fatalf("with a reader: %s", got)
	}
	r.want(t, "", "f", "1")
	a.has(t, "2")
	a.do(t, "COMMIT")
	if st, err := r.Status(t.Context()); err != nil || statuses(st.TargetsOwed) != "a.db ;" {
		t.Errorf("owed: %+v, %v", st.TargetsOwed, err)
	}
	r.rollback(t, "one")
	a.has(t, "1")
	if st, err := r.Status(t.Context()); err != nil || len(st.TargetsOwed) != 0 {
		t.Errorf("owed: %+v, %v", st.TargetsOwed, err)
	}
	r.undo(t, 1) // to put back what was owed was no step of its own
	a.has(t, "2")
	r.want(t, "", "f", "2")
}

// A daemon that was killed between the last target and the note that all are back owes nothing that is left to do.
func TestTargetsOwedThatAreBack(t *testing.T) {
	o := options(t)
	r := start(t, o)
	a := newApp(t, filepath.Join(t.TempDir(), "a.db"))
	a.set(t, "1")
	r.write(t, "f", "1")
	r.keep(t, "one", a)
	a.set(t, "2")
	r.write(t, "f", "2")
	owes := func() *control.Status {
		t.Helper()
		st, err := r.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	for _, again := range []func(){
		func() { r.rollback(t, "one") },
		func() { r.undo(t, 1); r.redo(t, 1) },
		func() { r.rollback(t, "base"); r.undo(t, 1) }, // to where there are none
	} {
		r.rollback(t, "one")
		e, _ := r.s.journal.Resolve("one", r.s.line)
		b := kv.Batch{}
		if err := r.s.stageOwed(&b, &putting{staged: []*targets.Staged{{Copy: e.Entry.Targets[0]}}}); err != nil {
			t.Fatal(err)
		}
		if err := r.s.db.Apply(&b); err != nil {
			t.Fatal(err)
		}
		if st := owes(); statuses(st.TargetsOwed) != "a.db ;" || st.TargetsOwedBy == nil {
			t.Errorf("owed: %+v by %+v", st.TargetsOwed, st.TargetsOwedBy)
		}
		again()
		if st := owes(); len(st.TargetsOwed) > 0 || st.TargetsOwedBy != nil {
			t.Errorf("still owed: %+v by %+v", st.TargetsOwed, st.TargetsOwedBy)
		}
		a.has(t, "1")
		r.want(t, "", "f", "1")
	}
}
