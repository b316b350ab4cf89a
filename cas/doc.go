// Package cas stores chunks of file content by their BLAKE3 hash: each once, and
// read back either right or not at all.
//
// The bytes are in append-only pack files, written with pwrite and read with
// pread, so that a full disk or a bad block is an error and not a signal. Where a
// chunk is says an index record in kv ("b/<hash>"). It gets there with the batch
// of the caller, so a chunk exists from the moment that this batch is applied;
// bytes in a pack that no record names are litter of a crash and do no harm.
//
// What nobody needs is swept (Garbage); where that leaves small chunks strewn over a pack, Repack moves them.
//
// Packs are made durable by Sync, which must be kv's BeforeFlush hook: no record
// that outlives a power cut names bytes that do not. What the page cache may have
// written out of order before a power cut is found by a ReplayCheck.
//
// Locks: Store.syncMu, then Store.mu, both inside of kv's; no call into kv is made
// with one of them held.
package cas
