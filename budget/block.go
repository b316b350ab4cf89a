package budget

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxTokens bounds a count that is believed.
const maxTokens = 1_000_000_000_000

// object is a JSON object with its values as they were written.
type object map[string]json.RawMessage

// objectOf reads data if it is an object, else returns nil.
func objectOf(data json.RawMessage) object {
	if data = bytes.TrimLeft(data, " \t\r\n"); len(data) == 0 || data[0] != '{' {
		return nil
	}
	var o object
	if json.Unmarshal(data, &o) != nil {
		return nil
	}
	return o
}

// sub returns the first of the named members that is an object; nil if there is none.
func (o object) sub(names ...string) object {
	for _, name := range names {
		if s := objectOf(o[name]); s != nil {
			return s
		}
	}
	return nil
}

// text returns the first of the named members that is a string that is not empty.
func (o object) text(names ...string) string {
	for _, name := range names {
		if v := o[name]; len(v) > 0 && v[0] == '"' {
			var s string
			if json.Unmarshal(v, &s) == nil && s != "" {
				return s
			}
		}
	}
	return ""
}

// has says whether one of the named members is there and not null.
func (o object) has(names ...string) bool {
	for _, name := range names {
		if v, ok := o[name]; ok && string(v) != "null" {
			return true
		}
	}
	return false
}

// counts reads numbers of tokens and remembers the first error.
type counts struct{ err error }

// of returns the first of the named members that is there; 0 if none is.
func (c *counts) of(o object, names ...string) int64 {
	for _, name := range names {
		if !o.has(name) {
			continue
		}
		// Some clients write all numbers with a fraction.
		n, err := strconv.ParseInt(strings.TrimSuffix(string(o[name]), ".0"), 10, 64)
		if (err != nil || n < 0 || n > maxTokens) && c.err == nil {
			c.err = fmt.Errorf("%q is %.40s; it must be a whole number of tokens", name, o[name])
		}
		return n
	}
	return 0
}

// usage is what a usage block says.
type usage struct {
	tokens   Tokens
	tier     string
	extra    string
	reported *USD
}

// parseBlock reads a usage block of any provider; ok is false if it is none that is known.
// The names tell the families apart:
//
//	promptTokenCount, prompt_token_count   Gemini, and its Python client
//	prompt_eval_count, eval_count          Ollama
//	prompt_tokens, completion_tokens       OpenAI chat, Mistral, and all that are compatible
//	input_tokens, output_tokens            OpenAI responses, Anthropic, LangChain, Codex, our own form
//	cost_usd and the like alone            a cost without tokens
func parseBlock(o object) (u usage, ok bool, err error) {
	var c counts
	switch {
	case o.has("promptTokenCount", "prompt_token_count", "candidatesTokenCount", "candidates_token_count"):
		u.tokens = geminiTokens(&c, o)
	case o.has("prompt_eval_count", "eval_count"):
		u.tokens = Tokens{Input: c.of(o, "prompt_eval_count"), Output: c.of(o, "eval_count")}
	case o.has("prompt_tokens", "completion_tokens"):
		u.tokens = chatTokens(&c, o)
	case o.has("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation", "server_tool_use", "iterations"):
		u.tokens, u.extra = anthropicTokens(&c, o)
	case o.has("input_tokens", "output_tokens"):
		u.tokens = inclusiveTokens(&c, o)
	case !o.has(costNames...):
		return usage{}, false, nil
	}
	u.tokens = u.tokens.whole()
	u.tier = tierOf(o.text("service_tier"), o.text("speed"), "geo-"+o.text("inference_geo"))
	if c.err == nil {
		u.reported, c.err = reportedCost(o)
	}
	if c.err != nil {
		return usage{}, true, fmt.Errorf("read a usage block: %w", c.err)
	}
	return u, true, nil
}

// costNames are members by which clients report a cost in US dollars.
var costNames = []string{"cost_usd", "total_cost_usd", "costUSD", "cost"}

// reportedCost reads the cost that a client gives. A "cost" may also be an object or a
// text of which nothing is known: those are left alone.
func reportedCost(o object) (*USD, error) {
	for _, name := range costNames {
		if !o.has(name) {
			continue
		}
		text := string(o[name])
		if s := o.text(name); s != "" {
			text = s
		}
		d, err := parseReported(text)
		if err == nil {
			return &d, nil
		}
		if name != "cost" {
			return nil, fmt.Errorf("%q is %.40s; it must be an amount in US dollars", name, o[name])
		}
	}
	return nil, nil
}

// geminiTokens: the prompt holds what came from the cache, but not the results of the provider's own
// tools; what is thought is counted apart from the answer.
func geminiTokens(c *counts, o object) Tokens {
	return Tokens{
		Input: addCapped(c.of(o, "promptTokenCount", "prompt_token_count"), c.of(o, "toolUsePromptTokenCount", "tool_use_prompt_token_count")),
		Output: addCapped(c.of(o, "candidatesTokenCount", "candidates_token_count", "responseTokenCount", "response_token_count"),
			c.of(o, "thoughtsTokenCount", "thoughts_token_count")),
		CacheRead: c.of(o, "cachedContentTokenCount", "cached_content_token_count"),
	}
}

// chatTokens: the prompt holds what came from the cache. Some compatible servers leave reasoning out of
// the completion; the total then says so.
func chatTokens(c *counts, o object) Tokens {
	details := o.sub("prompt_tokens_details", "prompt_token_details")
	t := Tokens{
		Input:      c.of(o, "prompt_tokens"),
		Output:     c.of(o, "completion_tokens"),
		CacheRead:  c.of(details, "cached_tokens"),
		CacheWrite: c.of(details, "cache_write_tokens"),
	}
	if t.CacheRead == 0 {
		t.CacheRead = c.of(o, "prompt_cache_hit_tokens", "num_cached_tokens")
	}
	if total := c.of(o, "total_tokens"); total > addCapped(t.Input, t.Output) {
		t.Output = total - t.Input
	}
	return t
}

// inclusiveTokens: the input holds what came from the cache and went into it.
func inclusiveTokens(c *counts, o object) Tokens {
	t := Tokens{Input: c.of(o, "input_tokens"), Output: c.of(o, "output_tokens")}
	if d := o.sub("input_token_details"); d != nil { // LangChain
		t.CacheRead = c.of(d, "cache_read")
		t.CacheWrite1h = c.of(d, "ephemeral_1h_input_tokens")
		// The two kinds are given beside the sum or, in newer versions, instead of it.
		t.CacheWrite = max(c.of(d, "ephemeral_5m_input_tokens"), c.of(d, "cache_creation")-t.CacheWrite1h)
		return t
	}
	if d := o.sub("input_tokens_details"); d != nil { // OpenAI responses
		t.CacheRead, t.CacheWrite = c.of(d, "cached_tokens"), c.of(d, "cache_write_tokens")
		return t
	}
	// Codex; our own form.
	t.CacheRead = c.of(o, "cached_input_tokens", "cache_read_tokens")
	t.CacheWrite = c.of(o, "cache_write_input_tokens", "cache_write_tokens")
	return t
}

// anthropicTokens: input_tokens is only what is behind the last cache mark. Steps that the provider
// made by itself before the answer (compaction, an advisor) are in iterations, and only there.
func anthropicTokens(c *counts, o object) (t Tokens, extra string) {
	t = anthropicStep(c, o)
	var steps []json.RawMessage
	if o.has("iterations") {
		if err := json.Unmarshal(o["iterations"], &steps); err != nil && c.err == nil {
			c.err = fmt.Errorf(`"iterations" is no list`)
		}
	}
	for _, step := range steps {
		s := objectOf(step)
		if s == nil || s.text("type") == "message" {
			continue // the answer itself, which the block already counts
		}
		t = t.plus(anthropicStep(c, s))
		if s.has("model") {
			extra = "a step by the model " + s.text("model")
		}
	}
	tools := o.sub("server_tool_use")
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		// Fetching pages costs tokens only.
		if s := string(tools[name]); s != "0" && s != "null" && name != "web_fetch_requests" {
			extra = strings.TrimSuffix(name, "_requests")
		}
	}
	return t, extra
}

func anthropicStep(c *counts, o object) Tokens {
	kinds := o.sub("cache_creation")
	t := Tokens{
		Output:       c.of(o, "output_tokens"),
		CacheRead:    c.of(o, "cache_read_input_tokens"),
		CacheWrite1h: c.of(kinds, "ephemeral_1h_input_tokens"),
	}
	// The sum is there in every version, the kinds only in newer ones.
	t.CacheWrite = max(c.of(kinds, "ephemeral_5m_input_tokens"), c.of(o, "cache_creation_input_tokens")-t.CacheWrite1h)
	t.Input = addCapped(c.of(o, "input_tokens"), addCapped(t.CacheRead, addCapped(t.CacheWrite, t.CacheWrite1h)))
	return t
}
