// Package memory keeps the conversations of a store: the live ones of each branch, and
// those that checkpoints hold on to.
//
// A history is kept by content. Each message is stored once, in its own bytes; a
// history is a chain of links, each naming a message and the link before it, known by
// a digest over both. So a history that grew by one message costs one message and one
// link, and a snapshot of it is its digest. In kv:
//
//	v/m/<hash>/<part>      a message, cut into parts of at most partBytes
//	v/c/<digest>           a link: version, position, digest of the link before, hash of the message
//	t/<branch>\0<thread>   a live conversation: a Ref
//
// Messages and links are written before anything refers to them, in order, and never
// changed; what a crash leaves of them is litter that the next Put finds and uses. The
// live conversations move in the caller's batch, together with the head.
//
// What a conversation means belongs to package convo, what a provider accepts to
// package valid; Repair joins them.
package memory
