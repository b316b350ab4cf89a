package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestNoneShowsTheMountAtTheProject(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		r := run(t, none{}, s.spec(None, `pwd; ls; cat mounted; echo new >new; id -u; exit 3`))
		want := s.project + "\nmounted\nof the mount"
		if !strings.HasPrefix(r.out, want) || r.code != 3 || len(r.notes) > 0 {
			t.Errorf("exit %d, notes %q, output %q; want exit 3 and %q", r.code, r.notes, r.out, want)
		}
		if read(t, filepath.Join(s.mount, "new")) != "new\n" || exists(filepath.Join(s.project, "new")) {
			t.Error("what was written at the project's path is not in the mount alone")
		}
	})
}

// Ctrl-Z may come before the process is the command: then it goes on, or both would wait for each other.
func TestStoppedOnItsWay(t *testing.T) {
	s := newSetup(t)
	for _, b := range []backend{none{}, local{}} {
		hit := 0
		for range 200 { // some come too late
			stopped, over := make(chan bool), make(chan struct{})
			go func() { stopped <- stopOnItsWay(over) }()
			if r := run(t, b, s.spec(None, "echo done")); r.out != "done" || r.code != 0 {
				t.Fatalf("exit %d, output %q", r.code, r.out)
			}
			close(over)
			if <-stopped {
				hit++
			}
			if hit == 3 {
				break
			}
		}
		if hit == 0 {
			t.Errorf("%T: no process was stopped in time", b)
		}
	}
}

// stopOnItsWay waits for a child that is to become a command and stops it, until it is over. It says whether the child had not become it.
func stopOnItsWay(over <-chan struct{}) bool {
	onItsWay := func(pid int) bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && bytes.Contains(line, []byte(InitArg))
	}
	for {
		select {
		case <-over:
			return false
		default:
		}
		lists, _ := filepath.Glob("/proc/self/task/*/children")
		for _, list := range lists {
			children, _ := os.ReadFile(list)
			for field := range strings.FieldsSeq(string(children)) {
				pid, err := strconv.Atoi(field)
				if err != nil || !onItsWay(pid) || syscall.Kill(pid, syscall.SIGSTOP) != nil {
					continue
				}
				if onItsWay(pid) {
					return true
				}
				syscall.Kill(pid, syscall.SIGCONT)
				return false
			}
		}
	}
}

func TestCommandsThatCannotRun(t *testing.T) {
	s := newSetup(t)
	write(t, filepath.Join(s.mount, "plain"), "#!/bin/sh\n")
	write(t, filepath.Join(s.mount, "lost"), "#!/no/such/interpreter\n")
	write(t, filepath.Join(s.mount, "bare"), "exit $1\n")
	os.Chmod(filepath.Join(s.mount, "lost"), 0o755)
	os.Chmod(filepath.Join(s.mount, "bare"), 0o755)
	for _, c := range []struct {
		argv []string
		code int
	}{
		{[]string{"no-such-command"}, 127},
		{[]string{"./no-such-file"}, 127},
		{[]string{"./lost"}, 127},
		{[]string{"./plain"}, 126},
		{[]string{s.project}, 126},
		{[]string{""}, 127},
	} {
		spec := s.spec(None, "")
		spec.Argv = c.argv
		_, err := tryRun(t, none{}, spec)
		var e *Error
		if !errors.As(err, &e) || e.ExitCode != c.code {
			t.Errorf("%q: %v; want exit code %d", c.argv, err, c.code)
		}
	}
	spec := s.spec(None, "")
	spec.Argv = []string{"./bare", "7"}
	if r := run(t, none{}, spec); r.code != 7 {
		t.Errorf("a script without #! ends with %d, want 7", r.code)
	}
	spec.Dir = filepath.Join(s.top, "nowhere")
	var e *Error
	if _, err := tryRun(t, none{}, spec); !errors.As(err, &e) || e.ExitCode != ExitSandbox {
		t.Errorf("a missing working directory: %v", err)
	}
}

func TestArgumentsOfAnyBytes(t *testing.T) {
	s := newSetup(t)
	odd := "\xff\xfe \n'\u00e9"
	dir := filepath.Join(s.mount, odd)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []Kind{None, Local, NS} {
		spec := s.spec(kind, `printf %s "$1|$ODD|"; basename "$PWD"`)
		spec.Argv = append(spec.Argv, "sh", odd)
		spec.Env = append(spec.Env, "ODD="+odd)
		spec.Dir = filepath.Join(s.project, odd)
		b, _ := backendOf(kind)
		if r, want := run(t, b, spec), odd+"|"+odd+"|"+odd; r.out != want {
			t.Errorf("%s: %q, want %q", kind, r.out, want)
		}
	}
}
