package budget

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// Usage is what a session has used. A Meter fills in the first part, the session the second.
type Usage struct {
	Cost             USD        `json:"cost_usd"`           // of the answers with a known cost
	Unpriced         []Unpriced `json:"unpriced,omitempty"` // the others
	Answers          int64      `json:"answers"`
	InputTokens      int64      `json:"input_tokens"` // with those from and into the provider's cache
	OutputTokens     int64      `json:"output_tokens"`
	CacheReadTokens  int64      `json:"cache_read_tokens"`
	CacheWriteTokens int64      `json:"cache_write_tokens"`

	WallTime     time.Duration `json:"wall_time_ns"`
	BytesWritten int64         `json:"bytes_written"`
	Checkpoints  int64         `json:"checkpoints"`
}

// Unpriced is usage whose cost is not known, for one reason.
type Unpriced struct {
	Why          string `json:"why"`
	Answers      int64  `json:"answers"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
}

// Entry is an answer that a Meter has counted, in the form in which it is kept.
type Entry struct {
	Record
	Cost USD    `json:"cost_usd"`
	Why  string `json:"unpriced,omitempty"` // why the cost is not known; "" when it is
}

// Meter adds up Records, each key once. It may be used by several goroutines.
type Meter struct {
	mu      sync.Mutex
	prices  *Prices          // guarded by mu; does not change itself
	entries map[string]Entry // guarded by mu; by key
	total   Usage            // guarded by mu; without Unpriced
}

// NewMeter returns an empty Meter.
func NewMeter(prices *Prices) *Meter {
	return &Meter{prices: prices, entries: make(map[string]Entry)}
}

// Add counts r. A key that is known counts only what is more than before (the rows of an answer that is still
// being written). The entry is to be kept under its key if changed is true, in place of the one before.
func (m *Meter) Add(r Record) (e Entry, changed bool, err error) {
	if r.Key == "" {
		return Entry{}, false, errors.New("count usage: the record has no key")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, known := m.entries[r.Key]
	e = Entry{Record: r}
	if known {
		e.Record = old.merge(r)
		if e.Record.equal(old.Record) {
			return old, false, nil
		}
	}
	e.Cost, e.Why = m.prices.Cost(e.Record)
	m.put(e)
	return e, true, nil
}

// Restore puts back an entry that was kept. Its cost stays what it was; one that was not known is looked up
// again, so that a price which was added since counts.
func (m *Meter) Restore(e Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Why != "" {
		e.Cost, e.Why = m.prices.Cost(e.Record)
	}
	m.put(e)
}

// SetPrices takes another table, and looks up again what had no price.
func (m *Meter) SetPrices(p *Prices) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prices = p
	for _, e := range m.entries {
		if e.Why != "" {
			e.Cost, e.Why = p.Cost(e.Record)
			m.put(e)
		}
	}
}

// put replaces the entry and corrects the sums. The caller holds mu.
func (m *Meter) put(e Entry) {
	old, known := m.entries[e.Key]
	m.entries[e.Key] = e
	if !known {
		m.total.Answers++
	}
	m.total.Cost = swap(m.total.Cost, old.Cost, e.Cost)
	m.total.InputTokens = swap(m.total.InputTokens, old.Tokens.Input, e.Tokens.Input)
	m.total.OutputTokens = swap(m.total.OutputTokens, old.Tokens.Output, e.Tokens.Output)
	m.total.CacheReadTokens = swap(m.total.CacheReadTokens, old.Tokens.CacheRead, e.Tokens.CacheRead)
	m.total.CacheWriteTokens = swap(m.total.CacheWriteTokens, old.Tokens.CacheWrite+old.Tokens.CacheWrite1h, e.Tokens.CacheWrite+e.Tokens.CacheWrite1h)
}

// swap takes before out of sum and puts now in. A sum that has reached the largest number stays there.
func swap[T ~int64](sum, before, now T) T {
	if sum == T(maxUSD) {
		return sum
	}
	return T(addCapped(int64(sum-before), int64(now)))
}

// Seen says whether an answer with this key was counted.
func (m *Meter) Seen(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.entries[key]
	return ok
}

// Usage returns the sums, without what only the session knows.
func (m *Meter) Usage() Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.total
	byWhy := make(map[string]Unpriced)
	for _, e := range m.entries {
		if e.Why == "" {
			continue
		}
		sum := byWhy[e.Why]
		sum.Why = e.Why
		sum.Answers++
		sum.InputTokens = addCapped(sum.InputTokens, e.Tokens.Input)
		sum.OutputTokens = addCapped(sum.OutputTokens, e.Tokens.Output)
		byWhy[e.Why] = sum
	}
	for _, sum := range byWhy {
		u.Unpriced = append(u.Unpriced, sum)
	}
	slices.SortFunc(u.Unpriced, func(a, b Unpriced) int { return strings.Compare(a.Why, b.Why) })
	return u
}

// equal compares two records, also the cost that Reported points to.
func (r Record) equal(s Record) bool {
	same := r.Reported == s.Reported || r.Reported != nil && s.Reported != nil && *r.Reported == *s.Reported
	r.Reported, s.Reported = nil, nil
	return same && r == s
}
