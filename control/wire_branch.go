package control

import (
	"context"
	"net/http"
	"time"
)

// The calls about branches. Every other call is about one of them: that which ?branch= names, or
// else the one that the session's own mount shows.
const (
	PathFork        = "/v1/fork"          // POST ForkRequest → Forked
	PathBranches    = "/v1/branches"      // GET → Branches
	PathBranchMount = "/v1/branch/mount"  // POST BranchMountRequest → Branch
	PathBranchDrop  = "/v1/branch/delete" // POST BranchDropRequest → BranchDropped
)

// RefHead names the present state of a branch where a checkpoint may be named.
const RefHead = "@head"

// ForkRequest asks for a new branch that begins at Ref, of whatever branch, and for a mount of it. Ref
// "" or RefHead is the present state, of which a checkpoint is made. Mountpoint is absolute; "" is a place beside
// the session's own mount.
type ForkRequest struct {
	Carried
	Ref           string `json:"ref,omitempty"`
	Branch        string `json:"branch"`
	Mountpoint    string `json:"mountpoint,omitempty"`
	MountpointB64 string `json:"mountpoint_b64,omitempty"`
	NoNotice      bool   `json:"no_notice,omitempty"` // do not tell the model
	FilesOnly     bool   `json:"files_only,omitempty"`
}

// Forked is the answer to a ForkRequest. EngineUS is what making the branch took, without the mount.
type Forked struct {
	Branch        string       `json:"branch"`
	Mountpoint    string       `json:"mountpoint"`
	MountpointB64 string       `json:"mountpoint_b64,omitempty"`
	Checkpoint    string       `json:"checkpoint"`
	CheckpointID  string       `json:"checkpoint_id"`
	Layer         uint64       `json:"layer"` // that it begins on
	EngineUS      int64        `json:"engine_us"`
	MountUS       int64        `json:"mount_us"`
	Conversation  Conversation `json:"conversation"`
	Repairs       []Repair     `json:"repairs"`
	Notice        string       `json:"notice"`
}

// Branch describes a branch. What a branch that is not mounted holds of changes is not counted.
type Branch struct {
	Branch        string    `json:"branch"`
	State         string    `json:"state"` // "mounted", "unmounted"
	Mountpoint    string    `json:"mountpoint"`
	MountpointB64 string    `json:"mountpoint_b64,omitempty"`
	Head          Head      `json:"head"`
	Checkpoints   int       `json:"checkpoints"`
	ChangedPaths  int64     `json:"changed_paths"`
	From          string    `json:"from,omitempty"` // the checkpoint that it was forked from
	ForkedAt      time.Time `json:"forked_at,omitzero"`
	Problem       string    `json:"problem,omitempty"` // why it could not be brought back with the session
}

// Branches lists the branches of a session, main first, then by name.
type Branches struct {
	Branches []Branch `json:"branches"`
}

// BranchMountRequest asks for the mount of a branch that is not mounted: at Mountpoint or, when that
// is "", where it was.
type BranchMountRequest struct {
	Carried
	Branch        string `json:"branch"`
	Mountpoint    string `json:"mountpoint,omitempty"`
	MountpointB64 string `json:"mountpoint_b64,omitempty"`
}

// BranchDropRequest asks to delete a branch. Force cuts off who uses its mount.
type BranchDropRequest struct {
	Carried
	Branch string `json:"branch"`
	Force  bool   `json:"force,omitempty"`
}

// BranchDropped is the answer: Checkpoint keeps the last state of the branch until it is
// collected, nil when nothing was changed since the newest one.
type BranchDropped struct {
	Branch     string      `json:"branch"`
	Mountpoint string      `json:"mountpoint"` // that went with it, "" for none
	Checkpoint *Checkpoint `json:"checkpoint"`
}

// Fork makes and mounts a branch.
func (c *Client) Fork(ctx context.Context, r ForkRequest) (*Forked, error) {
	return call[Forked](ctx, c, http.MethodPost, PathFork, r)
}

// Branches lists the branches.
func (c *Client) Branches(ctx context.Context) (*Branches, error) {
	return call[Branches](ctx, c, http.MethodGet, PathBranches, nil)
}

// MountBranch mounts a branch that is not.
func (c *Client) MountBranch(ctx context.Context, r BranchMountRequest) (*Branch, error) {
	return call[Branch](ctx, c, http.MethodPost, PathBranchMount, r)
}

// DropBranch deletes a branch.
func (c *Client) DropBranch(ctx context.Context, r BranchDropRequest) (*BranchDropped, error) {
	return call[BranchDropped](ctx, c, http.MethodPost, PathBranchDrop, r)
}
