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

func TestStat(t *testing.T) {
	const rest = " 10 20 30 34816 20 4194304 1 2 3 4 5 6 7 8 20 0 %s 0 777 9 9"
	for _, c := range []struct {
		state, threads string
		runs           bool
	}{{"S", "1", true}, {"R", "9", true}, {"T", "1", true}, {"Z", "1", false}, {"Z", "2", true}, {"X", "1", false}} {
		s, err := parseStat(7, []byte("7 (odd) name) "+c.state+strings.Replace(rest, "%s", c.threads, 1)))
		if err != nil || s.runs() != c.runs || s.parent != 10 || s.group != 20 || s.session != 30 || s.start != "777" || s.kernel {
			t.Errorf("%+v: %+v, %v", c, s, err)
		}
	}
	for _, bad := range []string{"", "7 (x) S 1 2", "7 (x) S a" + strings.Replace(rest, "%s", "1", 1)} {
		if s, err := parseStat(7, []byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, s)
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

// TestElsewhere has what stands for processes of a daemon: marked, in a session of its own. What only stands beside it, and the one that
// asks for it, is none of them.
func TestElsewhere(t *testing.T) {
	const mark = "REWINDFS_TEST_ELSEWHERE=1"
	cmd := exec.Command("setsid", "sh", "-c", "env -i sleep 1000 & echo; exec cat")
	cmd.Env = append(os.Environ(), mark)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	beside := exec.Command("sleep", "1000")
	beside.Env = append(os.Environ(), mark+"0")
	tree := Elsewhere(mark)
	defer tree.Close()
	if err := Start(tree, beside); err != nil {
		t.Fatal(err)
	}
	defer func() { beside.Process.Kill(); beside.Wait() }()
	until(t, "both are found", func() bool { return len(tree.Members()) == 2 })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if n, left := Stop(tree, time.Second); n != 2 || len(left) > 0 {
		t.Errorf("%d ended, left are %v", n, left)
	}
	<-ended
	if s, err := readStat(beside.Process.Pid); err != nil || !s.runs() {
		t.Errorf("what stood beside has ended: %v", err)
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
