package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// recordVersion is the version this program writes. A record with a higher one
// is refused, never guessed at.
const recordVersion = 1

// Bounds on what a caller may store in one entry, in bytes.
const (
	maxMessage  = 64 << 10
	maxMetadata = 64 << 10
	maxID       = 1 << 10 // phase, turn and tool-call ids
)

// ErrNewer is returned for a record that a newer rewindfs wrote.
var ErrNewer = errors.New("written by a newer rewindfs")

// ErrBadEntry is returned for an entry that cannot be stored as it is.
var ErrBadEntry = errors.New("bad checkpoint data")

// The states of a checkpoint's conversation.
const (
	ConversationNone    = "none"    // there was none
	ConversationPresent = "present" // it is in the store
	ConversationMissing = "missing" // there was one, but it could not be read
)

// Conversation is the snapshot of the conversation that a checkpoint holds on to: a
// number of messages known by their digest, in a format (see package memory). Threads
// are the conversations that have a name; the fields themselves are the one that has none.
type Conversation struct {
	Messages int                     `json:"messages"`
	Digest   string                  `json:"digest"`
	State    string                  `json:"state"`
	Format   string                  `json:"format,omitempty"`
	Lines    bool                    `json:"lines,omitempty"` // JSONL, not an array
	Threads  map[string]Conversation `json:"threads,omitempty"`
}

// NoConversation is the place of a checkpoint that was made without messages.
func NoConversation() Conversation { return Conversation{State: ConversationNone} }

// Tool is where a checkpoint stands among the tool calls of an agent, for the repair
// of its conversation: which calls had results that count, which ran meanwhile.
type Tool struct {
	Step       string   `json:"step,omitempty"`
	BatchStart bool     `json:"batch_start,omitempty"` // taken before the first mutating call of the step
	Pending    string   `json:"pending,omitempty"`     // the call in front of which it was taken
	Answered   []string `json:"answered,omitempty"`
	Inflight   []string `json:"inflight,omitempty"`
	Ran        []string `json:"ran,omitempty"`   // the last calls of other steps that had ended: what they did is in the layer
	Fuzzy      bool     `json:"fuzzy,omitempty"` // another agent's mutating call ran meanwhile
}

// Entry is what is known about one checkpoint. Layer is the layer it sealed,
// Parent the one below. An Auto entry was made by a policy, not asked for by
// name. ID is a ULID; ids rise with the layers of a store. Several checkpoints share a
// layer when nothing was changed between them; Seq counts them from 0.
type Entry struct {
	ID           string
	Layer        uint64
	Seq          uint64
	Parent       uint64
	Branch       string
	Label        string // empty when the checkpoint has none
	Message      string
	Metadata     map[string]string
	Phase        string
	Turn         string
	ToolCall     string
	CreatedAt    time.Time
	ChangedPaths int64
	Auto         bool
	Conversation Conversation
	Tool         *Tool // nil: no tool call was begun before it
	Pending      bool  // recorded only: it counts once it is attached
	Targets      []Copy
}

// entryRecord is the stored form of an Entry.
type entryRecord struct {
	V            int               `json:"v"`
	ID           string            `json:"id"`
	Layer        uint64            `json:"layer"`
	Seq          uint64            `json:"seq,omitempty"`
	Parent       uint64            `json:"parent"`
	Branch       string            `json:"branch"`
	Label        string            `json:"label,omitempty"`
	Message      string            `json:"message,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Phase        string            `json:"phase,omitempty"`
	Turn         string            `json:"turn,omitempty"`
	ToolCall     string            `json:"tool_call,omitempty"`
	CreatedAt    time.Time         `json:"created_at"`
	ChangedPaths int64             `json:"changed_paths"`
	Auto         bool              `json:"auto,omitempty"`
	Conversation Conversation      `json:"conversation"`
	Tool         *Tool             `json:"tool,omitempty"`
	Pending      bool              `json:"pending,omitempty"`
	Targets      []Copy            `json:"targets,omitempty"`
}

// Validate reports the first thing about e that cannot be stored. The label, when
// there is one, must obey CheckLabel.
func (e *Entry) Validate() error {
	if e.Label != "" {
		if err := CheckLabel(e.Label); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"message", e.Message, maxMessage},
		{"phase", e.Phase, maxID},
		{"turn id", e.Turn, maxID},
		{"tool-call id", e.ToolCall, maxID},
	} {
		if err := checkText(f.name, f.value, f.limit); err != nil {
			return err
		}
	}
	total := 0
	for k, v := range e.Metadata {
		if k == "" {
			return fmt.Errorf("%w: a metadata key is empty; write it as key=value", ErrBadEntry)
		}
		if err := checkText("metadata", k+v, maxMetadata); err != nil {
			return err
		}
		total += len(k) + len(v)
	}
	if total > maxMetadata {
		return fmt.Errorf("%w: metadata takes %d bytes, more than %d", ErrBadEntry, total, maxMetadata)
	}
	return nil
}

func checkText(name, s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%w: the %s has %d bytes, more than %d", ErrBadEntry, name, len(s), limit)
	}
	// JSON would silently replace the bytes; refusing keeps the record true.
	if !utf8.ValidString(s) {
		return fmt.Errorf("%w: the %s is not valid UTF-8", ErrBadEntry, name)
	}
	return nil
}

func encodeEntry(e *Entry) ([]byte, error) {
	b, err := json.Marshal(entryRecord{
		V: recordVersion, ID: e.ID, Layer: e.Layer, Seq: e.Seq, Parent: e.Parent, Branch: e.Branch,
		Label: e.Label, Message: e.Message, Metadata: e.Metadata, Phase: e.Phase,
		Turn: e.Turn, ToolCall: e.ToolCall, CreatedAt: e.CreatedAt.UTC(),
		ChangedPaths: e.ChangedPaths, Auto: e.Auto, Conversation: e.Conversation,
		Tool: e.Tool, Pending: e.Pending, Targets: e.Targets,
	})
	if err != nil {
		return nil, fmt.Errorf("encode journal entry of layer %d: %w", e.Layer, err)
	}
	return b, nil
}

func decodeEntry(b []byte) (*Entry, error) {
	var r entryRecord
	if err := decodeRecord(b, &r, func() int { return r.V }); err != nil {
		return nil, err
	}
	return &Entry{
		ID: r.ID, Layer: r.Layer, Seq: r.Seq, Parent: r.Parent, Branch: r.Branch,
		Label: r.Label, Message: r.Message, Metadata: r.Metadata, Phase: r.Phase,
		Turn: r.Turn, ToolCall: r.ToolCall, CreatedAt: r.CreatedAt,
		ChangedPaths: r.ChangedPaths, Auto: r.Auto, Conversation: r.Conversation,
		Tool: r.Tool, Pending: r.Pending, Targets: r.Targets,
	}, nil
}

// decodeRecord reads a versioned JSON record into dst and checks its version.
func decodeRecord(b []byte, dst any, version func() int) error {
	if err := json.Unmarshal(b, dst); err != nil {
		return fmt.Errorf("decode journal record: %w", err)
	}
	switch v := version(); {
	case v > recordVersion:
		return fmt.Errorf("journal record of version %d: %w", v, ErrNewer)
	case v < 1:
		return fmt.Errorf("journal record has no version")
	}
	return nil
}
