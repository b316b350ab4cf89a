package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// formatSeconds shows a time with three digits and the unit that suits it.
func formatSeconds(s float64) string {
	switch {
	case math.IsNaN(s):
		return "–"
	case s >= 100:
		return strconv.FormatFloat(s, 'f', 0, 64) + " s"
	case s >= 1:
		return digits3(s) + " s"
	case s >= 1e-3:
		return digits3(s*1e3) + " ms"
	}
	return digits3(s*1e6) + " µs"
}

// formatBytes shows a size in binary units.
func formatBytes(b float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	u := 0
	for math.Abs(b) >= 1024 && u < len(units)-1 {
		b /= 1024
		u++
	}
	if u == 0 {
		return fmt.Sprintf("%.0f B", b)
	}
	return digits3(b) + " " + units[u]
}

func formatRatio(r float64) string {
	if math.IsNaN(r) {
		return "–"
	}
	if r >= 100 {
		return fmt.Sprintf("%.0f×", r)
	}
	if r >= 10 {
		return fmt.Sprintf("%.1f×", r)
	}
	return fmt.Sprintf("%.2f×", r)
}

// formatCount shows 1000 as "1k" and 1000000 as "1M".
func formatCount(n int) string {
	switch {
	case n >= 1e6 && n%1e6 == 0:
		return strconv.Itoa(n/1e6) + "M"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}

func digits3(x float64) string {
	switch {
	case math.Abs(x) >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case math.Abs(x) >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// trimFloat writes x with at most two decimals and no zeros at the end.
func trimFloat(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}
