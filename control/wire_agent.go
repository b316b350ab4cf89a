package control

import (
	"encoding/json"
	"time"
)

// The calls about conversations, tool calls, policies and budgets.
const (
	PathMemory       = "/v1/memory"             // GET ?ref=&thread=&repair= → Messages, with &raw=1 the bytes; PUT ?thread=&format=&stage= (the bytes) → Thread
	PathToolBegin    = "/v1/tool/begin"         // POST ToolBegin → ToolBegun
	PathToolEnd      = "/v1/tool/end"           // POST ToolEnd → ToolEnded
	PathToolReset    = "/v1/tool/reset"         // POST None → ToolBegun: no call is in flight
	PathVerification = "/v1/verification"       // POST Verification → Verified
	PathPolicy       = "/v1/policy"             // GET → Policy; POST PolicyRequest → Policy
	PathBudget       = "/v1/budget"             // GET → Budget; POST BudgetRequest → Budget
	PathAttach       = "/v1/checkpoint/attach"  // POST CheckpointRef → Checkpoint
	PathReject       = "/v1/checkpoint/reject"  // POST CheckpointRef → Rejected
	PathCurrent      = "/v1/checkpoint/current" // GET → Checkpoint
	PathCollect      = "/v1/checkpoint/collect" // POST CollectRequest → Collected
	PathDelete       = "/v1/checkpoint/delete"  // POST CheckpointRef → Checkpoint
)

// MaxMessages is the largest conversation that PUT PathMemory takes, in bytes.
const MaxMessages = 128 << 20 // what convo.Parse takes

// Thread is a conversation in the store, without its messages.
type Thread struct {
	Thread   string `json:"thread"`
	Format   string `json:"format"`
	Lines    bool   `json:"lines,omitempty"` // JSONL
	Messages int    `json:"messages"`
	Digest   string `json:"digest"`
	Warning  string `json:"warning,omitempty"` // why it could not be handed out again, as it is
}

// Messages is a conversation. Changes is what the repair did, empty without one.
type Messages struct {
	Thread   string            `json:"thread"`
	Format   string            `json:"format"`
	Lines    bool              `json:"lines,omitempty"` // JSONL
	Messages []json.RawMessage `json:"messages"`
	Changes  []Repair          `json:"changes"`
	Notice   string            `json:"notice"`
}

// Repair is one thing that was done to a conversation to make it valid. At is an index
// into the messages as they are after it. IDs are the calls of a dropped step, Results how many of
// them had a result, which went with it.
type Repair struct {
	Action  string   `json:"action"`
	At      int      `json:"at"`
	ID      string   `json:"id,omitempty"`
	IDs     []string `json:"ids,omitempty"`
	Results *int     `json:"results,omitempty"`
}

// Tool is where a checkpoint stands among the tool calls of a step.
type Tool struct {
	Step       string   `json:"step,omitempty"`
	BatchStart bool     `json:"batch_start,omitempty"`
	Pending    string   `json:"pending,omitempty"`
	Answered   []string `json:"answered,omitempty"`
	Inflight   []string `json:"inflight,omitempty"`
	Ran        []string `json:"ran,omitempty"` // calls of other steps that had ended
	Fuzzy      bool     `json:"fuzzy,omitempty"`
}

// ToolBegin says that the tool call Call of tool Name is about to start. It returns when the
// call may start. Step groups the calls of one model response, Agent tells subagents apart.
type ToolBegin struct {
	Carried
	Name     string            `json:"name"`
	Call     string            `json:"call,omitempty"` // "": one is made up and returned
	Step     string            `json:"step,omitempty"`
	Agent    string            `json:"agent,omitempty"`
	ReadOnly bool              `json:"readonly,omitempty"`
	Turn     string            `json:"turn,omitempty"`
	Threads  map[string]Thread `json:"threads,omitempty"` // as in CheckpointRequest
	Missing  []string          `json:"missing,omitempty"` // likewise
}

// ToolBegun is the answer to ToolBegin. Checkpoint is where a rollback of the call
// goes: made now when Sealed, or the one that the calls in flight began from; null
// for a read-only call without one.
type ToolBegun struct {
	Call       string      `json:"call"`
	Sealed     bool        `json:"sealed"`
	Checkpoint *Checkpoint `json:"checkpoint"`
	Inflight   []string    `json:"inflight"`
}

// ToolEnd says that a tool call has ended. Call "" means the latest one. Usage is what
// the provider said about tokens and cost, in whichever form.
type ToolEnd struct {
	Carried
	Call       string          `json:"call,omitempty"`
	Error      string          `json:"error,omitempty"`
	Usage      json.RawMessage `json:"usage,omitempty"`
	NoRollback bool            `json:"no_rollback,omitempty"` // whatever the policy says
}

// ToolEnded is the answer to ToolEnd. Verify lists the verifiers that the policy wants
// run now: by the caller, in its own environment, who then sends a Verification.
type ToolEnded struct {
	Call       string     `json:"call"`
	Known      bool       `json:"known"` // it had begun
	RolledBack *Rollback  `json:"rolled_back"`
	Skipped    bool       `json:"skipped_noop,omitempty"` // a rollback was due, but would have changed no file: nothing was done
	Verify     []Verifier `json:"verify"`
	Inflight   []string   `json:"inflight"`
	Budget     string     `json:"budget,omitempty"` // why the next call will be refused
	Warnings   []string   `json:"warnings"`
}

// Verifier is a command that decides whether the state is good.
type Verifier struct {
	Command      string `json:"command"`
	TimeoutMS    int64  `json:"timeout_ms,omitempty"`
	Retries      int    `json:"retries,omitempty"`
	RetryDelayMS int64  `json:"retry_delay_ms,omitempty"`
}

// Verification is what a verifier said. Status is "pass", "fail" or "unknown". With To, a
// "fail" rolls back to it; so does an "unknown" whose Decision is "rollback". Auto says
// that a policy asked for it, Call which tool call it was about.
type Verification struct {
	Carried
	Command  string            `json:"command"`
	Status   string            `json:"status"`
	Summary  string            `json:"summary,omitempty"`
	Errors   []json.RawMessage `json:"errors,omitempty"`
	Attempts int               `json:"attempts,omitempty"`
	Decision string            `json:"decision,omitempty"` // continue, rollback, stop: of an "unknown"
	To       string            `json:"to,omitempty"`
	Auto     bool              `json:"auto,omitempty"`
	Call     string            `json:"call,omitempty"`
	NoNotice bool              `json:"no_notice,omitempty"`
}

// Verified is the answer to a Verification.
type Verified struct {
	RolledBack *Rollback `json:"rolled_back"`
	Skipped    bool      `json:"skipped_noop"` // a rollback was due, but would have changed no file: nothing was done
	Warnings   []string  `json:"warnings"`
}

// Policy is what a session does by itself.
type Policy struct {
	AutoCheckpoint *AutoCheckpoint `json:"auto_checkpoint"`
	AutoRollback   *AutoRollback   `json:"auto_rollback"`
	NoRollback     []string        `json:"no_rollback"` // names of tools whose failures roll nothing back
	GC             *GCRules        `json:"gc"`          // how the daemon collects garbage when idle; of main alone
	Warnings       []string        `json:"warnings"`
}

// AutoCheckpoint makes checkpoints by itself. Triggers: "before_tool_call". Of those that
// it made, the newest KeepLast are kept (0: all); the others give their space back.
type AutoCheckpoint struct {
	Triggers []string `json:"triggers"`
	KeepLast int      `json:"keep_last,omitempty"`
}

// AutoRollback goes back to To by itself: a checkpoint, or "@call", the one in front of
// the tool call that began last. On: "exception" (a tool call ended with an
// error), "test_failure" (a verifier said "fail" after a tool call).
type AutoRollback struct {
	On        []string   `json:"on"`
	To        string     `json:"to"`
	Verifiers []Verifier `json:"verifiers"`
}

// PolicyRequest replaces the parts that it has, and takes away those in Off:
// "auto-checkpoint", "auto-rollback", "no-rollback", "gc".
type PolicyRequest struct {
	Carried
	AutoCheckpoint *AutoCheckpoint `json:"auto_checkpoint,omitempty"`
	AutoRollback   *AutoRollback   `json:"auto_rollback,omitempty"`
	NoRollback     []string        `json:"no_rollback,omitempty"`
	GC             *GCRules        `json:"gc,omitempty"`
	Off            []string        `json:"off,omitempty"`
}

// AutoRolledBack is the last rollback that a policy made.
type AutoRolledBack struct {
	At         time.Time `json:"at"`
	Trigger    string    `json:"trigger"`
	Call       string    `json:"call,omitempty"`
	Tool       string    `json:"tool,omitempty"`
	To         string    `json:"to"`
	Checkpoint string    `json:"checkpoint"`
	Reason     string    `json:"reason"`
	Noop       bool      `json:"skipped_noop,omitempty"`
}

// CheckpointRef names a checkpoint.
type CheckpointRef struct {
	Carried
	Ref string `json:"ref"`
}

// Rejected is the answer to a rejection. Moved is false when something newer had decided.
type Rejected struct {
	Rejected Checkpoint  `json:"rejected"`
	Current  *Checkpoint `json:"current"` // null when nothing is attached
	Moved    bool        `json:"moved"`
}

// CollectRequest drops recorded checkpoints that were never attached and are older than
// BeforeMS milliseconds, the oldest first, at most Limit (0: 1,000, which also is the most).
type CollectRequest struct {
	Carried
	BeforeMS int64 `json:"before_ms"`
	Limit    int   `json:"limit,omitempty"`
}

// Collected lists what a CollectRequest dropped.
type Collected struct {
	Checkpoints []Checkpoint `json:"checkpoints"`
	More        bool         `json:"more"`
}

// Limits are ceilings of a session; nil and 0 mean none. Money is a decimal string, in USD.
type Limits struct {
	USD          string `json:"usd,omitempty"`
	InputTokens  int64  `json:"input_tokens,omitempty"`
	OutputTokens int64  `json:"output_tokens,omitempty"`
	WallMS       int64  `json:"wall_ms,omitempty"`
	BytesWritten int64  `json:"bytes_written,omitempty"`
	Checkpoints  int64  `json:"checkpoints,omitempty"`
	// OnUnknownCost: with a ceiling on cost, "refuse" (the default) or "note" when the price of a model is not known.
	OnUnknownCost string `json:"on_unknown_cost,omitempty"`
}

// Budget is what a session may use and has used. Exceeded says which ceiling was reached, "" for none.
type Budget struct {
	Limits   Limits   `json:"limits"`
	Used     Limits   `json:"used"`
	Unpriced []string `json:"unpriced"` // models without a known price: their cost is not in Used
	Exceeded string   `json:"exceeded"`
}

// BudgetRequest replaces the ceilings; Reset also forgets what was used.
type BudgetRequest struct {
	Carried
	Limits *Limits `json:"limits,omitempty"`
	Reset  bool    `json:"reset,omitempty"`
}
