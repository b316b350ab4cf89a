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
