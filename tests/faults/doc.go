// Package faults goes through the faults that users of layered file systems ran
// into, one test each. Its files follow the list: posix (semantics a program
// relies on), copyup (the base and what lies over it), history (checkpoint and
// rollback), lifecycle (daemon and mount), damage (full disks, flipped bits),
// users (root, ordinary users, user namespaces).
//
// Most tests run the same scene on a plain directory, on a mount whose objects
// come from the base, and on a mount whose objects lie in a sealed checkpoint: the
// plain directory shows that the expectation itself is right.
package faults
