package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// resume says how the chain goes on.
type resume struct {
	last       tip   // the line to go on behind
	cur        int   // file to write to
	off        int64 // where in it
	cut        bool  // what is behind off in it is to be cut off
	synced, op uint64
	notes      []note
}

// examiner looks at the end of a ledger and decides how to go on. It changes nothing.
type examiner struct {
	dir     string
	genesis Hash
	boot    string
	expect  Head

	head  *headRecord // nil when there is none, or none of use
	files []int
}

// examine decides how to go on.
func (x *examiner) examine() (resume, error) {
	var err error
	if x.files, err = listFiles(x.dir); err != nil {
		return resume{}, err
	}
	var headErr error
	x.head, headErr = readHead(x.dir, x.genesis)
	if headErr != nil && !missing(headErr) {
		return resume{}, headErr
	}
	var r resume
	switch {
	case x.head == nil && len(x.files) == 0 && errors.Is(headErr, fs.ErrNotExist):
		r = resume{last: tip{Head: Head{Hash: x.genesis}}, cur: 1}
	case x.head == nil:
		r, err = x.withoutHead(headErr)
	case x.head.open && x.head.boot != x.boot:
		r, err = x.afterPowerCut()
	default:
		r, err = x.fromHead()
	}
	if err != nil {
		return resume{}, err
	}
	return x.expected(r), nil
}

// expected compares with the head that the caller kept.
func (x *examiner) expected(r resume) resume {
	e := x.expect
	switch {
	case e.Seq > r.last.Seq:
		return x.damaged(r, tip{Head: e}, fmt.Sprintf("the last line is number %d, but the store knows of %d", r.last.Seq, e.Seq))
	case e.Seq > 0 && e.Seq == r.last.Seq && e.Hash != r.last.Hash:
		return x.damaged(r, r.last, fmt.Sprintf("line %d is another one than the store knows of: its hash there is %s", e.Seq, e.Hash))
	}
	return r
}

// damaged makes the chain go on behind last in a new file, with a note, and leaves
// everything as it is found.
func (x *examiner) damaged(r resume, last tip, problem string) resume {
	n := note{repair: RepairDamage, problem: problem}
	if x.head != nil {
		n.head = x.head.Head
	}
	r.last, r.off, r.cut = last, 0, false
	r.cur = max(newest(x.files), last.file) + 1
	if x.head != nil {
		r.cur = max(r.cur, x.head.file+1)
	}
	r.notes = []note{n} // a repair that was planned is not made
	return r
}

// fromHead is for a ledger that was closed, or whose daemon was killed.
func (x *examiner) fromHead() (resume, error) {
	h := x.head
	r := resume{last: h.tip, synced: h.synced, op: h.op}
	w := &walk{x: x, tip: h.tip, op: h.op, file: h.file, off: h.end}
	if h.Seq == 0 {
		w.file, w.off = 1, 0
	} else if err := x.checkLast(); missing(err) {
		return x.damaged(r, h.tip, err.Error()), nil
	} else if err != nil {
		return r, err
	}
	if err := w.run(); err != nil {
		return r, err
	}
	atEnd := w.rest == 0 && w.file >= newest(x.files)
	if !h.open && (w.tip != h.tip || !atEnd || newest(x.files) > h.file) {
		return x.damaged(r, h.tip, fmt.Sprintf("something was put behind line %d after the ledger was closed", h.Seq)), nil
	}
	r.last, r.op, r.cur, r.off = w.tip, w.op, w.file, w.off
	switch {
	case atEnd:
	case w.torn && w.file >= newest(x.files):
		r.cut = true
		r.notes = append(r.notes, note{
			repair: RepairTornLine, problem: "the daemon was killed while it wrote a line; the unfinished line was cut off",
			file: fileName(w.file), offset: w.off, bytes: w.rest,
		})
	default:
		r = x.damaged(r, w.tip, fmt.Sprintf("what follows line %d, at byte %d of %s, does not belong there", w.tip.Seq, w.off, fileName(w.file)))
	}
	return r, nil
}

// checkLast compares the last line with the head. An error that is missing says what is wrong.
func (x *examiner) checkLast() error {
	h := x.head
	l, err := openLines(x.dir, h.file, h.start)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: the file %s with the last line, number %d, is gone", ErrDamaged, fileName(h.file), h.Seq)
	} else if err != nil {
		return err
	}
	defer l.close()
	line, _, err := l.next()
	switch {
	case err == io.EOF:
		return fmt.Errorf("%w: line %d, the last one, was cut off from %s", ErrDamaged, h.Seq, fileName(h.file))
	case err != nil:
		return err
	case hashOf(line) != h.Hash || l.at != h.end:
		return fmt.Errorf("%w: line %d, the last one, at byte %d of %s was changed", ErrDamaged, h.Seq, h.start, fileName(h.file))
	}
	return nil
}

// afterPowerCut is for a ledger whose machine went down. What was not synced may be
// missing, full of zeros, or there; head may be older or newer than the lines.
func (x *examiner) afterPowerCut() (resume, error) {
	h := x.head
	r := resume{last: h.tip, synced: h.synced, op: h.op}
	// All files but the newest are on the disk as a whole. If nothing is left of the one that head
	// names, the last line is in the one before.
	w := &walk{x: x, file: max(1, h.file), anchored: h.file <= 1, want: h.Head}
	w.tip.Hash = x.genesis
	if err := w.run(); err != nil {
		return r, err
	}
	switch {
	case !w.anchored:
		w = &walk{x: x, file: h.file - 1, anchored: h.file == 2, want: h.Head}
		w.tip.Hash = x.genesis
		if err := w.run(); err != nil {
			return r, err
		}
	case w.tip.Seq == 0 && h.Seq > 0:
		// After damage the first file may begin in the middle of the chain.
		again := &walk{x: x, file: w.file, want: h.Head}
		if err := again.run(); err != nil {
			return r, err
		}
		if again.anchored {
			w = again
		}
	}
	switch {
	case w.tip.Seq < h.synced, !w.anchored:
		return x.damaged(r, h.tip, fmt.Sprintf("the machine went down, and lines up to %d, which were on the disk, are not all there", h.synced)), nil
	case w.differs:
		return x.damaged(r, w.tip, fmt.Sprintf("line %d is another one than the file head says", h.Seq)), nil
	case w.file < newest(x.files):
		return x.damaged(r, w.tip, fmt.Sprintf("what follows line %d, at byte %d of %s, does not belong there", w.tip.Seq, w.off, fileName(w.file))), nil
	}
	r.last, r.op, r.cur, r.off, r.cut = w.tip, max(w.op, h.op), w.file, w.off, w.rest > 0
	if w.tip.Seq < h.Seq {
		r.op = w.op // the operations of lost lines are to be recorded again
	}
	if w.rest > 0 || w.tip.Seq < h.Seq {
		n := note{
			repair: RepairPowerCut, problem: "the machine went down; lines that were not on the disk yet are lost",
			file: fileName(w.file), offset: w.off, bytes: w.rest, head: h.Head,
		}
		if h.Seq > w.tip.Seq {
			n.lost = h.Seq - w.tip.Seq
		}
		r.notes = append(r.notes, n)
	}
	return r, nil
}

// withoutHead is for a ledger whose head file is lost: the chain goes on behind the last line that can be read.
func (x *examiner) withoutHead(why error) (resume, error) {
	r := resume{last: tip{Head: Head{Hash: x.genesis}}}
	for _, n := range x.files {
		l, err := openLines(x.dir, n, 0)
		if missing(err) {
			continue
		} else if err != nil {
			return r, err
		}
		for {
			line, at, err := l.next()
			if err == io.EOF {
				break
			} else if err != nil {
				return r, errors.Join(err, l.close())
			}
			if rec, err := parseRecord(line); err == nil {
				r.last = tip{Head: Head{Seq: rec.Seq, Hash: hashOf(line)}, file: n, start: at, end: l.at}
				r.op = max(r.op, rec.Op)
			}
		}
		if err := l.close(); err != nil {
			return r, err
		}
	}
	problem := "the file head is gone, so lines at the end may be missing"
	if !errors.Is(why, fs.ErrNotExist) {
		problem = "the file head was damaged, so lines at the end may be missing"
	}
	return x.damaged(r, r.last, problem), nil
}

// walk follows the chain to its end, over files.
type walk struct {
	x        *examiner
	tip             // the last line that follows
	op       uint64 // the highest operation number seen
	file     int    // where the next line would be
	off      int64
	anchored bool // tip is known; else the first line is taken at its word
	want     Head // a line to compare with
	differs  bool // it is another one

	rest int64 // bytes that do not follow, in file
	torn bool  // they are an unfinished line
}

// run goes on to the first line that does not follow, or the end.
func (w *walk) run() error {
	w.anchored = w.anchored || w.tip.Seq > 0
	for {
		l, err := openLines(w.x.dir, w.file, w.off)
		if missing(err) {
			// It may be no file; then it is in the way, and rest says so.
			if !errors.Is(err, fs.ErrNotExist) {
				w.rest = 1
			}
			return nil
		} else if err != nil {
			return err
		}
		err = w.through(l)
		if err = errors.Join(err, l.close()); err != nil {
			return err
		}
		if w.rest > 0 || w.file >= newest(w.x.files) {
			return nil
		}
		w.file, w.off = w.file+1, 0
	}
}

// through follows the chain in one file.
func (w *walk) through(l *lines) error {
	st, err := l.f.Stat()
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	if st.Size() < w.off {
		w.rest = 1
		return nil
	}
	for {
		line, at, err := l.next()
		if err != nil && err != io.EOF {
			return err
		}
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		if err == nil && w.follows(line, at) {
			w.off = l.at
			w.tip.end = l.at
			continue
		}
		w.rest, w.torn = st.Size()-at, err == io.EOF
		return nil
	}
}

// follows takes line as the next one, if it is.
func (w *walk) follows(line []byte, at int64) bool {
	rec, err := parseRecord(line)
	if err != nil || (at == 0) != (rec.File > 0) || at == 0 && rec.File != w.file {
		return false
	}
	if w.anchored && (rec.Seq != w.tip.Seq+1 || rec.Prev != w.tip.Hash) {
		return false
	}
	w.anchored = true
	w.tip = tip{Head: Head{Seq: rec.Seq, Hash: hashOf(line)}, file: w.file, start: at}
	w.op = max(w.op, rec.Op)
	if rec.Seq == w.want.Seq && w.tip.Hash != w.want.Hash {
		w.differs = true
	}
	return true
}
