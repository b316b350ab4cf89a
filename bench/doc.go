// Package bench measures what rewindfs costs, next to what else could be used
// in its place: the bare directory, kernel overlayfs, fuse-overlayfs, and for
// checkpoints also cp, git and btrfs.
//
// Everything is measured as a user gets it: rewindfs is the real binary with a
// store of its own, driven through its command line and its control socket.
// Times are never shown alone. Each system does the same work in turn, the order
// shifts by one every round, and what counts is the median over the rounds of
// each round's ratio, so that a machine that gets slower for a while slows all
// systems alike.
//
// What belongs here: rows (one small file each), the systems they run on, trees
// to run them on, statistics, and the table, JSON and SVG that come out. What
// does not: anything that a user of rewindfs needs besides `rewindfs bench`, and
// any knowledge of how rewindfs works inside. Only the _test files, which hold
// the Go benchmarks of the engine, import the packages below.
//
// A [Row] adds its figures to a [Report]. Most rows are a [Workload] that
// [comparison] runs on every [System]. [Env] owns the working directory and
// undoes in reverse order whatever was set up: mounts are gone when Run
// returns, whether it ended well, failed, timed out or was interrupted.
package bench
