// Package apply writes a state of the tree to a directory on the host: to the base, or to
// another one.
//
//	plan    what the layers changed, or an earlier commit put there, path by path: what the checkpoint has (want), what the layers were
//	        built on (layers.Built, or the record of an earlier commit), what the host has now (have). Not built on what is there: a conflict
//	stage   every new object is made, complete, in <target>/.rewindfs-commit-<id>/ and is put on the disk (syncfs)
//	keep    layers.KeepBase keeps what the host has, and starts the next generation of the base; the journal is in the same batch
//	swap    one rename for each step: exchanged with what is there, into a free name, or out of the tree. What came out is looked
//	        at; if it is not what the plan saw, everything is taken back by the reverse renames
//	finish  the old objects go; modes and times of directories; the records of what is there now; the journal's end
//
// A step is about a path of which no other step is about a part, so steps are independent of each
// other. Each can be taken back until the journal says "swapped", and none afterwards; so Recover, at the next start,
// takes back what a kill left in the middle, or finishes it. The journal is kv.Meta("commit"), its steps are k/s/ records.
//
// What is at a path after a commit is recorded (k/p/), by commit: the next commit knows by it what is ours, and
// that there is nothing to do; undo which paths to put back, from the pre-images.
//
// Everything on the host is found from one descriptor, below it, through no symbolic link and into no other mount.
// Nothing is opened that is not a regular file or a directory.
//
// What belongs elsewhere: which checkpoint, which branch, the ledger (session); pre-images and what the layers
// were built on (layers).
package apply
