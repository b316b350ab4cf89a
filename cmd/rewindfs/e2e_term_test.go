package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// console is a terminal with a shell on it that has job control.
type console struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	mu   sync.Mutex
	said bytes.Buffer // guarded by mu
	more chan struct{}
}

// console opens a terminal with a shell in the mount, in which rw is rewindfs.
func (w *world) console() *console {
	w.t.Helper()
	c := &console{t: w.t, cmd: exec.Command("bash", "--norc", "--noediting", "-i"), more: make(chan struct{}, 1)}
	c.cmd.Dir = w.mp
	c.cmd.Env = []string{asProgram + "=1", noRaceSleep, "HOME=" + w.home, "PATH=" + os.Getenv("PATH"), "PS1=", "TERM=dumb", "RW=" + w.bin}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.cred}
	var err error
	if c.tty, err = pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := c.tty.Read(buf)
			c.mu.Lock()
			c.said.Write(buf[:n])
			c.mu.Unlock()
			select {
			case c.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	w.t.Cleanup(func() {
		c.tty.Close() // hangs up on all of them
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	c.line("stty -echo")
	c.line("echo read''y")
	c.expect("ready")
	return c
}

func (c *console) line(text string) { c.keys(text + "\n") }

func (c *console) keys(text string) {
	c.t.Helper()
	if _, err := c.tty.WriteString(text); err != nil {
		c.t.Fatal(err)
	}
}

// expect waits for something on the screen and forgets all up to it.
func (c *console) expect(pattern string) string {
	c.t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.After(limit)
	for {
		c.mu.Lock()
		text := c.said.String()
		at := re.FindStringIndex(text)
		if at != nil {
			c.said.Next(at[1])
		}
		c.mu.Unlock()
		if at != nil {
			return text[at[0]:at[1]]
		}
		select {
		case <-c.more:
		case <-late:
			ps, _ := exec.Command("ps", "-o", "pid,ppid,pgid,tpgid,stat,blocked,ignored,pending,caught,args", "-s", fmt.Sprint(c.cmd.Process.Pid)).CombinedOutput()
			c.t.Fatalf("%q does not come; on the screen is %q\n%s", pattern, text, ps)
		}
	}
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
	ctrlZ = "\x1a"
)

// terminals runs a test with each kind of sandbox that shares the terminal.
func terminals(t *testing.T, test func(t *testing.T, c *console, rw string)) {
	for _, kind := range []string{"none", "local", "ns"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			w.mount()
			c := w.console()
			test(t, c, `"$RW" exec --sandbox `+kind+` --`)
			c.line("exit")
			c.cmd.Wait()
			w.unmount()
		})
	}
}

func TestTerminal(t *testing.T) {
	terminals(t, func(t *testing.T, c *console, rw string) {
		// It is a terminal on all three, of this size, and a new size is known and told.
		c.line(rw + ` sh -c 'test -t 0 && test -t 1 && test -t 2 && stty size; trap "stty size; exit 5" WINCH; echo wait""ing; while :; do sleep 0.01; done'; echo =$?=`)
		c.expect("24 80\r\n")
		c.expect("waiting")
		if err := pty.Setsize(c.tty, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
			t.Fatal(err)
		}
		c.expect("30 100\r\n")
		c.expect("=5=")
		// Lines typed are read by the command.
		c.line(rw + ` sh -c 'read a; echo "<$a>"'`)
		c.line("typed")
		c.expect("<typed>")
	})
}

func TestCtrlCReachesTheCommandOnce(t *testing.T) {
	terminals(t, func(t *testing.T, c *console, rw string) {
		// Not a shell: they may lose signals that come while they start a program. Perl, too, with other signals in between.
		c.line(rw + ` perl -e '$| = 1; $SIG{INT} = sub { $n++; print "int\n" }; $SIG{USR1} = sub { print "got $n\n"; exit 7 }; print "wait", "ing\n"; sleep 1 while 1'`)
		c.expect("waiting")
		c.keys(ctrlC)
		c.expect("int\r\n")
		// A second one would have come by the time that a later signal through rewindfs has.
		c.keys(ctrlZ)
		c.expect("Stopped")
		c.line("kill -USR1 $(jobs -p); fg; echo =$?=") // to rewindfs alone: to %1, it is the command's twice
		c.expect("got 1\r\n")
		c.expect("=7=")
		c.line(rw + ` sh -c 'echo wait""ing; exec sleep 1000'; echo =$?=`)
		c.expect("waiting")
		c.keys(ctrlC)
		c.line("echo =$?=") // a shell leaves the rest of a line that was interrupted alone
		c.expect("=130=")
	})
}

func TestJobControl(t *testing.T) {
	terminals(t, func(t *testing.T, c *console, rw string) {
		// By the key, which stops the whole group.
		c.line(rw + ` sh -c 'while read a; do echo "<$a>"; done; exit 3'`)
		for i := range 5 {
			c.line(fmt.Sprint("typed", i))
			c.expect(fmt.Sprintf("<typed%d>", i))
			c.keys(ctrlZ)
			c.expect("Stopped")
			c.line("fg; echo =$?=")
		}
		c.line("more")
		c.expect("<more>")
		c.keys(ctrlD)
		c.expect("=3=")
		// One that ignores the key goes on.
		c.line(rw + ` sh -c 'trap "" TSTP; echo wait""ing; while read a; do echo "<$a>"; done; exit 3'; echo =$?=`)
		c.expect("waiting")
		c.keys(ctrlZ)
		c.line("deaf")
		c.expect("<deaf>")
		c.keys(ctrlD)
		c.expect("=3=")
		// By itself, as an editor does that reads the key in raw mode.
		c.line(rw + ` sh -c 'stty raw -echo; echo wait""ing; dd bs=1 count=1 2>/dev/null >&2; stty sane -echo; kill -TSTP $$; echo back; exit 6'`)
		c.expect("waiting")
		c.keys("q")
		c.expect("Stopped")
		c.line("fg; echo =$?=")
		c.expect("back")
		c.expect("=6=")
		// Let go on by a signal to rewindfs alone.
		c.line(rw + ` sh -c 'kill -TSTP $$; echo back; exit 6'`)
		c.expect("Stopped")
		c.line(`kill -CONT $(jobs -p); while [ -n "$(jobs)" ]; do sleep 0.01; done`) // "wait" does not wait for what the shell takes for stopped
		c.expect("back")
		c.expect("Exit 6")
		// In the background it is stopped when it wants to read.
		c.line(rw + ` sh -c 'read a; echo "<$a>"' &`)
		c.line(`while [ -z "$(jobs -s)" ]; do sleep 0.05; done; echo is""Stopped`)
		c.expect("isStopped")
		c.line("fg")
		c.line("late")
		c.expect("<late>")
		// A pager behind it has the terminal as well.
		c.line(rw + ` sh -c 'echo out' | sh -c 'cat; read a </dev/tty; echo "<$a>"'`)
		c.expect("out")
		c.line("paged")
		c.expect("<paged>")
	})
}

// A command that ends in the background leaves the terminal to the shell. A shell that lost it would end, for reading from a terminal
// that is another's fails.
func TestEndInTheBackground(t *testing.T) {
	terminals(t, func(t *testing.T, c *console, rw string) {
		const over = `while [ -n "$(jobs)" ]; do sleep 0.01; done`
		for _, end := range []string{"bg", "kill %1", "kill -CONT %1", "kill -CONT $(jobs -p)"} {
			c.line(rw + ` sh -c 'kill -TSTP $$; echo back'`)
			c.expect("Stopped")
			c.line(end)
			c.line(over)
			c.line("read a; echo \"<$a>\"")
			c.line(end)
			c.expect("<" + regexp.QuoteMeta(end) + ">")
		}
	})
}

// A shell in it has job control of its own, and gives the terminal back.
func TestShellInside(t *testing.T) {
	terminals(t, func(t *testing.T, c *console, rw string) {
		c.line(rw + ` bash --norc --noediting -i; echo =$?=`)
		c.line("stty -echo; sh -c 'echo in\"\"side; exec sleep 1000'")
		c.expect("inside")
		c.keys(ctrlZ)
		c.expect("Stopped")
		c.line("jobs; kill -9 %1; wait; echo is''over")
		c.expect("isover")
		c.line("exit 4; exit 4") // the first may say that there are stopped jobs
		c.expect("=4=")
		// One that is killed leaves the terminal in a state in which one can work.
		c.line(rw + ` bash --norc --noediting -i; echo =$?=`)
		c.line("stty -echo; echo in''side; stty raw; kill -9 $$")
		c.expect("inside")
		c.expect("=137=")
		c.line("stty -a | grep -c -- ' icanon'; cat")
		c.expect("1\r\n")
		c.keys("still\n" + ctrlD)
		c.expect("still")
	})
}

// Signals are the command's, and those that were to be ignored stay so.
func TestRunPassesSignalsOn(t *testing.T) {
	w := newWorld(t)
	w.mount()
	for _, kind := range []string{"none", "local", "ns"} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1} {
			cmd := w.command(t.Context(), "run", "--sandbox", kind, "--", "sh", "-c", "trap 'echo got; exit 21' TERM HUP INT USR1; echo ready; while :; do sleep 0.01; done")
			cmd.Dir = w.mp
			cmd.SysProcAttr.Setsid = true // no terminal
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 100)
			if n, err := out.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
				t.Fatalf("%q, %v", buf[:n], err)
			}
			cmd.Process.Signal(sig)
			n, _ := out.Read(buf)
			if cmd.Wait(); string(buf[:n]) != "got\n" || cmd.ProcessState.ExitCode() != 21 {
				t.Errorf("%s, %v: %q, %v", kind, sig, buf[:n], cmd.ProcessState)
			}
		}
	}
	script := fmt.Sprintf(`trap '' HUP INT; cd %s; "%s" run --sandbox none -- sh -c 'kill -HUP $$; kill -INT $$; kill -HUP $PPID; kill -INT $PPID; echo alive'`, w.mp, w.bin)
	cmd := w.command(t.Context())
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script}
	cmd.SysProcAttr.Setsid = true
	if b, err := cmd.CombinedOutput(); err != nil || string(b) != "alive\n" {
		t.Errorf("%v: %s", err, b)
	}
	w.unmount()
}
