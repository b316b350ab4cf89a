package bench

import (
	"fmt"
	"math"
	"strings"
)

// Names of the systems that limits speak of.
const (
	Native        = "native"
	Rewindfs      = "rewindfs"
	Writeback     = "rewindfs-writeback"
	Overlayfs     = "overlayfs"
	FuseOverlayfs = "fuse-overlayfs"
)

// Limit is one condition of a bar. With Over set it bounds a ratio of times, else a
// plain figure of rewindfs.
type Limit struct {
	Over string  `json:"over,omitempty"` // the system that rewindfs is held against
	What string  `json:"what,omitempty"` // for a plain figure: "time" (seconds) or "stored" (bytes)
	Max  float64 `json:"max"`
}

// atMost bounds rewindfs' time by max times that of the system over.
func atMost(max float64, over string) Limit { return Limit{Over: over, Max: max} }

// timesFaster wants rewindfs to be n times faster than the system over.
func timesFaster(n float64, over string) Limit { return Limit{Over: over, Max: 1 / n} }

// within bounds rewindfs' median time, in seconds.
func within(seconds float64) Limit { return Limit{What: "time", Max: seconds} }

// storing bounds what rewindfs puts on the disk.
func storing(bytes int64) Limit { return Limit{What: "stored", Max: float64(bytes)} }

func (l Limit) String() string {
	switch {
	case l.Over != "" && l.Max < 1:
		return fmt.Sprintf("≥ %s× faster than %s", trimFloat(1/l.Max), l.Over)
	case l.Over != "":
		return fmt.Sprintf("≤ %s× %s", trimFloat(l.Max), l.Over)
	case l.What == "stored":
		return "≤ " + formatBytes(l.Max)
	}
	return "≤ " + formatSeconds(l.Max)
}

// Verdict says whether a bar is met.
type Verdict string

// The verdicts. Unknown is the verdict on a limit against a system that is not here.
const (
	Met     Verdict = "yes"
	Missed  Verdict = "no"
	Partly  Verdict = "yes, as far as measured"
	Unknown Verdict = "not measured"
	NoBar   Verdict = ""
)

// check compares a figure with the limit; NaN is not known.
func (l Limit) check(got float64) Verdict {
	switch {
	case math.IsNaN(got):
		return Unknown
	case got <= l.Max:
		return Met
	}
	return Missed
}

// all combines the verdicts on the limits of one bar.
func all(vs []Verdict) Verdict {
	if len(vs) == 0 {
		return NoBar
	}
	n := map[Verdict]int{}
	for _, v := range vs {
		n[v]++
	}
	switch {
	case n[Missed] > 0:
		return Missed
	case n[Met] == len(vs):
		return Met
	case n[Unknown] == len(vs):
		return Unknown
	}
	return Partly
}

// limitText joins limits for the bar column.
func limitText(ls []Limit) string {
	s := make([]string, len(ls))
	for i, l := range ls {
		s[i] = l.String()
	}
	return strings.Join(s, ", ")
}
