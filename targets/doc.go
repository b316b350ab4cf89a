// Package targets takes copies of what lies outside of a mount, as the user has asked for: SQLite databases, through SQLite's online
// backup, and volumes of Docker, as a tar stream through a throwaway container. It keeps their content in the store's chunks, and puts it back.
//
// A content is a tree of nodes (kv.TargetNode): a node lists up to 64 digests, of chunks of 128 KiB or of nodes, and is known
// by its own digest. So equal content is stored once, and a database in which one page changed costs a chunk and a few nodes.
//
// Who makes and needs copies, and when they are put back, is up to package session. Not here either: anything inside of the mount,
// where a checkpoint has every file as of one instant anyway.
package targets
