package sandbox

import (
	"bufio"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestNSShowsTheProjectAndHidesTheRest(t *testing.T) {
	asBoth(t, func(t *testing.T) {
		s := newSetup(t)
		home := filepath.Join(s.top, "home")
		write(t, filepath.Join(home, ".ssh/id_rsa"), "secret")
		write(t, filepath.Join(home, ".netrc"), "secret")
		write(t, filepath.Join(home, "plain"), "plain")
		t.Setenv("HOME", home)
		spec := s.spec(NS, `
			cat mounted; echo new >new; echo; pwd
			cat ~/.ssh/id_rsa ~/.netrc ~/plain
			echo; ls -A /tmp /run; ls -A ~/.ssh; ls /dev | tr '\n' ' '
			ls /proc/self/fd | tr '\n' ' '; grep -c : /proc/net/dev; ls -d /proc/[0-9]* | head -1; exit 6`)
		r := run(t, ns{}, spec)
		want := "of the mount\n" + s.project + "\n" +
			"cat: " + home + "/.ssh/id_rsa: No such file or directory\nplain\n" +
			"/run:\n\n/tmp:\nfd full null ptmx pts random shm stderr stdin stdout tty urandom zero " +
			"0 1 2 3 1\n/proc/1"
		if r.code != 6 || len(r.notes) > 0 || r.out != want {
			t.Errorf("exit %d, notes %q, output\n%s\nwant 6, none and\n%s", r.code, r.notes, r.out, want)
		}
		if read(t, filepath.Join(s.mount, "new")) != "new\n" {
			t.Error("nothing was written in the project")
		}
	})
}

func TestNSEndsAllWithTheCommand(t *testing.T) {
	s := newSetup(t)
	// The orphan holds the pipe: the reading of output ends only with it.
	r := run(t, ns{}, s.spec(NS, `(setsid sleep 1000 &) ; kill -TERM $$`))
	if r.code != 128+15 {
		t.Errorf("exit %d", r.code)
	}
}

func TestNSPassesSignalsAndStops(t *testing.T) {
	s := newSetup(t)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	spec := s.spec(NS, `trap 'echo got; exit 9' USR1; echo ready; kill -STOP $$; echo on; while :; do sleep 0.01; done`)
	spec.Stdout, spec.Stderr = in, in
	r, err := ns{}.start(spec, nil)
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("read %q, want %q", lines.Text(), want)
		}
	}
	expect("ready")
	var ws syscall.WaitStatus
	pid := r.cmd.Process.Pid
	if _, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("%v, %#x: the first process does not stop with the command", err, ws)
	}
	r.signal(syscall.SIGCONT)
	expect("on")
	r.signal(syscall.SIGUSR1)
	expect("got")
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	if ws = r.status(ws); ws.ExitStatus() != 9 {
		t.Errorf("ended with %#x, want exit code 9", ws)
	}
	r.stop()
}
