package bench

import (
	"math"
	"slices"
)

// median is the middle of xs, or the mean of the two in the middle; NaN when xs is empty.
func median(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	s := slices.Clone(xs)
	slices.Sort(s)
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// percentile is the smallest of xs that p percent of them do not exceed
// (nearest rank, so always a value that was measured); NaN when xs is empty.
func percentile(xs []float64, p float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	s := slices.Clone(xs)
	slices.Sort(s)
	rank := int(math.Ceil(p / 100 * float64(len(s))))
	return s[min(max(rank, 1), len(s))-1]
}

// pairedRatio is the median of a[i]/b[i]: what a costs in units of b, where a[i]
// and b[i] were measured one after the other. Rounds that only one of them
// finished do not count; NaN when there is none.
func pairedRatio(a, b []float64) float64 {
	var rs []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			rs = append(rs, a[i]/b[i])
		}
	}
	return median(rs)
}

// spread is the distance between the quartiles as a part of the median: 0.1
// means that half of the samples lie within a tenth of the median.
func spread(xs []float64) float64 {
	m := median(xs)
	if math.IsNaN(m) || m == 0 {
		return math.NaN()
	}
	return (percentile(xs, 75) - percentile(xs, 25)) / m
}
