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

// holder is a process that holds a file of the mount open.
func (w *world) holder(deaf bool) *exec.Cmd {
	w.t.Helper()
	script := "exec 5<a.txt; echo holds; read never"
	if deaf {
		script = "trap '' TERM; " + script
	}
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = w.mp
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.cred}
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "holds\n" {
		w.t.Fatalf("%q, %v", buf[:n], err)
	}
	w.t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

func TestIfBusy(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("checkpoint", "c").want(t, 0)
	w.sh("echo changed >$M/a.txt")
	h := w.holder(false)
	pid := fmt.Sprint(h.Process.Pid)
	for _, verb := range []string{"rollback c", "undo", "redo"} {
		args := strings.Fields(verb)
		w.rewind(append(args, "--if-busy", "fail")...).want(t, exitConflict, pid, "a.txt", "nothing was changed")
		w.rewind(append(args, "--if-busy", "wait", "--timeout", "50ms")...).want(t, exitConflict, pid)
		w.rewind(append(args, "--if-busy", "maybe")...).want(t, exitUsage)
		w.rewind(append(args, "--timeout", "1s")...).want(t, exitUsage)
	}
	w.same("cat $M/a.txt", "changed\n")
	w.rewind("rollback", "c", "--if-busy", "fail", "--dry-run").want(t, 0)
	// Nobody is named who merely stands there, and who waits for the command does not count: it cannot end before.
	script := fmt.Sprintf(`cd %s; exec 6<a.txt; "%s" rollback c --if-busy wait --timeout 30s && echo done`, w.mp, w.bin)
	done := make(chan outcome, 1)
	go func() {
		cmd := w.command(t.Context())
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script}
		b, _ := cmd.CombinedOutput()
		done <- outcome{cmd.ProcessState.ExitCode(), string(b), ""}
	}()
	h.Process.Kill()
	h.Wait()
	(<-done).want(t, 0, "Back at 'c'", "done")
	w.same("cat $M/a.txt", "base a\n")

	for _, deaf := range []bool{false, true} {
		w.sh("echo changed >$M/a.txt")
		h, stands := w.holder(deaf), exec.Command("sleep", "1000")
		stands.Dir = w.mp
		if err := stands.Start(); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf(`cd %s; exec 6<a.txt; "%s" rollback c --if-busy kill && echo done`, w.mp, w.bin)
		cmd := w.command(t.Context())
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script}
		if b, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(b), "done\n") {
			t.Errorf("deaf %t: %v: %s", deaf, err, b)
		}
		h.Wait()
		ws := h.ProcessState.Sys().(syscall.WaitStatus)
		if want := map[bool]syscall.Signal{false: syscall.SIGTERM, true: syscall.SIGKILL}[deaf]; ws.Signal() != want {
			t.Errorf("deaf %t: the holder ended with %v", deaf, h.ProcessState)
		}
		if err := stands.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("one that only stood there was ended: %v", err)
		}
		stands.Process.Kill()
		stands.Wait()
		w.same("cat $M/a.txt", "base a\n")
	}
	w.unmount()
}

// What an agent asks for reaches no process but through the session's files.
func TestAgentCannotHaveOthersEnded(t *testing.T) {
	w := newWorld(t)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	w.mount()
	w.rewind("checkpoint", "c").want(t, 0)
	h := w.holder(false)
	got := w.sh("curl -sS --unix-socket " + session.AgentSocket(w.store()) + ` -d '{"ref":"c","if_busy":"kill"}' http://x/v1/rollback`)
	if !strings.Contains(got, "forbidden") {
		t.Error(got)
	}
	if err := h.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}
	h.Process.Kill()
	h.Wait()
	if fi, err := os.Stat(filepath.Dir(session.AgentSocket(w.store()))); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
	w.unmount()
}
