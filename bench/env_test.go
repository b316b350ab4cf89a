package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeSystem is a plain directory that counts its mounts.
type fakeSystem struct {
	name  string
	fail  error
	open  *int
	order *[]string
}

func (f fakeSystem) Name() string { return f.name }

func (f fakeSystem) Mount(_ context.Context, e *Env, _ *fixture, _ bool) (*Mount, error) {
	if f.fail != nil {
		return nil, f.fail
	}
	dir, err := e.Dir(f.name)
	*f.open++
	m := &Mount{Root: dir, stored: func(context.Context) (int64, error) { return 4096, nil }}
	m.close = e.Defer(func() error { *f.open--; return nil })
	return m, err
}

// fakeWork notes who ran.
type fakeWork struct {
	onEmpty
	spec  Spec
	order *[]string
	run   func(ctx context.Context, p *Place) error
}

func (w fakeWork) Spec() Spec { return w.spec }
func (w fakeWork) Run(ctx context.Context, p *Place) error {
	*w.order = append(*w.order, fmt.Sprintf("%s%d", p.System, p.Round))
	return w.run(ctx, p)
}

func testEnv(t *testing.T, o Options) *Env {
	t.Helper()
	e, err := newEnv(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(e.Work); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the working directory is left: %v", err)
		}
	})
	return e
}

func TestComparisonAlternatesAndSurvivesAFailure(t *testing.T) {
	e := testEnv(t, Options{Runs: 3})
	var open int
	var order []string
	broken := errors.New("broken")
	e.systems = []System{
		fakeSystem{name: Native, open: &open}, fakeSystem{name: Rewindfs, open: &open},
		fakeSystem{name: Overlayfs, open: &open, fail: skipf("not here")}, fakeSystem{name: FuseOverlayfs, open: &open},
	}
	w := fakeWork{spec: Spec{ID: "w", Title: "work", Warm: 1, Limits: []Limit{atMost(1e9, Native)}}, order: &order,
		run: func(_ context.Context, p *Place) error {
			if p.System == FuseOverlayfs && p.Round == 2 {
				return broken
			}
			return nil
		}}
	if err := (comparison{w}).Run(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	want := "native0 rewindfs0 fuse-overlayfs0 native1 rewindfs1 fuse-overlayfs1 rewindfs2 fuse-overlayfs2 native2 native3 rewindfs3"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("order\n got %s\nwant %s", got, want)
	}
	if open != 0 {
		t.Errorf("%d mounts are left", open)
	}
	c := e.Report.Comparisons[0]
	if len(c.cell(Native).Samples) != 3 || c.Met != Met {
		t.Errorf("native has samples %v, met %q", c.cell(Native).Samples, c.Met)
	}
	if f := c.cell(FuseOverlayfs); f.Error == "" || f.Samples[0] == 0 || f.Samples[1] != 0 || f.Samples[2] != 0 {
		t.Errorf("the failed system has %+v", f)
	}
	if s := strings.Join(e.Report.Skipped, "; "); s != "overlayfs: not here; fuse-overlayfs, w: broken" {
		t.Errorf("skipped: %s", s)
	}
}

func TestComparisonRepeatsARunOnCachesThatSomebodyEmptied(t *testing.T) {
	e := testEnv(t, Options{Runs: 2})
	var open int
	var order []string
	drops, emptied := uint64(7), false
	e.drops = func() uint64 { return drops }
	e.systems = []System{fakeSystem{name: Native, open: &open}}
	w := fakeWork{spec: Spec{ID: "w", Warm: 1}, order: &order, run: func(_ context.Context, p *Place) error {
		if p.Round == 2 && !emptied {
			drops, emptied = drops+1, true
		}
		return nil
	}}
	if err := (comparison{w}).Run(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	// One warm run, the first sample, the second one that was disturbed, and that again.
	if got := strings.Join(order, " "); got != "native0 native1 native2 native3" {
		t.Errorf("runs: %s", got)
	}
	if n := len(e.Report.Comparisons[0].Cells[0].Samples); n != 2 {
		t.Errorf("%d samples, want 2", n)
	}
}

func TestComparisonWithFreshMounts(t *testing.T) {
	e := testEnv(t, Options{Runs: 2})
	var open int
	var order, roots []string
	e.systems = []System{fakeSystem{name: Rewindfs, open: &open}}
	w := fakeWork{spec: Spec{ID: "w", Fresh: true, Stored: true, Ops: 10}, order: &order, run: func(_ context.Context, p *Place) error {
		roots = append(roots, p.Root)
		if open != 1 {
			t.Errorf("%d mounts during a run", open)
		}
		return nil
	}}
	if err := (comparison{w}).Run(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if len(roots) != 2 || roots[0] == roots[1] || open != 0 {
		t.Errorf("ran in %v, %d mounts left", roots, open)
	}
	if s := e.Report.Comparisons[0].Cells[0].Stored; s == nil || *s != 4096 {
		t.Errorf("stored = %v", s)
	}
}

func TestGuardBreaksTheMountOfStuckWork(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("too slow")
	stuck, aborted := make(chan struct{}), 0
	cancel(why)
	err := guard(ctx, func() { aborted++; close(stuck) }, func() error { <-stuck; return errors.New("transport endpoint is not connected") })
	if !errors.Is(err, why) || aborted != 1 {
		t.Errorf("err = %v, aborted %d times", err, aborted)
	}
}

func TestEnvUndoesInReverseOrderAndOnce(t *testing.T) {
	e, err := newEnv(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	bad := errors.New("bad")
	undo := func(i int, err error) func() error {
		return e.Defer(func() error { got = append(got, i); return err })
	}
	undo(1, nil)
	second := undo(2, bad)
	undo(3, bad)
	if err := second(); !errors.Is(err, bad) {
		t.Errorf("undo at once = %v", err)
	}
	if err := second(); err != nil {
		t.Errorf("undo again = %v", err)
	}
	if err := e.Close(); !errors.Is(err, bad) {
		t.Errorf("Close = %v, want the error of 3", err)
	}
	if !slices.Equal(got, []int{2, 3, 1}) {
		t.Errorf("order = %v", got)
	}
	if _, err := os.Stat(e.Work); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the working directory is left: %v", err)
	}
}

func TestRemoveAllOfReadOnlyDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sub, "f"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(sub, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(dir); err != nil {
		t.Fatal(err)
	}
}

func TestDiskUsageCountsLinksOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	one, err := diskUsage(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if two, err := diskUsage(dir); err != nil || two != one || one < 1<<20 {
		t.Errorf("usage %d, then %d with a link (%v)", one, two, err)
	}
}

func TestCommandEndsItsWholeGroup(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	pidFile := filepath.Join(t.TempDir(), "pid")
	why := errors.New("stop")
	done := make(chan error, 1)
	go func() {
		done <- command{args: []string{"sh", "-c", "sleep 1000 & echo $! > " + pidFile + "; wait"}}.run(ctx)
	}()
	var pid string
	waitFor(t, "the child's number", func() bool {
		b, _ := os.ReadFile(pidFile)
		pid = strings.TrimSpace(string(b))
		return pid != ""
	})
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("err = %v, want %v", err, why)
	}
	waitFor(t, "the grandchild's end", func() bool {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

// waitFor polls cond, since nobody tells when it comes true.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestOptionsListAllFaults(t *testing.T) {
	err := Options{Dir: "/nowhere/at/all", Files: 3, Runs: -1, Rows: []string{"no-such-row"}}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"not both", "negative", "/nowhere/at/all", `no row "no-such-row"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not mention %q", err, want)
		}
	}
}

func TestSelectRows(t *testing.T) {
	rows, err := Options{Rows: []string{"git-*", "memory"}}.selectRows()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.ID())
	}
	if got := strings.Join(ids, " "); got != "git-status git-clone git-clone-loaded memory" {
		t.Errorf("rows = %s", got)
	}
	seen := map[string]bool{}
	for _, id := range RowIDs() {
		if seen[id] {
			t.Errorf("two rows are called %s", id)
		}
		seen[id] = true
	}
}

func TestWorkParentStaysOnTheDiskOfTheTree(t *testing.T) {
	dir := t.TempDir()
	got, err := Options{Dir: dir}.workParent()
	if err != nil || !sameDisk(got, dir) {
		t.Errorf("workParent = %s, %v", got, err)
	}
	if typ, _ := fsOf("/dev/shm"); typ == "tmpfs" && !sameDisk("/dev/shm", os.TempDir()) {
		shm, err := os.MkdirTemp("/dev/shm", "bench")
		if err != nil {
			t.Skip("no room in /dev/shm")
		}
		defer os.Remove(shm)
		if got, err := (Options{Dir: shm}).workParent(); err != nil || got != "/dev/shm" {
			t.Errorf("workParent = %s, %v, want /dev/shm", got, err)
		}
	}
}

func TestMachine(t *testing.T) {
	m := probeMachine(t.TempDir())
	if m.CPU == "" || m.Cores < 1 || m.Kernel == "" || m.FS == "" || m.MemoryBytes <= 0 || m.LoadBefore == "" {
		t.Errorf("probeMachine = %+v", m)
	}
}

func TestBusyMachine(t *testing.T) {
	for load, want := range map[string]bool{"0.02 1 1": false, "0.40 0 0": false, "2.64 1 1": true, "": false} {
		if got := (Machine{Cores: 2, LoadBefore: load}).Busy(); got != want {
			t.Errorf("load %q on 2 cores: busy = %v", load, got)
		}
	}
}

func TestProcStat(t *testing.T) {
	_, rss, anon, err := procStat(os.Getpid())
	if err != nil || rss < 1<<20 || anon <= 0 || anon > rss {
		t.Errorf("rss %d, anon %d, %v", rss, anon, err)
	}
	if _, _, _, err := procStat(0); err == nil {
		t.Error("process 0 has statistics")
	}
}
