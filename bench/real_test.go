package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/internal/mounttest"
)

func TestMain(m *testing.M) { os.Exit(mounttest.Main(m)) }

// realOptions measure the real binary on a small tree of the user's.
func realOptions(t *testing.T) Options {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("no mounts here: %v", err)
	} else {
		f.Close()
	}
	top := t.TempDir()
	o := Options{Dir: filepath.Join(top, "project"), Work: filepath.Join(top, "work"), Binary: mounttest.Binary(), Quick: true, Runs: 1}
	for _, d := range []string{o.Dir, o.Work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := generateTree(t.Context(), o.Dir, treeShape{Files: 300, Bytes: 300 * 6000, Seed: 4}, func(int) {}); err != nil {
		t.Fatal(err)
	}
	if err := commitAll(t.Context(), o.Dir); err != nil {
		t.Fatal(err)
	}
	return o
}

// nothingLeft checks that a run has cleaned up and that the user's tree was not touched.
func nothingLeft(t *testing.T, o Options, before string) {
	t.Helper()
	left, err := os.ReadDir(o.Work)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the working directory: %v, %v", left, err)
	}
	for line := range procLines("/proc/self/mountinfo") {
		if strings.Contains(line, o.Work) {
			t.Errorf("still mounted: %s", line)
		}
	}
	if after := treeHash(t, o.Dir); after != before {
		t.Error("the user's tree has changed")
	}
}

func TestRunOnRealMounts(t *testing.T) {
	o := realOptions(t)
	o.Rows = []string{"grep", "git-status", "rename-100", "op-create", "op-unlink", "rivals", "checkpoint-layers"}
	before := treeHash(t, o.Dir)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, o, before)
	if len(r.Comparisons) != 5 {
		t.Errorf("%d comparisons, want 5; skipped: %q", len(r.Comparisons), r.Skipped)
	}
	for _, c := range r.Comparisons {
		for _, name := range []string{Native, Rewindfs} {
			if cell := c.cell(name); cell == nil || cell.Error != "" || !(cell.Median > 0) {
				t.Errorf("%s on %s: %+v", c.ID, name, cell)
			}
		}
	}
	if len(r.Rivals) < 2 || r.Rivals[0].Name != Rewindfs || r.Rivals[0].Stored <= 0 || !(r.Rivals[1].Ratio > 0) {
		t.Errorf("rivals: %+v", r.Rivals)
	}
	if len(r.Curves) != 1 || len(r.Curves[0].Series) != 2 {
		t.Fatalf("curves: %+v", r.Curves)
	}
	engine, whole := r.Curves[0].Series[0].Points[0], r.Curves[0].Series[1].Points[0]
	if !(engine.P50 > 0) || engine.P50 >= whole.P50 {
		t.Errorf("the engine took %v s of %v s", engine.P50, whole.P50)
	}
}

// interrupter stops the run as soon as it does what is awaited.
type interrupter struct {
	silent
	at   string
	stop context.CancelCauseFunc
}

var errInterrupted = errors.New("interrupted by the test")

func (i interrupter) Step(s string) {
	if strings.Contains(s, i.at) {
		i.stop(errInterrupted)
	}
}

func TestInterruptedRunCleansUp(t *testing.T) {
	for row, at := range map[string]string{
		"grep": "rewindfs 1/1", "git-clone-loaded": "rewindfs 1/1", "op-create": "rewindfs warming", "checkpoint-layers": "layer 100", "rivals": "rewindfs 1/3",
	} {
		t.Run(row, func(t *testing.T) {
			o := realOptions(t)
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			o.Rows, o.Progress = []string{row}, interrupter{at: at, stop: stop}
			before := treeHash(t, o.Dir)
			r, err := Run(ctx, o)
			if !errors.Is(err, errInterrupted) {
				t.Errorf("err = %v, want %v", err, errInterrupted)
			}
			if r == nil || len(r.Comparisons) > 0 {
				t.Errorf("report = %+v, want one without comparisons", r)
			}
			nothingLeft(t, o, before)
		})
	}
}

func TestABrokenBinaryFailsItsRowsOnly(t *testing.T) {
	o := realOptions(t)
	o.Binary, o.Rows = "/bin/false", []string{"op-create"}
	before := treeHash(t, o.Dir)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, o, before)
	c := r.Comparisons[0]
	if c.cell(Rewindfs).Error == "" || c.cell(Native).Error != "" {
		t.Errorf("cells: %+v", c.Cells)
	}
}
