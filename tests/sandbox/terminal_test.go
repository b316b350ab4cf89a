package sandbox

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// A command shares the user's terminal, and must not type into it what the shell that comes after it would run.
func TestTypingIntoTheTerminal(t *testing.T) {
	w := newWorld(t, 0)
	for _, how := range []string{"type", "type-high", "type-linux"} {
		for _, kind := range []string{"none", "local", "ns"} {
			cmd := exec.Command(mounttest.Binary(), "exec", "--sandbox", kind, "--", filepath.Join(w.around, attackerName), how)
			cmd.Env, cmd.Dir = w.m.Env(), w.m.Base
			tty, err := pty.Start(cmd)
			ok(t, err)
			out, _ := io.ReadAll(tty) // EIO is its end
			cmd.Wait()
			tty.Close()
			refused := strings.Contains(string(out), how+": operation not permitted")
			if refused != (kind != "none") {
				t.Errorf("%s, %s: %q", kind, how, out)
			}
		}
	}
}

// What is open when rewindfs is called is no way out: neither a directory, nor a file that was opened for reading, as standard input too.
func TestDescriptorsFromOutside(t *testing.T) {
	w := newWorld(t, 0)
	for _, kind := range []string{"local", "ns"} {
		for _, input := range []string{w.outside, filepath.Join(w.outside, "file")} {
			dir, err := os.Open(w.outside)
			ok(t, err)
			defer dir.Close()
			in, err := os.Open(input)
			ok(t, err)
			defer in.Close()
			cmd := exec.Command(mounttest.Binary(), "exec", "--sandbox", kind, "--", "sh", "-c",
				`for n in 0 3 4 5 6 7 8 9; do fd=/proc/$$/fd/$n; echo bad >$fd; echo bad >$fd/file; echo bad >$fd/new; chmod 777 $fd/file; done; true`)
			cmd.Env, cmd.Dir = w.m.Env(), w.m.Base
			cmd.Stdin, cmd.ExtraFiles = in, []*os.File{dir, in, dir, dir, in, dir, dir}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			if harm := w.harm(&mounttest.Result{}); len(harm) > 0 {
				t.Errorf("%s, %s: %s\n%s", kind, input, harm, out)
				w.look()
			}
		}
	}
}
