package budget

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// USD is an amount of US dollars, counted in 1e-12 dollars. The largest is about 9.2
// million dollars; what is more becomes that. It is never negative.
type USD int64

const (
	usdDigits = 12
	// OneUSD is one dollar.
	OneUSD USD = 1e12
	maxUSD USD = math.MaxInt64
)

// ParseUSD reads a decimal number such as "12.50", "$3" or "1.2e-05". Numbers that are negative, have
// more than 12 decimals, or are too large are refused.
func ParseUSD(s string) (USD, error) {
	d, exact, err := parseDecimal(strings.TrimPrefix(strings.TrimSpace(s), "$"))
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no amount of dollars: %w", s, err)
	case !exact:
		return 0, fmt.Errorf("%q has more than %d decimals", s, usdDigits)
	case d == maxUSD:
		return 0, fmt.Errorf("%q is more than can be counted (%s)", s, maxUSD)
	}
	return d, nil
}

// parseReported reads an amount that some program computed, often with binary fractions and all
// their digits: it is rounded up, so that nothing is counted too low.
// More than maxReported is an error.
func parseReported(s string) (USD, error) {
	d, exact, err := parseDecimal(s)
	switch {
	case err != nil:
	case d > maxReported:
		err = fmt.Errorf("%.40s dollars for one answer are not believed", s)
	case !exact:
		d = d.plus(1)
	}
	return d, err
}

// maxReported is the largest cost of one answer that is believed.
const maxReported = 100_000 * OneUSD

// parseDecimal reads digits with an optional point and exponent. The result is rounded down if exact is false.
func parseDecimal(s string) (d USD, exact bool, err error) {
	bad := fmt.Errorf("use digits and a point, as in 12.50")
	if len(s) == 0 || len(s) > 64 {
		return 0, false, bad
	}
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa = s[:i]
		if exponent, err = strconv.Atoi(s[i+1:]); err != nil || exponent < -1000 || exponent > 1000 {
			return 0, false, bad
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := whole + fraction
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false, bad
	}
	// The value is digits × 10^shift, in units of USD.
	shift := exponent - len(fraction) + usdDigits
	exact = true
	if cut := -shift; cut > 0 {
		dropped := digits[max(0, len(digits)-cut):]
		exact = strings.Trim(dropped, "0") == ""
		digits = digits[:max(0, len(digits)-cut)]
		shift = 0
	}
	digits = strings.TrimLeft(digits, "0")
	if digits == "" {
		return 0, exact, nil
	}
	if len(digits)+shift > 19 {
		return maxUSD, exact, nil
	}
	n, err := strconv.ParseInt(digits+strings.Repeat("0", shift), 10, 64)
	if err != nil { // out of range: it has at most 19 digits and nothing else
		return maxUSD, exact, nil
	}
	return USD(n), exact, nil
}

// String is the amount with a dollar sign, all its decimals, and at least two of them.
func (d USD) String() string {
	s := d.decimal()
	if i := strings.IndexByte(s, '.'); i < 0 {
		s += ".00"
	} else if len(s)-i == 2 {
		s += "0"
	}
	return "$" + s
}

// decimal is the amount with as few digits as it has.
func (d USD) decimal() string {
	s := strconv.FormatInt(int64(d), 10)
	if len(s) <= usdDigits {
		s = strings.Repeat("0", usdDigits+1-len(s)) + s
	}
	cut := len(s) - usdDigits
	return strings.TrimSuffix(s[:cut]+"."+strings.TrimRight(s[cut:], "0"), ".")
}

// MarshalJSON writes a number with all its decimals.
func (d USD) MarshalJSON() ([]byte, error) { return []byte(d.decimal()), nil }

// UnmarshalJSON reads a number, or a string with one, by its digits. What is too large becomes the largest amount.
func (d *USD) UnmarshalJSON(data []byte) error {
	text := string(data)
	if len(data) > 0 && data[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	got, exact, err := parseDecimal(text)
	if err != nil {
		return fmt.Errorf("%q is no amount of dollars: %w", text, err)
	}
	if !exact {
		return fmt.Errorf("%q has more than %d decimals", text, usdDigits)
	}
	*d = got
	return nil
}

// plus adds, up to the largest amount.
func (d USD) plus(e USD) USD { return USD(addCapped(int64(d), int64(e))) }

// times multiplies by a number of tokens, up to the largest amount.
func (d USD) times(n int64) USD {
	hi, lo := bits.Mul64(uint64(d), uint64(n))
	if hi != 0 || lo > math.MaxInt64 {
		return maxUSD
	}
	return USD(lo)
}

// addCapped adds two numbers that are not negative, up to the largest one.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
