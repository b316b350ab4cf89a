// Package sandbox runs commands so that what they do to the project can be taken
// back, and what they try on the rest of the machine is refused.
//
// It runs in the process of the command line, never in the daemon: terminal, pipes and job control
// are the user's own, and a process that serves the mount cannot start programs in it.
// It knows the mount by its path only; checkpoints, rollback and the ledger are its caller's.
package sandbox
