package control

import "time"

// The calls about commands that the command line runs.
const (
	PathRuns    = "/v1/runs"     // POST RunBegin → RunBegun
	PathRunsEnd = "/v1/runs/end" // POST RunEnd → RunEnded
)

// Run describes a command. Argv has no secrets in it: the caller, who knows its environment, has masked them. Cwd is as the command sees it.
type Run struct {
	Argv    []string `json:"argv"`
	Cwd     PathName `json:"cwd"`
	Sandbox string   `json:"sandbox"`
}

// RunBegin says that a command is about to run. The state in front of it is kept: as a
// checkpoint under Label, or without a name when that is nil; with Auto as an automatic one, which costs no layer
// where nothing was changed.
type RunBegin struct {
	Carried
	Run     Run     `json:"run"`
	Auto    bool    `json:"auto,omitempty"`
	Label   *string `json:"label,omitempty"`
	Message string  `json:"message,omitempty"`
	// SQLite and SkipFailedTargets are as in a CheckpointRequest.
	SQLite            [][]byte `json:"sqlite,omitempty"`
	SkipFailedTargets bool     `json:"skip_failed_targets,omitempty"`
}

// RunBegun is the answer to RunBegin. Checkpoint is the state in front of the command.
type RunBegun struct {
	ID         string     `json:"id"`
	Checkpoint Checkpoint `json:"checkpoint"`
}

// RunEnd says how a command ended. ID, Checkpoint and Run are those of its begin. Error says why nothing of it ran.
type RunEnd struct {
	Carried
	ID         string     `json:"id"`
	Checkpoint string     `json:"checkpoint"` // the id of the state in front of it
	Run        Run        `json:"run"`
	ExitCode   int        `json:"exit_code"`
	Signal     string     `json:"signal,omitempty"`
	TimedOut   bool       `json:"timed_out,omitempty"`
	DurationMS int64      `json:"duration_ms"`
	Refused    []PathName `json:"refused,omitempty"` // writes that the sandbox did not allow
	Left       int        `json:"left,omitempty"`    // processes that still run
	Error      string     `json:"error,omitempty"`
}

// RunEnded is the answer to RunEnd. ChangedPaths counts what differs from the state in front of the command, whoever
// changed it; null where that cannot be told, and Warnings say why. Changes lists the first of them.
type RunEnded struct {
	ChangedPaths *int64   `json:"changed_paths"`
	Changes      []Change `json:"changes"`
	Truncated    bool     `json:"truncated,omitempty"`
	Warnings     []string `json:"warnings"`
}

// OpenRun is a command whose end is not recorded.
type OpenRun struct {
	Command    string    `json:"command"`
	Checkpoint string    `json:"checkpoint"`    // the id of the state in front of it
	PID        int       `json:"pid,omitempty"` // of the process that said that it begins, 0 where that is not known here
	State      string    `json:"state"`         // RunRuns or RunUnknown
	StartedAt  time.Time `json:"started_at"`
}

// The states of an OpenRun.
const (
	RunRuns    = "running"
	RunUnknown = "unknown" // nobody can tell whether it still runs
)
