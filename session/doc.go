// Package session is the daemon: it owns a store, shows its branches through mounts, and
// answers the control API. It is the only package that knows all others.
//
// A Session is one branch; what all branches share is in the store that it embeds. That of
// Open shows main and runs the daemon; the others are its forks (forks.go, forkmount.go).
//
// # States
//
//	Open ──> live ──(unmount call, signal, umount(8), dead connection)──> stopping ──> closed
//
// Open takes the store's lock before it looks at anything else, so there is one
// daemon per store; it clears away the mount of a dead predecessor, opens base,
// layers and journal, raises the generation, and mounts. Serve returns when the
// mount is gone and everything is on disk.
//
// # Locks, in the order they are taken
//
//	store.committing         one commit to the host at a time
//	store.forking            one change of the set of branches at a time
//	  Session.heads          one checkpoint or head movement of a branch at a time; of several branches, by name
//	    Mount.Freeze         of that branch
//	      store.layering     layers and journal entries of all branches get their numbers one by one
//	        layers.Tree.mu   taken inside of Seal and MoveHead
//	          journal.Journal.mu   taken by what is staged into their batch
//	store.mu, store.recordMu   state of the life cycle; innermost, held for no call
//
// The kernel is notified with heads held and none of the others: no request needs heads.
//
// # A store directory
//
//	kv/           metadata (package kv), with the lock that names the daemon's pid
//	packs/        chunks (package cas)
//	commit-hold   what commits hold back beside commit-hold.defaults, and what not, for the user to edit
//	session.json  what list and the choice of a session read: never needed to recover
//	control.sock  the control API while a daemon runs
//	daemon.log    the log, and daemon.log.1 before it
//
// What does not belong here: how the kernel is answered, how versions are kept,
// how requests are framed, and how results are shown to people.
package session
