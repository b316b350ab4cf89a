// Package archive makes portable files of checkpoints and brings them back, and makes tar streams of them.
//
// It knows the tree (package layers) and nothing of journals, conversations or stores: those
// come and go as the records that the format has for them.
//
// # The format, version 1
//
// Numbers are big-endian where they have a fixed size, else unsigned varints (times: seconds are zigzag varints).
// Digests are BLAKE3, 32 bytes. Byte strings have their length, a varint, in front.
//
//	"rewindfs archive"   16 bytes
//	version              4 bytes
//	one zstd stream      of records
//	digest               of all bytes of the file before it
//
// A record is a letter, the length of what follows as a varint, at most MaxRecord, and that. All records:
//
//	H header      JSON: Header
//	B begin       kind of section: 1 base, 2 tree, 3 talk
//	T take        dir id name            the name goes
//	M make        dir name NODE          a new object, and its first name
//	N name        dir id name            another name of an object, or a new one of one that was taken
//	S set         NODE                   what an object is from now on; of a file, also its size
//	X clear       offset length          of the file last set: a part no larger than a chunk gets new bytes, or is a hole
//	D data        offset bytes           of the file last made or set: a chunk that comes for the first time
//	R ref         offset length digest   one that came before, in whatever file
//	F print       digest                 of the content of the file last made: offset (8 bytes) and bytes of each ChunkSize that is not all zero, filled up with zeros
//	C checkpoint  JSON: Checkpoint
//	K link        before index size      a message, its place in its history and the digest of the link before
//	P part        bytes                  of the message of the last link, all of them together make size
//	E end         digest                 of the records of the section, the letters and lengths too
//	Z close       JSON: Counts           nothing follows
//
//	NODE          id mode uid gid rdev size atime mtime ctime target n (name value)*n
//
// Ids tell objects apart within an archive, the root is 1. A chunk is at most ChunkSize bytes and crosses no multiple of that.
// The order is
//
//	H  [B1 (M F? | N)* E]  (B2 T* (M | N | D | R)* (S | X | D | R)* E C)+  B3 (K P*)* E  Z
//
// The base section is there when the archive does not hold the base: it lists the base, with prints of its
// files in place of bytes, and what the base does not match is not imported. A tree section says how a state differs from that of
// the section before, the first one from the base or from an empty directory: all names that go are taken first; what
// is never named again is gone. Then come, directories before what is in them, objects and names; then what
// changed, and everything of which a name or an entry was moved: import restores its times by that.
// The checkpoints of one layer share it: the sections of all but the first are empty.
//
// In memory, writing costs about 60 bytes for each object and 30 for each chunk, reading as much; no file is ever held.
//
// # What import believes
//
// Nothing. Check reads a whole archive without a tree: digests, order, sizes, names, chunks that were never sent, how much
// comes out of how little. Builder carries it out on a branch that nobody sees yet, where the tree itself refuses names that
// are there already, parents that are no directories and cycles. Both say what is wrong by an error that is ErrBad.
package archive
