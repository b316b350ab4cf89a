package control

import (
	"context"
	"net/http"
)

// PathRestore takes a RestoreRequest and answers with Restored.
const PathRestore = "/v1/restore"

// RestoreRequest asks for single paths of checkpoint Ref, of whatever branch, with all below them.
// Paths (base64 of bytes) are relative to the root; a path that Ref does not have is removed.
type RestoreRequest struct {
	Carried
	Ref    string   `json:"ref"`
	Paths  [][]byte `json:"paths"`
	DryRun bool     `json:"dry_run,omitempty"`
}

// Restored is the answer: Changes says what became, or of a dry run would become, of which path.
type Restored struct {
	Checkpoint   string   `json:"checkpoint"`
	CheckpointID string   `json:"checkpoint_id"`
	Layer        uint64   `json:"layer"` // that the paths come from
	ChangedPaths int64    `json:"changed_paths"`
	Changes      []Change `json:"changes"`
	Truncated    bool     `json:"truncated,omitempty"`
	// Saved is the id of the automatic checkpoint of the state before, empty when nothing
	// had changed since the last one.
	Saved    string `json:"saved,omitempty"`
	Op       uint64 `json:"op,omitempty"`
	EngineUS int64  `json:"engine_us"`
	Noop     bool   `json:"noop"` // the paths were as in the checkpoint
	DryRun   bool   `json:"dry_run"`
}

// Restore brings single paths of a checkpoint back.
func (c *Client) Restore(ctx context.Context, r RestoreRequest) (*Restored, error) {
	return call[Restored](ctx, c, http.MethodPost, PathRestore, r)
}
