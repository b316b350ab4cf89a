// Package valid says whether a strict provider would take a history, and if not, where
// and why. It is the guard on the way out: what it refuses is never handed to an agent.
//
// It was written apart from the repair in package convo and shares nothing with it but
// the names of the formats, so that one mistake cannot be made in both. What belongs
// here is what a provider refuses, one file for each format. Messages are modelled on
// those of the providers; they are for people, and only Rule and At are for programs.
//
// Where providers of one format differ, the strictest one counts, with two limits. What no cut
// and no repair can bring about (a field that a newer API may have, a system message in the
// middle of an OpenAI history) is let through: refusing it would only keep people from
// histories that work for them. And what can not be seen in the history alone, such as
// a reasoning item that is gone without a trace, is for CheckEdit, which has both sides.
package valid

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/rewindfs/rewindfs/memory/convo"
)

// The rules, as they stand in Error.Rule. They are stable.
const (
	RuleFormat    = "format"             // the format is not one of those that are known
	RuleShape     = "shape"              // a wrong type, or a field that must be there and is not
	RuleRole      = "role"               // a role or message type that the format does not have
	RuleEmpty     = "empty"              // a message or a text with nothing in it
	RuleFirst     = "first"              // the history begins with the wrong side
	RuleEnd       = "end"                // the model cannot answer next (only with Options.Send)
	RuleOpen      = "unanswered"         // a call has no result where the provider looks for it
	RuleOrphan    = "orphan-result"      // a result has no call where the provider looks for it
	RuleTwice     = "duplicate-result"   // a call has more than one result
	RuleDupID     = "duplicate-id"       // an id that must be unique is not
	RuleOrder     = "result-order"       // results are not in the order of the calls
	RuleLate      = "results-first"      // something stands in front of a result in its message
	RuleReasoning = "reasoning-alone"    // a reasoning item without the item it was made for
	RuleThinking  = "thinking-end"       // an assistant turn ends in thinking
	RuleServer    = "server-tool"        // a tool of the server's is open where it may not be
	RuleServerRes = "server-orphan"      // a result of a server's tool without its call
	RuleCompact   = "compaction-first"   // a compaction block that does not open its turn
	RuleSystem    = "system-place"       // a system message where none may be
	RuleNoSystem  = "system-unsupported" // a system message, and the model takes none (Options.MidSystem)
	RuleCallPlace = "call-place"         // a call where the format allows none
	RuleSignature = "signature"          // a call of the current turn without its thought signature
	RuleCallID    = "call-id"            // a call id that the provider cannot read
	RuleAfterTool = "user-after-tool"    // a user message right behind a result
	RuleChain     = "chain"              // a row of a transcript that the client would not reach
	RuleMeta      = "session-meta"       // a transcript without the row that its client begins with
	RuleDropped   = "reasoning-dropped"  // an edit took a reasoning item from the item that needs it (CheckEdit)
	RuleAltered   = "thinking-changed"   // an edit changed, moved or made up thinking (CheckEdit)
	RulePrefix    = "thinking-prefix"    // an edit left thinking behind something it was not made for (CheckEdit)
)

// Options say what is known about the model that the history is for. The zero value
// checks a history as it is kept: it may end with the model's own turn.
type Options struct {
	// MidSystem: the model takes role "system" inside of the history (Anthropic, Opus 4.8 and later).
	MidSystem bool
	// Roles: a message of a role that the format does not have is let through, as neither call nor result. Neither a cut nor
	// a repair makes one, so whoever the history came from takes it: compatible servers have more roles than the provider
	// that they copy. Not for Anthropic and Gemini, where the turns depend on roles; but Gemini's results may be of role
	// "function", and its user of none, as older versions had it.
	Roles bool
	// Send: the history is to be sent as it is, with nothing behind it, so it must not
	// be empty and must end where the model answers next.
	Send bool
}

// Error is a refusal.
type Error struct {
	At      int    // index into the items; -1: the history as a whole
	Rule    string // one of the rules above
	Message string // what a provider would say
}

func (e *Error) Error() string {
	if e.At < 0 {
		return fmt.Sprintf("history refused (%s): %s", e.Rule, e.Message)
	}
	return fmt.Sprintf("history refused at item %d (%s): %s", e.At, e.Rule, e.Message)
}

// maxMessage bounds a message, in bytes: ids come from outside and may be of any length.
const maxMessage = 1000

// refuse makes an Error. What comes from the history is made fit for a terminal.
func refuse(at int, rule, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxMessage {
		text = text[:maxMessage] + "..."
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
	return &Error{At: at, Rule: rule, Message: text}
}

// Check returns nil if a strict provider of format f would take the items, else an
// *Error that names the first thing it would refuse. It changes nothing and keeps
// nothing. An empty history is a valid one unless it is to be sent.
func Check(f convo.Format, items []json.RawMessage, o Options) error {
	// A nil *Error must not become an error that is not nil.
	if e := check(f, items, o); e != nil {
		return e
	}
	return nil
}

func check(f convo.Format, items []json.RawMessage, o Options) *Error {
	var rules func([]json.RawMessage, Options) *Error
	switch f {
	case convo.OpenAIChat:
		rules = checkChat
	case convo.Responses:
		rules = checkResponses
	case convo.Anthropic:
		rules = checkAnthropic
	case convo.Gemini:
		rules = checkGemini
	case convo.LangChain:
		rules = checkLangChain
	case convo.Mistral:
		rules = checkMistral
	case convo.Ollama:
		rules = checkOllama
	case convo.ClaudeCode:
		rules = checkClaudeCode
	case convo.Codex:
		rules = checkCodex
	default:
		return refuse(-1, RuleFormat, "unknown format %q; name one of those that `rewindfs memory repair --help` lists", string(f))
	}
	if len(items) == 0 {
		if o.Send {
			return refuse(-1, RuleEmpty, "the history is empty: at least one message is required")
		}
		return nil
	}
	if e := grammatical(items); e != nil {
		return e
	}
	return rules(items, o)
}
