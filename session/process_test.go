package session

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// holder starts a process that has the lock file of a store open and, if it is to,
// locked. Like a daemon that hangs, it takes no notice of anything.
func holder(t *testing.T, store, mode string) int {
	t.Helper()
	cmd := exec.Command("flock", mode, "--nonblock", filepath.Join(store, kvLock), "sh", "-c", "echo ready; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no flock(1) here: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the holder says %q, %v", line, err)
	}
	return cmd.Process.Pid
}

func lockedStore(t *testing.T) string {
	t.Helper()
	store := t.TempDir()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(store, kvLock)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store, kvLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return store
}

func TestEndHolder(t *testing.T) {
	store, other := lockedStore(t), lockedStore(t)
	pid := holder(t, store, "--exclusive")
	// Neither the holder of another store nor anybody else is hit.
	bystander := holder(t, other, "--exclusive")
	for what, c := range map[string]struct {
		store string
		pid   int
	}{
		"another store's": {store, bystander},
		"this process":    {store, os.Getpid()},
		"nobody known":    {store, 0},
	} {
		if killed, err := EndHolder(c.store, c.pid); killed || err == nil {
			t.Errorf("%s: killed %v, %v", what, killed, err)
		}
	}
	for _, p := range []int{pid, bystander} {
		if err := WaitExit(p, 0); !errors.Is(err, ErrStillRunning) {
			t.Fatalf("process %d: %v", p, err)
		}
	}
	if killed, err := EndHolder(store, pid); !killed || err != nil {
		t.Fatalf("the holder: killed %v, %v", killed, err)
	}
	if err := WaitExit(pid, 0); err != nil {
		t.Error(err)
	}
	if killed, err := EndHolder(store, 1<<22); killed || err != nil {
		t.Errorf("a process that is gone: killed %v, %v", killed, err)
	}
}

// To have the lock file open is not to hold the store: so has everybody who tries.
func TestOpenIsNotHeld(t *testing.T) {
	store := lockedStore(t)
	f, err := os.Open(filepath.Join(store, kvLock))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if holds, err := holdsStore(os.Getpid(), store); holds || err != nil {
		t.Fatalf("open only: %v, %v", holds, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if holds, err := holdsStore(os.Getpid(), store); !holds || err != nil {
		t.Fatalf("locked: %v, %v", holds, err)
	}
}

// The lock that package kv takes is the one looked for.
func TestSessionHoldsItsStore(t *testing.T) {
	r := start(t, options(t))
	if holds, err := holdsStore(os.Getpid(), r.s.o.Store); !holds || err != nil {
		t.Fatalf("while open: %v, %v", holds, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if holds, err := holdsStore(os.Getpid(), r.s.o.Store); holds || err != nil {
		t.Fatalf("after closing: %v, %v", holds, err)
	}
}

func TestAncestors(t *testing.T) {
	if got := ancestors(os.Getpid()); !got[os.Getppid()] || got[os.Getpid()] {
		t.Errorf("of this process: %v", got)
	}
	if got := ancestors(1 << 30); len(got) != 0 {
		t.Errorf("of nobody: %v", got)
	}
	if Stopped(os.Getpid()) || Stopped(1<<30) {
		t.Error("neither this process nor one that is not there is stopped")
	}
}

func TestWhatDeadMountsAnswer(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ENOTCONN: true, syscall.ECONNABORTED: true,
		syscall.ENOENT: false, syscall.EIO: false, syscall.EACCES: false, syscall.ETIMEDOUT: false,
	} {
		if got := daemonGone(&os.PathError{Op: "lstat", Path: "/m", Err: err}); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
	if daemonGone(nil) || daemonGone(errors.New(strings.ToLower(syscall.ENOTCONN.Error()))) {
		t.Error("no error of the kernel, and still a dead mount")
	}
}
