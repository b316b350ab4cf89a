package verify

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// ways runs a test with each way of finding a verifier's processes that this machine has.
func ways(t *testing.T, test func(t *testing.T, s Spec)) {
	for _, way := range []string{"cgroup", "proc"} {
		t.Run(way, func(t *testing.T) {
			if way == "cgroup" {
				g, err := proctree.NewCgroup(groupPrefix)
				if err != nil {
					t.Skipf("no cgroup here: %v", err)
				}
				g.Close()
			}
			test(t, Spec{
				Dir: t.TempDir(), Session: "s", Grace: 100 * time.Millisecond, RetryDelay: time.Millisecond,
				withoutCgroup: way == "proc",
			})
		})
	}
}

const groupNames = groupPrefix + "*"

// old are the control groups that were there before the tests.
var old = func() []string {
	parent, err := proctree.OwnCgroup()
	if err != nil {
		return nil
	}
	dirs, _ := filepath.Glob(filepath.Join(parent, groupNames))
	return dirs
}()

// run runs a command line and checks what must hold for every result.
func run(t *testing.T, s Spec, command string) Result {
	t.Helper()
	s.Command = command
	res := Run(t.Context(), s)
	checkResult(t, s, res)
	return res
}

func checkResult(t *testing.T, s Spec, res Result) {
	t.Helper()
	if (res.Status == Unknown) != (res.Reason != "") {
		t.Errorf("status %s with reason %q", res.Status, res.Reason)
	}
	if len(res.Attempts) == 0 {
		t.Fatalf("no attempt was recorded: %s", res.Reason)
	}
	for i, a := range res.Attempts {
		if a.Number != i+1 || a.Started.IsZero() {
			t.Errorf("attempt %d is recorded as %d, started %v", i+1, a.Number, a.Started)
		}
		if i < len(res.Attempts)-1 && a.Status != Unknown {
			t.Errorf("attempt %d said %s and was followed by another", a.Number, a.Status)
		}
		if len(a.Survivors) > 0 {
			t.Errorf("processes %v survived", a.Survivors)
		}
		if want := map[bool]string{false: "cgroup", true: "proc"}[s.withoutCgroup]; a.Tracked != want {
			t.Errorf("processes were found by %s, want %s", a.Tracked, want)
		}
	}
	if parent, err := proctree.OwnCgroup(); err == nil {
		left, _ := filepath.Glob(filepath.Join(parent, groupNames))
		for _, dir := range left {
			// One that is in use is another verifier's, an older one was left by a verifier that was killed.
			if slices.Contains(old, dir) {
				continue
			}
			if events, err := os.ReadFile(filepath.Join(dir, "cgroup.events")); err == nil && strings.Contains(string(events), "populated 0") {
				t.Errorf("the cgroup %s was left behind", dir)
			}
		}
	}
}

// wantUnknown fails unless the result is Unknown for a reason with the words why.
func wantUnknown(t *testing.T, res Result, why string) {
	t.Helper()
	if res.Status != Unknown || !strings.Contains(res.Reason, why) {
		t.Errorf("got %s (%s), want unknown with %q", res.Status, res.Reason, why)
	}
}

// pidsIn reads the process numbers that scripts have written into files pid.* in dir.
func pidsIn(t *testing.T, dir string, want int) []int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "pid.*"))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			t.Fatalf("%s holds %q", f, data)
		}
		pids = append(pids, pid)
	}
	if len(pids) != want {
		t.Fatalf("%d processes have written their numbers, want %d", len(pids), want)
	}
	return pids
}

// wantGone fails if one of the processes runs.
func wantGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if proctree.Runs(pid) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d still runs: %q", pid, name)
		}
	}
}
