// Package ledger is the audit log of a store: events in the order they happened,
// outside of every rollback, each tied to the one before by its hash. One daemon
// appends; anyone who may read the directory can read, follow and verify.
//
// # Files of <store>/ledger (mode 0700, files 0600)
//
//	00000001.jsonl, 00000002.jsonl, …   the lines; a file is begun when the one before has reached Options.MaxFile
//	head                                where the last line is, 512 bytes, written over in place after each write
//
// # A line
//
//	{"v":1,"seq":7,"prev":"<64 hex>","at":"2026-11-29T14:03:22.123456789Z","event":"checkpoint",
//	 "session":"web","branch":"main","checkpoint":"01J…","label":"stable","layer":6,"op":9,"details":{…}}
//
// (without the line break). v, seq, prev, at and event are always there, in this order and spelling; then those
// of the others that are not empty. prev is the BLAKE3 of the line before, its newline included; in the first
// line it is BLAKE3("rewindfs ledger 1\n" + store id + "\n"). So a chain can be checked by hand:
//
//	sed -n 6p 00000001.jsonl | b3sum     is prev of line 7
//
// The first line of each file has "file":N behind prev, so that lines cannot change their file. Lines that the
// package itself adds, after a crash or when it found damage, have "repair" behind event. A change of this form is a new
// v, and in every version a line begins with v, seq, prev and file: an old program can check the chain of a newer one.
//
// # What survives what
//
// Append returns when the line has been handed to the kernel: it survives SIGKILL. After a power cut, what was there at
// the last Sync is there, and of the rest a beginning; what was lost is said in a line of its own (repair power_cut).
// A line torn by a crash is cut off at the next Open, and a line says so (torn_line). Anything else that Open finds wrong
// is never touched: it begins a new file, says what it found (damage), and numbers go on behind the
// last line that it knows of, so that Verify reports both the damage itself and that line for ever.
// Open looks at the end of the ledger only; Verify reads all of it.
//
// # What Verify finds, and what nobody can find from the directory alone
//
// It finds every change, removal, insertion, doubling, exchange and truncation of lines and files that leaves at least
// one byte of the lines or of head as it was written and is not one of these, which are consistent by themselves:
//
//  1. Lines rewritten together with all later ones and head. There is no secret in the chain, so whoever may write to
//     the directory can compute a new one.
//  2. The whole directory, head included, replaced by an older copy of itself, or cut back to an earlier line with a
//     head made for it.
//  3. Well-formed lines put at the end, with a head made for them (or without, as under 4).
//  4. While a daemon runs or after it was killed, head may be one write behind, and after a power cut further: lines
//     behind the line that head names may then be cut off, and an unfinished line put there, unseen. Close and the
//     next Open end this state.
//  5. After the machine went down under a running daemon: lines that were not synced may be cut off; the next Open
//     takes them for lost and writes that into the chain, which Verify shows as a note.
//
// Against all of these helps a Head kept elsewhere, where whoever is feared cannot write: any that Head, Sync or Verify
// has given out can be passed to Verify and Options.Expect later. It must then be in the chain, so up to it nothing of
// the above is possible. What a head does not bring back is whether an event was ever recorded: a daemon that is
// made not to append leaves no trace. Modes, owners and times of the files, and files with other names, are not looked at.
//
// # Locks, in the order they are taken
//
//	Ledger.syncing   one Sync at a time; waits for the disk
//	Ledger.writing   one writer at a time: whoever has it writes all that is queued
//	Ledger.queueMu   the queue; held for no call
//
// What does not belong here: what an event means, when one is recorded, and how a command shows them.
package ledger
