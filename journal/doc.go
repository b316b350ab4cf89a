// Package journal remembers what checkpoints were made for and where the head has been.
//
// Two kinds of record, each a versioned JSON object in kv:
//
//	j/<layer>  the entry of the checkpoint that sealed the layer: id, label, message,
//	           metadata, the agent's turn, the place of its conversation
//	p/<op>     the operation log: one record per checkpoint and head movement
//
// Records are staged into the batch that seals the layer or moves the head
// ([Journal.StageEntry], [Journal.StageOp]), so neither exists without the
// other, and enter the index in memory once that batch is applied
// ([Journal.Commit]). Staging and committing are done by one goroutine at a
// time: the session's checkpoint mutex sees to that. Reading is safe at any time.
//
// What belongs here: the records, their index, the grammar of labels and of
// references to checkpoints, and the walk of undo and redo. What does not:
// files, layers' contents, and conversations themselves. Layers are plain
// numbers here; whether one lies in the line of a head is asked of the caller.
package journal
