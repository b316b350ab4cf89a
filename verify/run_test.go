package verify

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestVerdicts(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		res := run(t, s, `echo '{"status":"pass","summary":"3 tests","n":3}'; echo noise >&2; exit 9`)
		if res.Status != Pass || res.Verdict.Summary != "3 tests" || string(res.Verdict.Extra["n"]) != "3" {
			t.Errorf("got %+v", res)
		}
		if a := res.Attempts[0]; a.ExitCode != 9 || a.Stderr.Head != "noise\n" || a.Ended != 0 {
			t.Errorf("attempt %+v", a)
		}
		res = run(t, s, `echo '{"status":"fail","errors":[{"file":"x.go","line":2,"message":"bad"}]}'`)
		if res.Status != Fail || len(res.Verdict.Errors) != 1 || res.Verdict.Errors[0].String() != "x.go:2: bad" {
			t.Errorf("got %+v", res)
		}
	})
}

func TestNoVerdict(t *testing.T) {
	for _, c := range []struct{ name, command, why string }{
		{"silent", `true`, "empty"},
		{"exit code 0 is no pass", `exit 0`, "empty"},
		{"text", `echo all good`, "begins with"},
		{"pass on stderr", `echo '{"status":"pass"}' >&2`, "empty"},
		{"two objects", `echo '{"status":"pass"}'; echo '{"status":"pass"}'`, "goes on with"},
		{"says unknown", `echo '{"status":"unknown","summary":"no network"}'`, "no network"},
		{"no such command", `/nonexistent/verifier`, "exit code 127"},
		{"crash after pass", `echo '{"status":"pass"}'; kill -SEGV $$`, "ended by SIGSEGV"},
		{"killed after pass", `echo '{"status":"pass"}'; kill -KILL $$`, "ended by SIGKILL"},
		{"pass behind too much", `head -c 2000000 /dev/zero | tr '\0' ' '; echo '{"status":"pass"}'`, "a verdict must fit"},
		{"reads stdin", `read line; echo "$line"`, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ways(t, func(t *testing.T, s Spec) { wantUnknown(t, run(t, s, c.command), c.why) })
		})
	}
}

func TestEnvironmentAndDirectory(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Dir = filepath.Join(s.Dir, "it's a \"dir\" $HOME")
		if err := os.Mkdir(s.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		s.Checkpoint, s.Umask, s.Retries = "before tests", 0o027, 1
		s.Env = append(os.Environ(), "REWINDFS_SESSION=another", "CDPATH=/", "KEPT=yes")
		res := run(t, s, `touch made; stat -c %a made >&2; pwd >&2; echo "$REWINDFS_SESSION,$REWINDFS_CHECKPOINT,$REWINDFS_ATTEMPT,$KEPT" >&2`)
		for i, a := range res.Attempts {
			want := "640\n" + s.Dir + "\ns,before tests," + []string{"1", "2"}[i] + ",yes\n"
			if a.Stderr.Head != want {
				t.Errorf("attempt %d: got %q, want %q", a.Number, a.Stderr.Head, want)
			}
		}
		s.Checkpoint, s.Env = "", append(os.Environ(), "REWINDFS_CHECKPOINT=old")
		if a := run(t, s, `echo "${REWINDFS_CHECKPOINT-none}" >&2`).Attempts[0]; a.Stderr.Head != "none\n" {
			t.Errorf("a checkpoint of the caller's environment came through: %q", a.Stderr.Head)
		}
	})
}

func TestArgumentList(t *testing.T) {
	s := Spec{Dir: t.TempDir(), Argv: []string{"printf", "%s", `{"status":"pass","summary":"$HOME ; *"}`}}
	if res := Run(t.Context(), s); res.Status != Pass || res.Verdict.Summary != "$HOME ; *" {
		t.Errorf("got %+v", res)
	}
}

func TestSpecCheck(t *testing.T) {
	good := Spec{Command: "true", Dir: "/"}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Spec){
		"no command":         func(s *Spec) { s.Command = " " },
		"empty program":      func(s *Spec) { s.Command, s.Argv = "", []string{""} },
		"two commands":       func(s *Spec) { s.Argv = []string{"true"} },
		"relative directory": func(s *Spec) { s.Dir = "x" },
		"NUL":                func(s *Spec) { s.Command = "tr\x00ue" },
		"negative time":      func(s *Spec) { s.Timeout = -1 },
		"too many retries":   func(s *Spec) { s.Retries = MaxRetries + 1 },
		"negative retries":   func(s *Spec) { s.Retries = -1 },
		"umask":              func(s *Spec) { s.Umask = 0o1000 },
	} {
		s := good
		change(&s)
		if s.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
		if res := Run(t.Context(), s); res.Status != Unknown || res.Reason == "" || len(res.Attempts) != 0 {
			t.Errorf("%s: ran: %+v", name, res)
		}
	}
}

func TestMissingDirectoryIsUnknown(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Dir = filepath.Join(s.Dir, "gone")
		res := run(t, s, `echo '{"status":"pass"}'`)
		wantUnknown(t, res, "exit code 127")
		if !strings.Contains(res.Attempts[0].Stderr.Head, "gone") {
			t.Errorf("stderr does not say why: %q", res.Attempts[0].Stderr.Head)
		}
	})
}

func TestRetryThenPass(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Retries = 5
		var told []Status
		s.OnAttempt = func(a Attempt) { told = append(told, a.Status) }
		res := run(t, s, `echo x >> tries; if [ $(wc -l < tries) -lt 3 ]; then echo trouble; exit 1; fi; echo '{"status":"pass"}'`)
		if res.Status != Pass || len(res.Attempts) != 3 {
			t.Fatalf("got %s after %d attempts: %s", res.Status, len(res.Attempts), res.Reason)
		}
		if want := []Status{Unknown, Unknown, Pass}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		if a := res.Attempts[0]; a.Stdout.Head != "trouble\n" || a.ExitCode != 1 || a.Reason == "" {
			t.Errorf("the first attempt is recorded as %+v", a)
		}
	})
}

func TestFailIsNotRetried(t *testing.T) {
	s := Spec{Dir: t.TempDir(), Retries: 3, Command: `echo x >> tries; echo '{"status":"fail"}'`}
	if res := Run(t.Context(), s); res.Status != Fail || len(res.Attempts) != 1 {
		t.Errorf("got %s after %d attempts", res.Status, len(res.Attempts))
	}
}

func TestRetriesEnd(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Retries = 2
		res := run(t, s, `echo '{"status":'`)
		wantUnknown(t, res, "not JSON")
		if len(res.Attempts) != 3 || res.Cancelled {
			t.Errorf("%d attempts, cancelled %t", len(res.Attempts), res.Cancelled)
		}
	})
}

func TestCancelInDelay(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := Spec{Dir: t.TempDir(), Command: "true", Retries: 1, RetryDelay: 24 * time.Hour}
	s.OnAttempt = func(Attempt) { cancel() }
	if res := Run(ctx, s); !res.Cancelled || res.Status != Unknown || len(res.Attempts) != 1 {
		t.Errorf("got %+v", res)
	}
}

func TestCancelWhileRunning(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		fifo := filepath.Join(s.Dir, "started")
		mkfifo(t, fifo)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			os.ReadFile(fifo) // returns when the command has opened and closed it
			cancel()
		}()
		s.Retries = 3
		s.Command = `echo '{"status":"pass"}'; echo $$ > pid.sh; : > started; sleep 1000`
		res := Run(ctx, s)
		checkResult(t, s, res)
		wantUnknown(t, res, "cancelled")
		if !res.Cancelled || len(res.Attempts) != 1 {
			t.Errorf("cancelled %t, %d attempts", res.Cancelled, len(res.Attempts))
		}
		wantGone(t, pidsIn(t, s.Dir, 1))
	})
}

func TestCancelledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	res := Run(ctx, Spec{Dir: dir, Command: "touch ran"})
	wantUnknown(t, res, "cancelled")
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the command ran")
	}
}

func TestFloodIsBounded(t *testing.T) {
	const flood = 1 << 30
	for _, stream := range []string{"stdout", "stderr"} {
		t.Run(stream, func(t *testing.T) {
			s := Spec{Dir: t.TempDir(), Session: "s", Timeout: 5 * time.Minute}
			s.Command = `head -c 1073741824 /dev/zero; printf end`
			if stream == "stderr" {
				s.Command = `(` + s.Command + `) >&2; echo '{"status":"pass"}'`
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res := Run(t.Context(), s)
			runtime.ReadMemStats(&after)
			// Everything that was allocated, also what is free again.
			if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
				t.Errorf("%d bytes of memory for %d bytes kept", used, DefaultKeep)
			}
			out := res.Attempts[0].Stdout
			if stream == "stderr" {
				out = res.Attempts[0].Stderr
				if res.Status != Pass {
					t.Errorf("a flood of stderr made the verdict %s: %s", res.Status, res.Reason)
				}
			} else {
				wantUnknown(t, res, "a verdict must fit")
			}
			if got := int64(len(out.Head)+len(out.Tail)) + out.Dropped; got != flood+3 {
				t.Errorf("%d bytes are accounted for, want %d", got, flood+3)
			}
			if len(out.Head) != DefaultKeep/2 || len(out.Tail) != DefaultKeep/2 || !strings.HasSuffix(out.Tail, "\x00end") {
				t.Errorf("head %d, tail %d bytes", len(out.Head), len(out.Tail))
			}
		})
	}
}

func TestEndlessFloodEndsInTime(t *testing.T) {
	ways(t, func(t *testing.T, s Spec) {
		s.Timeout = 300 * time.Millisecond
		res := run(t, s, `echo $$ > pid.sh; exec cat /dev/zero`)
		wantUnknown(t, res, "no verdict within")
		if res.Attempts[0].Stdout.Dropped == 0 || !res.Attempts[0].TimedOut {
			t.Errorf("attempt: dropped %d, timed out %t", res.Attempts[0].Stdout.Dropped, res.Attempts[0].TimedOut)
		}
		wantGone(t, pidsIn(t, s.Dir, 1))
	})
}

func TestResultAsJSON(t *testing.T) {
	res := Run(t.Context(), Spec{Dir: t.TempDir(), Command: `echo '{"status":"fail","errors":["e"]}'; printf '\377' >&2`})
	data, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if back.Status != Fail || len(back.Verdict.Errors) != 1 || back.Attempts[0].ExitCode != 0 {
		t.Errorf("%s came back as %+v", data, back)
	}
}
