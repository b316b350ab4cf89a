package budget

import "strings"

// Tokens is what one answer of a model used. CacheRead, CacheWrite and CacheWrite1h are parts of Input.
type Tokens struct {
	Input        int64 `json:"input"`
	Output       int64 `json:"output"`
	CacheRead    int64 `json:"cache_read,omitempty"`     // of the input, from the provider's cache
	CacheWrite   int64 `json:"cache_write,omitempty"`    // of the input, written to it for the usual time
	CacheWrite1h int64 `json:"cache_write_1h,omitempty"` // of the input, written to it for an hour (Anthropic)
}

// zero says that nothing was used.
func (t Tokens) zero() bool { return t == Tokens{} }

// plain is the input that has nothing to do with a cache.
func (t Tokens) plain() int64 {
	return max(0, t.Input-t.CacheRead-t.CacheWrite-t.CacheWrite1h)
}

// whole makes sure that Input holds its parts: a client that counts them apart where
// its format does not say so must not make them free.
func (t Tokens) whole() Tokens {
	if parts := addCapped(t.CacheRead, addCapped(t.CacheWrite, t.CacheWrite1h)); parts > t.Input {
		t.Input = addCapped(t.Input, parts)
	}
	return t
}

// plus adds up two answers.
func (t Tokens) plus(u Tokens) Tokens {
	return Tokens{
		Input: addCapped(t.Input, u.Input), Output: addCapped(t.Output, u.Output),
		CacheRead: addCapped(t.CacheRead, u.CacheRead), CacheWrite: addCapped(t.CacheWrite, u.CacheWrite),
		CacheWrite1h: addCapped(t.CacheWrite1h, u.CacheWrite1h),
	}
}

// most takes the larger of each number: an answer that is told about several times, with growing numbers.
func (t Tokens) most(u Tokens) Tokens {
	return Tokens{
		Input: max(t.Input, u.Input), Output: max(t.Output, u.Output),
		CacheRead: max(t.CacheRead, u.CacheRead), CacheWrite: max(t.CacheWrite, u.CacheWrite),
		CacheWrite1h: max(t.CacheWrite1h, u.CacheWrite1h),
	}
}

// Record is the usage of one answer of a model.
type Record struct {
	Key    string `json:"key"`             // names the answer: two records with one key are the same one
	Model  string `json:"model,omitempty"` // as the provider spells it; "" when unknown
	Tier   string `json:"tier,omitempty"`  // what makes its price another one: "batch", "priority", "fast", "geo-us"; "" is the standard
	Tokens Tokens `json:"tokens"`
	// Reported is the cost that the client gives, nil when it gives none.
	Reported *USD `json:"reported_usd,omitempty"`
	// Extra names charges besides tokens ("web search"), which the table has no price for.
	Extra string `json:"extra,omitempty"`
}

// merge joins what two records with one key say.
func (r Record) merge(s Record) Record {
	r.Tokens = r.Tokens.most(s.Tokens)
	if r.Model == "" {
		r.Model = s.Model
	}
	if r.Tier == "" {
		r.Tier = s.Tier
	}
	if r.Extra == "" {
		r.Extra = s.Extra
	}
	if s.Reported != nil && (r.Reported == nil || *s.Reported > *r.Reported) {
		r.Reported = s.Reported
	}
	return r
}

// tierOf joins the words that mean another price than the standard one.
func tierOf(words ...string) string {
	var tiers []string
	for _, w := range words {
		switch w = strings.ToLower(w); w {
		case "", "standard", "default", "auto", "on_demand", "geo-", "geo-global", "geo-not_available":
		default:
			tiers = append(tiers, w)
		}
	}
	return strings.Join(tiers, "+")
}
