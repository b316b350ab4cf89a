package control

import (
	"context"
	"net/http"
)

// PathMerge brings into a branch what another one changed: POST MergeRequest → Merged.
const PathMerge = "/v1/merge"

// MergeRequest names the branch whose changes are to come.
type MergeRequest struct {
	Carried
	Branch string `json:"branch"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// Merged is the answer to a MergeRequest. With Conflicts nothing was changed. Lists are in order of paths, and
// bounded: Truncated says that some were left out.
type Merged struct {
	Branch       string     `json:"branch"`        // what came
	Into         string     `json:"into"`          // and where it went
	Base         uint64     `json:"base"`          // the layer that both were compared with
	Ours         uint64     `json:"ours"`          // the layers that were merged
	Theirs       uint64     `json:"theirs"`        //
	Layer        uint64     `json:"layer"`         // the head that took the changes, 0 if none did
	ChangedPaths int64      `json:"changed_paths"` // that the merge changes
	Changes      []Change   `json:"changes"`
	Merged       []PathName `json:"merged"` // files that both changed, merged line by line
	Conflicts    []Conflict `json:"conflicts"`
	Truncated    bool       `json:"truncated"`
	DryRun       bool       `json:"dry_run"`
	Noop         bool       `json:"noop"` // there was nothing that is not there already
	Busy         []Process  `json:"busy"`
	EngineUS     int64      `json:"engine_us"`
}

// Conflict is a path of which both sides made something that does not go together. Kind is content, type, modify/delete, add/add, mode,
// xattr, directory/file or name.
type Conflict struct {
	PathName
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
}

// Merge brings in what another branch changed.
func (c *Client) Merge(ctx context.Context, r MergeRequest) (*Merged, error) {
	return call[Merged](ctx, c, http.MethodPost, PathMerge, r)
}
