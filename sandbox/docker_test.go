package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/dockertest"
)

// dockerSpec is a shell script in a container of its own session, which goes with the test. A plain directory stands for the mount.
func dockerSpec(t *testing.T, script string) *Spec {
	t.Helper()
	cli := dockertest.CLI(t)
	spec := containerSpec(t, newSetup(t), script)
	spec.Rules.Docker.CLI = cli
	return spec
}

func containerSpec(t *testing.T, in *setup, script string) *Spec {
	t.Helper()
	s := in.spec(Docker, script)
	if err := os.Chmod(in.mount, 0o777); err != nil {
		t.Fatal(err)
	}
	s.Argv = []string{"sh", "-c", script}
	s.Rules = Rules{Network: "none", Docker: DockerRules{Image: dockertest.Image, Workspace: "/workspace"}}
	prefix := "test-" + filepath.Base(in.top) + "-"
	s.Rules.Docker.Register = func(e *Engine, settings string) (string, error) {
		t.Cleanup(func() {
			if out, err := dockertest.Engine(t, "rm", "--force", prefix+settings); err != nil && !strings.Contains(out, "No such container") {
				t.Errorf("remove the container: %v: %s", err, out)
			}
		})
		return prefix + settings, nil
	}
	return s
}

// output runs s and returns what it prints.
func output(t *testing.T, s *Spec) (string, Outcome) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s.Stdout, s.Stderr = f, f
	out, err := Run(t.Context(), *s)
	if err != nil {
		t.Fatalf("%v: %v\n%s", s.Argv, err, read(t, f.Name()))
	}
	return read(t, f.Name()), out
}

func TestDockerRuns(t *testing.T) {
	s := dockerSpec(t, `cat mounted; pwd; echo new >made; echo bad >&2; id -u`)
	s.Dir = s.Project
	got, out := output(t, s)
	// The engine carries the two streams apart: their order is not that in which they were written.
	got, whole := strings.CutPrefix(strings.Replace(got, "bad\n", "", 1), "of the mount/workspace\n")
	if !whole || got != "0\n" || out.ExitCode != 0 || len(out.Left) > 0 {
		t.Errorf("%q, %+v", got, out)
	}
	if made := read(t, filepath.Join(s.Mount, "made")); made != "new\n" {
		t.Errorf("made: %q", made)
	}
	s.Rules.Docker.Workspace = ""
	if got, _ := output(t, s); !strings.Contains(got, s.Project+"\n") {
		t.Errorf("at the project's own path: %q", got)
	}
}

func TestDockerExitCodes(t *testing.T) {
	s := dockerSpec(t, "")
	for script, code := range map[string]int{"exit 0": 0, "exit 1": 1, "exit 4": 4, "exit 125": 125, "exit 126": 126, "exit 127": 127, "exit 255": 255, "kill -TERM $$": 143, "kill -9 $$": 137} {
		s.Argv = []string{"sh", "-c", script}
		if _, out := output(t, s); out.ExitCode != code {
			t.Errorf("%s: %+v", script, out)
		}
	}
	for name, code := range map[string]int{"no-such-command": 127, "/etc/passwd": 126} {
		s.Argv = []string{name}
		if got, out := output(t, s); out.ExitCode != code || !strings.Contains(got, name) {
			t.Errorf("%s: %q, %+v", name, got, out)
		}
	}
	names := dockertest.Containers(t)
	if n := len(slices.DeleteFunc(names, func(n string) bool { return !strings.Contains(n, filepath.Base(filepath.Dir(s.Mount))) })); n != 1 {
		t.Errorf("%d containers for one session: %q", n, names)
	}
}

func TestDockerStdin(t *testing.T) {
	s := dockerSpec(t, "read a; read b; echo $b $a; cat >copy")
	in := filepath.Join(t.TempDir(), "in")
	big := strings.Repeat("0123456789abcdef\n", 1<<16)
	write(t, in, "one\ntwo\n"+big)
	f, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s.Stdin = f
	if got, out := output(t, s); got != "two one\n" || out.ExitCode != 0 {
		t.Errorf("%q, %+v", got, out)
	}
	// What the shell's read has taken into its buffer is not cat's: busybox reads byte by byte.
	if got := read(t, filepath.Join(s.Mount, "copy")); got != big {
		t.Errorf("%d bytes of %d came through", len(got), len(big))
	}
}

// TestDockerBounds looks for each bound from within.
func TestDockerBounds(t *testing.T) {
	s := dockerSpec(t, `
grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status
touch /made 2>/dev/null || echo root is read-only
echo x >/tmp/x && echo tmp is not
ls /sys/class/net
ulimit -f
dd if=/dev/zero of=/tmp/big bs=1M count=20 2>/dev/null || echo tmp is full
awk 'NR>2 || /lo:/' /proc/net/dev | grep -c :
ls -a / | grep -c dockerenv >/dev/null
echo "secret: $SECRET, other: $OTHER, $LANG"
`)
	s.Rules.Limits = Limits{Processes: 40, MemoryBytes: 128 << 20, CPUs: 0.5, TmpBytes: 8 << 20, FileBytes: 1 << 30}
	if dockertest.CLI(t) == "podman" {
		s.Rules.Limits.FileBytes = 0 // with it, podman sets other limits, too, which not every root may
	}
	s.Env = append(s.Env, "SECRET=s3cret", "OTHER=let through", "LANG=de_DE.UTF-8")
	s.Rules.Env = []string{"OTHER"}
	got, out := output(t, s)
	for _, want := range []string{
		"CapBnd:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "root is read-only", "tmp is not", "\nlo\n", "tmp is full",
		"secret: , other: let through, de_DE.UTF-8",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if t.Failed() {
		t.Logf("%+v\n%s", out, got)
	}
	s.Argv = []string{"sh", "-c", `i=0; while [ $i -lt 100 ]; do sleep 30 & i=$((i+1)); done; echo all of them`}
	if got, _ := output(t, s); strings.Contains(got, "all of them") {
		t.Error("100 processes could be started")
	}
}

// TestDockerMemory is apart, as it ends a process.
func TestDockerMemory(t *testing.T) {
	s := dockerSpec(t, `dd if=/dev/zero of=/dev/null bs=200M count=1`)
	s.Rules.Limits.MemoryBytes = 64 << 20
	if got, out := output(t, s); out.ExitCode == 0 {
		t.Errorf("200 MiB could be used: %s", got)
	}
	s.Argv = []string{"echo", "alive"}
	if got, _ := output(t, s); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestDockerTimeout(t *testing.T) {
	s := dockerSpec(t, `trap 'echo told; exit 3' TERM; setsid sh -c 'trap "" TERM; echo $$ >stubborn; while :; do sleep 1; done' & echo begun; while :; do sleep 0.1; done`)
	s.Timeout, s.Grace = 1500*time.Millisecond, time.Second
	got, out := output(t, s)
	if out.ExitCode != ExitTimedOut || !out.TimedOut || !strings.HasPrefix(got, "begun\n") || !strings.Contains(got, "told\n") || len(out.Left) > 0 {
		t.Errorf("%q, %+v", got, out)
	}
	pid := strings.TrimSpace(read(t, filepath.Join(s.Mount, "stubborn")))
	s.Argv, s.Timeout = []string{"sh", "-c", "test -e /proc/" + pid + " && echo still there; ps | grep -c '[s]leep 1'"}, 0
	if got, _ := output(t, s); got != "1\n" && got != "0\n" { // that of the container itself
		t.Errorf("after the time was up: %q", got)
	}
}

// TestDockerTooMany has a command that uses all processes that there may be, and ends none.
func TestDockerTooMany(t *testing.T) {
	s := dockerSpec(t, `bomb() { bomb & bomb & }; trap '' TERM; bomb; sleep 1000`)
	s.Rules.Limits.Processes = 60
	s.Timeout, s.Grace = time.Second, 200*time.Millisecond
	if _, out := output(t, s); out.ExitCode != ExitTimedOut || len(out.Left) > 0 {
		t.Errorf("%+v", out)
	}
	s.Argv, s.Timeout = []string{"echo", "alive"}, 0
	if got, _ := output(t, s); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestDockerLeaves(t *testing.T) {
	s := dockerSpec(t, `sleep 1000 >/dev/null 2>&1 & echo done`)
	s.Timeout = time.Minute // what watches over that is not left
	got, out := output(t, s)
	if got != "done\n" || out.ExitCode != 0 || len(out.Left) != 1 {
		t.Errorf("%q, %+v", got, out)
	}
}

// TestDockerMissing has nothing that can run a container; each error says what to do.
func TestDockerMissing(t *testing.T) {
	in := newSetup(t)
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	fake := filepath.Join(in.top, "docker")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho 'permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Spec)
		says   string
	}{
		"no image is set": {func(s *Spec) { s.Rules.Docker.Image = "" }, "--image"},
		"no command":      {func(s *Spec) { s.Rules.Docker.CLI = "no-such-docker" }, "apt install"},
		"no right":        {func(s *Spec) { s.Rules.Docker.CLI = fake }, "usermod"},
		"another place":   {func(s *Spec) { s.Rules.Docker.CLI = fake; s.Dir = "/elsewhere" }, "cd into the project"},
	} {
		s := containerSpec(t, in, "true")
		s.Rules.Docker.Register = func(*Engine, string) (string, error) { return "none", nil }
		c.change(s)
		_, err := Run(t.Context(), *s)
		var e *Error
		if !errors.As(err, &e) || e.ExitCode != ExitSandbox || !strings.Contains(e.Do, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDockerMissingHere(t *testing.T) {
	s := dockerSpec(t, "true")
	s.Rules.Docker.Image = "no-such-image:9"
	_, err := Run(t.Context(), *s)
	var e *Error
	if !errors.As(err, &e) || e.ExitCode != ExitSandbox || !strings.Contains(e.Do, dockertest.CLI(t)+" pull no-such-image:9") {
		t.Errorf("no image: %v", err)
	}
	if dockertest.CLI(t) == "podman" {
		return // it has no daemon
	}
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	_, err = Run(t.Context(), *s)
	if !errors.As(err, &e) || e.ExitCode != ExitSandbox || !strings.Contains(e.Do, "start docker") {
		t.Errorf("no daemon: %v", err)
	}
}

// TestDockerContainerDies has the container removed while a command runs in it.
func TestDockerContainerDies(t *testing.T) {
	s := dockerSpec(t, `echo here >begun; sleep 1000`)
	name := ""
	register := s.Rules.Docker.Register
	s.Rules.Docker.Register = func(e *Engine, settings string) (string, error) {
		var err error
		name, err = register(e, settings)
		return name, err
	}
	removed := make(chan bool)
	go func() {
		defer close(removed)
		for !exists(filepath.Join(s.Mount, "begun")) {
			time.Sleep(5 * time.Millisecond)
		}
		dockertest.Engine(t, "rm", "--force", name)
	}()
	if out, err := Run(t.Context(), *s); err == nil && out.ExitCode == 0 {
		t.Errorf("%+v", out)
	}
	<-removed
	s.Argv = []string{"echo", "alive"}
	if got, _ := output(t, s); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// TestDockerRace has several commands at once make the container.
func TestDockerRace(t *testing.T) {
	s := dockerSpec(t, "")
	c, err := openContainer(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for range 5 {
		go func() { errs <- c.start(t.Context()) }()
	}
	for range 5 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	// One that has stopped is started again.
	if out, err := dockertest.Engine(t, "kill", c.name); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.Argv = []string{"echo", "alive"}
	if got, _ := output(t, s); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestDockerSees(t *testing.T) {
	s := dockerSpec(t, `cat .git/config secret 2>/dev/null; echo bad >.git/config; ls -A hidden; cat "$ALLOWED/f"; echo new >"$ALLOWED/g"`)
	for name, text := range map[string]string{".git/config": "git\n", "secret": "s3cret", "hidden/x": "s3cret"} {
		write(t, filepath.Join(s.Mount, name), text)
	}
	allowed := filepath.Join(filepath.Dir(s.Mount), "with, comma")
	write(t, filepath.Join(allowed, "f"), "allowed\n")
	s.Rules.Deny = []string{filepath.Join(s.Project, ".git"), filepath.Join(s.Project, "not-there")}
	s.Rules.Hide = []string{filepath.Join(s.Mount, "secret"), filepath.Join(s.Project, "hidden")}
	s.Rules.Allow = []string{allowed}
	s.Env = append(s.Env, "ALLOWED="+allowed)
	s.Rules.Env = []string{"ALLOWED"}
	got, _ := output(t, s)
	if !strings.Contains(got, "git\n") || strings.Contains(got, "s3cret") || !strings.Contains(got, "allowed\n") || !strings.Contains(got, "Read-only") {
		t.Errorf("%q", got)
	}
	if text := read(t, filepath.Join(s.Mount, ".git/config")); text != "git\n" {
		t.Errorf("what was denied holds %q", text)
	}
	if text := read(t, filepath.Join(allowed, "g")); text != "new\n" {
		t.Errorf("what was allowed holds %q", text)
	}
}

// TestDockerDenyFollowsNothing has a symlink in the place of what is denied, as a command in the project can make one.
func TestDockerDenyFollowsNothing(t *testing.T) {
	s := dockerSpec(t, `cat .git/file`)
	// A file system of its own, as mounts are.
	if err := unix.Mount("tmpfs", s.Mount, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(s.Mount, unix.MNT_DETACH) })
	secret := sharedDir(t)
	write(t, filepath.Join(secret, "file"), "s3cret")
	if err := os.Symlink(secret, filepath.Join(s.Mount, ".git")); err != nil {
		t.Fatal(err)
	}
	s.Rules.Deny = []string{filepath.Join(s.Project, ".git")}
	out, err := Run(t.Context(), *s)
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "leads out of the project") {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestMountFlag(t *testing.T) {
	got, err := mountFlag([]string{"type=bind", `source=/a,"b`, "target=/c"})
	if want := `type=bind,"source=/a,""b",target=/c`; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if _, err := mountFlag([]string{"source=/\xff"}); err == nil {
		t.Error("a path that is not UTF-8 was taken")
	}
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{"": "", "\n \n": "", "a\nb\n": "b", "docker: it is so.\nSee 'docker run --help'.\n": "docker: it is so."} {
		if got := lastLine(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}
