package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/dockertest"
)

// TestDockerTerminal has a terminal on both sides of the container.
func TestDockerTerminal(t *testing.T) {
	env := dockertest.Env(t)
	w := newWorld(t)
	w.mount()
	c := w.console()
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		c.line("export " + name + "='" + value + "'")
	}
	rw := `"$RW" exec --sandbox docker --docker ` + dockertest.CLI(t) + ` --image ` + dockertest.Image + ` --`
	// The engine sets the size a moment after the start.
	c.line(rw + ` sh -c 'test -t 0 && test -t 1 && test -t 2 && echo $TERM and; until stty size | grep "24 80"; do sleep 0.05; done; exit 5'; echo =$?=`)
	c.expect("dumb and\r\n")
	c.expect("24 80\r\n")
	c.expect("=5=")
	c.line(rw + ` sh -c 'echo ask""ing; read a; echo "<$a>"'; echo =$?=`)
	c.expect("asking")
	c.line("typed")
	c.expect("<typed>")
	c.expect("=0=") // what is typed before its end, the command gets
	// The key is the command's.
	c.line(rw + ` sh -c 'trap "echo got; exit 9" INT; echo wait""ing; while :; do sleep 0.05; done'; echo =$?=`)
	c.expect("waiting")
	c.keys(ctrlC)
	c.expect("got")
	c.expect("=9=")
	// Also when only the input is a terminal.
	pipe := filepath.Join(w.home, "pipe.sh")
	script := "trap 'echo key' INT\n" + rw + ` sh -c 'trap "exit 9" INT; echo wait""ing >&2; while :; do sleep 0.05; done' | cat` + "\necho ended\n"
	if err := os.WriteFile(pipe, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	c.line("bash " + pipe)
	c.expect("waiting")
	c.keys(ctrlC)
	c.expect("ended")
	// A shell in it has its own jobs, and leaves the terminal as it was.
	c.line(rw + ` sh -i; echo =$?=`)
	c.line(`stty -echo; sh -c 'echo in""side; exec cat'`)
	c.expect("inside")
	c.keys(ctrlZ)
	c.expect("Stopped")
	c.line("fg")
	c.line("seen")
	c.expect("seen")
	c.keys(ctrlD)
	c.line("echo is''over")
	c.expect("isover")
	c.line("exit 4")
	c.expect("=4=")
	c.line("stty -a | grep -c -- ' icanon'")
	c.expect("1\r\n")
	c.line("exit")
	c.cmd.Wait()
	w.unmount() // nothing is left that would use it
	w.wantContainers(0)
}
