package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// plain starts the command as it is.
type plain struct{}

func (plain) start(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	cmd := exec.Command(s.Argv[0], s.Argv[1:]...)
	cmd.Dir, cmd.Env = s.Dir, s.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, s.Stdout, s.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	prepare(cmd)
	if err := cmd.Start(); err != nil {
		return nil, &Error{ExitCode: ExitNotFound, Err: err}
	}
	return &running{
		cmd:    cmd,
		signal: func(sig syscall.Signal) { cmd.Process.Signal(sig) },
		status: func(s syscall.WaitStatus) syscall.WaitStatus { return s },
		stop:   func() []Refusal { return []Refusal{{Path: "/x", Flag: "--allow /x"}} },
		notes:  []string{"plain"},
	}, nil
}

func shell(script string) Spec { return Spec{Argv: []string{"sh", "-c", script}, Dir: "/"} }

// runs runs s plainly and fails the test on an error.
func runs(t *testing.T, s Spec) Outcome {
	t.Helper()
	out, err := s.run(t.Context(), plain{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		script, signal string
		code           int
	}{
		{"exit 0", "", 0}, {"exit 1", "", 1}, {"exit 4", "", 4}, {"exit 124", "", 124}, {"exit 255", "", 255},
		{"kill -TERM $$", "SIGTERM", 143}, {"kill -KILL $$", "SIGKILL", 137}, {"kill -INT $$", "SIGINT", 130},
	} {
		out := runs(t, shell(c.script))
		if out.ExitCode != c.code || out.Signal != c.signal || out.TimedOut || len(out.Left) > 0 || len(out.Refused) != 1 || len(out.Notes) != 1 {
			t.Errorf("%s: %+v", c.script, out)
		}
	}
	var e *Error
	if _, err := (Spec{Argv: []string{"/nonexistent"}}).run(t.Context(), plain{}); !errors.As(err, &e) || e.ExitCode != ExitNotFound {
		t.Errorf("a command that is not there: %v", err)
	}
	for _, s := range []Spec{{}, {Argv: []string{"true"}, Kind: "moon"}} {
		if _, err := Run(t.Context(), s); !errors.As(err, &e) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// The command's descriptors are the caller's own: nothing is copied, and what is not read stays.
func TestPipes(t *testing.T) {
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(feed, "one\ntwo\n")
	feed.Close()
	s := shell("read a; echo got $a; echo bad >&2")
	s.Stdin, s.Stdout, s.Stderr = in, out, out
	runs(t, s)
	rest, err := io.ReadAll(in)
	if err != nil || !strings.HasSuffix("one\ntwo\n", string(rest)) {
		t.Errorf("left in the pipe: %q, %v", rest, err)
	}
	if got, err := os.ReadFile(out.Name()); err != nil || string(got) != "got one\nbad\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// started waits until a script has written its pid into a file, and returns it.
func started(t *testing.T, file string) int {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(file)
		if pid := atoi(string(b)); err == nil && pid > 0 {
			return pid
		}
		if time.Now().After(deadline) {
			t.Fatal("the command did not begin")
		}
	}
}

func atoi(s string) int {
	line, _, whole := strings.Cut(s, "\n")
	n := 0
	for _, c := range line {
		n = 10*n + int(c-'0')
	}
	if !whole {
		return 0
	}
	return n
}

func TestTimeoutEndsTheWholeTree(t *testing.T) {
	for name, script := range map[string]string{
		"plain":         `sleep 1000`,
		"deaf":          `trap "" TERM INT HUP; sleep 1000 & wait; wait; sleep 1000`,
		"stopped":       `kill -STOP $$`,
		"lost daughter": `env -i setsid sh -c '(setsid sh -c "trap \"\" TERM; sleep 1000; sleep 1000" &)'; sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(script)
			s.Timeout, s.Grace = 300*time.Millisecond, 100*time.Millisecond
			out := runs(t, s)
			if out.ExitCode != ExitTimedOut || !out.TimedOut || len(out.Left) > 0 {
				t.Errorf("%+v", out)
			}
		})
	}
}

// What a command starts to clean up is not ended with it.
func TestGraceIsForCleaningUp(t *testing.T) {
	dir := t.TempDir()
	s := shell(`trap 'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sh -c "sleep 0.01" || exit 8; done; touch "$F"; exit 9' TERM; echo $$ >"$P"; while :; do sleep 0.02; done`)
	s.Env = []string{"F=" + filepath.Join(dir, "cleaned"), "P=" + filepath.Join(dir, "pid"), "PATH=" + os.Getenv("PATH")}
	s.Grace = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		started(t, filepath.Join(dir, "pid")) // before that it knows nothing of cleaning up
		cancel()
	}()
	if out, err := s.run(ctx, plain{}); !errors.Is(err, context.Canceled) || out.ExitCode != 9 || out.Signal != "" {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cleaned")); err != nil {
		t.Error(err)
	}
}

// TestLeftAtOnce: what a command leaves is seen, also when it has ended before anybody looked.
func TestLeftAtOnce(t *testing.T) {
	for range 50 {
		out := runs(t, shell(`sleep 1000 & kill -9 $$`))
		for _, pid := range out.Left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(out.Left) != 1 {
			t.Fatalf("left: %v", out.Left)
		}
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "pid")
	go func() {
		started(t, file)
		cancel()
	}()
	out, err := shell("echo $$ >"+file+"; sleep 1000").run(ctx, plain{})
	if !errors.Is(err, context.Canceled) || out.Signal != "SIGTERM" || len(out.Left) > 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := shell("true").run(ctx, plain{}); !errors.Is(err, context.Canceled) {
		t.Errorf("begun although it was given up: %v", err)
	}
}

// Signals to us are the command's: it decides what they mean.
func TestSignalsArePassedOn(t *testing.T) {
	for sig, name := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2"} {
		file := filepath.Join(t.TempDir(), "pid")
		go func() {
			started(t, file)
			syscall.Kill(os.Getpid(), sig)
		}()
		out := runs(t, shell("trap 'exit 33' "+name+"; echo $$ >"+file+"; while :; do sleep 0.01; done"))
		if out.ExitCode != 33 {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

// What runs on in the background is left alone, and named.
func TestLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	out := runs(t, shell(`setsid sh -c 'echo $$ >`+file+`; exec sleep 1000' & while [ ! -s `+file+` ]; do sleep 0.01; done`))
	pid := started(t, file)
	defer syscall.Kill(pid, syscall.SIGKILL)
	if out.ExitCode != 0 || len(out.Left) != 1 || out.Left[0] != pid || !proctree.Runs(pid) {
		t.Errorf("%+v, and %d runs: %t", out, pid, proctree.Runs(pid))
	}
}
