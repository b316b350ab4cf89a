package budget

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// What to do about a ceiling on cost when some costs are not known.
const (
	// Refuse takes the ceiling for reached. It is the default.
	Refuse = "refuse"
	// Note goes on, and says what is not known.
	Note = "note"
)

// Limits are the ceilings of a session. A ceiling of 0 is none.
type Limits struct {
	Cost          USD           `json:"cost_usd,omitempty"`
	InputTokens   int64         `json:"input_tokens,omitempty"`
	OutputTokens  int64         `json:"output_tokens,omitempty"`
	WallTime      time.Duration `json:"wall_time_ns,omitempty"`
	BytesWritten  int64         `json:"bytes_written,omitempty"`
	Checkpoints   int64         `json:"checkpoints,omitempty"`
	OnUnknownCost string        `json:"on_unknown_cost,omitempty"` // Refuse ("" too) or Note
}

// Check returns all that is wrong with l.
func (l Limits) Check() error {
	var all []error
	for _, c := range []struct {
		name string
		n    int64
	}{
		{"cost", int64(l.Cost)}, {"input tokens", l.InputTokens}, {"output tokens", l.OutputTokens},
		{"wall time", int64(l.WallTime)}, {"bytes written", l.BytesWritten}, {"checkpoints", l.Checkpoints},
	} {
		if c.n < 0 {
			all = append(all, fmt.Errorf("the ceiling on %s is negative", c.name))
		}
	}
	if l.OnUnknownCost != "" && l.OnUnknownCost != Refuse && l.OnUnknownCost != Note {
		all = append(all, fmt.Errorf("%q is no way to treat unknown costs; use %s or %s", l.OnUnknownCost, Refuse, Note))
	}
	return errors.Join(all...)
}

// Ceiling is one limit beside what was used of it.
type Ceiling struct {
	Name    string `json:"name"` // as the field of Limits is called in JSON
	Used    string `json:"used"` // for people
	Limit   string `json:"limit"`
	Reached bool   `json:"reached"`
}

// Ceilings lists the limits that are set, in the order of Limits.
func Ceilings(l Limits, u Usage) []Ceiling {
	var all []Ceiling
	add := func(name string, limit, used int64, show func(int64) string) {
		if limit > 0 {
			all = append(all, Ceiling{name, show(used), show(limit), used >= limit})
		}
	}
	number := func(n int64) string { return fmt.Sprint(n) }
	add("cost_usd", int64(l.Cost), int64(u.Cost), func(n int64) string { return USD(n).String() })
	add("input_tokens", l.InputTokens, u.InputTokens, number)
	add("output_tokens", l.OutputTokens, u.OutputTokens, number)
	add("wall_time_ns", int64(l.WallTime), int64(u.WallTime), func(n int64) string { return time.Duration(n).String() })
	add("bytes_written", l.BytesWritten, u.BytesWritten, number)
	add("checkpoints", l.Checkpoints, u.Checkpoints, number)
	return all
}

// Check says whether a ceiling is reached, and why in words for people. A reason with exceeded false is a note: some
// costs are not known, and Limits.OnUnknownCost is Note.
func Check(l Limits, u Usage) (reason string, exceeded bool) {
	var reached []string
	for _, c := range Ceilings(l, u) {
		if c.Reached {
			reached = append(reached, fmt.Sprintf("%s: %s of %s", c.words(), c.Used, c.Limit))
		}
	}
	unknown := unknownCosts(l, u)
	refused := unknown != "" && l.OnUnknownCost != Note
	switch {
	case len(reached) > 0:
		reason = "the budget of the session is used up (" + strings.Join(reached, "; ") + "); raise the ceiling or begin another session"
		if unknown != "" {
			reason += ". " + unknown
		}
		return reason, true
	case refused:
		path, err := UserPricesPath()
		if err != nil {
			path = "rewindfs/prices.json in the configuration directory"
		}
		return unknown + ". Add the price to " + path + ", or have unknown costs only noted: rewindfs budget set --unknown-cost note", true
	default:
		return unknown, false
	}
}

// words is what people call a ceiling.
func (c Ceiling) words() string {
	return strings.NewReplacer("_usd", "", "_ns", "", "_", " ").Replace(c.Name)
}

// unknownCosts says which costs a ceiling on cost cannot take into account; "" if there is no such ceiling or no such cost.
func unknownCosts(l Limits, u Usage) string {
	if l.Cost == 0 || len(u.Unpriced) == 0 {
		return ""
	}
	var whys []string
	var answers int64
	for i, p := range u.Unpriced {
		answers += p.Answers
		if i < 3 {
			whys = append(whys, p.Why)
		}
	}
	if n := len(u.Unpriced) - len(whys); n > 0 {
		whys = append(whys, fmt.Sprintf("and %d more reasons", n))
	}
	return fmt.Sprintf("the cost of %d of %d answers is not known: %s", answers, u.Answers, strings.Join(whys, "; "))
}
