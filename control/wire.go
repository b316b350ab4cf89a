package control

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"
)

// The calls.
const (
	PathPing       = "/v1/ping"       // GET → Pong, whatever else the daemon does
	PathStatus     = "/v1/status"     // GET → Status
	PathLog        = "/v1/log"        // POST LogRequest → Log
	PathCheckpoint = "/v1/checkpoint" // POST CheckpointRequest → Checkpoint
	PathRollback   = "/v1/rollback"   // POST RollbackRequest → Rollback
	PathUndo       = "/v1/undo"       // POST UndoRequest → Rollback
	PathRedo       = "/v1/redo"       // POST UndoRequest → Rollback
	PathDiff       = "/v1/diff"       // POST DiffRequest → NDJSON of Change, result DiffSummary
	PathFile       = "/v1/file"       // GET, PUT ?path= or ?path_b64=, GET also ?ref= → bytes
	PathUnmount    = "/v1/unmount"    // POST UnmountRequest → Unmounted
	PathMetrics    = "/metrics"
	PathPprof      = "/debug/pprof/"
)

// MaxBody is the largest JSON request, in bytes; that of a commit may have MaxCommitBody, for a patch or very many paths.
const (
	MaxBody       = 1 << 20
	MaxCommitBody = 64 << 20
)

// Carried is the generation that a request was made for; nil means whichever.
type Carried struct {
	Generation *uint64 `json:"generation,omitempty"`
}

func (c Carried) carried() *uint64 { return c.Generation }

// Identity is the session that a daemon serves. Generation rises with every
// start of a daemon on the same store.
type Identity struct {
	Session    string
	Generation uint64
}

// Pong is the answer to a ping.
type Pong struct {
	Session    string `json:"session"`
	Generation uint64 `json:"generation"`
}

// None is the request of a call that takes nothing.
type None struct{ Carried }

// Head is where writes go: Layer is the open layer; ID and Label are those of the
// newest checkpoint under it, empty when there is none.
type Head struct {
	Layer uint64 `json:"layer"`
	ID    string `json:"id"`
	Label string `json:"label"`
}

// Status describes a session. Sizes are bytes on disk.
type Status struct {
	Session          string            `json:"session"`
	Branch           string            `json:"branch"`
	Base             string            `json:"base"`
	Mountpoint       string            `json:"mountpoint"`
	Store            string            `json:"store"`
	PID              int               `json:"pid"`
	Generation       uint64            `json:"generation"`
	State            string            `json:"state"` // "live", "stopping"
	Head             Head              `json:"head"`
	Checkpoints      int               `json:"checkpoints"`
	ChangedPaths     int64             `json:"changed_paths"` // since the newest layer was sealed
	StoreBytes       int64             `json:"store_bytes"`
	ReclaimableBytes int64             `json:"reclaimable_bytes"` // by a gc without rules: file content, about, as of some seconds ago
	Requests         map[string]uint64 `json:"requests"`
	Drift            []Drift           `json:"drift"`
	Cache            Cache             `json:"cache"`
	CacheMode        string            `json:"cache_mode"`
	StartedAt        time.Time         `json:"started_at"`
	Version          string            `json:"version"`
	MemoryBytes      uint64            `json:"memory_bytes"`
	Undo             int               `json:"undo"` // steps that undo can go
	Redo             int               `json:"redo"`
	Lifecycle        string            `json:"lifecycle"` // PENDING, CREATED, ACTIVE, COMMITTED, ROLLED_BACK, ERRORED
	Inflight         []string          `json:"inflight"`  // tool calls under way
	Conversation     Conversation      `json:"conversation"`
	LastAutoRollback *AutoRolledBack   `json:"last_auto_rollback"`
	Unaudited        int64             `json:"unaudited,omitempty"` // events that could not be recorded in the ledger
	BaseB64          string            `json:"base_b64,omitempty"`  // as path_b64, likewise below
	MountpointB64    string            `json:"mountpoint_b64,omitempty"`
	StoreB64         string            `json:"store_b64,omitempty"`
	Paths            PathRules         `json:"paths"`
	Targets          []Target          `json:"targets,omitempty"`         // outside of the mount, that every checkpoint copies
	TargetsOwed      []Target          `json:"targets_owed,omitempty"`    // that the last movement of the head did not put back
	TargetsOwedBy    *Movement         `json:"targets_owed_by,omitempty"` // that movement, where it is known
	Runs             []OpenRun         `json:"runs,omitempty"`            // commands of run whose end is not recorded, oldest first
	// LeadOut are symlinks, changed since the base, that lead out of the project. LeadOutCut: there may be more.
	LeadOut    []Change `json:"lead_out"`
	LeadOutCut bool     `json:"lead_out_truncated,omitempty"`
}

// PathRules are the rules of rewindfs.toml that the daemon goes by, in gitignore syntax. File is where they were read, "" for none.
type PathRules struct {
	File    string   `json:"file"`
	FileB64 string   `json:"file_b64,omitempty"`
	Keep    []string `json:"keep"`   // what rollback, undo and redo leave as it is
	Ignore  []string `json:"ignore"` // what commit leaves out
}

// Cache counts what the daemon holds in memory.
type Cache struct {
	Nodes        int   `json:"nodes"`
	Dirs         int   `json:"dirs"`
	PendingBytes int64 `json:"pending_bytes"`
}

// Drift is an object of the base that changed underneath the session.
type Drift struct {
	PathName
	Reason string `json:"reason"`
}

// PathName is a path in JSON: Path for people and for UTF-8, PathB64 (standard
// base64 of the bytes) as well when the bytes are not UTF-8.
type PathName struct {
	Path    string `json:"path"`
	PathB64 string `json:"path_b64,omitempty"`
}

// NameOf makes the JSON form of path.
func NameOf(path string) PathName {
	if utf8.ValidString(path) {
		return PathName{Path: path}
	}
	return PathName{Path: path, PathB64: base64.StdEncoding.EncodeToString([]byte(path))}
}

// Bytes gives back the bytes that NameOf took.
func (p PathName) Bytes() (string, error) {
	if p.PathB64 == "" {
		return p.Path, nil
	}
	b, err := base64.StdEncoding.DecodeString(p.PathB64)
	return string(b), err
}

// CheckpointRequest asks for a checkpoint. A nil Label makes one without a name.
// With Durable the answer waits until it survives a power cut.
type CheckpointRequest struct {
	Carried
	Label    *string           `json:"label,omitempty"`
	Message  string            `json:"message,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Phase    string            `json:"phase,omitempty"`
	Turn     string            `json:"turn,omitempty"`
	ToolCall string            `json:"tool_call,omitempty"`
	Durable  bool              `json:"durable,omitempty"`
	// Pending only records the checkpoint: it counts once it is attached.
	Pending bool `json:"pending,omitempty"`
	// Threads are conversations that were staged with PUT PathMemory and are live from this
	// checkpoint on; the others are snapshotted as they are. Missing names those that the
	// client could not read: so says then the checkpoint.
	Threads map[string]Thread `json:"threads,omitempty"`
	Missing []string          `json:"missing,omitempty"`
	// SQLite are databases outside of the mount (absolute paths, base64 of bytes) that are copied with it, besides the targets of
	// rewindfs.toml. One that cannot be copied fails the checkpoint, unless SkipFailedTargets is set.
	SQLite            [][]byte `json:"sqlite,omitempty"`
	SkipFailedTargets bool     `json:"skip_failed_targets,omitempty"`
}

// Conversation is what a checkpoint knows of the messages. State is "present", "none" when there
// were none, "missing" when they could not be read. Threads are those with a name.
type Conversation struct {
	Messages int                     `json:"messages"`
	Digest   string                  `json:"digest"`
	State    string                  `json:"state"`
	Format   string                  `json:"format,omitempty"`
	Threads  map[string]Conversation `json:"threads,omitempty"`
}

// Checkpoint describes one checkpoint. EngineUS is what making it took inside
// the daemon, in microseconds; 0 in listings.
type Checkpoint struct {
	ID           string            `json:"id"`
	Label        string            `json:"label"`
	Layer        uint64            `json:"layer"`
	Parent       uint64            `json:"parent"`
	CreatedAt    time.Time         `json:"created_at"`
	ChangedPaths int64             `json:"changed_paths"`
	EngineUS     int64             `json:"engine_us"`
	Conversation Conversation      `json:"conversation"`
	Message      string            `json:"message,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Phase        string            `json:"phase,omitempty"`
	Turn         string            `json:"turn,omitempty"`
	ToolCall     string            `json:"tool_call,omitempty"`
	Auto         bool              `json:"auto,omitempty"`
	Branch       string            `json:"branch,omitempty"` // in which it was made
	Seq          uint64            `json:"seq,omitempty"`    // counts the checkpoints that share a layer
	Tool         *Tool             `json:"tool,omitempty"`
	State        string            `json:"state,omitempty"`    // recorded, attached or rejected
	Existing     bool              `json:"existing,omitempty"` // this revision had been recorded before
	Dropped      bool              `json:"dropped,omitempty"`  // not in the line of the head
	Targets      []Target          `json:"targets,omitempty"`  // outside of the mount that it has copies of
}

// What to do when other processes hold files of the mount open, which a movement of the head may take from under them.
const (
	BusyGoOn = ""     // name them, and go on
	BusyFail = "fail" // refuse
	BusyWait = "wait" // wait for them, see WhenBusy.WaitMS, then refuse
	BusyKill = "kill" // end them, by SIGKILL in the end
)

// WhenBusy says what to do about processes that hold files of the mount open. Those that the caller descends from do not count: they wait
// for it. WaitMS bounds BusyWait, in milliseconds; 0 is a minute.
type WhenBusy struct {
	IfBusy string `json:"if_busy,omitempty"`
	WaitMS int64  `json:"wait_ms,omitempty"`
}

// RollbackRequest asks for the state of checkpoint Ref. DryRun only tells what
// would happen. Touch gives what differs the present time, for build tools outside
// of the mount that look for newer files.
type RollbackRequest struct {
	Carried
	WhenBusy
	Ref    string `json:"ref"`
	DryRun bool   `json:"dry_run,omitempty"`
	Touch  bool   `json:"touch,omitempty"`
	// Notes is told to the model, as data. NoNotice tells it nothing.
	Notes        string `json:"notes,omitempty"`
	NoNotice     bool   `json:"no_notice,omitempty"`
	FilesOnly    bool   `json:"files_only,omitempty"`
	MessagesOnly bool   `json:"messages_only,omitempty"`
	// NoTargets leaves what is outside of the mount as it is.
	NoTargets bool `json:"no_targets,omitempty"`
}

// UndoRequest asks to go N steps back to states that head movements left; 0 means 1.
type UndoRequest struct {
	Carried
	WhenBusy
	N         int  `json:"n,omitempty"`
	FilesOnly bool `json:"files_only,omitempty"`
	NoTargets bool `json:"no_targets,omitempty"` // leaves what is outside of the mount as it is
}

// Rollback is the answer to rollback, undo and redo. Checkpoint is the label, else the
// id of the checkpoint that the head now stands on, "base", or empty when undo or
// redo came back to a state between checkpoints. Changes lists the paths of a dry
// run. Messages and Notice are the conversation's, null and empty without one.
type Rollback struct {
	Checkpoint   string            `json:"checkpoint"`
	CheckpointID string            `json:"checkpoint_id"`
	Layer        uint64            `json:"layer"` // the layer gone back to
	ChangedPaths int64             `json:"changed_paths"`
	KeptPaths    int64             `json:"kept_paths"` // that differ there and were left as they are, see PathRules
	EngineUS     int64             `json:"engine_us"`
	Busy         []Process         `json:"busy"`
	Messages     []json.RawMessage `json:"messages"` // repaired; null when there is no conversation
	Format       string            `json:"format,omitempty"`
	Lines        bool              `json:"lines,omitempty"`   // the messages came as JSONL
	Repairs      []Repair          `json:"repairs"`           // what was done to Messages
	Threads      map[string]Thread `json:"threads,omitempty"` // the other conversations, by name
	Conversation Conversation      `json:"conversation"`
	FilesOnly    bool              `json:"files_only,omitempty"` // the conversation was left as it is
	Changes      []Change          `json:"changes"`
	Notice       string            `json:"notice"`
	Dropped      []Checkpoint      `json:"dropped"` // checkpoints that left the line
	// GoneMessages is, in a dry run, how many messages of the live conversation would go, by thread.
	GoneMessages map[string]int `json:"gone_messages,omitempty"`
	Noop         bool           `json:"noop"` // the head was there already, with nothing changed
	DryRun       bool           `json:"dry_run"`
	Steps        int            `json:"steps,omitempty"`  // undo, redo: states gone over
	Before       *Movement      `json:"before,omitempty"` // undo, redo: what had left the state gone back to
	Truncated    bool           `json:"truncated,omitempty"`
	// Targets are those outside of the mount that the state has copies of. One that failed is told by its Error, all else has happened.
	Targets []Target `json:"targets,omitempty"`
}

// Movement is a movement of the head: a rollback, undo or redo, and the checkpoint
// that it was about.
type Movement struct {
	Kind  string `json:"kind"`
	Label string `json:"label"`
}

// Process is a program that uses the mount. Uses says how, such as "cwd" or
// "open: src/main.go".
type Process struct {
	PID     int      `json:"pid"`
	Command string   `json:"command"`
	Uses    []string `json:"uses"`
}

// LogRequest asks for the checkpoints of a branch, newest first. All includes dropped and
// automatic ones, and those of other branches; Ops the operation log, Graph all branches; Limit 0 means no limit.
type LogRequest struct {
	Carried
	All   bool `json:"all,omitempty"`
	Ops   bool `json:"ops,omitempty"`
	Graph bool `json:"graph,omitempty"`
	Limit int  `json:"limit,omitempty"`
}

// Log lists checkpoints and, when asked for, operations, newest first.
type Log struct {
	Checkpoints []Checkpoint `json:"checkpoints"`
	Ops         []Op         `json:"ops,omitempty"`
	Graph       []GraphNode  `json:"graph,omitempty"`
	Head        Head         `json:"head"`
}

// Op is one record of the operation log. A movement that left a state in which nothing
// had been changed says which layer that equals.
type Op struct {
	N      uint64    `json:"op"`
	Kind   string    `json:"kind"`
	Branch string    `json:"branch"`
	From   uint64    `json:"from"`
	To     uint64    `json:"to"`
	Open   uint64    `json:"open"`
	Same   *uint64   `json:"same,omitempty"`
	Label  string    `json:"label,omitempty"`
	At     time.Time `json:"at"`
	// Checkpoint is the id of the one that it made or is about. Left is that of the state that a movement left, if
	// it has one: rollback takes it. Steps is how many steps lead to that state: of undo, or below 0 of redo.
	Checkpoint   string `json:"checkpoint,omitempty"`
	Left         string `json:"left,omitempty"`
	Steps        int    `json:"steps,omitempty"`
	ChangedPaths int64  `json:"changed_paths,omitempty"` // of a checkpoint
}

// DiffRequest asks what differs between two states. An empty From is the latest
// checkpoint, or the base when there is none; an empty To is the head. Paths
// (base64 of bytes) keep the listing to these and what lies below.
type DiffRequest struct {
	Carried
	From  string   `json:"from,omitempty"`
	To    string   `json:"to,omitempty"`
	Paths [][]byte `json:"paths,omitempty"`
}

// Change is a path that differs. Status is A, M, D, R (renamed) or T (another
// type); a size is null where there is no object.
type Change struct {
	PathName
	Status     string `json:"status"`
	Type       string `json:"type"` // file, dir, symlink, fifo, socket, chardev, blockdev
	OldSize    *int64 `json:"old_size"`
	NewSize    *int64 `json:"new_size"`
	OldPath    string `json:"old_path,omitempty"`
	OldPathB64 string `json:"old_path_b64,omitempty"`
	Content    bool   `json:"content"`           // the content may differ, not only metadata
	Kept       bool   `json:"kept,omitempty"`    // a rollback leaves the path as it is, see PathRules
	Ignored    bool   `json:"ignored,omitempty"` // a commit leaves it out
	// LeadsOut is where a symlink leads that leaves the project: what is written through it is in no layer.
	LeadsOut *PathName `json:"leads_out,omitempty"`
}

// DiffSummary closes a diff. From and To name the two states as resolved.
type DiffSummary struct {
	From   string         `json:"from"`
	To     string         `json:"to"`
	Counts map[string]int `json:"counts"` // by status
	Total  int            `json:"total"`
	// Targets are those outside of the mount that From has copies of and that differ.
	Targets []Target `json:"targets,omitempty"`
}

// UnmountRequest asks the daemon to stop. Lazy takes the mount away from
// the tree at once and lets processes finish with what they have open; Force ends the
// connection: they get errors.
type UnmountRequest struct {
	Carried
	Lazy  bool `json:"lazy,omitempty"`
	Force bool `json:"force,omitempty"`
}

// Unmounted is the answer to an UnmountRequest, sent when the mount is gone. After that of the
// session's own, not of another branch, the daemon PID ends, once what is in memory is on disk.
type Unmounted struct {
	Mountpoint string   `json:"mountpoint"`
	Store      string   `json:"store"`
	PID        int      `json:"pid"`
	Branch     string   `json:"branch"`
	Forks      []string `json:"forks"` // mount points of other branches that went with it
}
