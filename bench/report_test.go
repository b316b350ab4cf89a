package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with testdata/name.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (write it anew with: go test ./bench -update)\ngot:\n%s", path, got)
	}
}

// sampleReport has every kind of entry, the odd ones too.
func sampleReport() *Report {
	stored := int64(12 << 10)
	grep := Comparison{ID: "grep", Title: "grep -r, warm", Limits: []Limit{atMost(1.10, Native)}, Cells: []Cell{
		{System: Native, Samples: []float64{0.30, 0.31, 0.29}},
		{System: Rewindfs, Samples: []float64{0.31, 0.32, 0.30}},
		{System: Overlayfs, Samples: []float64{0.33, 0.33, 0.33}},
		{System: FuseOverlayfs, Error: "skipped"},
	}}
	clone := Comparison{ID: "git-clone", Title: "git clone <5,000 files>", Limits: []Limit{atMost(3, Native), timesFaster(4, FuseOverlayfs)}, Cells: []Cell{
		{System: Native, Samples: []float64{0.2, 0.2, 0.2}},
		{System: Rewindfs, Samples: []float64{0.9, 0.8, 0.7}},
		{System: Overlayfs, Samples: []float64{0.5, 0.5, 0}, Error: "no space left on device"},
		{System: FuseOverlayfs, Error: "skipped"},
	}}
	one := Comparison{ID: "one-byte", Title: "change 1 byte", Limits: []Limit{within(5e-3), storing(256 << 10)}, Note: "On a new mount.", Cells: []Cell{
		{System: Native, Samples: []float64{10e-6, 11e-6, 12e-6}},
		{System: Rewindfs, Samples: []float64{200e-6, 220e-6, 240e-6}, Stored: &stored},
		{System: Overlayfs, Samples: []float64{1.5, 1.6, 1.7}, Note: "copied"},
	}}
	r := &Report{
		Version: "rewindfs 0.1.0", Date: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), Runs: 3, Tree: "a tree: 15036 files", Seconds: 754,
		Machine:     Machine{CPU: "A CPU & more", Cores: 2, MemoryBytes: 24 << 30, Kernel: "6.18.0 x86_64", OS: "Debian 12", FS: "ext4", Disk: "/dev/vda", Virtualization: "kvm", Root: true, LoadBefore: "0.1 0.2 0.3", LoadAfter: "1.1 1.2 1.3"},
		Systems:     []string{Native, Rewindfs, Overlayfs, FuseOverlayfs},
		Comparisons: []Comparison{grep, clone, one},
		Rivals: []Rival{
			{Name: Rewindfs, How: "rewindfs checkpoint", Samples: []float64{0.009}, P50: 0.009, Ratio: 1, Stored: 40 << 10},
			{Name: "cp -a", How: "cp -a TREE COPY", Samples: []float64{1.8}, P50: 1.8, Ratio: 200, Stored: 270 << 20},
		},
		Values:  []Value{newValue("checkpoint-p50", "checkpoint inside the daemon, p50", 2e-4, "s", 1e-3), newValue("memory", "daemon's memory", 200<<20, "B", 150<<20)},
		Skipped: []string{"fuse-overlayfs: it is not installed"},
		Curves: []Curve{
			{ID: "a", Title: "Checkpoint against files", XLabel: "files", Series: []Line{
				{"inside the daemon", []Point{newPoint(1000, []float64{1e-4, 2e-4}), newPoint(1000000, []float64{1e-4, 3e-4})}},
				{"the whole command", []Point{newPoint(1000, []float64{9e-3}), newPoint(1000000, []float64{9e-3})}},
			}},
			{ID: "b", Title: "Rollback", XLabel: "files changed", Bar: "p50 ≤ 5 ms", Met: Met, Series: []Line{{"inside the daemon", []Point{newPoint(0, []float64{2e-3})}}}},
		},
	}
	for i := range r.Comparisons {
		r.Comparisons[i].finish()
	}
	return r
}

func TestVerdicts(t *testing.T) {
	r := sampleReport()
	want := map[string]Verdict{"grep": Met, "git-clone": Missed, "one-byte": Met}
	for _, c := range r.Comparisons {
		if c.Met != want[c.ID] {
			t.Errorf("%s: met = %q, want %q", c.ID, c.Met, want[c.ID])
		}
	}
	// A bar against a system that is not here is met as far as it could be measured.
	c := r.Comparisons[1]
	c.Limits = []Limit{atMost(5, Native), timesFaster(4, FuseOverlayfs)}
	c.finish()
	if c.Met != Partly {
		t.Errorf("clone: met = %q, want %q", c.Met, Partly)
	}
	// Work that fails on rewindfs misses its bar, whatever its samples say.
	c = r.Comparisons[0]
	c.cell(Rewindfs).Error = "input/output error"
	c.finish()
	if c.Met != Missed {
		t.Errorf("failed row: met = %q, want %q", c.Met, Missed)
	}
	if v := newValue("x", "x", math.NaN(), "s", 1); v.Met != Unknown {
		t.Errorf("missing figure: met = %q, want %q", v.Met, Unknown)
	}
}

func TestReportGolden(t *testing.T) {
	r := sampleReport()
	for name, write := range map[string]func(*bytes.Buffer) error{
		"report.txt": func(b *bytes.Buffer) error { return r.Write(b, Text) },
		"report.md":  func(b *bytes.Buffer) error { return r.Write(b, Markdown) },
		"report.svg": func(b *bytes.Buffer) error { return r.WriteSVG(b) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.Bytes())
	}
}

func TestSVGIsXML(t *testing.T) {
	for name, r := range map[string]*Report{"full": sampleReport(), "empty": {}} {
		var b bytes.Buffer
		if err := r.WriteSVG(&b); err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(&b)
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

func TestReportSurvivesJSON(t *testing.T) {
	r := sampleReport()
	r.Values = append(r.Values, newValue("gone", "not there", math.NaN(), "s", 1))
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if v := back.Values[len(back.Values)-1]; !math.IsNaN(float64(v.Value)) || v.Met != Unknown {
		t.Errorf("missing figure came back as %+v", v)
	}
	if got := back.Comparisons[0].cell(Rewindfs).Samples; len(got) != 3 || got[1] != 0.32 {
		t.Errorf("samples came back as %v", got)
	}
}

func TestWriteReportsAFullDisk(t *testing.T) {
	if err := sampleReport().Write(brokenWriter{}, Text); err == nil {
		t.Error("Write hid the writer's error")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestLimitText(t *testing.T) {
	got := limitText([]Limit{atMost(1.10, Native), timesFaster(4, FuseOverlayfs), within(5e-3), storing(256 << 10)})
	want := "≤ 1.1× native, ≥ 4× faster than fuse-overlayfs, ≤ 5.00 ms, ≤ 256 KiB"
	if got != want {
		t.Errorf("limitText = %q, want %q", got, want)
	}
}

func TestProgressBarFitsTheTerminal(t *testing.T) {
	var out bytes.Buffer
	b := &bar{w: &out, width: func() int { return 40 }, now: func() time.Time { return time.Unix(75, 0) }, start: time.Unix(0, 0)}
	b.Row(3, 6, "git clone of 5,000 files")
	b.Step("fuse-overlayfs 2/5")
	line := strings.TrimPrefix(out.String()[strings.LastIndex(out.String(), "\r"):], "\r\x1b[K")
	if n := len([]rune(line)); n > 39 {
		t.Errorf("the line has %d characters: %q", n, line)
	}
	if !strings.HasPrefix(line, "██████████░░░░░░░░░░ 3/6  1:15") {
		t.Errorf("line = %q", line)
	}
	b.Close()
	if !strings.HasSuffix(out.String(), "\r\x1b[K") {
		t.Error("Close left the bar on the screen")
	}
}

func TestProgressIsSilentWithoutATerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := NewProgress(f, false)
	p.Row(0, 1, "x")
	p.Step("y")
	p.Close()
	if st, err := f.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("wrote %d bytes to a file (%v)", st.Size(), err)
	}
}
