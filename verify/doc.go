// Package verify runs a verifier, a command that looks at the files in a
// directory and says whether they are good, and reads its verdict.
//
// # The contract with the command
//
// It runs as `sh -c COMMAND` (or as an argument list) in the directory, in a
// session of its own, with stdin at end of file and these variables:
//
//	REWINDFS_SESSION     name of the session
//	REWINDFS_CHECKPOINT  checkpoint that is being verified, if any
//	REWINDFS_ATTEMPT     1, 2, …
//	REWINDFS_VERIFIER_…  a mark by which its processes are found; leave it alone
//
// Its stdout must be exactly one JSON object, with nothing but white space around it:
//
//	{"status": "pass"|"fail"|"unknown", "summary": "…", "errors": ["…", {"file", "line", "message"}], …}
//
// summary and errors may be missing or null; other fields are kept as they are. The exit
// code says nothing. Whatever else happens (nothing or something else on stdout,
// two objects, a field twice, a wrong type, more output than is kept, death by a signal, no end in time, a
// cancelled run) is UNKNOWN, with the output kept. UNKNOWN is tried again, and never taken for PASS.
//
// # The end of a verifier
//
// When the command ends, and when its time is up, all processes it has started are ended: SIGTERM,
// then after a grace period SIGKILL. A verifier leaves nothing behind that could write into
// the tree after the decision; a build daemon that is to live on must be started elsewhere.
//
// Where a cgroup (version 2) of our own can be made, the kernel keeps the list, and
// no child escapes by changing its session, its parent or its environment. Elsewhere /proc
// is searched for processes of the command's session, with its mark in their environment, or
// descended from such a one. That cannot find a process which has left the
// session, has cleared its environment, and whose parents have ended.
// Never ended are: processes of other users that we may not signal, and work
// handed to a service that was running before (docker, systemd, at, ssh). A process that keeps the
// command's stdout open after all that makes the verdict UNKNOWN. What could be seen but not ended is named in the result.
//
// # What belongs here
//
// Running, reading, retrying, and asking what to do about UNKNOWN. What follows from
// the decision (rollback, ledger, exit codes) is the caller's. Only the standard library and x/sys are used.
//
// The command is never run with a working directory set by this process: `sh` changes into the directory itself,
// because a Go process that serves the mount would wait for itself between fork and exec.
package verify
