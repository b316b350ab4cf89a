package mounttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Result is how a command ended.
type Result struct {
	Args           []string
	Stdout, Stderr string
	Code           int // -1: it did not end in time, or by a signal
}

func (r *Result) String() string {
	return fmt.Sprintf("rewindfs %s: exit code %d\nstdout: %s\nstderr: %s", strings.Join(r.Args, " "), r.Code, r.Stdout, r.Stderr)
}

// Env is the environment of the CLI in this test: its own state, and the
// session chosen.
func (m *Mount) Env() []string {
	env := append(os.Environ(),
		"XDG_STATE_HOME="+filepath.Join(m.Top, "state"),
		"XDG_RUNTIME_DIR="+filepath.Join(m.Top, "run"),
		"REWINDFS_SESSION="+m.Dir)
	return append(env, m.opt.Env...)
}

// Run runs the CLI.
func (m *Mount) Run(args ...string) *Result {
	m.T.Helper()
	return m.RunStdin("", args...)
}

// RunStdin runs the CLI with an input.
func (m *Mount) RunStdin(stdin string, args ...string) *Result {
	m.T.Helper()
	return m.exec(Timeout, stdin, args...)
}

func (m *Mount) exec(limit time.Duration, stdin string, args ...string) *Result {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(), args...)
	cmd.Env = m.Env()
	cmd.Dir = m.Top
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	// A daemon that inherited the pipes would keep Wait from returning.
	cmd.WaitDelay = 10 * time.Second
	if m.opt.As != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: m.opt.As, Gid: m.opt.As}}
	}
	err := cmd.Run()
	r := &Result{Args: args, Stdout: out.String(), Stderr: errOut.String(), Code: cmd.ProcessState.ExitCode()}
	if errors.Is(err, exec.ErrWaitDelay) {
		m.T.Errorf("a process started by %q holds its output open after it ended", args)
	}
	if ctx.Err() != nil {
		r.Code = -1
		r.Stderr += fmt.Sprintf("\n(ended by the test after %v)", limit)
	}
	return r
}

// OK runs the CLI and fails the test unless it succeeds. It returns stdout.
func (m *Mount) OK(args ...string) string {
	m.T.Helper()
	r := m.Run(args...)
	if r.Code != 0 {
		m.T.Fatalf("%s", r)
	}
	return r.Stdout
}

// Fails runs the CLI and fails the test unless the exit code is code and stderr
// explains. It returns stderr.
func (m *Mount) Fails(code int, args ...string) string {
	m.T.Helper()
	r := m.Run(args...)
	if r.Code != code {
		m.T.Fatalf("want exit code %d; %s", code, r)
	}
	if strings.TrimSpace(r.Stderr) == "" {
		m.T.Fatalf("no message on stderr; %s", r)
	}
	return r.Stderr
}

// Sh runs a shell command in the mount, with $M the mount, $B the base and $T a
// place outside of both. It returns its output, and fails the test if it fails.
func (m *Mount) Sh(script string) string {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = m.Dir
	cmd.Env = append(m.Env(), "M="+m.Dir, "B="+m.Base, "T="+m.Top, "REWINDFS="+Binary())
	cmd.WaitDelay = 10 * time.Second
	if m.opt.As != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: m.opt.As, Gid: m.opt.As}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.T.Fatalf("%v: %s\n%s", err, script, out)
	}
	return string(out)
}
