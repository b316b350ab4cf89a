package control

// Target is something outside of the mount that checkpoints copy and movements of the head put back: a database of SQLite ("sqlite"),
// known by its path, or a volume ("volume"), by its name.
type Target struct {
	Kind string `json:"kind"`
	PathName
	Absent bool  `json:"absent,omitempty"` // there is none
	Size   int64 `json:"size"`             // of the copy, in bytes
	// Status says what became of it: "copied", "skipped" where that failed; of a movement "restored", "removed" where there was none at
	// the checkpoint, "unchanged", "failed", and of a dry run "would_restore"; of a comparison A, M, D, or "?" where it cannot be looked at now.
	Status string `json:"status,omitempty"`
	Note   string `json:"note,omitempty"`
	Error  string `json:"error,omitempty"`
}

// What Target.Status says.
const (
	TargetCopied       = "copied"
	TargetSkipped      = "skipped"
	TargetRestored     = "restored"
	TargetRemoved      = "removed"
	TargetUnchanged    = "unchanged"
	TargetFailed       = "failed"
	TargetWouldRestore = "would_restore"
	TargetUnknown      = "?"
)
