package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Verify reads the whole ledger in dir and reports what is wrong with it, and where. The
// heads in kept must be in it: give those that were kept where nobody who may write to dir can.
// See the package comment for what cannot be found without one. A daemon may append meanwhile. An
// error says that the ledger could not be read, not that it is damaged; fs.ErrNotExist, that there is none.
func Verify(dir, storeID string, kept ...Head) (Report, error) {
	for tries := 1; ; tries++ {
		v := verifier{dir: dir, genesis: genesis(storeID), kept: kept, rep: Report{Damage: []Finding{}, Notes: []Finding{}}}
		if err := v.run(); err != nil {
			return Report{}, err
		}
		// A daemon that cuts off an unfinished line while we read it looks like damage once, not twice.
		if v.rep.OK() || !v.moved || tries == 3 {
			return v.rep, nil
		}
	}
}

type verifier struct {
	dir     string
	genesis Hash
	kept    []Head
	rep     Report

	head     *headRecord // as it was before the first line was read; nil: of no use
	moved    bool        // it has changed since: a daemon is at work
	headSeen bool        // its line is where it says
	keptSeen []bool      // as kept

	last   Head // the line before
	unsure bool // that one was reported: the next one's link says nothing new
	files  []int
}

func (v *verifier) run() error {
	v.keptSeen = make([]bool, len(v.kept))
	v.last.Hash = v.genesis
	if err := v.look(); err != nil {
		return err
	}
	next := 1
	// Files that a daemon begins from here on are not waited for: head, read before, is in these.
	for i, n := range v.files {
		if n > next {
			v.rep.damage(Finding{Problem: Missing, File: fileName(next), Message: fmt.Sprintf("%d of the ledger's files, from this one, are gone", n-next)})
		}
		next = n + 1
		if err := v.file(n, i == len(v.files)-1); err != nil {
			return err
		}
	}
	if err := v.lookAgain(); err != nil {
		return err
	}
	v.checkEnd()
	if v.last.Seq > 0 {
		v.rep.Head = v.last
	}
	return nil
}

// look reads head and then, as a daemon may be at work, the names of the files.
func (v *verifier) look() (err error) {
	v.head, err = readHead(v.dir, v.genesis)
	if err != nil && !missing(err) {
		return fmt.Errorf("verify the ledger: %w", err)
	}
	headErr := err
	entries, err := os.ReadDir(v.dir)
	if errors.Is(err, fs.ErrNotExist) && slices.ContainsFunc(v.kept, func(h Head) bool { return h.Seq > 0 }) {
		return nil // checkEnd says what is missing
	} else if err != nil {
		return fmt.Errorf("verify the ledger: %w", err)
	}
	for _, e := range entries {
		if n := fileNumber(e.Name()); n > 0 {
			v.files = append(v.files, n)
		} else if e.Name() != headName && e.Name() != headName+".tmp" {
			v.rep.note(Finding{Problem: Foreign, File: escape(e.Name()), Message: "this file is none of the ledger's; it was not looked at"})
		}
	}
	slices.Sort(v.files)
	switch {
	case v.head != nil:
		v.rep.Open = v.head.open
	case errors.Is(headErr, fs.ErrNotExist):
		v.rep.damage(Finding{Problem: BadHead, File: headName, Message: "the file head is gone: lines at the end may be missing"})
	default:
		v.rep.damage(Finding{Problem: BadHead, File: headName, Message: headErr.Error()})
	}
	return nil
}

// lookAgain finds out whether a daemon was at work.
func (v *verifier) lookAgain() error {
	if v.head == nil {
		return nil
	}
	h, err := readHead(v.dir, v.genesis)
	if err != nil && !missing(err) {
		return fmt.Errorf("verify the ledger: %w", err)
	}
	v.moved = err != nil || *h != *v.head
	return nil
}

// file checks file n.
func (v *verifier) file(n int, isNewest bool) error {
	l, err := openLines(v.dir, n, 0)
	if missing(err) {
		v.rep.damage(Finding{Problem: Missing, File: fileName(n), Message: err.Error()})
		return nil
	} else if err != nil {
		return err
	}
	defer l.close()
	v.rep.Files++
	for number := 1; ; number++ {
		line, at, err := l.next()
		if err != nil && err != io.EOF {
			return err
		}
		if len(line) > 0 {
			v.rep.Bytes += l.at - at
			f := Finding{File: fileName(n), Line: number, Offset: at, Seq: v.last.Seq + 1}
			if err == io.EOF {
				v.unfinished(f, isNewest, l.at-at)
			} else {
				v.rep.Lines++
				v.line(line, f, n, l.at)
			}
		} else if number == 1 && !(isNewest && v.inUse()) {
			v.rep.damage(Finding{Problem: Missing, File: fileName(n), Message: "the file is empty"})
		}
		if err == io.EOF {
			return nil
		}
	}
}

// inUse reports whether there may be more than head says.
func (v *verifier) inUse() bool { return v.head != nil && v.head.open }

func (v *verifier) unfinished(f Finding, isNewest bool, size int64) {
	f.Message = fmt.Sprintf("%d bytes of an unfinished line", size)
	// Behind what head covers only: else checkEnd misses a line.
	if isNewest && v.inUse() {
		f.Problem = Unfinished
		f.Message += ": a daemon is writing, or was killed while it wrote; the next one cuts them off"
		v.rep.note(f)
		return
	}
	f.Problem = Changed
	v.rep.damage(f)
}

// line checks a whole line, which ends at end in file n.
func (v *verifier) line(line []byte, f Finding, n int, end int64) {
	report := func(p Problem, format string, args ...any) {
		f.Problem, f.Message = p, fmt.Sprintf(format, args...)
		v.rep.damage(f)
	}
	sum := hashOf(line)
	h, err := parseHeader(line)
	if err != nil {
		report(Changed, "this is no line of a ledger: %v", err)
		v.last = Head{Seq: v.last.Seq + 1, Hash: sum}
		v.unsure = true
		return
	}
	f.Seq = h.seq
	switch {
	case h.seq > v.last.Seq+1 && h.seq-v.last.Seq == 2:
		report(Missing, "line %d, which should be before this one, is missing", h.seq-1)
	case h.seq > v.last.Seq+1:
		report(Missing, "lines %d to %d, which should be before this one, are missing", v.last.Seq+1, h.seq-1)
	case h.seq <= v.last.Seq:
		report(Misplaced, "line %d comes behind line %d: it was doubled, moved or put in", h.seq, v.last.Seq)
	case h.prev != v.last.Hash && v.last.Seq == 0:
		report(Changed, "the first line does not belong to this store, or was changed")
	case h.prev != v.last.Hash && !v.unsure:
		report(Changed, "line %d was written behind another line %d than the one there is: one of the two was changed", h.seq, v.last.Seq)
	}
	if (f.Line == 1) != (h.file > 0) || h.file > 0 && h.file != n {
		report(Misplaced, "line %d was not written to this place: lines or files were moved", h.seq)
	}
	v.last, v.unsure = Head{Seq: h.seq, Hash: sum}, false
	if v.head != nil && v.head.tip == (tip{Head: v.last, file: n, start: f.Offset, end: end}) {
		v.headSeen = true
	}
	for i, k := range v.kept {
		v.keptSeen[i] = v.keptSeen[i] || k == v.last
	}
	v.content(&h, line, f)
}

// content looks at the rest of a line where links do not tell all.
func (v *verifier) content(h *header, line []byte, f Finding) {
	if h.version > version {
		v.rep.Newer++
		return
	}
	covered := v.head != nil && h.seq <= v.head.Seq
	if covered && len(h.repair) == 0 {
		return
	}
	rec, err := h.record(line)
	switch {
	case err != nil:
		f.Problem, f.Message = Changed, fmt.Sprintf("this is no line of a ledger: %v", err)
		v.rep.damage(f)
	case rec.Repair == RepairDamage:
		f.Problem, f.Message = Recorded, fmt.Sprintf("on %s the ledger was found to be damaged: %v", rec.At.Format("2006-01-02 15:04:05Z"), rec.Details["problem"])
		v.rep.damage(f)
	case rec.Repair != "":
		f.Problem, f.Message = Repaired, fmt.Sprintf("repaired on %s: %v", rec.At.Format("2006-01-02 15:04:05Z"), rec.Details["problem"])
		if n := rec.Details["lost_lines"]; n != nil {
			f.Message += fmt.Sprintf(" (%v lines)", n)
		}
		v.rep.note(f)
	}
}

// checkEnd compares the end of the chain with what head and the caller say.
func (v *verifier) checkEnd() {
	bad := func(format string, args ...any) {
		v.rep.damage(Finding{Problem: BadHead, Message: fmt.Sprintf(format, args...)})
	}
	if h := v.head; h != nil {
		switch {
		case h.Seq > v.last.Seq:
			v.rep.damage(Finding{Problem: Missing, Seq: h.Seq, Message: fmt.Sprintf("the lines at the end are missing: the last one is %d, and head says %d", v.last.Seq, h.Seq)})
		case h.Seq > 0 && !v.headSeen, h.Seq == 0 && h.Hash != v.genesis:
			bad("line %d is not the one that head says, or not where it says: it, or head, was changed", h.Seq)
		case h.Seq < v.last.Seq && !h.open && !v.moved:
			bad("the ledger was closed after line %d, and there are lines up to %d: they were put there", h.Seq, v.last.Seq)
		case h.Seq < v.last.Seq && !v.moved:
			v.rep.note(Finding{Problem: Unfinished, Seq: v.last.Seq, Message: fmt.Sprintf(
				"head is at line %d and the last line is %d: the daemon was killed, or the machine went down", h.Seq, v.last.Seq)})
		}
	}
	for i, k := range v.kept {
		switch {
		case k.Seq == 0 || v.keptSeen[i]:
		case k.Seq > v.last.Seq:
			bad("line %d, which was kept elsewhere, is missing: the last one is %d", k.Seq, v.last.Seq)
		default:
			bad("line %d is another one than was kept elsewhere: the ledger was rewritten", k.Seq)
		}
	}
}
