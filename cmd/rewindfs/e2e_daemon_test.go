package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

func TestKilledDaemon(t *testing.T) {
	for _, over := range []bool{false, true} {
		t.Run(fmt.Sprintf("over %v", over), func(t *testing.T) {
			w := newWorld(t)
			var args []string
			if over {
				args, w.mp = []string{"--over"}, w.base
			}
			w.mount(args...)
			w.sh("echo kept >$M/kept")
			w.rewind("checkpoint", "c").want(t, 0)
			w.sh("echo later >$M/later")
			kill(t, w.pid())
			if _, err := os.Stat(filepath.Join(w.mp, "kept")); !errors.Is(err, syscall.ENOTCONN) {
				t.Fatalf("the mount of a dead daemon answers %v", err)
			}
			w.rewind("status", "-s", "proj").want(t, exitNoSession, "is gone", "rewindfs mount")
			w.rewind("checkpoint", "-s", "proj").want(t, exitNoSession)
			w.rewind("list").want(t, 0, "dead")
			w.rewind("doctor").want(t, 0, "is gone")
			w.mount(args...)
			w.same("cat $M/kept $M/later $M/a.txt", "kept\nlater\nbase a\n")
			w.rewind("rollback", "c").want(t, 0)
			w.sh("test ! -e $M/later")
			kill(t, w.pid())
			w.rewind("unmount", "-s", "proj").want(t, 0, "gone already")
			if mounts, err := session.Mounts(); err != nil || slices.ContainsFunc(mounts, func(m session.MountPoint) bool { return m.Path == w.mp }) {
				t.Fatalf("the dead mount is still there: %v, %v", mounts, err)
			}
			w.rewind("list").want(t, 0, "unmounted")
			w.same("cat $B/a.txt; ls $B", "base a\na.txt\nsub\n")
		})
	}
}

// kill ends a daemon without a chance for it to do anything.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := session.WaitExit(pid, limit); err != nil {
		t.Fatal(err)
	}
}

// halt keeps a daemon from running, until the end of the test at the latest.
func halt(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // mostly it is gone by then
		unix.Close(fd)
	})
	if err := unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	// Each of its threads stops when it comes by.
	waitFor(t, "all threads have stopped", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(stats) == 0 {
			t.Fatalf("the threads of %d: %v, %v", pid, stats, err)
		}
		return !slices.ContainsFunc(stats, func(path string) bool {
			b, err := os.ReadFile(path)
			_, state, _ := bytes.Cut(b, []byte(") "))
			return err == nil && !bytes.HasPrefix(state, []byte("T"))
		})
	})
}

// inside starts a process whose directory is in the mount.
func (w *world) inside() *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command("cat")
	cmd.Dir = filepath.Join(w.mp, "sub")
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return cmd
}

func TestUnmountBusy(t *testing.T) {
	w := newWorld(t)
	w.mount()
	cmd := w.inside()
	pid := fmt.Sprintf("pid %d", cmd.Process.Pid)
	w.rewind("unmount").want(t, exitConflict, "in use by", pid, "--lazy")
	w.same("cat $M/a.txt", "base a\n")
	w.rewind("unmount", "--lazy").want(t, 0, "Detached")
	w.sh("test ! -e $M/a.txt")
	// The daemon serves the process that stayed; the store is still its.
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/b.txt", cmd.Process.Pid)); err != nil || string(b) != "base b\n" {
		t.Errorf("what is open ended: %q, %v", b, err)
	}
	w.rewind("unmount", "--force", "-s", "proj").want(t, 0)
	w.mount()
	w.inside()
	w.rewind("unmount", "--force").want(t, 0)
	w.mount()
	w.unmount()
}

func TestRollbackNamesWhoIsInside(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.rewind("checkpoint", "c").want(t, 0)
	w.sh("echo x >$M/x")
	cmd := w.inside()
	busy := w.rewind("rollback", "c", "--json").data(t)["busy"].([]any)
	if len(busy) != 1 || int(busy[0].(map[string]any)["pid"].(float64)) != cmd.Process.Pid {
		t.Errorf("busy: %v", busy)
	}
	// Neither the command itself, nor its wrapper, nor its shell is one of them, though they
	// are in the mount; the shell is when it has a file open.
	for script, want := range map[string]int{
		`timeout 100 "$0" rollback c --json; exit $?`:               1,
		`exec 3<b.txt; timeout 100 "$0" rollback c --json; exit $?`: 2,
	} {
		w.sh("echo x >$M/x")
		shell := exec.Command("sh", "-c", script, w.bin)
		shell.Dir, shell.Env = filepath.Join(w.mp, "sub"), w.command(t.Context()).Env
		// Programs that the shell starts have its open files as well.
		b, err := shell.Output()
		if err != nil {
			t.Fatal(err)
		}
		var pids []int
		for _, p := range (outcome{out: string(b)}).data(t)["busy"].([]any) {
			pids = append(pids, int(p.(map[string]any)["pid"].(float64)))
		}
		if len(pids) < want || !slices.Contains(pids, cmd.Process.Pid) || slices.Contains(pids, shell.Process.Pid) != (want > 1) {
			t.Errorf("%s: busy: %v; the shell is %d, the other %d", script, pids, shell.Process.Pid, cmd.Process.Pid)
		}
		if want == 1 && len(pids) != 1 {
			t.Errorf("%s: busy: %v", script, pids)
		}
	}
	w.rewind("unmount", "--force").want(t, 0)
}

// A stopped daemon is told from a live one, and goes on as if nothing had been.
func TestStoppedDaemon(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo kept >$M/kept")
	pid := w.pid()
	halt(t, pid)
	wake, force := fmt.Sprintf("kill -CONT %d", pid), "rewindfs unmount --force -s proj"
	w.rewind("list").want(t, 0, "hanging", wake, force)
	w.rewind("doctor").want(t, 0, "is stopped and does not answer", wake, force)
	w.rewind("unmount", "-s", "proj").want(t, exitFailure, wake, force)
	w.rewind("destroy", "--yes", "-s", "proj").want(t, exitFailure, wake, force)
	w.rewind("checkpoint", "late", "-s", "proj").want(t, exitFailure, wake, force)
	// One that was stopped in the moment it was asked.
	l := session.Listed{Store: w.store()}
	c := &control.Client{Socket: l.Socket(), Timeout: 10 * time.Millisecond}
	if _, err := c.Unmount(t.Context(), control.UnmountRequest{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("unmount: %v", err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.rewind("list").want(t, 0, "live")
	w.rewind("log").want(t, 0, "No checkpoint yet")
	w.same("cat $M/kept", "kept\n")
	w.unmount()
}

// A daemon that does not run can be cut off; who waits for it gets an error.
func TestHangingDaemon(t *testing.T) {
	w := newWorld(t)
	w.mount()
	w.sh("echo kept >$M/kept")
	pid := w.pid()
	halt(t, pid)
	waiting := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(filepath.Join(w.mp, "sub/deep/c"))
		waiting <- err
	}()
	w.rewind("unmount", "--force", "-s", "proj").want(t, 0, fmt.Sprintf("pid %d", pid), "killed")
	if err := <-waiting; err == nil {
		t.Error("a file was read from a daemon that does not run")
	}
	if err := session.WaitExit(pid, 0); err != nil {
		t.Error(err)
	}
	w.rewind("list").want(t, 0, "unmounted")
	w.mount()
	w.same("cat $M/kept", "kept\n")
	w.unmount()
}

// Who asked a daemon in the moment of its death gets another error than who asks
// later; both say that it is gone.
func TestDaemonDiesUnderARequest(t *testing.T) {
	w := newWorld(t)
	w.mount()
	mounts, err := session.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(mounts, func(m session.MountPoint) bool { return m.Path == w.mp })
	_, minor, _ := strings.Cut(mounts[at].Device, ":")
	waiting := filepath.Join("/sys/fs/fuse/connections", minor, "waiting")
	if _, err := os.ReadFile(waiting); err != nil {
		w.unmount()
		t.Skipf("the kernel does not tell which requests wait: %v", err)
	}
	pid := w.pid()
	halt(t, pid)
	answer := make(chan error, 1)
	go func() {
		var st syscall.Statfs_t
		answer <- syscall.Statfs(w.mp, &st)
	}()
	waitFor(t, "the request waits", func() bool {
		select {
		case err := <-answer:
			t.Fatalf("a daemon that does not run answered: %v", err)
		default:
		}
		b, _ := os.ReadFile(waiting)
		return strings.TrimSpace(string(b)) != "0"
	})
	kill(t, pid)
	if err := <-answer; !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("the request was answered with %v", err)
	}
	if state := session.Probe(w.mp); state != session.StateDead {
		t.Errorf("the mount is %s", state)
	}
	w.mount()
	w.unmount()
}

func TestManyMounts(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		w := newWorld(t)
		wg.Go(func() {
			for i := range 3 {
				w.mount()
				w.rewind("checkpoint", "-s", w.base, fmt.Sprint(i)).want(t, 0)
				w.rewind("unmount", w.base).want(t, 0)
			}
		})
	}
	// And several for one base: one of them gets it.
	w := newWorld(t)
	mounts := make([]outcome, 4)
	for i := range mounts {
		wg.Go(func() { mounts[i] = w.rewind("mount", w.base) })
	}
	wg.Wait()
	slices.SortFunc(mounts, func(a, b outcome) int { return a.code - b.code })
	for i, r := range mounts {
		r.want(t, []int{0, exitConflict, exitConflict, exitConflict}[i])
	}
	w.unmount()
}

// foreground starts a daemon that is our child.
func (w *world) foreground(args ...string) *exec.Cmd {
	w.t.Helper()
	r, pipe, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Close()
	cmd := w.command(context.Background(), append([]string{"mount", "--foreground", "--ready-fd", "3", w.base}, args...)...)
	cmd.ExtraFiles = []*os.File{pipe}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	pipe.Close()
	var msg ready
	if err := json.NewDecoder(r).Decode(&msg); err != nil || msg.Error != nil {
		_ = cmd.Wait()
		w.t.Fatalf("the daemon is not ready: %+v, %v", msg, err)
	}
	return cmd
}

func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			w := newWorld(t)
			cmd := w.foreground()
			w.sh("echo kept >$M/kept")
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("the daemon ended with %v", err)
			}
			w.mount()
			w.same("cat $M/kept", "kept\n")
			w.unmount()
		})
	}
}

func TestSecondSignalForces(t *testing.T) {
	w := newWorld(t)
	cmd := w.foreground()
	w.sh("echo kept >$M/kept")
	w.inside()
	for range 2 {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		// Two signals of one kind may become one while the first is pending: let it be taken.
		waitFor(t, "the daemon says that it stops", func() bool {
			rec, err := session.ReadRecord(w.store())
			return err == nil && rec.State != session.StateMounted
		})
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the daemon ended with %v", err)
	}
	w.mount()
	w.same("cat $M/kept", "kept\n")
	w.unmount()
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestUmountFromOutside(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		w.mount()
		w.sh(fmt.Sprintf("echo %d >$M/n", i))
		umount := exec.Command("fusermount3", "-u", w.mp)
		if os.Getuid() == 0 {
			umount = exec.Command("umount", w.mp)
		}
		if b, err := umount.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
	}
	w.mount() // at once: the daemon before may still be on its way out
	w.same("cat $M/n", "2\n")
	w.unmount()
}

func TestPrune(t *testing.T) {
	w := newWorld(t)
	w.mount()
	kill(t, w.pid())
	other := newWorld(t) // knows nothing of the first one's store
	other.mount()
	other.rewind("list").want(t, 0, "orphaned", "--prune --all")
	other.rewind("list", "--prune").want(t, 0, "orphaned") // it is none of its business
	other.rewind("unmount", w.mp).want(t, exitNoSession, "its store is not known here", "umount "+w.mp)
	if state := session.Probe(w.mp); state != session.StateDead {
		t.Errorf("the dead mount of another home is %s", state)
	}
	w.rewind("list", "--all").want(t, exitUsage, "--prune")
	w.rewind("list", "--prune").want(t, 0, "unmounted")
	if on, err := session.Mounts(); err != nil || slices.ContainsFunc(on, func(m session.MountPoint) bool { return m.Path == w.mp }) {
		t.Errorf("the dead mount is still there: %v, %v", on, err)
	}
	other.same("cat $M/a.txt", "base a\n")
	other.unmount()
}

// On a full disk the session can be left, entered again and emptied.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a small disk")
	}
	w := newWorld(t)
	disk := filepath.Join(w.home, "disk")
	w.sh("mkdir " + disk + "; mount -t tmpfs -o size=160m none " + disk)
	t.Cleanup(func() {
		if b, err := exec.Command("umount", "-l", disk).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, b)
		}
	})
	// What is deleted in the end has to be more than the store keeps in reserve.
	w.sh("head -c 40m /dev/zero >" + disk + "/spare")
	w.mount("--store", disk+"/store")
	w.rewind("checkpoint", "before").want(t, 0)
	w.sh("head -c 400m /dev/urandom >$M/big 2>/dev/null || true; head -c 300m /dev/urandom >" + disk + "/filler 2>/dev/null || true")
	if err := os.WriteFile(filepath.Join(w.mp, "more"), bytes.Repeat([]byte("x"), 1<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("writing to a full disk: %v", err)
	}
	w.same("cat $M/a.txt", "base a\n")
	w.unmount("-s", "proj")
	w.mount("--store", disk+"/store")
	w.rewind("rollback", "before").want(t, 0, "Back at 'before'")
	w.sh("test ! -e $M/big; rm " + disk + "/filler " + disk + "/spare; echo room >$M/room; cat $M/room")
	w.rewind("checkpoint", "after").want(t, 0)
	w.unmount()
}

func TestInterruptedMount(t *testing.T) {
	w := newWorld(t)
	cmd := w.command(context.Background(), "mount", w.base)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	// Either it was ready before the signal came, or nothing is left behind.
	if err := cmd.Wait(); err == nil {
		w.unmount()
		return
	}
	w.mount()
	w.unmount()
}
