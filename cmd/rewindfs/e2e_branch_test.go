package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rewindfs/rewindfs/session"
)

// in runs a command line with its working directory there.
func (w *world) in(dir string, args ...string) outcome {
	w.t.Helper()
	return w.finish(args, func(c *exec.Cmd) { c.Dir = dir })
}

func TestForkMainJob(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo one >$M/a.txt")
	w.rewind("checkpoint", "start").want(t, 0)
	w.sh("echo main >$M/a.txt")
	try := w.mp + "-try"
	w.rewind("fork", "start", "--branch", "try").want(t, 0, "begins at 'start'", try, "branch delete try")
	w.same("cat $M/a.txt $M-try/a.txt $B/a.txt", "main\none\nbase a\n")
	w.sh("echo try >$M-try/a.txt; echo x >$M-try/sub/new; rm -r $M-try/sub/deep")
	w.same("cat $M/a.txt $M-try/a.txt; ls $M/sub", "main\ntry\nb.txt\ndeep\n")

	// A branch is chosen by where one stands, by its mount point, in the environment too, or by name.
	for name, status := range map[string]outcome{
		"stood in": w.in(try+"/sub", "status", "--json"),
		"said":     w.rewind("status", "-s", try, "--json"),
		"below":    w.rewind("status", "-s", try+"/sub", "--json"),
		"named":    w.rewind("status", "-s", "proj", "--branch", "try", "--json"),
		"in the environment": w.finish([]string{"status", "--json"}, func(c *exec.Cmd) {
			c.Env = append(c.Env, "REWINDFS_SESSION="+try)
		}),
	} {
		if d := status.data(t); d["branch"] != "try" || d["mountpoint"] != try || d["changed_paths"].(float64) != 4 {
			t.Errorf("%s: %v", name, d)
		}
	}
	if d := w.in(try, "status", "--branch", "main", "--json").data(t); d["branch"] != "main" || d["mountpoint"] != w.mp {
		t.Errorf("main, from within the fork: %v", d)
	}
	w.rewind("status", "--branch", "none").want(t, exitNoSession, "there is no branch", "main, try")

	w.in(try, "checkpoint", "mine").want(t, 0)
	w.sh("echo lost >$M-try/a.txt")
	w.in(try, "rollback", "mine").want(t, 0)
	w.same("cat $M/a.txt $M-try/a.txt", "main\ntry\n")
	w.rewind("rollback", "mine").want(t, exitCheckpoint)
	w.rewind("undo").want(t, exitFailure, "to undo")
	w.in(try, "undo").want(t, 0)
	w.same("cat $M/a.txt $M-try/a.txt", "main\nlost\n")
	w.in(try, "log").want(t, 0, "mine", "start")
	if out := w.rewind("log").want(t, 0, "start").out; strings.Contains(out, "mine") {
		t.Errorf("the log of main shows what is not its own:\n%s", out)
	}
	w.rewind("log", "--all").want(t, 0, "mine")
	if out := w.rewind("log", "--all").out; strings.Contains(out, "dropped") {
		t.Errorf("what another branch has is no dropped checkpoint:\n%s", out)
	}
	w.in(try, "cat", "mine:a.txt").want(t, 0, "try")
	w.rewind("read", "--branch", "try", "a.txt").want(t, 0, "lost")
	w.finish([]string{"write", "a.txt", "-s", try}, stdin("by name\n")).want(t, 0)
	w.same("cat $M/a.txt $M-try/a.txt", "main\nby name\n")
	w.same("cat $M/.rewind/checkpoints/start/a.txt $M-try/.rewind/checkpoints/mine/a.txt", "one\ntry\n")

	w.rewind("branch", "list").want(t, 0, "main", "try", "mounted", "start", try)
	w.rewind("list").want(t, 0, "branch try", try)
	w.rewind("doctor").want(t, 0, "mounts")
	w.rewind("ledger", "--event", "fork").want(t, 0, "try")
	w.in(try, "destroy", "--yes").want(t, exitUsage, "all its branches", "branch delete try")
	w.unmount()
	w.sh("test ! -e $M; test ! -e $M-try")
	w.mount().want(t, 0, "Branch try is at "+try)
	w.same("cat $M/a.txt $M-try/a.txt", "main\nby name\n")

	// One branch alone comes and goes.
	w.rewind("unmount", try).want(t, 0, "Unmounted branch try", "branch mount try")
	w.same("cat $M/a.txt", "main\n")
	w.rewind("status", "--branch", "try").want(t, exitNoSession, "branch mount try")
	other := filepath.Join(filepath.Dir(w.base), "other place")
	w.in(filepath.Dir(other), "branch", "mount", "try", "other place").want(t, 0, other)
	w.same("cat '"+other+"/a.txt'", "by name\n")
	w.rewind("branch", "delete", "main").want(t, exitUsage)
	id := w.rewind("branch", "delete", "try", "--json").data(t)["checkpoint"].(map[string]any)["id"].(string)
	w.sh("test ! -e '" + other + "'")
	w.rewind("branch", "list").want(t, 0, "main")
	w.rewind("fork", id, "-b", "again").want(t, 0)
	w.same("cat $M-again/a.txt", "by name\n")
	w.unmount()
}

// What a killed daemon leaves of forks is cleared away, and comes back.
func TestForksOfADeadDaemon(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("checkpoint", "c").want(t, 0)
	for _, b := range []string{"x", "y"} {
		w.rewind("fork", "c", "--branch", b).want(t, 0)
		w.sh("echo " + b + " >$M-" + b + "/a.txt")
	}
	kill := func() {
		t.Helper()
		pid := w.pid()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := session.WaitExit(pid, limit); err != nil {
			t.Fatal(err)
		}
	}
	kill()
	w.rewind("doctor").want(t, 0, "the daemon of proj")
	w.in("/", "status", "-s", w.mp+"-x").want(t, exitNoSession, "rewindfs mount "+w.base)
	w.mount().want(t, 0, "Branch x is at", "Branch y is at")
	w.same("cat $M/a.txt $M-x/a.txt $M-y/a.txt", "base a\nx\ny\n")
	kill()
	w.rewind("list", "--prune").want(t, 0)
	w.sh("test ! -e $M; test ! -e $M-x; test ! -e $M-y")
	w.mount()
	w.same("cat $M/a.txt $M-x/a.txt $M-y/a.txt", "base a\nx\ny\n")
	kill()
	w.rewind("unmount", w.mp+"-x").want(t, 0, "cleared away")
	w.mount()
	w.unmount()
}

func TestForkInUse(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("fork", "base", "--branch", "x").want(t, 0)
	main := w.mp
	w.mp += "-x"
	cmd := w.inside()
	w.mp = main
	pid := fmt.Sprintf("pid %d", cmd.Process.Pid)
	w.rewind("unmount").want(t, exitConflict, main+"-x is in use by", pid)
	w.rewind("unmount", main+"-x").want(t, exitConflict, pid)
	w.rewind("branch", "delete", "x").want(t, exitConflict, pid)
	w.same("cat $M/a.txt $M-x/a.txt", "base a\nbase a\n")
	w.rewind("unmount", "--lazy").want(t, 0, "Detached")
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/b.txt", cmd.Process.Pid)); err != nil || string(b) != "base b\n" {
		t.Errorf("what is open ended: %q, %v", b, err)
	}
	w.rewind("unmount", "--force", "-s", "proj").want(t, 0)
	w.mount()
	w.same("cat $M/a.txt $M-x/a.txt", "base a\nbase a\n")
	w.unmount()
}

func TestForkIsRefused(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("fork", "base").want(t, exitUsage, "--branch NAME")
	w.rewind("fork", "none", "--branch", "x").want(t, exitCheckpoint)
	w.rewind("fork", "base", w.base+"/sub", "--branch", "x").want(t, exitPath, "inside the base")
	w.rewind("fork", "base", w.mp+"/sub", "--branch", "x").want(t, exitPath, "lie in each other")
	w.rewind("fork", "base", "", "--branch", "x").want(t, exitPath)
	w.rewind("fork", "base", "--branch", "a/b").want(t, exitUsage)
	w.rewind("fork", "base", "--branch", "x").want(t, 0)
	w.rewind("fork", "base", "--branch", "x").want(t, exitConflict, "branch mount x")
	w.rewind("mount", w.base, "--branch", "x").want(t, exitFailure, "branch mount x")
	// Over the base, forks lie beside it.
	w.unmount()
	w.rewind("mount", "--over", w.base).want(t, 0)
	w.rewind("fork", "base", "--branch", "y").want(t, 0, w.base+".rewind-y")
	w.sh("echo y >$M-y/a.txt")
	w.same("cat $B/a.txt $M-y/a.txt", "base a\ny\n")
	w.unmount("proj")
}
