package budget

import (
	"encoding/json"
	"math"
	"math/big"
	"testing"
)

func TestParseUSD(t *testing.T) {
	for in, want := range map[string]USD{
		"0": 0, "1": OneUSD, "$12.50": 25 * OneUSD / 2, " 3 ": 3 * OneUSD, ".5": OneUSD / 2, "5.": 5 * OneUSD, "007": 7 * OneUSD,
		"0.000000000001": 1, "1.2e-05": 12_000_000, "1E3": 1000 * OneUSD, "0.1e1": OneUSD, "12e-12": 12, "1000e-3": OneUSD,
		"0.0000000000010000": 1, "9223372.036854775806": math.MaxInt64 - 1, "0e1000": 0, "0.00e-1000": 0,
	} {
		if got, err := ParseUSD(in); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "$", "-1", "+1", "1,5", "1 2", "abc", "0x10", "1e", "1e5.5", "1.2.3", "Inf", "NaN", "1_000",
		"0.0000000000001", "1e-13", "9223372.036854775807", "9223373", "1e7", "1e999", "1e99999999999", "1e-99999",
		"1111111111111111111111111111111111111111111111111111111111111111111"} {
		if got, err := ParseUSD(in); err == nil {
			t.Errorf("%q was read as %s", in, got)
		}
	}
}

func TestReportedCostIsRoundedUp(t *testing.T) {
	for in, want := range map[string]USD{"0.0123456789012345": 12_345_678_902, "1e-30": 1, "0.1": OneUSD / 10, "100000": maxReported} {
		if got, err := parseReported(in); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestReportedCostIsNotBelievedWithoutBounds(t *testing.T) {
	for _, in := range []string{"1e30", "1e300", "100000.01"} {
		if got, err := parseReported(in); err == nil {
			t.Errorf("%q was taken for %s", in, got)
		}
	}
}

func TestUSDText(t *testing.T) {
	for d, want := range map[USD][2]string{
		0: {"$0.00", "0"}, 1: {"$0.000000000001", "0.000000000001"}, OneUSD: {"$1.00", "1"}, 25 * OneUSD / 2: {"$12.50", "12.5"},
		1234567: {"$0.000001234567", "0.000001234567"}, maxUSD: {"$9223372.036854775807", "9223372.036854775807"},
	} {
		if d.String() != want[0] {
			t.Errorf("%d is %s, want %s", int64(d), d, want[0])
		}
		data, err := json.Marshal(d)
		if err != nil || string(data) != want[1] {
			t.Errorf("%d in JSON is %s, %v; want %s", int64(d), data, err, want[1])
		}
		var back USD
		if err := json.Unmarshal(data, &back); err != nil || back != d {
			t.Errorf("%s came back as %d, %v", data, int64(back), err)
		}
	}
	var d USD
	if err := json.Unmarshal([]byte(`"2.50"`), &d); err != nil || d != 5*OneUSD/2 {
		t.Errorf("a string: %s, %v", d, err)
	}
	for _, bad := range []string{`null`, `true`, `-1`, `"x"`, `{}`} {
		if err := json.Unmarshal([]byte(bad), &d); err == nil && bad != "null" {
			t.Errorf("%s was read as %s", bad, d)
		}
	}
}

// TestNoDrift: ten million small amounts give exactly their product, where floats do not.
func TestNoDrift(t *testing.T) {
	tenth, err := ParseUSD("0.0000001")
	if err != nil {
		t.Fatal(err)
	}
	var sum USD
	for range 10_000_000 {
		sum = sum.plus(tenth)
	}
	if sum != OneUSD || tenth.times(10_000_000) != OneUSD {
		t.Errorf("the sum is %s, the product %s", sum, tenth.times(10_000_000))
	}
}

func TestAmountsStopAtTheLargest(t *testing.T) {
	if got := maxUSD.plus(1); got != maxUSD {
		t.Errorf("plus gives %s", got)
	}
	if got := OneUSD.times(math.MaxInt64); got != maxUSD {
		t.Errorf("times gives %s", got)
	}
}

func FuzzParseUSD(f *testing.F) {
	for _, s := range []string{"0", "12.50", "1.2e-05", "9223372.036854775807", "1e999", ".", "-1", "0.0000000000001"} {
		f.Add(s)
	}
	unit := new(big.Rat).SetInt64(int64(OneUSD))
	f.Fuzz(func(t *testing.T, s string) {
		d, exact, err := parseDecimal(s)
		if err != nil {
			return
		}
		want, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%q is no number for math/big", s)
		}
		want.Mul(want, unit)
		got := new(big.Rat).SetInt64(int64(d))
		if d < 0 || d < maxUSD && (exact != (got.Cmp(want) == 0) || got.Cmp(want) > 0) {
			t.Fatalf("%q is %s, exact %t; want %s", s, got, exact, want.FloatString(3))
		}
		if d == maxUSD && want.Cmp(got) < 0 {
			t.Fatalf("%q became the largest amount", s)
		}
	})
}
