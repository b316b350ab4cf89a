package sandbox

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMain lets this binary be what rewindfs is to Run, and an unprivileged user's tests of the same name.
func TestMain(m *testing.M) {
	if code, mine := Init(); mine {
		os.Exit(code)
	}
	flag.Parse()
	os.Exit(m.Run())
}

// nobody is the user that tests of unprivileged use run as.
const nobody = 65534

// asBoth runs fn as root and, in a process of its own, as an unprivileged user.
func asBoth(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		fn(t)
		return
	}
	t.Run("root", fn)
	t.Run("user", func(t *testing.T) {
		exe := filepath.Join(sharedDir(t), "sandbox.test") // the build directory is root's
		copyFile(t, "/proc/self/exe", exe, 0o755)
		name := "^" + strings.Join(strings.Split(strings.TrimSuffix(t.Name(), "/user"), "/"), "$/^") + "$"
		cmd := exec.Command(exe, "-test.run", name, "-test.count=1", "-test.v")
		home := sharedDir(t) // of which nothing else is made than what they make
		if err := os.Chown(home, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		cmd.Dir = home
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), topEnv + "=" + home}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("as an unprivileged user: %v\n%s", err, out)
		}
	})
}

// topEnv names a directory for tests of an unprivileged user.
const topEnv = "REWINDFS_TEST_SANDBOX_TOP"

// sharedDir is a directory that other users reach, unlike that of t.TempDir, and that no kind replaces by one of its own, unlike /tmp.
func sharedDir(t *testing.T) string {
	t.Helper()
	top := os.Getenv(topEnv)
	if top == "" {
		top = "/srv"
		if os.Geteuid() != 0 {
			top = os.Getenv("HOME")
		}
	}
	dir, err := os.MkdirTemp(top, "sandbox-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// setup is a project with a file on the host and another one in what stands for its mount, side by side in one directory.
type setup struct {
	top, project, mount string
}

func newSetup(t *testing.T) *setup {
	t.Helper()
	top := sharedDir(t)
	s := &setup{top, filepath.Join(top, "proj"), filepath.Join(top, "proj.rewind")}
	write(t, filepath.Join(s.project, "host"), "of the host")
	write(t, filepath.Join(s.mount, "mounted"), "of the mount")
	return s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(content), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// spec is a shell script that is run in the project.
func (s *setup) spec(kind Kind, script string) *Spec {
	return &Spec{
		Argv: []string{"sh", "-c", script}, Env: os.Environ(), Dir: s.project, Kind: kind,
		Mount: s.mount, Project: s.project,
	}
}

// result is what became of a command.
type result struct {
	out     string // standard output and error
	code    int
	refused []Refusal
	notes   []string
}

// run runs a command to its end, with the group of its own that Run gives it.
func run(t *testing.T, b backend, s *Spec) result {
	t.Helper()
	r, err := tryRun(t, b, s)
	if err != nil {
		t.Fatalf("%v: %v", s.Argv, err)
	}
	return r
}

func tryRun(t *testing.T, b backend, s *Spec) (result, error) {
	t.Helper()
	var out bytes.Buffer
	done := make(chan struct{})
	if s.Stdout == nil {
		pr, pw, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		s.Stdout, s.Stderr = pw, pw
		go func() { io.Copy(&out, pr); pr.Close(); close(done) }()
		defer pw.Close()
	} else {
		close(done)
	}
	running, err := b.start(s, func(cmd *exec.Cmd) { cmd.SysProcAttr.Setpgid = true })
	if err != nil {
		return result{}, err
	}
	r := result{notes: running.notes}
	err = running.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	ws := running.status(running.cmd.ProcessState.Sys().(syscall.WaitStatus))
	r.code = ws.ExitStatus()
	if ws.Signaled() {
		r.code = 128 + int(ws.Signal())
	}
	r.refused = running.stop()
	s.Stdout.Close()
	<-done
	r.out = strings.TrimSpace(out.String())
	return r, nil
}
