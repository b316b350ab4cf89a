package bench

import (
	"math"
	"testing"
)

func TestMedianAndPercentile(t *testing.T) {
	tests := []struct {
		xs            []float64
		med, p50, p99 float64
	}{
		{[]float64{3}, 3, 3, 3},
		{[]float64{4, 1}, 2.5, 1, 4},
		{[]float64{9, 1, 5}, 5, 5, 9},
		{[]float64{10, 20, 30, 40}, 25, 20, 40},
	}
	for _, tt := range tests {
		if m, a, b := median(tt.xs), percentile(tt.xs, 50), percentile(tt.xs, 99); m != tt.med || a != tt.p50 || b != tt.p99 {
			t.Errorf("%v: median %v, p50 %v, p99 %v; want %v, %v, %v", tt.xs, m, a, b, tt.med, tt.p50, tt.p99)
		}
	}
	var hundred []float64
	for i := range 200 {
		hundred = append(hundred, float64(200-i))
	}
	if got := percentile(hundred, 99); got != 198 {
		t.Errorf("p99 of 1..200 = %v, want 198", got)
	}
	if hundred[0] != 200 {
		t.Error("percentile sorted its argument")
	}
	for _, f := range []float64{median(nil), percentile(nil, 50), pairedRatio(nil, nil), spread(nil)} {
		if !math.IsNaN(f) {
			t.Errorf("no samples give %v, want NaN", f)
		}
	}
}

func TestPairedRatioFollowsADriftingMachine(t *testing.T) {
	// The machine slows down eightfold between rounds; a costs twice b throughout.
	b := []float64{1, 2, 4, 8}
	a := []float64{2, 4, 8, 16}
	if got := pairedRatio(a, b); got != 2 {
		t.Errorf("ratio = %v, want 2", got)
	}
	// A failed round holds 0 and must not count.
	if got := pairedRatio([]float64{0, 4, 8}, []float64{1, 2, 4}); got != 2 {
		t.Errorf("ratio with a failed round = %v, want 2", got)
	}
}

func TestFormat(t *testing.T) {
	for s, want := range map[float64]string{0: "0.00 µs", 2.5e-6: "2.50 µs", 4.31e-3: "4.31 ms", 0.302: "302 ms", 1.5: "1.50 s", 61.27: "61.3 s", 250: "250 s", math.NaN(): "–"} {
		if got := formatSeconds(s); got != want {
			t.Errorf("formatSeconds(%v) = %q, want %q", s, got, want)
		}
	}
	for b, want := range map[float64]string{0: "0 B", 1023: "1023 B", 1 << 20: "1.00 MiB", 150 << 20: "150 MiB", -2048: "-2.00 KiB"} {
		if got := formatBytes(b); got != want {
			t.Errorf("formatBytes(%v) = %q, want %q", b, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1k", 1500: "1500", 10000: "10k", 1000000: "1M"} {
		if got := formatCount(n); got != want {
			t.Errorf("formatCount(%d) = %q, want %q", n, got, want)
		}
	}
	for r, want := range map[float64]string{1: "1.00×", 12.34: "12.3×", 123.4: "123×"} {
		if got := formatRatio(r); got != want {
			t.Errorf("formatRatio(%v) = %q, want %q", r, got, want)
		}
	}
}
