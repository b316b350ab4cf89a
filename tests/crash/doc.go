// Package crash kills the daemon with SIGKILL at random moments while programs
// write, check and roll back, mounts again and looks for every operation that had
// been acknowledged.
//
// What there is to look at stays bounded, so everything is looked at after every
// kill, and a run takes time in proportion to its kills. A writer changes at most
// liveMax files; beyond that, files are put aside and never touched again, and of
// those put aside it keeps keptMax, a fair sample of all since the first kill. So
// a name, a page or a record of long ago that goes missing is found, too.
//
// After each kill, for each writer's directory:
//   - the listing: every name that must be there, and no other;
//   - every file whole: content, size, mode, and mtime wherever it was set or seen;
//   - every other name that a writer may use is looked up, and is not there;
//   - the operation in flight was done or not, and nothing between;
//   - no operation failed while the daemon was there.
//
// Acknowledged is what returned without an error; with the writeback cache a
// write must also be followed by an answer of the daemon.
//
// At the end all of it once more, after an unmount that was not a crash. Nothing is
// left to sampling but which old files go on living. An operation whose effect was
// undone before the kill (a file removed again) shows only in what came after it.
//
// After each kill under checkpoints and rollbacks, the whole tree and a random earlier
// checkpoint; every one of them at the end.
//
// REWINDFS_TEST_KILLS says how often (default 15; scripts/crash.sh runs 100),
// REWINDFS_TEST_SEED=fresh takes another seed. The store of a run that failed is
// kept; the test says where.
package crash
