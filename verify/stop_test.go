package verify

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

func mkfifo(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHang(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Timeout, s.Retries = 200*time.Millisecond, 1
		res := run(t, s, `echo '{"status":"pass"}'; echo $$ > pid.$REWINDFS_ATTEMPT; sleep 1000; true`)
		wantUnknown(t, res, "no verdict within")
		if len(res.Attempts) != 2 {
			t.Fatalf("%d attempts", len(res.Attempts))
		}
		for _, a := range res.Attempts {
			if !a.TimedOut || a.Signal != "SIGTERM" || a.Ended != 2 || a.Stdout.Head != "{\"status\":\"pass\"}\n" {
				t.Errorf("attempt %+v", a)
			}
		}
		wantGone(t, pidsIn(t, s.Dir, 2))
	})
}

func TestIgnoresSIGTERM(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Timeout = 300 * time.Millisecond
		res := run(t, s, `trap '' TERM INT HUP; echo $$ > pid.sh; while :; do sleep 0.05; done`)
		wantUnknown(t, res, "no verdict within")
		if sig := res.Attempts[0].Signal; sig != "SIGKILL" {
			t.Errorf("ended by %s", sig)
		}
		wantGone(t, pidsIn(t, s.Dir, 1))
	})
}

func TestStopped(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Timeout = 300 * time.Millisecond
		wantUnknown(t, run(t, s, `echo $$ > pid.sh; kill -STOP $$`), "no verdict within")
		wantGone(t, pidsIn(t, s.Dir, 1))
	})
}

// TestCleansUpOnSIGTERM: the grace period is for this.
func TestCleansUpOnSIGTERM(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Timeout, s.Grace = 300*time.Millisecond, time.Minute
		run(t, s, `trap 'touch cleaned; exit' TERM; while :; do sleep 0.05; done`)
		if _, err := os.Stat(filepath.Join(s.Dir, "cleaned")); err != nil {
			t.Error("the verifier had no chance to clean up")
		}
	})
}

// TestEscapes: children that leave the process group, the session, their parents.
func TestEscapes(t *testing.T) {
	for _, c := range []struct {
		name, command string
		pids          int
	}{
		{"new session", `setsid sh -c 'echo $$ > pid.1; exec sleep 1000' & `, 1},
		{"new session, output closed, parent gone", `(setsid sh -c 'echo $$ > pid.1; exec sleep 1000 <&- >/dev/null 2>&1' &); `, 1},
		{"twice", `setsid sh -c 'setsid sh -c "echo \$\$ > pid.1; trap \"\" TERM; sleep 1000; true" & echo $$ > pid.2; wait' & `, 2},
		{"cleared environment", `env -i setsid sh -c 'echo $$ > pid.1; exec sleep 1000' & `, 1},
		{"new process groups", `set -m; for i in 1 2 3; do (trap "" TERM; exec sh -c "echo \$\$ > pid.$i; while :; do sleep 1; done") & done; `, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			wait := `while [ $(ls pid.* 2>/dev/null | wc -l) -lt ` + string(rune('0'+c.pids)) + ` ]; do sleep 0.01; done; `
			ways(t, func(t *testing.T, s Spec) {
				s.Timeout = time.Second
				wantUnknown(t, run(t, s, c.command+wait+"sleep 1000"), "no verdict within")
				wantGone(t, pidsIn(t, s.Dir, c.pids))
			})
			t.Run("left behind", func(t *testing.T) {
				ways(t, func(t *testing.T, s Spec) {
					if c.name == "cleared environment" && s.withoutCgroup {
						t.Skip("cannot be found without a cgroup once its parent has ended: it is in the package comment")
					}
					res := run(t, s, c.command+wait+`echo '{"status":"pass"}'`)
					if res.Status != Pass || res.Attempts[0].Ended < c.pids {
						t.Errorf("got %s (%s), %d processes ended", res.Status, res.Reason, res.Attempts[0].Ended)
					}
					wantGone(t, pidsIn(t, s.Dir, c.pids))
				})
			})
		})
	}
}

// TestManyChildren is a bounded fork bomb: a tree of processes, half of them in sessions of their own, all deaf to SIGTERM.
func TestManyChildren(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		script := `#!/bin/sh
trap '' TERM
echo $$ > pid.$$
[ "$1" -gt 0 ] || exec sleep 1000
sh tree.sh $(($1 - 1)) &
setsid sh tree.sh $(($1 - 1)) &
wait
`
		if err := os.WriteFile(filepath.Join(s.Dir, "tree.sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		const depth, all = 5, 63
		s.Timeout = 2 * time.Minute
		res := run(t, s, `sh tree.sh 5 & while [ $(ls | grep -c '^pid\.') -lt 63 ]; do sleep 0.02; done; echo '{"status":"pass"}'`)
		if res.Status != Pass || res.Attempts[0].Ended != all {
			t.Errorf("got %s (%s), %d processes ended, want %d", res.Status, res.Reason, res.Attempts[0].Ended, all)
		}
		wantGone(t, pidsIn(t, s.Dir, all))
	})
}

// TestBreeder never has the same process for long: each starts its successor and ends. It gives up by itself after some thousand.
func TestBreeder(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		script := `echo $$ > last; [ "$1" -gt 0 ] || exit 0; setsid sh breed.sh $(($1 - 1)) & exit 0`
		if err := os.WriteFile(filepath.Join(s.Dir, "breed.sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, s, `sh breed.sh 3000 & while [ ! -s last ]; do sleep 0.01; done; sleep 0.1; echo '{"status":"pass"}'`)
		last, err := os.ReadFile(filepath.Join(s.Dir, "last"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // long enough for the next one to have written, if there is one
		if again, _ := os.ReadFile(filepath.Join(s.Dir, "last")); string(again) != string(last) {
			t.Errorf("it still breeds: %s, then %s", last, again)
		}
	})
}

// TestHeldOutput: a process that nobody can find keeps stdout open. Here it is the test itself that holds it.
func TestHeldOutput(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		mkfifo(t, filepath.Join(s.Dir, "ready"))
		held := make(chan *os.File, 1)
		go func() {
			data, _ := os.ReadFile(filepath.Join(s.Dir, "ready"))
			f, _ := os.OpenFile("/proc/"+strings.TrimSpace(string(data))+"/fd/1", os.O_WRONLY, 0)
			held <- f
			os.WriteFile(filepath.Join(s.Dir, "go"), nil, 0o600)
		}()
		res := run(t, s, `echo $$ > ready; while [ ! -e go ]; do sleep 0.01; done; echo '{"status":"pass"}'`)
		f := <-held
		if f == nil {
			t.Fatal("the test could not open the command's stdout")
		}
		defer f.Close()
		wantUnknown(t, res, "still holds its stdout")
		if res.Attempts[0].Stdout.Head != "{\"status\":\"pass\"}\n" {
			t.Errorf("stdout is kept as %q", res.Attempts[0].Stdout.Head)
		}
	})
}

// TestOthersAreLeftAlone: ending a verifier must not touch who merely resembles it.
func TestOthersAreLeftAlone(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		other, err := Spec{Dir: t.TempDir(), Command: "sleep 1000", Keep: 2, withoutCgroup: s.withoutCgroup}.start(1)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			proctree.Stop(other.tree, time.Second)
			other.reap()
			other.drain()
		}()
		s.Timeout = 200 * time.Millisecond
		run(t, s, "setsid sleep 1000 & sleep 1000")
		if !proctree.Runs(other.cmd.Process.Pid) {
			t.Error("another verifier was ended too")
		}
	})
}
