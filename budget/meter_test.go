package budget

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

const testTable = `{"format":1,"models":[
	{"names":["m-1","m-1-20260101"],"input":"3","output":15,"cache_read":"0.3","cache_write":"3.75","cache_write_1h":"6"},
	{"names":["m-1"],"tier":"batch","input":"1.5","output":"7.5"},
	{"names":["m-2"],"input":"0.000001","output":"1","max_input_tokens":1000,"over":{"input_tokens":100,"input":"2","output":"4"}},
	{"names":["free"],"input":0,"output":0}]}`

func testPrices(t testing.TB) *Prices {
	t.Helper()
	p, err := parsePrices([]byte(testTable))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCost(t *testing.T) {
	p := testPrices(t)
	for _, c := range []struct {
		name string
		rec  Record
		want string // dollars, or the reason with a ! in front
	}{
		{"all kinds", Record{Model: "m-1", Tokens: Tokens{Input: 1000, CacheRead: 500, CacheWrite: 200, CacheWrite1h: 100, Output: 10}}, "$0.00225"},
		{"other name", Record{Model: "m-1-20260101", Tokens: Tokens{Input: 1}}, "$0.000003"},
		{"resource name", Record{Model: "models/m-1", Tokens: Tokens{Input: 1}}, "$0.000003"},
		{"tier", Record{Model: "m-1", Tier: "batch", Tokens: Tokens{Input: 2, Output: 2}}, "$0.000018"},
		{"smallest price", Record{Model: "m-2", Tokens: Tokens{Input: 1}}, "$0.000000000001"},
		{"at the bound", Record{Model: "m-2", Tokens: Tokens{Input: 100, Output: 1}}, "$0.0000010001"},
		{"over the bound", Record{Model: "m-2", Tokens: Tokens{Input: 101, Output: 1}}, "$0.000206"},
		{"too large", Record{Model: "m-2", Tokens: Tokens{Input: 1001}}, "!more than 1000 tokens"},
		{"free", Record{Model: "free", Tokens: Tokens{Input: 1e9}}, "$0.00"},
		{"reported", Record{Model: "?", Tokens: Tokens{Input: 1}, Reported: usd("0.25")}, "$0.25"},
		{"unknown model", Record{Model: "m-3", Tokens: Tokens{Input: 1}}, "!no price for m-3"},
		{"like a known model", Record{Model: "m-1-20270101", Tokens: Tokens{Input: 1}}, "!no price"},
		{"other case", Record{Model: "M-1", Tokens: Tokens{Input: 1}}, "!no price"},
		{"no model", Record{Tokens: Tokens{Input: 1}}, "!not named"},
		{"unknown tier", Record{Model: "m-1", Tier: "priority", Tokens: Tokens{Input: 1}}, "!tier priority"},
		{"cache without a price", Record{Model: "m-2", Tokens: Tokens{Input: 1, CacheRead: 1}}, "!read from the cache"},
		{"other charges", Record{Model: "m-1", Tokens: Tokens{Input: 1}, Extra: "web_search"}, "!web_search"},
		{"nothing used", Record{Model: "m-3"}, "$0.00"},
		{"too many to count", Record{Model: "m-1", Tokens: Tokens{Input: math.MaxInt64}}, maxUSD.String()},
	} {
		got, why := p.Cost(c.rec)
		if reason, unknown := strings.CutPrefix(c.want, "!"); unknown {
			if !strings.Contains(why, reason) || got != 0 {
				t.Errorf("%s: %s, %q; want unknown because %q", c.name, got, why, reason)
			}
		} else if why != "" || got.String() != c.want {
			t.Errorf("%s: %s, %q; want %s", c.name, got, why, c.want)
		}
	}
}

func TestDefaultPrices(t *testing.T) {
	p, err := DefaultPrices()
	if err != nil {
		t.Fatal(err)
	}
	if len(p.byName) == 0 {
		t.Fatal("the table is empty")
	}
	for k, e := range p.byName {
		if !strings.HasPrefix(e.Source, "https://") {
			t.Errorf("%q does not say where its price is from", k)
		}
		if *e.Output < *e.Input || e.CacheRead != nil && *e.CacheRead >= *e.Input || e.CacheWrite != nil && *e.CacheWrite < *e.Input {
			t.Errorf("%q: prices that no provider has: %+v", k, e.rates)
		}
	}
	// The names by which the fixtures and users know them.
	if cost, why := p.Cost(Record{Model: "claude-opus-4-8", Tokens: Tokens{Input: 100_000, CacheRead: 90_000, Output: 1000}}); cost.String() != "$0.12" {
		t.Errorf("got %s, %s", cost, why)
	}
}

func TestUserPrices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prices.json")
	for _, missing := range []string{"", path} {
		if p, err := LoadPrices(missing); err != nil || len(p.byName) == 0 {
			t.Fatalf("%q: %v", missing, err)
		}
	}
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"format":1,"note":"mine","models":[{"names":["claude-opus-5"],"input":"1","output":"2","note":"a contract"},{"names":["own"],"input":"1","output":"1"}]}`)
	p, err := LoadPrices(path)
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{"claude-opus-5": "$2.00", "own": "$1.00", "claude-opus-5-5": "$20.00"} {
		if cost, why := p.Cost(Record{Model: model, Tokens: Tokens{Output: 1e6}}); cost.String() != want {
			t.Errorf("%s: %s, %s; want %s", model, cost, why, want)
		}
	}
	// The whole entry is replaced: no cache price is left over from the built-in one.
	if cost, why := p.Cost(Record{Model: "claude-opus-5", Tokens: Tokens{Input: 1, CacheRead: 1}}); why == "" {
		t.Errorf("cached tokens cost %s", cost)
	}
	for name, bad := range map[string]string{
		"no JSON": "{", "behind it": `{"format":1,"models":[]} x`, "no format": `{"models":[]}`, "newer": `{"format":2,"models":[]}`,
		"misspelt": `{"format":1,"models":[{"names":["a"],"input":"1","output":"1","cache_reads":"1"}]}`,
		"no names": `{"format":1,"models":[{"input":"1","output":"1"}]}`, "empty name": `{"format":1,"models":[{"names":[""],"input":"1","output":"1"}]}`,
		"no output": `{"format":1,"models":[{"names":["a"],"input":"1"}]}`, "negative": `{"format":1,"models":[{"names":["a"],"input":"-1","output":"1"}]}`,
		"too fine": `{"format":1,"models":[{"names":["a"],"input":"0.0000001","output":"1"}]}`,
		"twice":    `{"format":1,"models":[{"names":["a","a"],"input":"1","output":"1"}]}`,
		"bounds":   `{"format":1,"models":[{"names":["a"],"input":"1","output":"1","max_input_tokens":5,"over":{"input_tokens":9,"input":"1","output":"1"}}]}`,
		"over":     `{"format":1,"models":[{"names":["a"],"input":"1","output":"1","over":{"input_tokens":9,"input":"1"}}]}`,
		"huge":     `{"format":1,"models":[]}` + strings.Repeat(" ", maxPriceFile),
	} {
		write(bad)
		if _, err := LoadPrices(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMeterKeepsAndRestores(t *testing.T) {
	m := NewMeter(testPrices(t))
	kept := make(map[string]string)
	add := func(r Record) {
		t.Helper()
		e, changed, err := m.Add(r)
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			data, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			kept[e.Key] = string(data)
		}
	}
	add(Record{Key: "a", Model: "m-1", Tokens: Tokens{Input: 10, Output: 1}})
	add(Record{Key: "a", Model: "m-1", Tokens: Tokens{Input: 10, Output: 5}})
	add(Record{Key: "a", Model: "m-1", Tokens: Tokens{Input: 10, Output: 3}})
	add(Record{Key: "b", Model: "new", Tokens: Tokens{Input: 7, CacheWrite1h: 2, Output: 1}})
	add(Record{Key: "c", Reported: usd("0.5")})
	if _, _, err := m.Add(Record{}); err == nil {
		t.Error("a record without a key was counted")
	}
	want := m.Usage()
	if want.Answers != 3 || want.Cost.String() != "$0.500105" || len(want.Unpriced) != 1 || want.Unpriced[0].InputTokens != 7 || want.CacheWriteTokens != 2 {
		t.Fatalf("counted %+v", want)
	}
	back := NewMeter(testPrices(t))
	for _, data := range kept {
		var e Entry
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		back.Restore(e)
	}
	if got := back.Usage(); !reflect.DeepEqual(got, want) {
		t.Errorf("restored as %+v, want %+v", got, want)
	}
	if !back.Seen("a") || back.Seen("z") {
		t.Error("the keys are not known")
	}
	// A price that comes later counts for what had none, and changes nothing else.
	later, err := parsePrices([]byte(`{"format":1,"models":[{"names":["new"],"input":"1","output":"1","cache_write_1h":"1"},{"names":["m-1"],"input":"100","output":"100"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	back.SetPrices(later)
	if got := back.Usage(); len(got.Unpriced) != 0 || got.Cost.String() != "$0.500113" {
		t.Errorf("with later prices: %+v", got)
	}
}

// TestMeterAgainstAModel adds random records in random order, several times, and adds up differently.
func TestMeterAgainstAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m, p := NewMeter(testPrices(t)), testPrices(t)
	best := make(map[string]Record)
	var wg sync.WaitGroup
	for range 2000 {
		k := fmt.Sprint(rng.IntN(200))
		r := Record{Key: k, Model: []string{"m-1", "m-2", "free", "m-9"}[len(k)], Tokens: Tokens{Input: rng.Int64N(200), Output: rng.Int64N(100)}}
		b := best[k]
		best[k] = Record{Key: k, Model: r.Model, Tokens: Tokens{Input: max(b.Tokens.Input, r.Tokens.Input), Output: max(b.Tokens.Output, r.Tokens.Output)}}
		wg.Go(func() { m.Add(r) })
	}
	wg.Wait()
	var want Usage
	for _, r := range best {
		cost, _ := p.Cost(r)
		want.Cost += cost
		want.Answers++
		want.InputTokens += r.Tokens.Input
		want.OutputTokens += r.Tokens.Output
	}
	got := m.Usage()
	if got.Cost != want.Cost || got.Answers != want.Answers || got.InputTokens != want.InputTokens || got.OutputTokens != want.OutputTokens {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestCheck(t *testing.T) {
	used := Usage{Cost: 5 * OneUSD, Answers: 4, InputTokens: 100, OutputTokens: 10, WallTime: time.Minute, BytesWritten: 1 << 20, Checkpoints: 3}
	half := used
	half.Unpriced = []Unpriced{{Why: "there is no price for x", Answers: 2}}
	for _, c := range []struct {
		name     string
		limits   Limits
		usage    Usage
		exceeded bool
		words    []string // of the reason; none: there must be no reason
	}{
		{"no limits", Limits{}, half, false, nil},
		{"below", Limits{Cost: 5*OneUSD + 1, InputTokens: 101, OutputTokens: 11, WallTime: time.Minute + 1, BytesWritten: 1<<20 + 1, Checkpoints: 4}, used, false, nil},
		{"cost reached", Limits{Cost: 5 * OneUSD}, used, true, []string{"cost: $5.00 of $5.00", "raise"}},
		{"input", Limits{InputTokens: 100}, used, true, []string{"input tokens: 100 of 100"}},
		{"output", Limits{OutputTokens: 5}, used, true, []string{"output tokens: 10 of 5"}},
		{"time", Limits{WallTime: time.Second}, used, true, []string{"wall time: 1m0s of 1s"}},
		{"bytes", Limits{BytesWritten: 1}, used, true, []string{"bytes written: 1048576 of 1"}},
		{"checkpoints", Limits{Checkpoints: 3}, used, true, []string{"checkpoints: 3 of 3"}},
		{"two", Limits{Checkpoints: 3, BytesWritten: 1}, used, true, []string{"bytes written", "checkpoints"}},
		{"unknown costs refuse", Limits{Cost: 100 * OneUSD}, half, true, []string{"2 of 4 answers is not known", "no price for x", "prices.json"}},
		{"unknown costs refuse, said so", Limits{Cost: 100 * OneUSD, OnUnknownCost: Refuse}, half, true, []string{"not known"}},
		{"unknown costs are noted", Limits{Cost: 100 * OneUSD, OnUnknownCost: Note}, half, false, []string{"not known"}},
		{"unknown costs without a ceiling on cost", Limits{InputTokens: 1000}, half, false, nil},
		{"known costs reach it anyway", Limits{Cost: OneUSD, OnUnknownCost: Note}, half, true, []string{"cost: $5.00 of $1.00", "not known"}},
	} {
		reason, exceeded := Check(c.limits, c.usage)
		if exceeded != c.exceeded || (reason == "") != (c.words == nil) {
			t.Errorf("%s: %q, %t", c.name, reason, exceeded)
		}
		for _, w := range c.words {
			if !strings.Contains(reason, w) {
				t.Errorf("%s: the reason is %q, without %q", c.name, reason, w)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	for _, l := range []Limits{{Cost: -1}, {InputTokens: -1}, {OutputTokens: -1}, {WallTime: -1}, {BytesWritten: -1}, {Checkpoints: -1}, {OnUnknownCost: "guess"}} {
		if l.Check() == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
	l := Limits{Cost: OneUSD / 3, WallTime: time.Hour, OnUnknownCost: Note}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	data, err := json.Marshal(l)
	if err != nil || string(data) != `{"cost_usd":0.333333333333,"wall_time_ns":3600000000000,"on_unknown_cost":"note"}` {
		t.Errorf("in JSON %s, %v", data, err)
	}
	var back Limits
	if err := json.Unmarshal(data, &back); err != nil || back != l {
		t.Errorf("came back as %+v, %v", back, err)
	}
}
