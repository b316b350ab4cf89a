package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

func TestLifecycleDeadMountIsCleanedByTheNextMount(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	put(t, m.Path("a"), "written")
	m.Checkpoint("c")
	put(t, m.Path("b"), "after the checkpoint")
	want := m.Snapshot()
	m.Kill(m.PID())
	if _, err := os.Stat(m.Path("a")); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("stat in a dead mount: %v", err)
	}
	list := m.OK("list")
	if !strings.Contains(list, "dead") {
		t.Errorf("list does not say that the session is dead:\n%s", list)
	}
	m.Fails(2, "status")
	m.Mount() // no fusermount by hand
	sameButDevice(t, want, m.Snapshot(), "before the kill", "after the remount")
	m.Rollback("c")
	content(t, m.Path("a"), "written")
	content(t, m.Path("b"), string(fstree.Bytes(2, 5000)))
}

// sameButDevice compares snapshots of two mounts of one store.
func sameButDevice(t *testing.T, want, got *fstree.Tree, wantName, gotName string) {
	t.Helper()
	for p, e := range got.Entries {
		if w := want.Entries[p]; w != nil {
			e.Dev = w.Dev
		}
	}
	mounttest.Same(t, want, got, fstree.Exact, wantName, gotName)
}

func TestLifecycleDeadMountWithOpenFilesIsCleanedToo(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	f := open(t, m.Path("a"), os.O_RDWR)
	sh := child(t, m.Path("d"))
	m.Kill(m.PID())
	m.Mount()
	put(t, m.Path("a"), "alive")
	content(t, m.Path("a"), "alive")
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a descriptor of the dead mount takes writes")
	}
	sh.run("ls >/dev/null 2>&1; cd /")
}

func TestLifecycleUnmountWhileBusy(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	f := open(t, m.Path("new"), os.O_CREATE|os.O_RDWR)
	sh := child(t, m.Path("d"))
	msg := m.Fails(6, "unmount")
	if !strings.Contains(msg, fmt.Sprint(sh.cmd.Process.Pid)) && !strings.Contains(msg, "bash") {
		t.Errorf("the message does not say who uses the mount: %s", msg)
	}
	_, err := f.WriteString("still works")
	ok(t, err)
	content(t, m.Path("new"), "still works")
	m.OK("unmount", "--lazy")
	is(t, "mounted", mounttest.Mounted(m.Dir), false)
	sh.stop()
	f.Close()
	mounttest.WaitFor(t, "the store to be free", func() bool { return m.Run("mount", m.Base, m.Dir, "--store", m.Store).Code == 0 })
	content(t, m.Path("new"), "still works")
}

func TestLifecycleSecondDaemonOnOneStore(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	pid := m.PID()
	other := j(m.Top, "other")
	ok(t, os.Mkdir(other, 0o755))
	msg := m.Fails(6, "mount", m.Base, other, "--store", m.Store)
	if !strings.Contains(msg, fmt.Sprint(pid)) {
		t.Errorf("the message does not name the daemon %d: %s", pid, msg)
	}
	is(t, "mounted", mounttest.Mounted(other), false)
	// A lock that is left over is no obstacle.
	m.Kill(pid)
	m.Mount()
}

func TestLifecyclePlacesThatAreRefused(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	in := func(elem ...string) string { return j(append([]string{m.Top}, elem...)...) }
	for _, d := range []string{in("elsewhere"), in("mnt2")} {
		ok(t, os.Mkdir(d, 0o755))
	}
	put(t, in("file"), "")
	for name, args := range map[string][]string{
		"base missing":                {in("nothing"), in("mnt2")},
		"base not a directory":        {in("file"), in("mnt2")},
		"mount point in the base":     {in("elsewhere"), in("elsewhere/mnt")},
		"mount point in use":          {in("elsewhere"), m.Dir},
		"mount point a file":          {in("elsewhere"), in("file")},
		"store in the base":           {in("elsewhere"), in("mnt2"), "--store", in("elsewhere/store")},
		"store in the mount":          {in("elsewhere"), in("mnt2"), "--store", in("mnt2/store")},
		"store of another base":       {in("elsewhere"), in("mnt2"), "--store", m.Store},
		"base in the mount of itself": {m.Dir, in("mnt2"), "--store", m.Path("store")},
	} {
		r := m.Run(append([]string{"mount"}, args...)...)
		if r.Code == 0 {
			t.Errorf("%s: not refused", name)
			m.Run("unmount", "-s", args[1])
		} else if len(strings.TrimSpace(r.Stderr)) < 20 {
			t.Errorf("%s: the message says nothing: %q", name, r.Stderr)
		}
		if mounttest.Mounted(in("mnt2")) {
			t.Errorf("%s: a half-made mount is left", name)
			mounttest.Abort(in("mnt2"))
		}
	}
	listed(t, in("elsewhere"))
	listed(t, in("mnt2"))
	content(t, m.Path("a"), string(fstree.Bytes(1, 100)))
}

func TestLifecycleMountOverTheBaseItself(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Lazy: true})
	before := mounttest.Snapshot(t, m.Base)
	env := append(m.Env(), "REWINDFS_SESSION="+m.Base)
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(mounttest.Binary(), args...)
		cmd.Env, cmd.Dir = env, m.Top
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() { mounttest.Abort(m.Base) })
	run("mount", "--over", m.Base, "--store", m.Store)
	is(t, "mounted over the base", mounttest.Mounted(m.Base), true)
	put(t, j(m.Base, "a"), "in the mount")
	ok(t, os.RemoveAll(j(m.Base, "src")))
	content(t, j(m.Base, "d/a"), string(fstree.Bytes(5, 4096)))
	run("checkpoint", "c")
	run("rollback", "base")
	content(t, j(m.Base, "a"), string(fstree.Bytes(1, 100)))
	run("undo")
	content(t, j(m.Base, "a"), "in the mount")
	run("unmount")
	is(t, "mounted over the base", mounttest.Mounted(m.Base), false)
	mounttest.Same(t, before, mounttest.Snapshot(t, m.Base), fstree.Exact, "base before", "base after")
}

func TestLifecycleDaemonKeepsNothingOfTheMountOpen(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Lazy: true})
	cmd := exec.Command(mounttest.Binary(), "mount", m.Base, m.Dir, "--store", m.Store)
	cmd.Env, cmd.Dir = m.Env(), m.Base // a cwd that must not stay busy
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pid := m.PID()
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	ok(t, err)
	is(t, "cwd of the daemon", cwd, "/")
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	ok(t, err)
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, m.Dir+"/") || to == m.Dir {
			t.Errorf("the daemon has %s open", to)
		}
	}
	for _, name := range []string{"0", "1", "2"} {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, name)); strings.Contains(to, "pipe:") {
			t.Errorf("the daemon holds the caller's descriptor %s: %s", name, to)
		}
	}
}

func TestLifecycleSignalsEndTheDaemonCleanly(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			m := mounttest.New(t, mounttest.Options{Lazy: true})
			cmd := exec.Command(mounttest.Binary(), "mount", "--foreground", m.Base, m.Dir, "--store", m.Store)
			cmd.Env = m.Env()
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			ok(t, cmd.Start())
			mounttest.WaitFor(t, "the mount", func() bool { return m.Run("status").Code == 0 })
			put(t, m.Path("a"), "kept")
			ok(t, cmd.Process.Signal(sig))
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("exit: %v\n%s", err, out.String())
				}
			case <-time.After(mounttest.Timeout):
				_ = cmd.Process.Kill()
				t.Fatalf("the daemon did not end\n%s", out.String())
			}
			is(t, "mounted", mounttest.Mounted(m.Dir), false)
			m.Mount()
			content(t, m.Path("a"), "kept")
		})
	}
}

func TestLifecycleManyMountsAtTheSameTime(t *testing.T) {
	var wg sync.WaitGroup
	for range 6 {
		m := mounttest.New(t, mounttest.Options{Lazy: true, Fill: mounttest.Empty})
		wg.Go(func() {
			for i := range 3 {
				for _, args := range [][]string{{"mount", m.Base, m.Dir, "--store", m.Store}, {"checkpoint", fmt.Sprint(i)}, {"unmount"}} {
					if r := m.Run(args...); r.Code != 0 {
						t.Errorf("%s", r)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestLifecycleStoppedDaemonIsCutOffByForce(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	pid := m.PID()
	put(t, m.Path("a"), "kept")
	ok(t, unix.Kill(pid, unix.SIGSTOP))
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	cat := exec.Command("cat", m.Path("d/e/f/deep")) // waits for the daemon
	ok(t, cat.Start())
	m.OK("unmount", "--force")
	is(t, "mounted", mounttest.Mounted(m.Dir), false)
	if cat.Wait() == nil {
		t.Log("the client got its answer before the daemon was stopped")
	}
	mounttest.WaitGone(t, pid)
	m.Mount()
	content(t, m.Path("a"), "kept")
}

func TestLifecycleMemoryIsGivenBack(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error {
		for i := range 8000 {
			d := fmt.Sprintf("%s/%d", dir, i/100)
			if i%100 == 0 {
				if err := os.Mkdir(d, 0o755); err != nil {
					return err
				}
			}
			if err := os.WriteFile(fmt.Sprintf("%s/%d", d, i), nil, 0o644); err != nil {
				return err
			}
		}
		return nil
	}})
	nodes := func() int {
		var s struct{ Cache struct{ Nodes int } }
		m.JSON(&s, "status")
		return s.Cache.Nodes
	}
	m.Sh("ls -lR >/dev/null")
	if n := nodes(); n < 8000 {
		t.Logf("%d nodes after a walk", n)
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0); err != nil {
		t.Skipf("cannot drop the kernel's caches: %v", err)
	}
	mounttest.WaitFor(t, "nodes to be forgotten", func() bool { return nodes() < 2000 })
}

func TestLifecycleNewerAndForeignStores(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Lazy: true})
	ok(t, os.Mkdir(m.Store, 0o700))
	put(t, j(m.Store, "something"), "that is no store")
	r := m.Run("mount", m.Base, m.Dir, "--store", m.Store)
	if r.Code == 0 {
		t.Error("a directory that holds something else was taken as a store")
	}
	content(t, j(m.Store, "something"), "that is no store")
}

func TestLifecycleBaseMovedWhileMounted(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Loose: true})
	put(t, m.Path("a"), "in the layers")
	ok(t, unix.Rename(m.Base, m.Base+".moved"))
	ok(t, os.Mkdir(m.Base, 0o755))
	put(t, j(m.Base, "b"), "of another directory")
	content(t, m.Path("a"), "in the layers")
	if p, err := os.ReadFile(m.Path("b")); err == nil && string(p) == "of another directory" {
		t.Error("a file of another directory is shown")
	}
	ok(t, os.RemoveAll(m.Base))
	ok(t, unix.Rename(m.Base+".moved", m.Base))
	content(t, m.Path("b"), string(fstree.Bytes(2, 5000)))
}

func TestLifecycleDoctorExplains(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	out := m.Run("doctor")
	if out.Code != 0 {
		t.Errorf("doctor on a machine where mounting works: %s", out)
	}
	if !strings.Contains(out.Stdout, "fuse") {
		t.Errorf("doctor says nothing of fuse:\n%s", out.Stdout)
	}
}
