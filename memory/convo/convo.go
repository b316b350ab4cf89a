// Package convo reads an agent's conversation in whatever format it comes, and makes
// one that was cut anywhere valid again for its provider.
//
// Nothing is translated: a history is a list of raw JSON values, and every value that a
// repair does not touch keeps its bytes; of one that it must touch, the parts that stay
// keep theirs. What a provider accepts is not decided here but in package valid, which
// shares no code with this one.
//
// Here belong: the shapes of the formats (one file each: what is a call, a result, a
// step, where a result and a notice go) and the one algorithm over them (repair.go,
// pair.go, tail.go, place.go, strip.go). Not here: where histories are stored, files,
// clocks, randomness, anything about rolling back.
package convo

import (
	"encoding/json"
	"errors"
)

// Format names the shape of a history.
type Format string

// The formats. The last two are the transcripts that clients keep on disk.
const (
	OpenAIChat Format = "openai-chat"
	Responses  Format = "openai-responses"
	Anthropic  Format = "anthropic"
	Gemini     Format = "gemini"
	LangChain  Format = "langchain"
	Mistral    Format = "mistral"
	Ollama     Format = "ollama"
	ClaudeCode Format = "claude-code-jsonl"
	Codex      Format = "codex-rollout"
)

// ErrNotHistory says that the input is not a conversation in any format known here, or
// not in the one that was asked for. The text says where and why.
var ErrNotHistory = errors.New("not a conversation history")

// History is a conversation: one raw value for each message, item or row, in order.
type History struct {
	Format Format
	Items  []json.RawMessage
	Lines  bool // it came as JSONL, not as an array
}

// Mode says what a repair does with a step of which some calls have no result.
type Mode string

// Auto keeps a step of which something ran and drops one of which nothing did; Drop
// always drops it; Synthesize always invents the missing results.
const (
	Auto       Mode = "auto"
	Drop       Mode = "drop"
	Synthesize Mode = "synthesize"
)

// Options of Repair. The zero value repairs without a notice.
type Options struct {
	Checkpoint string // name of the checkpoint gone back to, for invented results
	Mode       Mode   // "": Auto
	Notice     string // text to tell the model, already escaped and capped (see Notice); "": none
	FilesStay  bool   // the conversation goes back alone
	MidSystem  bool   // the model takes role "system" inside of the history (Anthropic)
	// Pending is the call in front of which the checkpoint was taken; Answered are the
	// calls of its step whose results count, Inflight those that ran meanwhile (CONVERSATIONS 1.10).
	// Without Answered, the calls of the step in front of the pending one count. Ran are
	// calls of earlier steps that had ended: what they did is in the files.
	Pending  string
	Answered []string
	Inflight []string
	Ran      []string
	AtCall   bool   // the history is from before Pending: a call of that id with a result is an older one
	NewID    string // session or thread id of the new transcript (Claude Code, Codex)
}

// Change is one thing that a repair did. At counts items (rows for Claude Code,
// response items for Codex). For what was taken away or moved it is where it stood; for
// what was added, where it now stands; for an invented result, the item that holds the
// call, or the user message that took the result where results are blocks of one.
type Change struct {
	Action string `json:"action"`
	At     int    `json:"at"`
	ID     string `json:"id,omitempty"` // the call or item; the tool's name where calls have no ids
	// IDs are the calls of a dropped step, and Results how many of them had a result,
	// which went with it. Only drop_step has them.
	IDs     []string `json:"ids,omitempty"`
	Results *int     `json:"results,omitempty"`
}

// The actions of a Change.
const (
	actDropStep         = "drop_step"
	actDropReasoning    = "drop_trailing_reasoning"
	actDropThinking     = "drop_thinking_only"
	actDropThinkingTail = "drop_trailing_thinking"
	actOrphanReasoning  = "drop_orphan_reasoning"
	actOrphanResult     = "drop_orphan_result"
	actMoveResult       = "move_result"
	actSynthesize       = "synthesize_result"
	actDropCall         = "drop_call"
	actDropItemID       = "drop_item_id"
	actDropDuplicate    = "drop_duplicate_item"
	actDropEmpty        = "drop_empty_message"
	actDropEmptyBlock   = "drop_empty_block"
	actHoist            = "hoist_results"
	actStripThinking    = "strip_thinking_after_edit"
	actMoveSystem       = "move_system"
	actSystemToUser     = "system_to_user"
	actPrependUser      = "prepend_user"
	actMergeRole        = "merge_same_role"
	actSkipSignature    = "add_skip_signature"
	actBridge           = "bridge_assistant"
	actRelink           = "relink_row"
	actNotice           = "append_notice"
	actNoticeInLastTool = "notice_in_last_tool_result"
)
