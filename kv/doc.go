// Package kv is a versionless ordered map from keys to values, and the only
// door to Badger.
//
// Its promise: a Batch that Apply accepted is there, whole, after the process
// was killed at any moment; after Sync returned, also after a power cut. What a
// power cut leaves is always a prefix of the batches, in order.
//
// How: Apply appends the batch as one record to a log segment (one pwrite into
// blocks that were allocated ahead), puts it into an ordered table in memory and
// returns. A background flush makes the segment durable, hands the table to
// Badger, syncs Badger and recycles the segment. Reads look at the active table,
// then at the tables that wait for their flush, then at Badger.
//
// On a full disk pwrite answers ENOSPC where Badger, which writes through
// mappings, would die of SIGBUS. So Badger is touched only while there is room
// for what it is about to write, and until then the log and the memory keep all.
//
// keys.go is the only place that knows how the keys of the store look. What the
// values mean belongs to the packages above.
//
// Locks, outermost first: syncMu, wmu, then mu or spareMu. Each is described at its field of DB.
package kv
