package control

import "time"

// GraphNode is a state in the graph of all branches: Parent is the nearest one below it, 0 the base. It has
// checkpoints, or it is the open layer of a branch, or what a movement Left.
type GraphNode struct {
	Layer       uint64       `json:"layer"`
	Parent      uint64       `json:"parent"`
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	Heads       []GraphHead  `json:"heads,omitempty"`
	Left        *Left        `json:"left,omitempty"`
	Dropped     bool         `json:"dropped,omitempty"` // in no branch's line
}

// GraphHead is a branch whose open layer a node is. ChangedPaths is null while it is not mounted.
type GraphHead struct {
	Branch       string `json:"branch"`
	ChangedPaths *int64 `json:"changed_paths"`
}

// Left says which movement left a state without a checkpoint, and when.
type Left struct {
	Kind  string    `json:"kind"`
	Label string    `json:"label,omitempty"`
	At    time.Time `json:"at"`
}
