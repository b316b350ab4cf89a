package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// TestAgentInside: a command in a sandbox finds its session without a word, and can ask for what can be taken back.
func TestAgentInside(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can put a home where no sandbox replaces it")
	}
	t.Setenv("TMPDIR", "/srv") // sandboxes have a /tmp of their own
	for name, cred := range map[string]*syscall.Credential{"root": nil, "user": ordinaryUser(t)} {
		for _, kind := range []string{"local", "ns"} {
			t.Run(name+"/"+kind, func(t *testing.T) { testAgentInside(t, newWorldFor(t, cred), kind) })
		}
	}
}

func testAgentInside(t *testing.T, w *world, kind string) {
	b, err := os.ReadFile(w.bin)
	if err != nil {
		t.Fatal(err)
	}
	w.bin = filepath.Join(filepath.Dir(w.base), "rw")
	if err := os.WriteFile(w.bin, b, 0o755); err != nil {
		t.Fatal(err)
	}
	w.mount()
	script := `rw=` + w.bin + `
$rw status; $rw tool begin write --call c1; echo x >made; $rw tool end; $rw checkpoint inside; rm a.txt; $rw rollback inside; cat a.txt
$rw undo; ls; $rw -s proj log; cd sub; $rw read sub/b.txt; $rw write from-inside text
for forbidden in commit "gc" "unmount" "fork inside --branch b" "policy auto-rollback --off" "budget set --checkpoints 5" "run true" "checkpoint delete inside" "export inside -o /tmp/x"; do
	if $rw $forbidden 2>&1; then echo "ALLOWED: $forbidden"; fi
done
find $1 | sort; cat $1/*/ledger/* && echo READABLE; true`
	o := w.finish([]string{"run", "--sandbox", kind, "--", "sh", "-c", script, "sh", filepath.Dir(w.store())}, in(w.base))
	o.want(t, 0, "Session      proj (live", "Call c1 of write may start", "'inside'", "Back at 'inside'", "or run the command itself", "base a\n", "1 step back", "base b\n")
	for _, bad := range []string{"ALLOWED", "READABLE", "packs", "daemon.log"} {
		if strings.Contains(o.out, bad) {
			t.Errorf("%q is in %s%s", bad, o.out, o.err)
		}
	}
	if n := strings.Count(o.out+o.err, "is not for commands in a sandbox"); n < 8 {
		t.Errorf("only %d calls were refused: %s%s", n, o.out, o.err)
	}
	w.same("cat $M/from-inside; ls $M $B", "text"+w.base+":\na.txt\nsub\n\n"+w.mp+":\nfrom-inside\nmade\nsub\n")
	w.unmount()
}

// TestManyExecs has a thousand programs of the mount executed in the mount, which a daemon on one processor serves while others write and
// checkpoints are made: a daemon that did it itself would wait for itself.
func TestManyExecs(t *testing.T) {
	w := newWorld(t)
	w.finish([]string{"mount", w.base}, func(c *exec.Cmd) { c.Env = append(c.Env, "GOMAXPROCS=1") }).want(t, 0)
	w.sh("cp /bin/true $M/mine")
	stop := make(chan struct{})
	var load, work sync.WaitGroup
	load.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := os.WriteFile(filepath.Join(w.mp, fmt.Sprint("load", i%50)), make([]byte, 100<<10), 0o644); err != nil {
				t.Error(err)
				return
			}
			if i%20 == 0 {
				w.rewind("checkpoint").want(t, 0)
			}
		}
	})
	for range 4 {
		work.Go(func() {
			for range 10 {
				w.finish([]string{"exec", "--sandbox", "none", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do ./mine || exit 9; done"}, in(w.mp)).want(t, 0)
			}
		})
	}
	work.Wait()
	close(stop)
	load.Wait()
	w.unmount()
}

// TestUnmountBesideASandbox: the mounts of a sandbox show other sessions' mounts, too. That keeps none of them.
func TestUnmountBesideASandbox(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	w.mount()
	other.mount()
	cmd := w.command(t.Context(), "run", "--sandbox", "local", "--", "sh", "-c", "echo runs; read x; echo $x >after; cat after")
	cmd.Dir = w.mp
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "runs\n" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	pid := other.pid()
	other.unmount()
	if proctree.Runs(pid) {
		t.Error("the daemon of the session that was unmounted still runs")
	}
	w.rewind("unmount").want(t, exitConflict, "in use")
	fmt.Fprintln(in, "still there")
	n, _ := out.Read(buf)
	if err := cmd.Wait(); err != nil || string(buf[:n]) != "still there\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	w.unmount()
}
