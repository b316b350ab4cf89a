package budget

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Reader finds usage in the messages of one conversation. It remembers what later rows of
// the same file need: the thread and the model of a Codex rollout. So give it the conversation from its beginning,
// also after a restart: the Meter drops what it has. The zero value is ready. It is for one goroutine.
//
// It looks at these places, and nowhere else, so that a tool result with a usage block in it counts for nothing:
//
//	message.usage                    OpenAI chat and responses, Anthropic, Mistral, as a message or a whole response
//	message.usageMetadata            Gemini
//	message.message.usage            Claude Code session rows: one for each block of an answer, all with one message.id
//	message.tokens                   Gemini CLI session rows
//	message.prompt_eval_count        Ollama
//	[data.|kwargs.]usage_metadata, response_metadata.{token_usage,usage}    LangChain
//	payload of token_usage_record, else of event_msg token_count            Codex rollout rows
//
// An answer is known by its id, in the conversations of all providers; one without an id by the digest of its message. Two
// answers without an id that are equal to the byte count as one.
type Reader struct {
	thread  string // of a Codex rollout
	model   string // of the present turn of a Codex rollout
	records bool   // token_usage_record rows were seen: token_count rows then say the same again
}

// marks are strings of which a message with usage has at least one.
var marks = [][]byte{[]byte("usage"), []byte("token"), []byte("eval_count"), []byte("turn_context"), []byte("session_meta")}

// Read returns the usage in a message, ok false if there is none. An error means that there is some which cannot be
// counted: the conversation may be good all the same.
func (r *Reader) Read(message []byte) (rec Record, ok bool, err error) {
	marked := false
	for _, m := range marks {
		marked = marked || bytes.Contains(message, m)
	}
	if !marked {
		return Record{}, false, nil
	}
	o := objectOf(message)
	if o == nil {
		return Record{}, false, nil
	}
	if o.has("payload") {
		return r.codex(o)
	}
	return fromMessage(o, message)
}

// fromMessage reads all formats in which a message speaks for itself.
func fromMessage(o object, raw []byte) (Record, bool, error) {
	var (
		from         = o // has the id and the model
		where        = o // has the block
		block        object
		langchain    = o
		metadataFrom object
	)
	if d := o.sub("data", "kwargs"); d != nil {
		langchain = d
	}
	metadataFrom = langchain.sub("response_metadata")
	switch {
	// The last line of `claude -p` is the sum of what came before it.
	case o.text("type") == "result" && o.has("total_cost_usd"):
		return Record{}, false, nil
	case o.sub("message").sub("usage") != nil:
		from, where = o.sub("message"), o.sub("message")
		block = from.sub("usage")
	case o.sub("usage") != nil:
		block = o.sub("usage")
	case o.sub("usageMetadata") != nil:
		block = o.sub("usageMetadata")
	case langchain.sub("usage_metadata") != nil:
		from, where = langchain, langchain
		block = langchain.sub("usage_metadata")
	case metadataFrom.sub("token_usage", "usage") != nil:
		from, where = langchain, metadataFrom
		block = metadataFrom.sub("token_usage", "usage")
	case metadataFrom.has("prompt_eval_count", "eval_count"):
		from, where, block = langchain, metadataFrom, metadataFrom
	case o.has("prompt_eval_count", "eval_count"):
		block = o
	case o.text("type") == "gemini" && o.sub("tokens") != nil:
		block = geminiCLI(o.sub("tokens"))
	default:
		return Record{}, false, nil
	}
	u, known, err := parseBlock(block)
	if err != nil || !known {
		return Record{}, false, err
	}
	rec := Record{
		Model:    firstOf(from.text("model", "modelVersion", "model_version"), metadataFrom.text("model_name", "model", "model_id")),
		Tier:     firstOf(u.tier, tierOf(where.text("service_tier"), metadataFrom.text("service_tier"))),
		Tokens:   u.tokens,
		Extra:    u.extra,
		Reported: u.reported,
	}
	// Older Claude Code rows have the cost beside the message.
	if rec.Reported == nil && o.has("costUSD") {
		if rec.Reported, err = reportedCost(o); err != nil {
			return Record{}, false, fmt.Errorf("read a message's usage: %w", err)
		}
	}
	if id := firstOf(from.text("id", "responseId", "response_id"), metadataFrom.text("id")); id != "" {
		rec.Key = key("id", id)
	} else {
		rec.Key = key("message", string(raw))
	}
	return rec, rec.counts(), nil
}

// geminiCLI gives the token counts of Gemini CLI's session rows the names of the API.
func geminiCLI(tokens object) object {
	out := make(object)
	for name, api := range map[string]string{"input": "promptTokenCount", "output": "candidatesTokenCount", "cached": "cachedContentTokenCount",
		"thoughts": "thoughtsTokenCount", "tool": "toolUsePromptTokenCount"} {
		if v, ok := tokens[name]; ok {
			out[api] = v
		}
	}
	return out
}

// codex reads a row of a Codex rollout.
func (r *Reader) codex(o object) (Record, bool, error) {
	p := o.sub("payload")
	switch o.text("type") {
	case "session_meta":
		r.thread = p.text("id", "session_id")
		return Record{}, false, nil
	case "turn_context":
		r.model = p.text("model")
		return Record{}, false, nil
	case "token_usage_record":
		block := p.sub("usage")
		if block == nil {
			return Record{}, false, nil
		}
		r.records = true
		if id := p.text("response_id"); id != "" {
			return r.codexRecord(block, key("id", id))
		}
		// The thread's running total names the answer as well.
		return r.codexRecord(block, key("codex", r.thread, string(p["thread_token_usage"]), string(p["usage"])))
	case "event_msg":
		info := p.sub("info")
		block := info.sub("last_token_usage")
		if p.text("type") != "token_count" || block == nil || r.records {
			return Record{}, false, nil
		}
		// The row comes again when only the rate limits have changed.
		return r.codexRecord(block, key("codex", r.thread, string(info["total_token_usage"]), string(info["last_token_usage"])))
	}
	return Record{}, false, nil
}

func (r *Reader) codexRecord(block object, key string) (Record, bool, error) {
	u, known, err := parseBlock(block)
	if err != nil || !known {
		return Record{}, false, err
	}
	rec := Record{Key: key, Model: r.model, Tier: u.tier, Tokens: u.tokens, Reported: u.reported}
	return rec, rec.counts(), nil
}

// counts says that there is something to count.
func (r Record) counts() bool {
	return !r.Tokens.zero() || r.Extra != "" || r.Reported != nil && *r.Reported > 0
}

// FromToolEnd reads the usage given with the end of a tool call: a usage block of any provider, a message or a response with one
// in it, the result line of `claude -p --output-format json`, or our own form
//
//	{"model": "…", "input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost_usd": 0.01, "id": "…"}
//
// of which all is optional but one number. call names the tool call, so that an end that is reported twice counts once; an id in
// the usage goes before it. An error says what is wrong with raw; nothing must be counted then.
func FromToolEnd(raw []byte, call string) (Record, error) {
	if !json.Valid(raw) {
		return Record{}, errors.New("the usage is not JSON")
	}
	o := objectOf(raw)
	if o == nil {
		return Record{}, errors.New("the usage is not a JSON object")
	}
	rec, ok, err := fromMessage(o, raw)
	if err != nil {
		return Record{}, err
	}
	if !ok {
		block := o
		if inner := o.sub("usage"); inner != nil { // the result line of claude -p, or an empty block
			block = inner
		}
		u, known, err := parseBlock(block)
		if err != nil {
			return Record{}, err
		}
		if !known {
			return Record{}, errors.New(`the usage has no token counts that are known; give "input_tokens" and "output_tokens", or "cost_usd"`)
		}
		rec = Record{Model: o.text("model"), Tier: u.tier, Tokens: u.tokens, Extra: u.extra, Reported: u.reported}
		if rec.Reported == nil {
			if rec.Reported, err = reportedCost(o); err != nil {
				return Record{}, fmt.Errorf("read the usage: %w", err)
			}
		}
	}
	switch id := firstOf(o.text("id", "responseId"), o.sub("message").text("id")); {
	case id != "":
		rec.Key = key("id", id)
	case call != "":
		rec.Key = key("call", call)
	default:
		rec.Key = key("message", string(raw))
	}
	return rec, nil
}

// key makes a short name out of parts of any length.
func key(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:", len(p)) // a hash never fails to write
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
