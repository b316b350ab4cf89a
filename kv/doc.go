// Package kv is a versionless ordered map from keys to values, and the only
// door to Badger.
//
// Its promise: a Batch that Apply accepted is there, whole, after the process
// was killed at any moment; after Sync returned, also after a power cut. What a
// power cut leaves is always a prefix of the batches, in order.
//
// How: Apply appends the batch as one record to a log segment (one pwrite into
// blocks that were allocated ahead), puts it into an ordered table in memory and
// returns. A background flush makes the segment durable, writes the table as a
// table file of Badger, makes that part of the database and recycles the segment.
// Reads look at the active table, then at those that wait for their flush, then
// at Badger.
//
// On a full disk a write answers ENOSPC where Badger, which writes through
// mappings, would die of SIGBUS. So Badger only reads (see the type base), and
// when there is no room for a flush the log and the memory keep all until there is.
//
// keys.go is the only place that knows how the keys of the store look. What the
// values mean belongs to the packages above.
//
// Locks, outermost first: syncMu, wmu, then mu or spareMu. Each is
// described at its field of DB. base.mu is for itself, and space.mu is taken last.
package kv
