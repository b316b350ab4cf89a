package control

import "context"

// PathCommit brings a checkpoint to the host, or takes that back: POST CommitRequest → NDJSON of CommitChange, result Committed.
const PathCommit = "/v1/commit"

// CommitRequest asks to bring checkpoint Ref to the base or, with To (an absolute path), the whole of it to another directory.
// Ref "" or RefHead is the present state, of which a checkpoint is made. Paths (base64 of bytes) keep it to these and what lies below.
// OnConflict is "abort" (also ""), "ours" (the checkpoint wins) or "theirs". Undo takes the last commit to the base back
// instead. With List every change is sent, else only what is left out; with Patch also how its text differs from what the host has, in a dry run.
//
// Merge brings texts that were changed on the host, too, together with ours, in the mount first; Ref must be the present state. Where both changed the
// same lines that is a conflict or, with Markers, both go into the mount with conflict markers, and nothing to the host. Hunks is a patch as Patch sends it: of its files only what is in it is brought, and only these and Paths.
type CommitRequest struct {
	Carried
	Ref              string   `json:"ref,omitempty"`
	To               string   `json:"to,omitempty"`
	ToB64            string   `json:"to_b64,omitempty"`
	Paths            [][]byte `json:"paths,omitempty"`
	OnConflict       string   `json:"on_conflict,omitempty"`
	DryRun           bool     `json:"dry_run,omitempty"`
	Undo             bool     `json:"undo,omitempty"`
	List             bool     `json:"list,omitempty"`
	ExecutableConfig bool     `json:"executable_config,omitempty"` // also what may run by itself
	Special          bool     `json:"special,omitempty"`           // also setuid, setgid, capabilities and devices
	Merge            bool     `json:"merge,omitempty"`
	Markers          bool     `json:"markers,omitempty"`
	Hunks            []byte   `json:"hunks,omitempty"`
	Patch            bool     `json:"patch,omitempty"`
}

func (*CommitRequest) maxBody() int64 { return MaxCommitBody }

// CommitChange is a path of a commit. Left says why it is not brought: "conflict", "theirs", "held" (it may run by itself) or
// "skipped"; "" when it is. Reason explains it, and a conflict that was decided. Merge is "clean" where both sides' changes
// were brought together, and "markers" where they changed the same lines.
type CommitChange struct {
	Change
	Left     string `json:"left,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Merge    string `json:"merge,omitempty"`
	Patch    string `json:"patch,omitempty"`
	PatchB64 string `json:"patch_b64,omitempty"` // if it is not UTF-8
}

// Text is the bytes of Patch.
func (c *CommitChange) Text() ([]byte, error) {
	f := FilePatch{Patch: c.Patch, PatchB64: c.PatchB64}
	return f.Text()
}

// WithText is c with the bytes of its patch.
func (c CommitChange) WithText(b []byte) CommitChange {
	var f FilePatch
	f.SetText(b)
	c.Patch, c.PatchB64 = f.Patch, f.PatchB64
	return c
}

// The values of CommitChange.Merge.
const (
	MergeClean   = "clean"
	MergeMarkers = "markers"
)

// Committed is the answer to a CommitRequest. Done is false after a dry run, where there was nothing to do (Noop), and
// when there are conflicts: then nothing was changed. Bytes is the content that was brought.
type Committed struct {
	Done         bool           `json:"done"`
	DryRun       bool           `json:"dry_run"`
	Undo         bool           `json:"undo"`
	Noop         bool           `json:"noop"`
	Checkpoint   string         `json:"checkpoint"`
	CheckpointID string         `json:"checkpoint_id"`
	Layer        uint64         `json:"layer"`
	CanUndo      bool           `json:"can_undo"`
	Target       string         `json:"target"`
	TargetB64    string         `json:"target_b64,omitempty"`
	Paths        int            `json:"paths"`
	Bytes        int64          `json:"bytes"`
	Counts       map[string]int `json:"counts"` // of the changes, by status; of what is left, by why
	Conflicts    int            `json:"conflict_count"`
	Overridden   int            `json:"overridden"` // conflicts that were decided for the checkpoint
	Merged       int            `json:"merged"`     // files that were merged in the mount, also when conflict markers then kept all from the host
	Notes        []string       `json:"notes"`      // what could not be kept
	HoldList     string         `json:"hold_list"`  // the file that says what is held back
	EngineUS     int64          `json:"engine_us"`
}

// Commit brings a checkpoint to the host. each is called for what is left out and, if asked for, for every
// change; progress may be nil. Until the first change on the host, an end of ctx takes everything back.
func (c *Client) Commit(ctx context.Context, r CommitRequest, each func(CommitChange) error, progress func(Progress)) (*Committed, error) {
	return stream[Committed](ctx, c, PathCommit, r, each, progress)
}
