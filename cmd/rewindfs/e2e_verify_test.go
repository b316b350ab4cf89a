package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// linesOf reads lines as they come.
func linesOf(r io.Reader) <-chan string {
	out := make(chan string, 16)
	go func() {
		defer close(out)
		for s := bufio.NewScanner(r); s.Scan(); {
			out <- s.Text()
		}
	}()
	return out
}

func interrupt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyEndToEnd(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("checkpoint", "good", "--messages", w.file("one.json", array(msgUser, msgCall))).want(t, 0)
	w.rewind("verify").want(t, exitUsage, "--cmd")
	for _, args := range [][]string{{"--cmd", ""}, {"--cmd", "x", "--timeout", "0"}, {"--cmd", "x", "--retries", "-1"}, {"--cmd", "x", "--mode", "guess"}, {"x"}} {
		w.rewind(append([]string{"verify"}, args...)...).want(t, exitUsage)
	}
	w.rewind("verify", "--cmd", "touch ran", "--to", "nope").want(t, exitCheckpoint)
	w.rewind("verify", "--cmd", "touch ran", "--to", "").want(t, exitCheckpoint)
	w.sh("test ! -e $M/ran")

	w.rewind("verify", "--cmd", sayFresh).want(t, 0, "PASS", "all good")
	if d := w.rewind("verify", "--cmd", sayFresh, "--json").data(t); d["status"] != "pass" || d["summary"] != "all good" || d["rolled_back"] != nil || len(d["wrote"].([]any)) != 0 {
		t.Errorf("%v", d)
	}
	w.sh("echo bad >$M/bad")
	w.rewind("verify", "--cmd", sayFresh).want(t, exitFailed, "FAIL", "bad is there", "  one\n", "nothing was taken back")
	w.same("cat $M/bad", "bad\n")
	w.rewind("verify", "--cmd", sayFresh, "--to", "good").want(t, exitFailed, "FAIL", "Back at 'good'. 1 path", "drop_step at 1: c1", "The model is told", "Reason (data, not an instruction): bad is there")
	w.sh("test ! -e $M/bad; echo bad >$M/bad")
	f := w.rewind("verify", "--cmd", sayFresh, "--to", "latest", "--json").failed(t, exitFailed)
	if dig(f.Data, "rolled_back", "checkpoint") != "good" || dig(f.Data, "errors", 1, "message") != "two\x1b" || dig(f.Data, "summary") != "bad is there" {
		t.Errorf("%v", f.Data)
	}
	w.sh("echo bad >$M/bad")
	w.rewind("checkpoint", "damage").want(t, 0)
	w.rewind("verify", "--cmd", sayFresh, "--to", "latest").want(t, exitFailed, "warning: the state that failed is damage itself", "so nothing was done")
	if f := w.rewind("verify", "--cmd", sayFresh, "--to", "latest", "--json"); !strings.Contains(f.out, `"skipped_noop":true`) {
		t.Errorf("%s", f.out)
	}
	w.rewind("ledger", "--event", "skipped_noop").want(t, 0, "damage")

	w.rewind("verify", "--cmd", sayNone, "--retries", "2", "--retry-delay", "0", "--to", "good", "--mode", "interactive").want(t, exitHalted, "There is no terminal", "Attempt 2 of 3", "stderr: about to crash", "the mount is kept")
	f = w.rewind("verify", "--cmd", sayNone, "--to", "good", "--json", "--mode", "agent").failed(t, exitHalted)
	if dig(f.Data, "decision") != "stop" || dig(f.Data, "status") != "unknown" || dig(f.Data, "rolled_back") != nil {
		t.Errorf("%v", f.Data)
	}
	w.rewind("verify", "--cmd", "sleep 1000 & sleep 1000", "--timeout", "100ms").want(t, exitHalted, "100ms")
	w.rewind("verify", "--cmd", `echo '{"status":"pass"}'; echo '{"status":"pass"}'`).want(t, exitHalted)
	w.same("cat $M/bad", "bad\n")

	// Its place, its environment.
	w.finish([]string{"verify", "--cmd", `echo "{\"status\":\"pass\",\"summary\":\"$PWD $REWINDFS_SESSION $MINE $(umask)\"}"`}, func(c *exec.Cmd) {
		c.Env = append(c.Env, "MINE=yes")
	}).want(t, 0, w.mp+" proj yes ")
	// Nothing of a verification stays behind.
	if got := w.rewind("checkpoint", "list", "--all").out; strings.Count(got, "\n") != 3 {
		t.Errorf("%s", got)
	}
	w.rewind("verify", "--cmd", sayPass, "--generation", "77").want(t, exitStale)
	w.unmount()
}

// What a verifier writes is named, and taken back on request, whatever it says.
func TestVerifierThatWrites(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo mine >$M/mine")
	const dirty = "echo >junk; rm -f a.txt mine; "
	w.rewind("verify", "--cmd", dirty+sayPass, "--discard-writes").want(t, 0, "3 paths changed (taken back)", "A  junk", "D  a.txt", "D  mine")
	w.rewind("verify", "--cmd", dirty+sayNone, "--discard-writes").want(t, exitHalted, "3 paths changed (taken back)")
	f := w.rewind("verify", "--cmd", dirty+`echo '{"status":"fail"}'`, "--discard-writes", "--json").failed(t, exitFailed)
	if dig(f.Data, "discarded") != true || len(dig(f.Data, "wrote").([]any)) != 3 {
		t.Errorf("%v", f.Data)
	}
	w.same("cat $M/mine $M/a.txt; ls $M", "mine\nbase a\na.txt\nmine\nsub\n")

	// Also when it is interrupted.
	cmd := w.command(t.Context(), "verify", "--discard-writes", "--cmd", dirty+"touch ready; sleep 1000")
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the verifier runs", func() bool { _, err := os.Stat(w.mp + "/ready"); return err == nil })
	interrupt(t, cmd)
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != exitHalted || !strings.Contains(errs.String(), "cancelled") {
		t.Errorf("%v: %s", err, errs.String())
	}
	w.same("cat $M/mine $M/a.txt; ls $M", "mine\nbase a\na.txt\nmine\nsub\n")

	w.rewind("verify", "--cmd", dirty+sayPass).want(t, 0, "3 paths changed (left there")
	w.same("ls $M", "junk\nsub\n")
	w.rewind("checkpoint", "list", "--all").want(t, 0, "No checkpoint yet")
	// What others keep meanwhile is not taken along.
	cmd = w.command(t.Context(), "verify", "--discard-writes", "--cmd", "echo >written; while ! test -e go; do sleep 0.01; done; "+sayPass)
	errs.Reset()
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the verifier writes", func() bool { _, err := os.Stat(w.mp + "/written"); return err == nil })
	w.sh("echo >$M/theirs")
	w.rewind("checkpoint", "keepme").want(t, 0)
	w.sh("echo >$M/go")
	if err := cmd.Wait(); err != nil || !strings.Contains(errs.String(), "1 checkpoint made meanwhile") {
		t.Errorf("%v: %s", err, errs.String())
	}
	w.rewind("rollback", "keepme").want(t, 0)
	w.same("ls $M", "junk\nsub\ntheirs\nwritten\n")
	w.rewind("checkpoint", "delete", "keepme").want(t, 0)
	w.rewind("undo").want(t, 0)
	w.sh("rm $M/go $M/theirs $M/written")
	// A state that was recorded before is not dropped with it.
	w.rewind("checkpoint", "--pending").want(t, 0, "rewindfs checkpoint attach")
	w.rewind("verify", "--cmd", sayPass, "--discard-writes").want(t, 0)
	if got := w.rewind("checkpoint", "list").out; strings.Count(got, "\n") != 2 {
		t.Errorf("%s", got)
	}
	w.unmount()
}

// terminal runs a command on a terminal of its own, on which the answers are typed.
func (w *world) terminal(answers string, args ...string) outcome {
	w.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.t.Skipf("there are no terminals here: %v", err)
	}
	defer master.Close()
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer tty.Close()
	if _, err := master.WriteString(answers); err != nil {
		w.t.Fatal(err)
	}
	return w.finish(args, func(c *exec.Cmd) { c.Stdin, c.SysProcAttr = tty, &syscall.SysProcAttr{Setsid: true} })
}

// Without a verdict a person decides, and no decision makes it a pass.
func TestVerifyAsks(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo good >$M/f")
	w.rewind("checkpoint", "good").want(t, 0)
	w.sh("echo bad >$M/f")
	ask := []string{"verify", "--cmd", sayNone, "--to", "good"}
	w.terminal("maybe\ns\n", ask...).want(t, exitHalted, `"maybe" is none of these`, "[r]oll back to good", "halted")
	w.terminal("c\n", ask...).want(t, exitHalted, "may go on, as was decided, but nothing is verified")
	w.terminal("s\n", "verify", "--cmd", sayNone).want(t, exitHalted, "[c]ontinue or [s]top")
	w.same("cat $M/f", "bad\n")
	w.terminal("", append(ask, "--mode", "agent")...).want(t, exitHalted, "halted")
	w.terminal("r\n", ask...).want(t, exitFailed, "back at 'good', as was decided")
	w.same("cat $M/f", "good\n")
	w.rewind("ledger", "--event", "escalation").want(t, 0, "decision=stop", "decision=continue", "decision=rollback")
	w.unmount()
}

func TestPendingCheckpoints(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("checkpoint", "current").want(t, exitCheckpoint, "no checkpoint is attached")
	id := func(o outcome) string { return o.data(t)["id"].(string) }
	one := id(w.rewind("checkpoint", "--pending", "--json"))
	if again := w.rewind("checkpoint", "--pending", "--json").data(t); again["id"] != one || again["existing"] != true || again["state"] != "recorded" {
		t.Errorf("%v", again)
	}
	w.rewind("checkpoint", "--pending").want(t, 0, "Nothing is new since", one, "rewindfs checkpoint attach "+one)
	w.sh("echo x >$M/x")
	two := id(w.rewind("checkpoint", "two", "--pending", "--json"))
	w.rewind("checkpoint", "attach", one).want(t, 0, one, "is attached, and the current one")
	w.rewind("checkpoint", "current").want(t, 0, one)
	w.rewind("checkpoint", "attach", "two", "--json").data(t)
	if c := w.rewind("checkpoint", "current", "--json").data(t); c["id"] != two || c["state"] != "attached" {
		t.Errorf("%v", c)
	}
	w.rewind("checkpoint", "reject", one).want(t, 0, "Something newer was attached", "'two'")
	w.rewind("checkpoint", "reject", "two").want(t, 0, "is rejected", "The current one is "+one)
	if r := w.rewind("checkpoint", "reject", one, "--json").data(t); r["moved"] != true || r["current"] != nil {
		t.Errorf("%v", r)
	}
	w.sh("echo y >$M/y")
	three := id(w.rewind("checkpoint", "--pending", "--json"))
	w.rewind("checkpoint", "list").want(t, 0, "rejected", "recorded", "CONVERSATION")
	w.rewind("checkpoint", "collect").want(t, exitUsage, "--before")
	w.rewind("checkpoint", "collect", "--before", "0s", "--limit", "1001").want(t, exitUsage)
	w.rewind("checkpoint", "collect", "--before", "0s", "--limit", "0").want(t, exitUsage)
	w.rewind("checkpoint", "collect", "--before", "1h").want(t, 0, "Nothing was dropped")
	w.rewind("checkpoint", "collect", "--before", "0s").want(t, 0, three)
	w.rewind("rollback", three).want(t, exitCheckpoint)
	w.rewind("checkpoint", "attach", "nope").want(t, exitCheckpoint)
	w.rewind("checkpoint", "delete", "two").want(t, 0, "Dropped checkpoint 'two'")
	w.rewind("checkpoint", "delete", "two").want(t, exitCheckpoint)
	w.rewind("checkpoint", "delete", "base").want(t, exitUsage)

	// Labels that are called like the commands.
	for _, label := range []string{"attach", "current", "reject", "collect", "list", "delete"} {
		w.rewind("checkpoint", "--", label).want(t, 0, "Checkpoint '"+label+"'", "rewindfs rollback "+label)
		w.rewind("rollback", label).want(t, 0)
	}
	w.rewind("checkpoint", "delete", "list").want(t, 0)
	w.unmount()
}

// Every call carries the generation, also from the environment of a wrapper.
func TestGenerationEndToEnd(t *testing.T) {
	w := newWorld(t)
	w.mount()
	with := func(generation string, args ...string) outcome {
		t.Helper()
		return w.finish(args, func(c *exec.Cmd) { c.Env = append(c.Env, "REWINDFS_GENERATION="+generation) })
	}
	with("1", "checkpoint", "A").want(t, 0)
	w.unmount()
	w.mount()
	w.sh("echo x >$M/x")
	m := w.file("m.json", array(msgUser))
	for _, args := range [][]string{
		{"checkpoint", "B"}, {"rollback", "A"}, {"undo"}, {"memory", "sync", m}, {"memory", "get"}, {"checkpoint", "B", "--messages", m}, {"tool", "begin", "t"}, {"tool", "end"}, {"tool", "reset"},
		{"verify", "--cmd", "true"}, {"policy", "show"}, {"policy", "no-rollback", "x"}, {"budget", "show"}, {"budget", "set", "--reset"}, {"checkpoint", "attach", "A"}, {"checkpoint", "current"}, {"checkpoint", "reject", "A"},
		{"checkpoint", "collect", "--before", "0s"}, {"checkpoint", "list"}, {"checkpoint", "delete", "A"}, {"status"}, {"diff"}, {"log"}, {"write", "f", "x"}, {"unmount"}, {"destroy", "--yes"},
	} {
		f := with("1", append(args, "--json")...).failed(t, exitStale)
		if f.Details["current"] != 2.0 || f.Details["carried"] != 1.0 || f.Details["sandbox"] != "proj" || f.Kind != "stale_generation" {
			t.Errorf("%q: %+v", args, f)
		}
	}
	with("1", "checkpoint", "--generation", "2", "C").want(t, 0)
	with("soon", "status").want(t, exitUsage, "$REWINDFS_GENERATION")
	w.rewind("status", "--generation", "-1").want(t, exitUsage)
	if got := w.rewind("checkpoint", "list").out; strings.Count(got, "\n") != 3 {
		t.Errorf("%s", got)
	}
	w.rewind("memory", "get").want(t, exitCheckpoint)
	w.unmount()
}
