package ledger

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind says what happened.
type Kind string

// The kinds of events.
const (
	KindMount        Kind = "mount"
	KindUnmount      Kind = "unmount"
	KindCheckpoint   Kind = "checkpoint"
	KindRollback     Kind = "rollback"
	KindUndo         Kind = "undo"
	KindRedo         Kind = "redo"
	KindRestore      Kind = "restore"      // paths of a checkpoint came back
	KindSkippedNoop  Kind = "skipped_noop" // asked for, and nothing was to be done
	KindVerification Kind = "verification"
	KindEscalation   Kind = "escalation"
	KindPolicy       Kind = "policy"
	KindBudgetStop   Kind = "budget_stop"
	KindCommit       Kind = "commit"
	KindExec         Kind = "exec"
	KindDrift        Kind = "drift" // the base changed underneath
	KindToolBegin    Kind = "tool_begin"
	KindToolEnd      Kind = "tool_end"
	KindFenced       Kind = "fenced" // a call of an older generation was refused
	KindMerge        Kind = "merge"  // what another branch changed was brought in
	KindFork         Kind = "fork"   // a branch was made
	KindDropBranch   Kind = "drop_branch"
	KindExport       Kind = "export"      // a checkpoint was read out, as an archive or a tar stream
	KindImport       Kind = "import"      // an archive became a branch
	KindForgetUndo   Kind = "forget_undo" // what undo led to was given up
	KindGC           Kind = "gc"
	KindPurge        Kind = "purge"     // content was removed from all checkpoints
	KindRecovered    Kind = "recovered" // something was put right, or found wrong, after a crash
)

// Kinds lists the kinds that this program records.
func Kinds() []Kind {
	return []Kind{
		KindMount, KindUnmount, KindCheckpoint, KindRollback, KindUndo, KindRedo, KindRestore, KindSkippedNoop, KindVerification,
		KindEscalation, KindPolicy, KindBudgetStop, KindCommit, KindExec, KindDrift, KindToolBegin, KindToolEnd,
		KindFenced, KindMerge, KindFork, KindDropBranch, KindExport, KindImport, KindForgetUndo, KindGC, KindPurge, KindRecovered,
	}
}

// ParseKind checks the name of a kind, as people write it.
func ParseKind(s string) (Kind, error) {
	if k := Kind(s); slices.Contains(Kinds(), k) {
		return k, nil
	}
	names := make([]string, 0, len(Kinds()))
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return "", fmt.Errorf("there is no event %q: one of %s", s, strings.Join(names, ", "))
}

// wellFormed reports whether k may stand in a line: 1 to 32 of a-z and _.
func wellFormed[T ~string | ~[]byte](k T) bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && c != '_' {
			return false
		}
	}
	return len(k) > 0 && len(k) <= 32
}

// Event is what a caller records. All but Kind may be empty. Bytes that are not UTF-8 are
// recorded as U+FFFD: give names of files that need them in base64, too.
type Event struct {
	Kind       Kind
	At         time.Time // zero: when it is written
	Session    string
	Branch     string
	Checkpoint string // id
	Label      string
	Layer      uint64
	Op         uint64         // number in the journal's operation log, see Ledger.LastOp
	Details    map[string]any // anything encoding/json takes; numbers come back as json.Number
}

// What the package itself did, in Record.Repair.
const (
	RepairTornLine = "torn_line" // the unfinished last line of a killed daemon was cut off
	RepairPowerCut = "power_cut" // lines that were not synced are lost
	RepairDamage   = "damage"    // something is wrong that no crash explains; nothing was touched
)

// Record is an event in its place in the chain.
type Record struct {
	Event
	Version int
	Seq     uint64 // from 1, without gaps
	Prev    Hash   // of the line before
	File    int    // set in the first line of a file: its number
	Repair  string // one of the Repair constants, or empty
	Raw     []byte // the line as it is recorded, without the newline: valid JSON
}

// Filter chooses records. What is empty does not matter.
type Filter struct {
	Kinds      []Kind // any of these
	Checkpoint string // a label, an id, or the beginning of an id of at least 6 characters
	Session    string
	Branch     string
	Since      time.Time // not before
	Until      time.Time // before
	After      uint64    // sequence numbers above this one
}

// minIDPrefix is the shortest beginning of an id that names a checkpoint, as everywhere.
const minIDPrefix = 6

// wants looks at what is cheap to know of a line.
func (f *Filter) wants(h *header) bool {
	return h.seq > f.After && (len(f.Kinds) == 0 || slices.Contains(f.Kinds, Kind(h.event)))
}

// matches reports whether f chooses r. Preconditions: wants.
func (f *Filter) matches(r *Record) bool {
	switch {
	case f.Session != "" && r.Session != f.Session,
		f.Branch != "" && r.Branch != f.Branch,
		!f.Since.IsZero() && r.At.Before(f.Since),
		!f.Until.IsZero() && !r.At.Before(f.Until):
		return false
	case f.Checkpoint == "" || r.Label == f.Checkpoint || r.Checkpoint == f.Checkpoint:
		return true
	}
	return len(f.Checkpoint) >= minIDPrefix && strings.HasPrefix(r.Checkpoint, strings.ToUpper(f.Checkpoint))
}
