package bench

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// Num is a figure that may be missing: NaN, which JSON shows as null.
type Num float64

// MarshalJSON writes null for NaN.
func (n Num) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads null as NaN.
func (n *Num) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Num(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(n))
}

// Report is everything one run found, with the raw samples.
type Report struct {
	Version     string       `json:"version"` // of the binary measured
	Date        time.Time    `json:"date"`
	Machine     Machine      `json:"machine"`
	Quick       bool         `json:"quick"`
	Runs        int          `json:"runs"`
	Tree        string       `json:"tree"` // what the tree rows ran on
	Systems     []string     `json:"systems"`
	Comparisons []Comparison `json:"comparisons"`
	Rivals      []Rival      `json:"rivals"`
	Curves      []Curve      `json:"curves"`
	Values      []Value      `json:"values"`
	Skipped     []string     `json:"skipped"` // one sentence for each thing that was not measured, and why
	Seconds     float64      `json:"seconds"` // what the whole run took
}

// Comparison is one workload on every system.
type Comparison struct {
	ID     string  `json:"id"`
	Title  string  `json:"title"`
	Note   string  `json:"note,omitempty"` // how it was measured, where that is not plain
	Limits []Limit `json:"limits,omitempty"`
	Cells  []Cell  `json:"cells"`
	Met    Verdict `json:"met"`
}

// Cell is one workload on one system. Sample i of every cell of a comparison comes
// from the same round; a round that failed holds 0.
type Cell struct {
	System  string    `json:"system"`
	Samples []float64 `json:"samples_s"`
	Median  Num       `json:"median_s"`
	Ratio   Num       `json:"ratio"` // to native, paired by round
	Spread  Num       `json:"spread"`
	CPU     Num       `json:"daemon_cpu_s,omitempty"` // the daemon's processor time for one run (median)
	Stored  *int64    `json:"stored_bytes,omitempty"` // by one run
	Error   string    `json:"error,omitempty"`
	Note    string    `json:"note,omitempty"`
	cpu     []float64
}

// Rival is one way to make a checkpoint of a tree.
type Rival struct {
	Name    string    `json:"name"`
	How     string    `json:"how"` // the commands that were timed
	Samples []float64 `json:"samples_s"`
	P50     Num       `json:"p50_s"`
	Ratio   Num       `json:"ratio"`            // to the rewindfs command
	Stored  int64     `json:"bytes_checkpoint"` // stored by one checkpoint
}

// Curve is a latency against something that grows.
type Curve struct {
	ID     string  `json:"id"`
	Title  string  `json:"title"`
	XLabel string  `json:"x_label"`
	Series []Line  `json:"series"`
	Note   string  `json:"note,omitempty"`
	Bar    string  `json:"bar,omitempty"`
	Met    Verdict `json:"met"`
}

// Line is one series of a curve.
type Line struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point holds the samples, in seconds, at one X.
type Point struct {
	X       int       `json:"x"`
	P50     Num       `json:"p50_s"`
	P99     Num       `json:"p99_s"`
	Samples []float64 `json:"samples_s"`
}

// Value is one figure of rewindfs alone.
type Value struct {
	ID    string  `json:"id"`
	Title string  `json:"title"`
	Value Num     `json:"value"`
	Unit  string  `json:"unit"` // "s", "B" or "×"
	Max   float64 `json:"max,omitempty"`
	Met   Verdict `json:"met"`
	Note  string  `json:"note,omitempty"`
}

func newPoint(x int, samples []float64) Point {
	return Point{X: x, P50: Num(percentile(samples, 50)), P99: Num(percentile(samples, 99)), Samples: samples}
}

// newValue judges v against max, where 0 means that there is no bar.
func newValue(id, title string, v float64, unit string, max float64) Value {
	val := Value{ID: id, Title: title, Value: Num(v), Unit: unit, Max: max}
	if max > 0 {
		val.Met = Limit{Max: max}.check(v)
	}
	return val
}

func (v Value) text() string  { return formatUnit(float64(v.Value), v.Unit) }
func (v Value) limit() string { return "≤ " + formatUnit(v.Max, v.Unit) }

func formatUnit(x float64, unit string) string {
	switch unit {
	case "s":
		return formatSeconds(x)
	case "B":
		return formatBytes(x)
	}
	return formatRatio(x)
}

// cell finds a system's cell, or nil.
func (c *Comparison) cell(system string) *Cell {
	i := slices.IndexFunc(c.Cells, func(x Cell) bool { return x.System == system })
	if i < 0 {
		return nil
	}
	return &c.Cells[i]
}

// finish derives medians, ratios and the verdict from the samples.
func (c *Comparison) finish() {
	native := c.cell(Native)
	for i := range c.Cells {
		cell := &c.Cells[i]
		good := slices.DeleteFunc(slices.Clone(cell.Samples), func(x float64) bool { return x == 0 })
		cell.Median, cell.Spread, cell.CPU = Num(median(good)), Num(spread(good)), Num(median(cell.cpu))
		cell.Ratio = Num(math.NaN())
		if native != nil {
			cell.Ratio = Num(pairedRatio(cell.Samples, native.Samples))
		}
	}
	verdicts := make([]Verdict, len(c.Limits))
	for i, l := range c.Limits {
		verdicts[i] = l.check(c.figure(l))
		if mine := c.cell(Rewindfs); mine != nil && mine.Error != "" {
			verdicts[i] = Missed
		}
	}
	c.Met = all(verdicts)
}

// figure is what the limit l speaks of, or NaN when it was not measured.
func (c *Comparison) figure(l Limit) float64 {
	mine := c.cell(Rewindfs)
	switch {
	case mine == nil:
		return math.NaN()
	case l.Over != "":
		if other := c.cell(l.Over); other != nil {
			return pairedRatio(mine.Samples, other.Samples)
		}
		return math.NaN()
	case l.What == "stored":
		if mine.Stored == nil {
			return math.NaN()
		}
		return float64(*mine.Stored)
	}
	return float64(mine.Median)
}

// addCurve adds a curve and the figures taken from it.
func (r *Report) addCurve(c Curve, vs ...Value) {
	r.Curves = append(r.Curves, c)
	r.Values = append(r.Values, vs...)
}
