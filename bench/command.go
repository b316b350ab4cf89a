package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// command is a program to run. Its output is kept only to explain a failure.
type command struct {
	dir  string
	env  []string // added to the environment of this process
	args []string
	ok   []int // exit codes besides 0 that are no failure
}

// run starts the program in a process group of its own, and ends the whole group
// when ctx is done.
func (c command) run(ctx context.Context) error {
	_, err := c.output(ctx)
	return err
}

// output is run, returning what the program wrote to stdout.
func (c command) output(ctx context.Context) ([]byte, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ownGroup(cmd)
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		for _, code := range c.ok {
			if exit.ExitCode() == code {
				return stdout.Bytes(), nil
			}
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return stdout.Bytes(), fmt.Errorf("%s: %w%s", strings.Join(c.args[:min(3, len(c.args))], " "), err, tail(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// ownGroup gives cmd a process group, to be killed as one, and ties its life to ours.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
}

// tail is the last line of a program's complaint, ready to append to an error.
func tail(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return ": " + s
}

// have reports whether the program name is installed.
func have(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}
