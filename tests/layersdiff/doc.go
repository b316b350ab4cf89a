// Package layersdiff holds the versioned tree against a plain directory: random
// operations on both, without a mount, with checkpoints, rollbacks, undo, redo,
// collections of garbage and reopened stores in between.
//
// Seeds are fixed, so a run can be repeated; REWINDFS_TEST_SEED=fresh takes new
// ones, REWINDFS_TEST_CHECKS says how many sequences. A failure prints the
// shortest sequence that still fails.
package layersdiff
