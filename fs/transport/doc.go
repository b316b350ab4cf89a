// Package transport owns a FUSE connection: it mounts, reads requests from
// /dev/fuse, has a [fuse.RawFileSystem] answer them, and writes notifications
// that void what the kernel has cached. What a request means is none of its business.
//
// # Threads
//
// Each base worker is an operating-system thread of its own. While requests
// keep coming it asks for the next one without sleeping for a few microseconds,
// because waking a thread that sleeps costs more than most requests do. A handler
// may block: a supervisor makes sure that somebody reads all the same, and calls in
// extra workers, so that one slow read of the base delays nobody else.
//
// # Locks and deadlocks
//
// A handler runs with no lock of this package held. Notifications are
// written with none held either, but the kernel takes its directory and page locks for
// them, and a request that is being answered may hold those: InvalEntry and
// Delete wait for operations on that directory, InvalInode with data waits for
// reads and writes of that file. So never send them from within a handler for
// the same object, nor with a lock held that a handler needs.
package transport
