package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
)

// fakeDocker is a command that notes its arguments, and says and exits as it is told to.
type fakeDocker struct {
	t    *testing.T
	path string
}

func newFakeDocker(t *testing.T) *fakeDocker {
	t.Helper()
	f := &fakeDocker{t, filepath.Join(t.TempDir(), "docker")}
	f.answers("", 0)
	return f
}

func (f *fakeDocker) answers(says string, exit int) {
	f.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\necho \"$@ $DOCKER_HOST\" >>%s.log\necho '%s' >&2\nexit %d\n", f.path, says, exit)
	// Replaced, not written to: it may be running.
	if err := os.WriteFile(f.path+".new", []byte(script), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeDocker) calls() []string {
	b, err := os.ReadFile(f.path + ".log")
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// announce announces a container and returns its name.
func (f *fakeDocker) announce(r *rig, settings string) string {
	f.t.Helper()
	c, err := r.Container(f.t.Context(), control.ContainerRequest{CLI: f.path, Env: []string{"DOCKER_HOST=there"}, Settings: settings})
	if err != nil {
		f.t.Fatal(err)
	}
	return c.Name
}

func (f *fakeDocker) wantRemoved(name string) {
	f.t.Helper()
	want := "rm --force " + name + " there"
	for _, c := range f.calls() {
		if c == want {
			return
		}
	}
	f.t.Fatalf("no call %q: %q", want, f.calls())
}

func (f *fakeDocker) wantNoted(store string, n int) {
	f.t.Helper()
	all, err := readContainers(store)
	if err != nil || len(all) != n {
		f.t.Fatalf("noted: %+v, %v; want %d", all, err, n)
	}
}

func TestContainerNames(t *testing.T) {
	o := options(t)
	o.Name = "mein Projekt ä"
	r, f := start(t, o), newFakeDocker(t)
	name := f.announce(r, "00c0ffee")
	if again := f.announce(r, "00c0ffee"); again != name || !strings.HasPrefix(name, "rewindfs-mein_Projekt__-") || !strings.HasSuffix(name, "-1-00c0ffee") {
		t.Errorf("names: %s, %s", name, again)
	}
	r.checkpoint(t, "one")
	r.fork(t, "one", "side")
	names := map[string]bool{name: true, f.announce(r, "00c0fffe"): true, f.announce(r.on("side"), "00c0ffee"): true}
	if len(names) != 3 {
		t.Errorf("names: %v", names)
	}
	f.wantNoted(r.o.Store, 3)
	if len(f.calls()) != 0 {
		t.Errorf("the daemon called %q", f.calls())
	}
	// A branch takes its own along.
	if _, err := r.on("side").Unmount(t.Context(), control.UnmountRequest{}); err != nil {
		t.Fatal(err)
	}
	if len(f.calls()) == 0 || !names[strings.Fields(f.calls()[0])[2]] || strings.Contains(strings.Join(f.calls(), " "), name) {
		t.Errorf("with the branch went %q", f.calls())
	}
}

func TestContainerRefusals(t *testing.T) {
	o := options(t)
	bad := filepath.Join(o.Base, "docker")
	if err := os.WriteFile(bad, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := newFakeDocker(t)
	link := filepath.Join(t.TempDir(), "docker")
	if err := os.Symlink(bad, link); err != nil {
		t.Fatal(err)
	}
	r := start(t, o)
	for _, c := range []struct{ cli, settings string }{
		{f.path, "../../etc"}, {f.path, ""}, {"docker", "00c0ffee"}, {"/nowhere/docker", "00c0ffee"}, {bad, "00c0ffee"}, {link, "00c0ffee"},
	} {
		if got, err := r.Container(t.Context(), control.ContainerRequest{CLI: c.cli, Settings: c.settings}); err == nil {
			t.Errorf("%+v was taken as %s", c, got.Name)
		}
	}
	f.wantNoted(r.o.Store, 0)
}

// TestContainersGoWithTheMount has a mount that a container shows, too, so that it does not end while that is there.
func TestContainersGoWithTheMount(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *rig) error{
		"unmount": func(t *testing.T, r *rig) error {
			_, err := r.Unmount(t.Context(), control.UnmountRequest{})
			return err
		},
		"lazy": func(t *testing.T, r *rig) error {
			_, err := r.Unmount(t.Context(), control.UnmountRequest{Lazy: true})
			return err
		},
		"signal": func(_ *testing.T, r *rig) error { return r.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			r, f := start(t, options(t)), newFakeDocker(t)
			r.m.shown = true
			container := f.announce(r, "00c0ffee")
			go func() {
				eventually(t, "the container is removed", func() bool { return len(f.calls()) > 0 })
				r.m.end()
			}()
			if err := end(t, r); err != nil {
				t.Fatal(err)
			}
			r.m.Wait()
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			f.wantRemoved(container)
			f.wantNoted(r.o.Store, 0)
		})
	}
}

// TestShownForEver has a mount that somebody shows whom we cannot end.
func TestShownForEver(t *testing.T) {
	r := start(t, options(t))
	r.m.shown = true
	if _, err := r.Unmount(t.Context(), control.UnmountRequest{}); err != nil {
		t.Fatal(err)
	}
	r.Client.Close()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	r.done <- nil
}

func TestBusyContainerStays(t *testing.T) {
	r, f := start(t, options(t)), newFakeDocker(t)
	f.announce(r, "00c0ffee")
	r.m.setBusy(Process{PID: 42, Command: "make", Uses: []string{"cwd"}})
	_, err := r.Unmount(t.Context(), control.UnmountRequest{})
	wantCode(t, err, control.CodeBusy)
	if len(f.calls()) != 0 {
		t.Errorf("the daemon called %q", f.calls())
	}
	r.m.setBusy()
}

// TestStaleContainers has a daemon that is killed, and Docker that is not there at first.
func TestStaleContainers(t *testing.T) {
	o := options(t)
	r, f := start(t, o), newFakeDocker(t)
	container := f.announce(r, "00c0ffee")
	f.answers("Cannot connect to the Docker daemon", 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	f.wantNoted(r.o.Store, 1)
	if err := RemoveContainers(r.o.Store); err == nil || !strings.Contains(err.Error(), "Cannot connect") {
		t.Errorf("removed: %v", err)
	}
	r = start(t, o)
	r.s.background.Wait()
	f.wantNoted(r.o.Store, 1)
	if next := f.announce(r, "00c0ffee"); next == container {
		t.Errorf("the container of the last daemon would be used: %s", next)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	f.wantNoted(r.o.Store, 2)
	f.answers("Error: No such container: "+container, 1)
	r = start(t, o)
	r.s.background.Wait()
	f.wantNoted(r.o.Store, 0)
	f.wantRemoved(container)
}

// TestDestroyTakesContainers also covers what a killed daemon left.
func TestDestroyTakesContainers(t *testing.T) {
	r, f := start(t, options(t)), newFakeDocker(t)
	container := f.announce(r, "00c0ffee")
	f.answers("Cannot connect", 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	f.answers("", 0)
	if err := RemoveStore(r.o.Store); err != nil {
		t.Fatal(err)
	}
	f.wantRemoved(container)
}
