package ledger

import (
	"fmt"
	"strings"
)

// Problem is the class of a Finding.
type Problem string

// The classes of findings.
const (
	Changed   Problem = "changed"  // a line is not the one that was written
	Missing   Problem = "missing"  // lines or files are gone
	Misplaced Problem = "order"    // a line or file is doubled, moved or put in
	BadHead   Problem = "head"     // the file head is gone or wrong, or a head kept elsewhere is not in the chain
	Recorded  Problem = "recorded" // the daemon found damage earlier and recorded it: see the line
	// The next ones are notes: nothing is wrong.
	Repaired   Problem = "repaired"   // a crash was repaired
	Unfinished Problem = "unfinished" // the end of a ledger that is in use, or whose daemon was killed
	Foreign    Problem = "foreign"    // a file that is none of the ledger's
)

// Finding is something that Verify or Open found.
type Finding struct {
	Problem Problem `json:"problem"`
	File    string  `json:"file,omitempty"`   // empty: the ledger as a whole
	Line    int     `json:"line,omitempty"`   // in the file, from 1; 0: the file as a whole
	Offset  int64   `json:"offset,omitempty"` // of the line, bytes
	Seq     uint64  `json:"seq,omitempty"`    // that the line has or should have
	Message string  `json:"message"`
}

// String is for people. What comes out of files is escaped.
func (f Finding) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File)
		if f.Line > 0 {
			fmt.Fprintf(&b, " line %d (byte %d, number %d)", f.Line, f.Offset, f.Seq)
		}
		b.WriteString(": ")
	}
	return b.String() + escape(f.Message)
}

// finding tells of a note outside of the ledger.
func (n *note) finding() Finding {
	f := Finding{Problem: Repaired, File: n.file, Offset: n.offset, Message: n.problem}
	if n.repair == RepairDamage {
		f.Problem = Recorded
	}
	return f
}

// maxFindings bounds how many findings, and how many notes, a Report lists.
const maxFindings = 100

// Report is what Verify found.
type Report struct {
	Lines   uint64    `json:"lines"`
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`
	Head    Head      `json:"head"`     // the last line; keep it elsewhere, and pass it to a later Verify
	Open    bool      `json:"open"`     // a daemon appends, or was killed: the last lines may not be covered by the file head
	Damage  []Finding `json:"damage"`   // the first ones
	Damages int       `json:"damages"`  // how many there are
	Notes   []Finding `json:"notes"`    // what is no damage, the first ones
	NoteSum int       `json:"note_sum"` // how many there are
	Newer   uint64    `json:"newer"`    // lines of a newer version, whose links alone could be checked
}

// OK reports whether nothing is wrong.
func (r Report) OK() bool { return r.Damages == 0 }

func (r *Report) damage(f Finding) {
	if r.Damages++; len(r.Damage) < maxFindings {
		r.Damage = append(r.Damage, f)
	}
}

func (r *Report) note(f Finding) {
	if r.NoteSum++; len(r.Notes) < maxFindings {
		r.Notes = append(r.Notes, f)
	}
}
