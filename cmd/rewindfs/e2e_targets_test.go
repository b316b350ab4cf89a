package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/session"
)

func TestTargetsEndToEnd(t *testing.T) {
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Skip("sqlite3 is not installed")
	}
	w := newWorld(t)
	testTargets(t, w)
}

func TestTargetsEndToEndUnprivileged(t *testing.T) {
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Skip("sqlite3 is not installed")
	}
	testTargets(t, newWorldFor(t, ordinaryUser(t)))
}

func testTargets(t *testing.T, w *world) {
	app, other := filepath.Join(w.home, "app.db"), filepath.Join(w.home, "other.db")
	w.sh("sqlite3 $B/../home/app.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(v); INSERT INTO t VALUES(1)'")
	rows := func(want string) {
		t.Helper()
		w.same("sqlite3 $B/../home/app.db 'SELECT group_concat(v) FROM t' 2>&1", want+"\n")
	}
	// The rules on the host name one, the command another one.
	w.sh(`printf '[[target]]\nsqlite = "~/other.db"\n' >$B/rewindfs.toml`)
	w.mount()
	w.rewind("status").want(t, 0, "Targets", other)
	w.rewind("checkpoint", "start", "--sqlite", app).want(t, 0, "target: "+app+": copied", other+": noted as not there")
	w.sh("echo two >$M/f; sqlite3 $B/../home/app.db 'INSERT INTO t VALUES(2)'; sqlite3 $B/../home/other.db 'CREATE TABLE t(v)'")
	w.rewind("diff").want(t, 0, "f", "M  target: "+app, "A  target: "+other)
	w.rewind("rollback", "start", "--dry-run").want(t, 0, "target: "+app+": would be put back", other+": would be removed")
	rows("1,2")
	w.rewind("rollback", "start").want(t, 0, "target: "+app+": restored", other+": removed")
	rows("1")
	w.same("ls $B/../home/other.db 2>&1 | grep -c 'No such'; ls $M/f 2>&1 | grep -c 'No such'", "1\n1\n")
	w.rewind("undo").want(t, 0, "target: "+app+": restored")
	rows("1,2")
	w.rewind("redo", "--no-targets").want(t, 0)
	rows("1,2")
	res := w.rewind("rollback", "start", "--json").data(t)
	if all := res["targets"].([]any); len(all) != 2 || all[1].(map[string]any)["status"] != "restored" && all[0].(map[string]any)["status"] != "restored" {
		t.Errorf("targets: %v", res["targets"])
	}
	rows("1")

	// One that is locked fails a checkpoint and a rollback, with nothing changed.
	w.sh("sqlite3 $B/../home/app.db 'INSERT INTO t VALUES(3)'")
	bad := w.home + "/text"
	if err := os.WriteFile(bad, []byte(strings.Repeat("text ", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	w.rewind("checkpoint", "no", "--sqlite", bad).want(t, exitFailure, "not a database", "--skip-failed-targets")
	w.rewind("rollback", "no").want(t, exitCheckpoint)
	w.rewind("checkpoint", "yes", "--sqlite", bad, "--skip-failed-targets").want(t, 0, "NOT copied")
	w.rewind("checkpoint", "no", "--sqlite", filepath.Join(w.mp, "x.db")).want(t, exitPath, "in the mount")
	w.unmount()
	w.mount()
	w.rewind("rollback", "start").want(t, 0, "target: "+app+": restored")
	rows("1")
	w.rewind("fsck").want(t, 0)
	w.unmount()
}

// run takes databases along; an agent, on its own socket, may not name any.
func TestRunWithTargets(t *testing.T) {
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Skip("sqlite3 is not installed")
	}
	w := newWorld(t)
	app := filepath.Join(w.home, "app.db")
	w.sh("sqlite3 $B/../home/app.db 'CREATE TABLE t(v); INSERT INTO t VALUES(1)'")
	w.mount()
	w.rewind("-s", w.mp, "run", "--sandbox", "none", "--sqlite", app, "--", "sqlite3", app, "DROP TABLE t").want(t, 0)
	for _, call := range []string{`checkpoint -d '{"sqlite":["L2E="]}'`, `runs -d '{"run":{"argv":["x"],"cwd":{"path":"/"},"sandbox":"none"},"sqlite":["L2E="]}'`} {
		path, rest, _ := strings.Cut(call, " ")
		if got := w.sh("curl -sS --unix-socket " + session.AgentSocket(w.store()) + " http://x/v1/" + path + " " + rest); !strings.Contains(got, "forbidden") {
			t.Errorf("%s by an agent: %s", call, got)
		}
	}
	// To go back is the agent's right, and puts back what its user has named.
	got := w.sh("curl -sS --unix-socket " + session.AgentSocket(w.store()) + ` -d '{"ref":"latest"}' http://x/v1/rollback`)
	if !strings.Contains(got, `"status":"restored"`) {
		t.Errorf("rollback by an agent: %s", got)
	}
	w.same("sqlite3 $B/../home/app.db 'SELECT v FROM t'", "1\n")
	w.rewind("-s", w.mp, "run", "--sandbox", "none", "--sqlite", w.home, "--", "true").want(t, exitPath, "no regular file")
	w.unmount()
}
