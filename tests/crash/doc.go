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
// # Files and conversations
//
// An agent that works over the control API (agent_*_test.go) counts its turns. All that it writes
// and says in a turn carries the number, so at the end of each the files and the last words of both
// its conversations carry the same one, and a checkpoint of another turn's files with these words
// would be seen without knowing anything else. It also knows every file and every message,
// byte for byte. After each kill:
//   - Files and conversations are those after the last acknowledged operation, or, both, those
//     after the one in flight. In flight, a write may leave its one file old or new, a sync its
//     one thread old or new and all files as they are, staging and the end of a call nothing. A
//     checkpoint that brings messages, and a begin that does, leaves the checkpoint and the
//     messages, or neither; a rollback, undo or redo (also one by policy) files, all threads and the operation
//     log's record, or nothing.
//   - All acknowledged checkpoints are there, and at most one more: the one in flight.
//     Three are looked at, and a rollback goes to one: exactly its files; its messages up to an
//     unfinished step or a last word of the user, and behind them only what a repair may add; the notice that
//     names it, or none. At the end every one of them is looked at and gone to.
//   - The ledger verifies, before and after the next mount, also against a head kept outside. It has
//     every checkpoint of the store and every movement of the operation log once, and each mount.
//   - The generation has risen by one, and what carries the old one is refused and changes nothing.
//
// The daemon is killed at any moment, while an operation of a chosen kind is under way, or right after
// something was written into the store's log or the ledger.
//
// # Targets
//
// A rollback or an undo puts databases back that lie outside of the mount; the daemon is killed in front of any system call by
// which it changes a file. After the restart files and databases are of one state, or the files are those that were gone
// to, and each database is of before, and named by status, or of there, whole. What status says to do completes the movement, and its
// opposite takes it back.
//
// # How often
//
// REWINDFS_TEST_KILLS says how often (default 15, 12 for the agent, 24 for targets; scripts/crash.sh runs 100),
// REWINDFS_TEST_SEED=fresh takes another seed. The store of a run that failed is
// kept; the test says where.
package crash
