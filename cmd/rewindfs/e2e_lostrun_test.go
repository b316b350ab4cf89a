package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// begin starts run of a script in the mount, and waits until the script says "ready". It is ended
// with the test: it lives on when the command line is killed.
func (w *world) begin(args []string, script string) *exec.Cmd {
	w.t.Helper()
	pids := filepath.Join(w.home, "pids")
	args = append(append([]string{"run", "--sandbox", "none"}, args...), "--", "sh", "-c", "echo $$ >>"+pids+"; "+script)
	c := w.command(w.t.Context(), args...)
	c.Dir = w.mp
	c.SysProcAttr.Setpgid = true // what is started is the test's to end
	said, says, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	defer said.Close()
	c.Stdout = says
	err = c.Start()
	says.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		list, _ := os.ReadFile(pids)
		for _, f := range strings.Fields(string(list)) {
			var pid int
			fmt.Sscan(f, &pid)
			if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(line), pids) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	word := make([]byte, len("ready\n"))
	if err := said.SetReadDeadline(time.Now().Add(limit)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.ReadFull(said, word); err != nil || string(word) != "ready\n" {
		w.t.Fatalf("the command says %q: %v", word, err)
	}
	return c
}

// killed ends a command line with SIGKILL, and waits for it.
func killed(c *exec.Cmd) {
	c.Process.Kill()
	c.Wait()
}

// A command line that is killed does not say how its command ended: undo takes that back all the same, and nothing older.
func TestUndoAfterTheCommandLineWasKilled(t *testing.T) { testCommandLineKilled(t, newWorld(t)) }

func TestUndoAfterTheCommandLineWasKilledUnprivileged(t *testing.T) {
	testCommandLineKilled(t, newWorldFor(t, ordinaryUser(t)))
}

func testCommandLineKilled(t *testing.T, w *world) {
	w.mount()
	w.run(w.mp, "--", "sh", "-c", "echo 1 >first").want(t, 0)
	c := w.begin(nil, "rm a.txt; touch ready; echo ready; exec sleep 1000")
	w.rewind("status").want(t, 0, "Running", "sh -c echo $$", fmt.Sprintf("pid %d", c.Process.Pid))
	refused := w.rewind("undo").want(t, exitConflict, "still runs", "rewindfs rollback ")
	w.same("ls $M", "first\nready\nsub\n")
	killed(c)
	w.rewind("status").want(t, 0, "undo 2")
	w.rewind("undo").want(t, 0, "as it was before the command 'sh -c echo $$")
	w.same("ls $M", "a.txt\nfirst\nsub\n")
	w.rewind("redo").want(t, 0)
	w.same("ls $M", "first\nready\nsub\n")
	// What the refusal says works, too.
	_, id, _ := strings.Cut(refused.err, "rewindfs rollback ")
	w.rewind("rollback", strings.Fields(id)[0]).want(t, 0)
	w.same("ls $M", "a.txt\nfirst\nsub\n")
	w.rewind("ledger", "--event", "exec").want(t, 0, "end_unknown=true")
	w.rewind("ledger", "verify").want(t, 0)
	w.rewind("fsck").want(t, 0)
	w.unmount("--force", w.mp)
}

// A power cut ends the command line and the daemon: undo knows of the command when it is mounted again. And a command line that lives on
// says to the next daemon how its command ended.
func TestUndoAfterBothWereKilled(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.run(w.mp, "--", "sh", "-c", "echo 1 >first").want(t, 0)
	c := w.begin(nil, "rm a.txt; touch ready; cd /; echo ready; exec sleep 1000")
	daemon := w.pid()
	c.Process.Kill()
	kill(t, daemon)
	c.Wait()
	w.mount()
	w.rewind("status").want(t, 0, "undo 2")
	w.rewind("gc", "--keep", "1").want(t, 0)
	w.rewind("undo").want(t, 0, "as it was before the command 'sh -c echo $$")
	w.same("ls $M", "a.txt\nfirst\nsub\n")
	w.rewind("undo").want(t, 0, "as it was before the command 'sh -c echo 1")
	w.same("ls $M", "a.txt\nsub\n")

	w.sh("mkfifo " + w.home + "/go")
	c = w.begin(nil, "echo 2 >second; touch ready; cd /; echo ready; read x <"+w.home+"/go")
	kill(t, w.pid())
	w.mount()
	w.rewind("undo").want(t, exitConflict, "still runs")
	w.sh("echo >" + w.home + "/go")
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	if st := w.rewind("status").want(t, 0); strings.Contains(st.out, "Running") {
		t.Errorf("its end is recorded, and status says\n%s", st.out)
	}
	w.rewind("undo").want(t, 0, "as it was before the command 'sh -c echo $$")
	w.same("ls $M", "a.txt\nsub\n")
	w.unmount()
}
