package faults

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// shell is another process, with a directory of its own.
type shell struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// child starts a shell in dir.
func child(t testing.TB, dir string) *shell {
	t.Helper()
	s := &shell{t: t, cmd: exec.Command("bash", "--norc")}
	s.cmd.Dir = dir
	var err error
	s.in, err = s.cmd.StdinPipe()
	ok(t, err)
	out, err := s.cmd.StdoutPipe()
	ok(t, err)
	s.out = bufio.NewReader(out)
	ok(t, s.cmd.Start())
	t.Cleanup(s.stop)
	return s
}

// run runs a line and returns what it printed, without the last newline.
func (s *shell) run(line string) string {
	s.t.Helper()
	// A hanging command must not hang the test.
	kill := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer kill.Stop()
	if _, err := io.WriteString(s.in, line+"\necho; echo =end=\n"); err != nil {
		s.t.Fatalf("shell: %v", err)
	}
	var b strings.Builder
	for {
		l, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("shell running %q: %v (printed %q)", line, err, b.String())
		}
		if l == "=end=\n" {
			return strings.TrimRight(b.String(), "\n")
		}
		b.WriteString(l)
	}
}

func (s *shell) stop() {
	_ = s.in.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// script is a Python program that answers each line it reads with one line.
type script struct{ shell }

// startScript starts a Python program in dir.
func startScript(t testing.TB, dir, source string) *script {
	t.Helper()
	s := &script{shell{t: t, cmd: exec.Command("python3", "-u", "-c", source)}}
	s.cmd.Dir = dir
	var err error
	s.in, err = s.cmd.StdinPipe()
	ok(t, err)
	out, err := s.cmd.StdoutPipe()
	ok(t, err)
	s.out = bufio.NewReader(out)
	ok(t, s.cmd.Start())
	t.Cleanup(s.stop)
	return s
}

func (s *script) pid() int { return s.cmd.Process.Pid }

// ask sends a line and returns the answer.
func (s *script) ask(line string) string {
	s.t.Helper()
	kill := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer kill.Stop()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		s.t.Fatalf("script: %v", err)
	}
	answer, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("script asked %q: %v", line, err)
	}
	return strings.TrimSpace(answer)
}
