package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// on is a backend on a machine that lacks something.
type on struct {
	machine
	kind Kind
}

func (o on) start(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	if o.kind == NS {
		return o.ns(s, prepare)
	}
	return o.local(s, prepare)
}

// What a machine cannot do is said in one line, and the rest is done.
func TestLocalOnLesserMachines(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		s.home(t, "file", ".cache/x")
		for _, c := range []struct {
			name    string
			m       machine
			note    string // in the one note, "" for none
			atMount bool   // the project is seen at the mountpoint
			writes  bool   // to the home are not refused
			chmods  bool
		}{
			{name: "no Landlock", m: machine{0, true}},
			{name: "Landlock without moves", m: machine{1, true}},
			{name: "Landlock without truncate", m: machine{2, true}},
			{name: "Landlock without signals", m: machine{5, true}},
			{name: "no namespaces", m: machine{landlockABI(), false}, note: "chmod and chown outside of the project are not refused", atMount: true, chmods: true},
			{name: "no namespaces, Landlock without truncate", m: machine{2, false}, note: "truncate, chmod", atMount: true, chmods: true},
			{name: "no namespaces, Landlock without moves", m: machine{1, false}, note: "cannot be moved", atMount: true, chmods: true},
			{name: "nothing", m: machine{0, false}, note: "NOTHING", atMount: true, writes: true, chmods: true},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := run(t, on{c.m, Local}, s.spec(Local, `
					pwd; echo >in; mkdir -p d && mv in d/in; echo >$HOME/.cache/new; t=${TMPDIR:-/tmp}; echo >$t/x && rm $t/x
					(echo >$HOME/new) 2>/dev/null && echo wrote && rm $HOME/new; chmod 600 $HOME/file 2>/dev/null && echo chmodded; true`))
				want := []string{s.project}
				if c.atMount {
					want[0] = s.mount
				}
				if c.writes {
					want = append(want, "wrote")
				}
				if c.chmods {
					want = append(want, "chmodded")
				}
				var got []string
				for line := range strings.Lines(r.out) {
					got = append(got, strings.Fields(line)[0])
				}
				if !slices.Equal(got, want) {
					t.Errorf("output\n%s\nwant %q", r.out, want)
				}
				if c.note == "" && len(r.notes) > 0 || c.note != "" && (len(r.notes) != 1 || !strings.Contains(r.notes[0], c.note) || strings.Contains(r.notes[0], "\n")) {
					t.Errorf("notes %q, want one with %q", r.notes, c.note)
				}
			})
		}
	})
}

func TestWhatCannotBeKeptIsRefused(t *testing.T) {
	s := newSetup(t)
	bare := machine{landlockABI(), false}
	for _, c := range []struct {
		kind  Kind
		rules Rules
		want  string
	}{
		{Local, Rules{Deny: []string{"x"}}, "--deny takes namespaces"}, {Local, Rules{Network: "none"}, "--network none takes namespaces"}, {NS, Rules{}, "--sandbox"},
	} {
		spec := s.spec(c.kind, "echo ran")
		spec.Rules = c.rules
		_, err := tryRun(t, on{bare, c.kind}, spec)
		var e *Error
		if !errors.As(err, &e) || e.ExitCode != ExitSandbox || e.Do == "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %+v: %v; want an error about %q that says what to do", c.kind, c.rules, err, c.want)
		}
	}
}

// Where the kernel itself says no, the same happens as where it is switched off.
func TestNamespacesThatTheKernelRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to forbid namespaces")
	}
	s := newSetup(t)
	// A user namespace in which there may be no further ones.
	self := exec.Command("/proc/self/exe", "-test.run", "^TestInsideWithoutNamespaces$", "-test.v")
	self.Env = append(os.Environ(), "REWINDFS_TEST_INSIDE="+s.top)
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{Size: 1 << 31}}, GidMappings: []syscall.SysProcIDMap{{Size: 1 << 31}},
	}
	out, err := self.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestInsideWithoutNamespaces(t *testing.T) {
	top := os.Getenv("REWINDFS_TEST_INSIDE")
	if top == "" {
		t.Skip("part of TestNamespacesThatTheKernelRefuses")
	}
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	s := &setup{top, filepath.Join(top, "proj"), filepath.Join(top, "proj.rewind")}
	r := run(t, local{}, s.spec(Local, "pwd"))
	if r.out != s.mount || len(r.notes) != 1 || !strings.Contains(r.notes[0], "no space left on device") {
		t.Errorf("%+v", r)
	}
	var e *Error
	if _, err := tryRun(t, ns{}, s.spec(NS, "pwd")); !errors.As(err, &e) || !strings.Contains(err.Error(), "max_user_namespaces") {
		t.Errorf("%v", err)
	}
}

// /tmp is the session's own: commands find there what others have left, and see nothing of the host's but what they are called with.
func TestTemporaryDirectories(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		t.Cleanup(func() { RemoveTemp(s.mount) })
		dir, err := os.MkdirTemp("/tmp", "of-the-host-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		write(t, filepath.Join(dir, "bin/tool"), "#!/bin/sh\necho tool\n")
		os.Chmod(filepath.Join(dir, "bin/tool"), 0o755)
		write(t, filepath.Join(dir, "shown/x"), "shown")
		t.Setenv("PATH", os.Getenv("PATH")+":"+filepath.Join(dir, "bin"))
		t.Setenv("TMPDIR", dir)
		spec := s.spec(Local, `tool; ls `+dir+`; echo $TMPDIR; echo x >/tmp/one; echo x >/var/tmp/two; echo x >/dev/shm/three; echo bad >>`+dir+`/shown/x; mktemp -d | cut -c1-9`)
		spec.Rules.Allow = []string{dir + "/shown"}
		if r := run(t, local{}, spec); r.out != "tool\nbin\nshown\n/tmp\n/tmp/tmp." {
			t.Errorf("output %q", r.out)
		}
		if read(t, filepath.Join(dir, "shown/x")) != "shownbad\n" {
			t.Error("what was allowed in /tmp could not be written to")
		}
		r := run(t, local{}, s.spec(Local, `cat /tmp/one /var/tmp/two; ls -ld /tmp | cut -c1-10; ls /dev/shm`))
		if r.out != "x\nx\ndrwxrwxrwt" {
			t.Errorf("the next command finds %q", r.out)
		}
		for _, f := range []string{"/tmp/one", "/var/tmp/two", "/dev/shm/three"} {
			if exists(f) {
				t.Errorf("%s is on the host", f)
			}
		}
		if err := RemoveTemp(s.mount); err != nil {
			t.Fatal(err)
		}
		if r := run(t, local{}, s.spec(Local, `ls /tmp /var/tmp`)); strings.Contains(r.out, "one") || strings.Contains(r.out, "two") {
			t.Errorf("after its removal there is %q", r.out)
		}
	})
}

func TestTemporaryDirectoryOfSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes two users")
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	top := filepath.Join(tmp, "rewindfs-0")
	for _, make := range []func() error{
		func() error { return os.Mkdir(top, 0o777) },
		func() error { os.Mkdir(top, 0o700); return os.Chown(top, nobody, nobody) },
		func() error { return os.Symlink(t.TempDir(), top) },
	} {
		syscall.Umask(0)
		if err := make(); err != nil {
			t.Fatal(err)
		}
		s := newSetup(t)
		if _, err := tryRun(t, local{}, s.spec(Local, "true")); err == nil || !strings.Contains(err.Error(), top) {
			t.Errorf("%v; want a refusal that names %s", err, top)
		}
		os.RemoveAll(top)
	}
}

// What a command leaves running goes on writing after we have gone, though its calls wait for an answer.
func TestWhatIsLeftRunningGoesOn(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		fifo := filepath.Join(s.mount, "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, local{}, s.spec(Local, `(read x <fifo; echo later >late; echo done >fifo) >/dev/null 2>&1 &`))
		if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		if got := read(t, fifo); got != "done\n" {
			t.Errorf("what was left says %q", got)
		}
		if read(t, filepath.Join(s.mount, "late")) != "later\n" {
			t.Error("it could not write")
		}
	})
}

// killedEnv has this binary run a command in a box and wait until it is killed.
const killedEnv = "REWINDFS_TEST_SANDBOX_KILLED"

// The same when we are killed: the command goes on as it would have without us.
func TestCommandGoesOnWhenWeAreKilled(t *testing.T) {
	if top := os.Getenv(killedEnv); top != "" {
		s := &setup{top, filepath.Join(top, "proj"), filepath.Join(top, "proj.rewind")}
		run(t, local{}, s.spec(Local, `echo on >begun; read x <fifo; echo later >late; echo done >fifo`))
		return
	}
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		fifo, begun := filepath.Join(s.mount, "fifo"), filepath.Join(s.mount, "begun")
		for _, path := range []string{fifo, begun} {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestCommandGoesOnWhenWeAreKilled$")
		cmd.Env = append(os.Environ(), killedEnv+"="+s.top)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if got := read(t, begun); got != "on\n" {
			t.Errorf("the command says %q", got)
		}
		for !hasRelay(cmd.Process.Pid) {
			time.Sleep(10 * time.Millisecond)
		}
		cmd.Process.Kill()
		cmd.Wait()
		if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		if got := read(t, fifo); got != "done\n" {
			t.Errorf("what was left says %q", got)
		}
		if read(t, filepath.Join(s.mount, "late")) != "later\n" {
			t.Error("it could not write")
		}
	})
}

// While we are stopped, what the command has in the background goes on.
func TestWritesGoOnWhileWeAreStopped(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		fifo := filepath.Join(s.mount, "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		pr, pw, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer pr.Close()
		spec := s.spec(Local, `while read x <fifo; do echo $x >seen; echo done >fifo; [ $x = end ] && break; done`)
		spec.Stdout, spec.Stderr = pw, pw
		r, err := local{}.start(spec, func(*exec.Cmd) {})
		pw.Close()
		if err != nil {
			t.Fatal(err)
		}
		for i, word := range []string{"one", "two", "three", "end"} {
			r.stand(i%2 == 0)
			if err := os.WriteFile(fifo, []byte(word+"\n"), 0); err != nil {
				t.Fatal(err)
			}
			if got := read(t, fifo); got != "done\n" || read(t, filepath.Join(s.mount, "seen")) != word+"\n" {
				t.Errorf("%s: the command says %q", word, got)
			}
		}
		if err := r.cmd.Wait(); err != nil {
			t.Error(err)
		}
		r.stop()
	})
}

// hasRelay reports whether a process has started one that answers after it.
func hasRelay(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		children, _ := os.ReadFile(task)
		for child := range strings.FieldsSeq(string(children)) {
			if args, _ := os.ReadFile("/proc/" + child + "/cmdline"); strings.Contains(string(args), RelayArg) {
				return true
			}
		}
	}
	return false
}

func TestSocketsOfTheUser(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		run1 := filepath.Join(s.top, "run")
		if err := os.Mkdir(run1, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"bus", "agent", "free"} {
			l, err := net.Listen("unix", filepath.Join(run1, name))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		t.Setenv("XDG_RUNTIME_DIR", run1)
		t.Setenv("SSH_AUTH_SOCK", filepath.Join(run1, "agent"))
		script := `for s in bus agent free; do [ -S ` + run1 + `/$s ] && echo $s; done; echo $SSH_AUTH_SOCK`
		for _, c := range []struct {
			kind Kind
			env  []string
			want string
		}{
			{Local, nil, "free"}, {Local, []string{"SSH_AUTH_SOCK"}, "agent\nfree\n" + run1 + "/agent"},
			{NS, nil, ""}, {NS, []string{"SSH_AUTH_SOCK"}, "agent\n" + run1 + "/agent"},
		} {
			spec := s.spec(c.kind, script)
			spec.Rules.Env = c.env
			b, _ := backendOf(c.kind)
			if r := run(t, b, spec); r.out != c.want {
				t.Errorf("%s, --env %q: sees %q, want %q", c.kind, c.env, r.out, c.want)
			}
		}
	})
}

// The doors in the directory of a user's session are closed also when nothing says that they are there.
func TestSocketsWithoutTheVariable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a directory in /run/user")
	}
	if os.Mkdir("/run/user", 0o755) == nil {
		t.Cleanup(func() { os.Remove("/run/user") })
	}
	user, err := os.MkdirTemp("/run/user", "rewindfs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(user) })
	for _, name := range []string{"bus", "free"} {
		l, err := net.Listen("unix", filepath.Join(user, name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	s := newSetup(t)
	if r := run(t, local{}, s.spec(Local, `for s in bus free; do [ -S `+user+`/$s ] && echo $s; done`)); r.out != "free" {
		t.Errorf("sees %q", r.out)
	}
}

func TestStoresAreOutOfSight(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		state := filepath.Join(s.top, "state")
		write(t, filepath.Join(state, "one/kv/data"), "data")
		write(t, filepath.Join(state, "one/control.sock"), "control")
		write(t, filepath.Join(state, "one/agent/agent.sock"), "agent")
		write(t, filepath.Join(s.top, "lone"), "lone")
		for _, kind := range []Kind{Local, NS, None} {
			spec := s.spec(kind, `cd `+state+`; find . -type f | sort; cat one/control.sock ../lone; (echo x >new) 2>/dev/null && echo wrote; rm -f new`)
			spec.Unseen = []string{state, filepath.Join(s.top, "lone"), filepath.Join(s.top, "missing")}
			spec.Sockets = map[string]string{filepath.Join(state, "one/control.sock"): filepath.Join(state, "one/agent/agent.sock")}
			want := "./one/control.sock\nagent"
			if kind == None {
				want = "./one/agent/agent.sock\n./one/control.sock\n./one/kv/data\ncontrollonewrote"
			}
			b, _ := backendOf(kind)
			if r := run(t, b, spec); r.out != want {
				t.Errorf("%s: sees %q, want %q", kind, r.out, want)
			}
		}
	})
}
