package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// in has a command line be called in dir.
func in(dir string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Dir = dir }
}

// run calls run in dir, without a sandbox.
func (w *world) run(dir string, args ...string) outcome {
	w.t.Helper()
	return w.finish(append([]string{"run", "--sandbox", "none"}, args...), in(dir))
}

// TestRunWithoutMount: one word in front of a command, and it can be taken back.
func TestRunWithoutMount(t *testing.T) {
	for name, cred := range map[string]func(*testing.T) *syscall.Credential{
		"root": func(*testing.T) *syscall.Credential { return nil }, "user": ordinaryUser,
	} {
		for _, kind := range []string{"none", "local", "ns"} {
			t.Run(name+"/"+kind, func(t *testing.T) { testRunWithoutMount(t, newWorldFor(t, cred(t)), kind) })
		}
	}
}

func testRunWithoutMount(t *testing.T, w *world, kind string) {
	run := func(dir string, args ...string) outcome {
		t.Helper()
		return w.finish(append([]string{"run", "--sandbox", kind}, args...), in(dir))
	}
	w.sh("mkdir $B/.git")
	before := w.listing()
	sub := filepath.Join(w.base, "sub")
	run(sub, "--", "sh", "-c", `pwd; echo $PWD; cat b.txt; echo new >new; rm ../a.txt; rm -r deep; echo "$REWINDFS_SESSION" >&2; exit 3`).
		want(t, 3, sub+"\n"+sub+"\nbase b\n", w.base+" has a session now", "proj\n")
	if got := w.listing(); got != before {
		t.Errorf("the base was\n%s\nand is\n%s", before, got)
	}
	w.same("cat $M/sub/new; ls $M", "new\nsub\n")
	w.finish([]string{"diff", "--name-status"}, in(sub)).want(t, 0, "D\ta.txt\n", "A\tsub/new\n", "D\tsub/deep\n")
	w.finish([]string{"undo"}, in(sub)).want(t, 0, "as it was before the command 'sh -c pwd")
	w.same("cat $M/a.txt $M/sub/deep/*; ls $M/sub", "base a\nbase c\nb.txt\ndeep\n")
	w.finish([]string{"redo"}, in(sub)).want(t, 0)
	run(sub, "cat", "new", "-").want(t, 0, "new\n") // no -- needed: flags behind the command are its own
	w.finish([]string{"log"}, in(sub)).want(t, 0, "run: sh -c pwd", "run: cat new -")
	w.finish([]string{"oplog"}, in(sub)).want(t, 0, "run of 'sh -c pwd")
	w.finish([]string{"rollback", "base"}, in(sub)).want(t, 0)
	w.same("cat $M/a.txt", "base a\n")
	w.finish([]string{"undo"}, in(sub)).want(t, 0)
	w.same("ls $M", "sub\n")
	w.finish([]string{"rollback", "base"}, in(sub)).want(t, 0)
	run(w.mp, "--label", "mine", "pwd").want(t, 0, w.mp+"\n") // in the mount, the mount's path is right
	run("/", "-s", w.mp, "pwd").want(t, 0, w.base+"\n")
	w.unmount(w.mp)
	run(w.base, "--", "cat", "a.txt").want(t, 0, "base a\n", "mounted again")
	kill(t, w.pid())
	run(sub, "--", "cat", "../a.txt").want(t, 0, "base a\n", "mounted again")
	run(sub, "--", "sh", "-c", "echo committed >b.txt").want(t, 0)
	w.finish([]string{"commit"}, in(sub)).want(t, 0)
	w.same("cat $B/sub/b.txt", "committed\n")
	w.unmount(w.mp)
	w.finish([]string{"exec", "--sandbox", kind, "--", "true"}, in(sub)).want(t, exitNoSession, "rewindfs mount "+w.base)
}

// ranData is what a command that may have failed has printed as JSON.
func ranData(t *testing.T, o outcome) map[string]any {
	t.Helper()
	var printed struct {
		Success bool
		Data    map[string]any
	}
	if err := json.Unmarshal([]byte(o.out), &printed); err != nil || !printed.Success {
		t.Fatalf("%v: %+v", err, o)
	}
	return printed.Data
}

func TestRunSaysWhatHappened(t *testing.T) {
	w := newWorld(t)
	w.mount()
	exe := func(args ...string) outcome {
		return w.finish(append([]string{"exec", "--sandbox", "none", "--json", "--"}, args...), in(w.mp))
	}
	d := exe("sh", "-c", `cat; printf 'o\377'; echo bad >&2; echo x >new; exit 7`)
	if d.code != 7 {
		t.Fatalf("%+v", d)
	}
	data := ranData(t, d)
	if data["exit_code"] != 7.0 || data["timed_out"] != false || data["stderr"] != "bad\n" || data["changed_paths"] != 1.0 || data["duration_ms"] == nil ||
		data["stdout_b64"] != base64.StdEncoding.EncodeToString([]byte("o\xff")) {
		t.Errorf("%s", d.out)
	}
	if c := data["changes"].([]any); len(c) != 1 || c[0].(map[string]any)["path"] != "new" || c[0].(map[string]any)["status"] != "A" {
		t.Errorf("%v", c)
	}
	id := data["checkpoint"].(map[string]any)["id"].(string)
	if log := w.rewind("log").out; strings.Contains(log, id) {
		t.Errorf("log lists the automatic checkpoint of an exec: %s", log)
	}
	w.rewind("rollback", id).want(t, 0)
	w.same("ls $M", "a.txt\nsub\n")
	data = exe("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo end").data(t)
	if out := data["stdout"].(string); len(out) > 300<<10 || !strings.HasPrefix(out, "xxx") || !strings.HasSuffix(out, "xend\n") || data["stdout_dropped"].(float64) < 2<<20 {
		t.Errorf("%d bytes kept, %v dropped", len(out), data["stdout_dropped"])
	}
	data = ranData(t, exe("sh", "-c", "sleep 1000 & echo $!; kill -9 $$").want(t, 137))
	if data["exit_code"] != 137.0 || data["signal"] != "SIGKILL" || len(data["left"].([]any)) != 1 {
		t.Errorf("%v", data)
	}
	syscall.Kill(int(data["left"].([]any)[0].(float64)), syscall.SIGKILL)
	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{127, "not found", []string{"no-such-command"}},
		{126, "cannot execute", []string{"./a.txt"}},
		{exitUsage, "needs a command", nil},
	} {
		exe(c.args...).want(t, c.code, c.text)
	}
	w.finish([]string{"exec", "--sandbox", "moon", "true"}, in(w.mp)).want(t, exitUsage, "none, local, ns, docker")
	w.finish([]string{"exec", "--limit", "memory=much", "true"}, in(w.mp)).want(t, exitUsage, "memory=much")
	w.unmount()
}

func TestRollbackOnFail(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.run(w.mp, "--rollback-on-fail", "--label", "before", "--", "sh", "-c", "echo x >new; rm a.txt; exit 9").
		want(t, 9, "exit code 9", "taken back (2 paths)", "rewindfs undo")
	w.same("ls $M", "a.txt\nsub\n")
	w.rewind("undo").want(t, 0)
	w.same("ls $M", "new\nsub\n")
	w.rewind("redo").want(t, 0)
	w.run(w.mp, "--rollback-on-fail", "--", "sh", "-c", "echo x >new").want(t, 0)
	w.run(w.mp, "--rollback-on-fail", "--", "false").want(t, 1, "had changed nothing")
	w.same("ls $M", "a.txt\nnew\nsub\n")
	w.run(w.mp, "--label", "before", "--", "touch", "never").want(t, exitCheckpoint, "taken")
	w.run(w.mp, "--rollback-on-fail", "--timeout", "300ms", "--", "sh", "-c", "rm new; trap '' TERM; (setsid sleep 1000 &); sleep 1000; sleep 1000").
		want(t, 124, "time was up", "taken back (1 path)")
	w.same("ls $M", "a.txt\nnew\nsub\n")
	w.rewind("ledger", "--event", "exec").want(t, 0, "exit_code=124", "timed_out=true", "changed_paths=1", `argv=["false"]`)
	w.rewind("ledger", "verify").want(t, 0)
	w.unmount()
}

// When the time is up nothing is left, whatever it has done to get out of sight.
func TestTimeoutInEachKind(t *testing.T) {
	w := newWorld(t)
	w.mount()
	for _, kind := range []string{"none", "local", "ns"} {
		w.finish([]string{"exec", "--sandbox", kind, "--timeout", "3s", "--", "sh", "-c", `trap "" TERM
			env -i setsid sh -c '(setsid sh -c "trap \"\" TERM; while :; do date +%N >late; sleep 0.01; done" &)'; sleep 1000; sleep 1000`}, in(w.mp)).
			want(t, 124, "time was up")
		w.same("test -e $M/late; rm $M/late; sleep 0.1; ls $M", "a.txt\nsub\n")
	}
	w.unmount() // which nobody is in the way of
}

// What is secret in the environment or by its name is in no record of a command.
func TestRunsAreRecordedWithoutSecrets(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.finish([]string{"run", "--sandbox", "none", "--", "sh", "-c", "exit 0", "hunter22-env", "--password=hunter22-option", "https://u:hunter22-url@h/"}, func(c *exec.Cmd) {
		c.Dir, c.Env = w.mp, append(c.Env, "SOME_TOKEN=hunter22-env")
	}).want(t, 0)
	w.rewind("ledger", "--event", "exec").want(t, 0, "[secret]", "--password=")
	w.unmount()
	if found := w.sh("grep -rl hunter22 " + w.store() + " || true"); found != "" {
		t.Errorf("a secret is in %s", found)
	}
}

func TestRunNeedsAProject(t *testing.T) {
	w := newWorld(t)
	other := filepath.Join(w.home, "other")
	w.sh("mkdir -p " + other + "/.git " + other + "/a/b " + w.home + "/plain")
	w.mount()
	w.run(w.home, "true").want(t, exitPath, "not taken for a project")
	w.run("/", "true").want(t, exitPath, "not taken for a project")
	// Another session that runs is no reason to run there.
	w.run(filepath.Join(other, "a", "b"), "sh", "-c", "pwd; touch here").want(t, 0, other+"/a/b\n", other+" has a session now")
	if _, err := os.Lstat(other + ".rewind/a/b/here"); err != nil {
		t.Error(err)
	}
	w.run(filepath.Join(w.home, "plain"), "pwd").want(t, 0, w.home+"/plain has a session now")
	// exec goes to the only one that runs; here are several.
	w.finish([]string{"exec", "--sandbox", "none", "true"}, in("/")).want(t, exitNoSession, "several sessions")
	w.finish([]string{"exec", "--sandbox", "none", "-s", "other", "--", "pwd"}, in("/")).want(t, 0, other+"\n")
	for _, at := range []string{w.mp, other + ".rewind", w.home + "/plain.rewind"} {
		w.unmount(at)
	}
}

func TestRunOnABranch(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("checkpoint", "c").want(t, 0)
	at := w.home + "/fork"
	w.rewind("fork", "c", at, "--branch", "dev").want(t, 0)
	w.run(at, "--", "sh", "-c", "pwd; echo dev >f; echo $REWINDFS_SESSION").want(t, 0, at+"\n"+at+"\n")
	w.run(w.base, "--branch", "dev", "--", "sh", "-c", "pwd; cat f").want(t, 0, w.base+"\ndev\n")
	w.run(w.base, "--", "ls").want(t, 0, "a.txt\nsub\n")
	w.rewind("unmount", at).want(t, 0)
	w.run(w.base, "--branch", "dev", "--", "touch", "outside").want(t, exitNoSession, "branch mount dev")
	w.unmount(w.mp)
	if b, _ := os.ReadDir(at); len(b) > 0 {
		t.Errorf("written to the mount point of a branch that is not mounted: %v", b)
	}
}

// A symlink that leads out of the project is named: what is written through it is in no layer.
func TestLinksThatLeadOut(t *testing.T) {
	w := newWorld(t)
	w.mount()
	out := w.run(w.mp, "--", "sh", "-c", `ln -s /etc/passwd abs; ln -s ../x up; ln -s "$0" base; ln -s sub/../../y over; mkdir d
		ln -s ../a.txt d/ok; ln -s sub/b.txt ok; ln -s "$1/a.txt" mount; ln -s sub/../a.txt fine; rm a.txt`, w.base+"/a.txt", w.mp).want(t, 0,
		"leads out of the project: abs -> /etc/passwd", "up -> ../x", "base -> "+w.base+"/a.txt", "over -> sub/../../y")
	if n := strings.Count(out.err, "leads out"); n != 4 {
		t.Errorf("%d links lead out: %s", n, out.err)
	}
	diff := w.rewind("diff", "base")
	diff.want(t, 0, "abs  (symlink)  -> /etc/passwd  [leads out of the project]")
	if n := strings.Count(diff.out, "leads out"); n != 4 {
		t.Errorf("%s", diff.out)
	}
	w.rewind("checkpoint", "linked").want(t, 0)
	status := w.rewind("status")
	status.want(t, 0, "Symlinks that lead out of the project", "\n  abs -> /etc/passwd\n", "\n  up -> ../x\n")
	if n := strings.Count(status.out, " -> "); n != 4 {
		t.Errorf("%s", status.out)
	}
	w.rewind("rollback", "base").want(t, 0)
	if status := w.rewind("status"); strings.Contains(status.out, "lead out") {
		t.Errorf("%s", status.out)
	}
	w.same("ls -A $M $B", w.base+":\na.txt\nsub\n\n"+w.mp+":\na.txt\nsub\n")
	w.unmount()
}
