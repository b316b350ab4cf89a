// Package transport owns a FUSE connection: it mounts, reads requests from
// /dev/fuse, has a [fuse.RawFileSystem] answer them, and writes notifications
// that void what the kernel has cached. What a request means is none of its business.
//
// # Threads
//
// One thread reads and answers. Two that wait would take turns, as the kernel's queue has
// it, and each would have gone to sleep when its turn comes; waking costs more than most
// requests do. So others are called in only when the one cannot keep up or a handler
// blocks: a supervisor sees to it that somebody reads, within two milliseconds, whatever the
// handlers do, so that one slow read of the base delays nobody else. Where that pays, the
// reader looks out for the next request for some microseconds before it sleeps (pace.go).
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
