package control

import "context"

// The calls that look after the store. Each is about the whole store, whichever branch it names.
const (
	PathGC   = "/v1/gc"   // POST GCRequest → NDJSON of progress, result GC
	PathFsck = "/v1/fsck" // POST FsckRequest → NDJSON of Finding, result Fsck
)

// GCRules say which checkpoints a collection drops besides those that are in the line of no
// branch, nor on the way that undo and redo go. A rule that is not given drops nothing. What is the latest or the
// current checkpoint of a branch, only recorded, in front of a tool call under way, or what an automatic
// rollback goes to, is never dropped.
type GCRules struct {
	// Keep spares the newest so many of each branch, and as many automatic ones; nil: not given.
	Keep *int `json:"keep,omitempty"`
	// OlderThanMS spares what is younger, in milliseconds; 0: not given.
	OlderThanMS int64 `json:"older_than_ms,omitempty"`
	// KeepLabeled spares what has a label.
	KeepLabeled bool `json:"keep_labeled,omitempty"`
	// ForgetUndo gives up what undo and redo lead to, in all branches.
	ForgetUndo bool `json:"forget_undo,omitempty"`
	// MaxSize drops the oldest, those without a label first, until the store takes no more
	// bytes on the disk; 0: not given.
	MaxSize int64 `json:"max_size,omitempty"`
}

// GCRequest asks for a collection. DryRun only tells what it would do.
type GCRequest struct {
	Carried
	GCRules
	DryRun bool `json:"dry_run,omitempty"`
}

// GC is what a collection did. Sizes are bytes on the disk; those of a dry run are estimates. TooLarge says that
// MaxSize could not be reached: everything else is needed.
type GC struct {
	FreedBytes int64       `json:"freed_bytes"`
	StoreBytes int64       `json:"store_bytes"`
	DryRun     bool        `json:"dry_run"`
	Dropped    []GCDropped `json:"dropped"` // checkpoints, oldest first
	Layers     int         `json:"layers"`  // that were given up
	Records    int64       `json:"records"` // that were removed
	MaxSize    int64       `json:"max_size,omitempty"`
	TooLarge   bool        `json:"too_large,omitempty"`
}

// GCDropped is a checkpoint that a collection drops. Bytes is the content that only its own layer
// had, about: what several dropped ones share is in the sum alone.
type GCDropped struct {
	Checkpoint
	Bytes int64 `json:"bytes"`
}

// GC collects garbage. progress may be nil.
func (c *Client) GC(ctx context.Context, r GCRequest, progress func(Progress)) (*GC, error) {
	return stream[GC](ctx, c, PathGC, r, func(struct{}) error { return nil }, progress)
}

// FsckRequest asks for a check of the store. Repair puts right what follows from other records; what has to be put
// right in what the daemon has in memory needs a store that is not mounted.
type FsckRequest struct {
	Carried
	Repair bool `json:"repair,omitempty"`
	// Quick leaves the bytes of files unread.
	Quick bool `json:"quick,omitempty"`
}

// Finding is something that is wrong with the store. Path is where it shows, in the checkpoints of these labels or
// ids, or branches. Lost says that something cannot be had back.
type Finding struct {
	PathName
	Kind        string   `json:"kind"`
	What        string   `json:"what"`
	Checkpoints []string `json:"checkpoints"`
	Lost        bool     `json:"lost"`
	Fixed       bool     `json:"fixed"`
}

// Fsck closes a check. Clean says that nothing was found.
type Fsck struct {
	Clean    bool  `json:"clean"`
	Findings int64 `json:"findings"`
	Fixed    int64 `json:"fixed"`
	Lost     int64 `json:"lost"`
	Layers   int64 `json:"layers"`
	Records  int64 `json:"records"`
	Chunks   int64 `json:"chunks"`
	Bytes    int64 `json:"bytes"` // of chunks that were read
}

// Fsck checks the store, and calls each for what is wrong. progress may be nil.
func (c *Client) Fsck(ctx context.Context, r FsckRequest, each func(Finding) error, progress func(Progress)) (*Fsck, error) {
	return stream[Fsck](ctx, c, PathFsck, r, each, progress)
}
