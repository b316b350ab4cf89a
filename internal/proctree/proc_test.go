package proctree

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDescent: what cleared its environment, left its session and lost its parent is found, because it came to us; what
// was ours before, and what another command of ours has started, is not.
func TestDescent(t *testing.T) {
	older := exec.Command("sleep", "1000")
	if err := older.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { older.Process.Kill(); older.Wait() }()
	done, err := Adopt()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	tree := ByDescent()
	defer tree.Close()
	cmd := exec.Command("sh", "-c", `env -i setsid sh -c '(setsid sleep 1000 >/dev/null) & echo $!' & sleep 1000 >/dev/null & exec cat`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := Start(tree, cmd); err != nil {
		t.Fatal(err)
	}
	defer Stop(tree, time.Second)
	other := ByDescent()
	defer other.Close()
	second := exec.Command("sleep", "1000")
	if err := Start(other, second); err != nil {
		t.Fatal(err)
	}
	defer func() { second.Process.Kill(); second.Wait() }()
	buf := make([]byte, 20)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the orphan comes to us", func() bool {
		s, err := readStat(orphan)
		return err == nil && s.parent == os.Getpid()
	})
	io.WriteString(in, "end\n")
	in.Close()
	if rest, err := io.ReadAll(out); err == nil && !strings.Contains(string(rest), "end") {
		t.Errorf("the command wrote %q", rest)
	}
	cmd.Wait()
	if left := tree.Members(); len(left) != 2 {
		t.Errorf("left are %v, want two sleeps", left)
	}
	if _, survivors := Stop(tree, time.Second); len(survivors) > 0 {
		t.Errorf("%v survived", survivors)
	}
	for pid, want := range map[int]bool{orphan: false, older.Process.Pid: true, second.Process.Pid: true, os.Getpid(): true} {
		if Runs(pid) != want {
			t.Errorf("process %d runs: %t, want %t", pid, !want, want)
		}
	}
}

// until waits for what no event tells of.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s; children are %+v", what, children())
		}
	}
}

// Orphans that end are reaped, the command itself is not.
func TestAdoptReaps(t *testing.T) {
	done, err := Adopt()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	for range 20 {
		tree := ByDescent()
		cmd := exec.Command("sh", "-c", "(setsid true &) ; exit 7")
		if err := Start(tree, cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 7 {
			t.Fatalf("the command ended with %v: %v", cmd.ProcessState, err)
		}
		until(t, "orphans are reaped", func() bool { return len(children()) == 0 })
		tree.Close()
	}
}

// A second signal makes many programs give up what they do upon the first.
func TestSignalOnce(t *testing.T) {
	tree := ByMark("PROCTREE_TEST=once")
	defer tree.Close()
	file := filepath.Join(t.TempDir(), "got")
	cmd := exec.Command("sh", "-c", `trap 'echo got >>"$F"' TERM; trap 'exit 7' USR1; echo ready; while :; do :; done`)
	cmd.Env = append(os.Environ(), "F="+file, "PROCTREE_TEST=once")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := Start(tree, cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	tree.Signal(syscall.SIGTERM)
	until(t, "the signal arrives", func() bool { b, _ := os.ReadFile(file); return len(b) > 0 })
	tree.Signal(syscall.SIGUSR1)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "got\n" {
		t.Errorf("the signal came as %q, %v", got, err)
	}
}
