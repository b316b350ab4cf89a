package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// How much room is kept behind the last line, in bytes: so much can still be recorded,
// rollbacks above all, when the disk is full.
const (
	reserve    = 192 << 10
	reserveLow = 96 << 10
)

// maxGroup bounds what is written at once, in bytes, unless a single line is longer.
const maxGroup = 256 << 10

// entry is an event on its way into the file.
type entry struct {
	kind   Kind
	at     time.Time
	op     uint64
	repair string
	body   []byte

	// Guarded by Ledger.writing:
	done bool
	seq  uint64
	err  error
}

func newEntry(e Event) (*entry, error) {
	if !wellFormed(e.Kind) {
		return nil, fmt.Errorf("record an event: %q is not a kind", e.Kind)
	}
	if y := e.At.UTC().Year(); y < 0 || y > 9999 {
		return nil, fmt.Errorf("record the event %s: the year %d cannot be written", e.Kind, y)
	}
	body, err := encodeBody(&e)
	if err != nil {
		return nil, err
	}
	return &entry{kind: e.Kind, at: e.At, op: e.Op, body: body}, nil
}

// Append records e and returns its sequence number. When it returns, the line has been
// handed to the kernel: it survives SIGKILL, and a power cut once Sync has returned.
// After an error e is not recorded, and another Append may be tried; errors.Is tells syscall.ENOSPC.
func (l *Ledger) Append(e Event) (uint64, error) {
	w, err := newEntry(e)
	if err != nil {
		return 0, err
	}
	l.queueMu.Lock()
	l.queue = append(l.queue, w)
	l.queueMu.Unlock()
	// Whoever gets to write takes along all that have queued up by then.
	l.writing.Lock()
	defer l.writing.Unlock()
	if !w.done {
		l.writeQueue()
	}
	return w.seq, w.err
}

// writeQueue writes all that is queued. Preconditions: l.writing is held.
func (l *Ledger) writeQueue() {
	l.queueMu.Lock()
	queue := l.queue
	l.queue = nil
	l.queueMu.Unlock()
	for len(queue) > 0 {
		n, size := 0, 0
		for n < len(queue) && (n == 0 || size+len(queue[n].body)+maxHeader <= maxGroup) {
			size += len(queue[n].body) + maxHeader
			n++
		}
		l.writeGroup(queue[:n])
		queue = queue[n:]
	}
}

// writeGroup writes the notes that are due and then group, in one write. On an error the lines
// that are whole in the file count, the rest of the group fails. Preconditions: l.writing is held.
func (l *Ledger) writeGroup(group []*entry) {
	fail := func(es []*entry, err error) {
		for _, e := range es {
			if e.repair == "" {
				e.done, e.err = true, err
			}
		}
	}
	if l.closed {
		fail(group, ErrClosed)
		return
	}
	if err := l.ready(); err != nil {
		l.noteErr = err
		fail(group, err)
		return
	}
	all := group
	if len(l.notes) > 0 {
		all = append(append([]*entry(nil), l.notes...), group...)
	}
	now := l.o.Now()
	buf := l.buf[:0]
	next := l.head.tip
	tips := make([]tip, len(all))
	for i, e := range all {
		p := place{seq: next.Seq + 1, prev: next.Hash}
		next = tip{file: l.cur, start: l.off + int64(len(buf))}
		if next.start == 0 {
			p.file = l.cur
		}
		at := e.at
		if at.IsZero() {
			at = now
		}
		before := len(buf)
		buf = appendLine(buf, p, at, e.kind, e.repair, e.body)
		next.Head = Head{Seq: p.seq, Hash: hashOf(buf[before:])}
		next.end = l.off + int64(len(buf))
		tips[i] = next
	}
	if l.buf = buf; cap(buf) > 2*maxGroup {
		l.buf = nil // one long line shall not cost memory for ever
	}
	n, err := l.o.writeAt(l.file, buf, l.off)
	whole := l.commit(all, tips, l.off+int64(n))
	if err != nil {
		l.cut = true // a later line may be shorter than what is there of this one
		l.noteErr = l.writeError(err)
		fail(all[whole:], l.noteErr)
		_ = l.repairTail() // else before the next write
	}
	if whole > 0 {
		l.writeHead()
	}
}

// commit makes those of the lines that end at or before end part of the ledger, and returns how many they are.
func (l *Ledger) commit(all []*entry, tips []tip, end int64) int {
	whole := 0
	for ; whole < len(all) && tips[whole].end <= end; whole++ {
		e := all[whole]
		l.head.tip = tips[whole]
		l.head.op = max(l.head.op, e.op)
		l.off = tips[whole].end
		e.done, e.seq = true, l.head.Seq
	}
	l.notes = l.notes[min(whole, len(l.notes)):]
	return whole
}

func (l *Ledger) writeError(err error) error {
	path := filepath.Join(l.dir, fileName(l.cur))
	if noSpace(err) {
		return fmt.Errorf("the disk is full, so the event is not recorded: make room: append to the ledger %s: %w", path, err)
	}
	return fmt.Errorf("append to the ledger %s: %w", path, err)
}

// ready makes the place for the next line good. Preconditions: l.writing is held.
func (l *Ledger) ready() error {
	if l.file == nil {
		if err := l.openCurrent(); err != nil {
			return err
		}
	}
	if err := l.repairTail(); err != nil {
		return err
	}
	if err := l.checkFile(); err != nil {
		return err
	}
	if l.off >= max(l.o.MaxFile, l.rotateAt) && l.rotate() != nil {
		// A file that is too large does no harm, and an event that is not recorded does.
		l.rotateAt = l.off + reserve
	}
	l.allocate(l.file)
	return nil
}

// openCurrent opens or makes the file that is written to.
func (l *Ledger) openCurrent() error {
	path := filepath.Join(l.dir, fileName(l.cur))
	f, err := openRegular(path, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) && l.off == 0 {
		f, err = createFile(path)
	}
	if err != nil {
		return l.writeError(err)
	}
	l.file, l.allocated = f, 0
	return nil
}

// repairTail cuts off what is behind the last line.
func (l *Ledger) repairTail() error {
	if !l.cut || l.file == nil {
		return nil
	}
	if err := l.file.Truncate(l.off); err != nil {
		return l.writeError(fmt.Errorf("cut off an unfinished line: %w", err))
	}
	l.cut, l.allocated = false, 0
	return nil
}

// checkFile looks whether the file is still the one in the directory and ends where the last line does. If
// somebody else was at it, it is left as it is, and the chain goes on in a new one that says so.
func (l *Ledger) checkFile() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(l.file.Fd()), &st); err != nil {
		return l.writeError(err)
	}
	var problem string
	switch {
	case st.Nlink == 0:
		problem = fmt.Sprintf("the file %s was removed while it was written to", fileName(l.cur))
	case st.Size != l.off:
		problem = fmt.Sprintf("the file %s was changed by somebody else while it was written to: it has %d bytes instead of %d", fileName(l.cur), st.Size, l.off)
	default:
		return nil
	}
	n := note{repair: RepairDamage, problem: problem, head: l.head.Head}
	e, err := newEntry(n.event())
	if err != nil {
		return err
	}
	e.repair = n.repair
	files, err := listFiles(l.dir)
	if err != nil {
		return l.writeError(err)
	}
	// What is left of it should be on the disk, as every file but the newest. That it is damaged goes on record anyway.
	_ = l.file.Sync()
	_ = l.file.Close()
	l.file, l.cur, l.off, l.cut, l.rotateAt = nil, max(l.cur, newest(files))+1, 0, false, 0
	l.notes = append(l.notes, e)
	return l.openCurrent()
}

// allocate keeps room behind the last line. That it cannot is no error: then a write may fail.
func (l *Ledger) allocate(f *os.File) {
	if l.allocated-l.off >= reserveLow {
		return
	}
	if unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, l.off, reserve) == nil {
		l.allocated = l.off + reserve
	}
}

// rotate begins the next file. All files but the newest are on the disk as a whole, so that a
// power cut can only harm the newest. On an error all is as before.
func (l *Ledger) rotate() error {
	path := filepath.Join(l.dir, fileName(l.cur+1))
	next, err := createFile(path)
	if err != nil {
		return fmt.Errorf("begin the ledger's next file: %w", err)
	}
	fallback := func(err error) error {
		return fmt.Errorf("begin the ledger's next file: %w", errors.Join(err, next.Close(), os.Remove(path)))
	}
	if err := unix.Fallocate(int(next.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, reserve); noSpace(err) {
		return fallback(err) // the room behind the last line is worth more
	}
	if err := l.file.Sync(); err != nil {
		return fallback(err)
	}
	if err := l.lock.Sync(); err != nil {
		return fallback(err)
	}
	l.head.synced, l.durable = l.head.Seq, l.head.Head
	if l.writeHead(); l.headErr != nil {
		return fallback(nil)
	}
	if err := l.headFile.Sync(); err != nil {
		return fallback(err)
	}
	old := l.file
	_ = old.Truncate(l.off) // gives back the room behind the last line; if not, it is lost room
	l.file, l.cur, l.off, l.allocated, l.rotateAt = next, l.cur+1, 0, reserve, 0
	_ = old.Close() // it was synced: nothing is left to fail
	return nil
}

// writeHead writes the head file. An error is kept in l.headErr and tried again after
// the next line: the lines themselves are safe.
func (l *Ledger) writeHead() {
	l.hbuf = l.head.encode(l.hbuf[:0], l.genesis)
	l.headErr = nil
	if _, err := l.o.writeAt(l.headFile, l.hbuf, 0); err != nil {
		l.headErr = fmt.Errorf("write the ledger's head: %w", err)
	}
}

// Sync returns when all that was appended is on the disk, and a head that is good to keep elsewhere.
func (l *Ledger) Sync() (Head, error) {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	return l.sync()
}

// sync is Sync. Preconditions: l.syncing is held.
func (l *Ledger) sync() (Head, error) {
	for {
		upTo, file, err := l.unsynced()
		if err != nil || upTo.Seq == 0 {
			return l.Synced(), err
		}
		err = syncAll(file, l.lock)
		if errors.Is(err, os.ErrClosed) {
			continue // the next file was begun meanwhile
		}
		if err != nil {
			return Head{}, fmt.Errorf("put the ledger on the disk: %w", err)
		}
		l.writing.Lock()
		if upTo.Seq > l.durable.Seq {
			l.head.synced, l.durable = upTo.Seq, upTo
		}
		l.writeHead()
		err = l.headErr
		l.writing.Unlock()
		if err == nil {
			err = l.headFile.Sync()
		}
		if err != nil {
			return Head{}, fmt.Errorf("put the ledger's head on the disk: %w", err)
		}
		return upTo, nil
	}
}

// unsynced returns the last line and the file that it is in; the zero Head when it is on the disk.
func (l *Ledger) unsynced() (Head, *os.File, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.closed {
		return Head{}, nil, ErrClosed
	}
	if len(l.notes) > 0 {
		l.writeGroup(nil)
	}
	if len(l.notes) > 0 {
		return Head{}, nil, fmt.Errorf("what was found when the ledger was opened is not recorded: %w", l.noteErr)
	}
	if l.head.synced == l.head.Seq && l.headErr == nil {
		return Head{}, nil, nil
	}
	if l.file == nil && l.off > 0 { // lines of a daemon that was killed
		if err := l.openCurrent(); err != nil {
			return Head{}, nil, err
		}
	}
	return l.head.Head, l.file, nil
}

func syncAll(file, dir *os.File) error {
	if file != nil {
		if err := file.Sync(); err != nil {
			return err
		}
	}
	return dir.Sync()
}

// note is something that Open or a write found, on its way into the chain.
type note struct {
	repair  string
	problem string // in words
	file    string
	offset  int64
	bytes   int64 // cut off
	lost    uint64
	head    Head // the last line that was known of
}

func (n *note) event() Event {
	d := map[string]any{"problem": n.problem}
	if n.file != "" {
		d["file"], d["offset"] = n.file, n.offset
	}
	if n.bytes > 0 {
		d["cut_bytes"] = n.bytes
	}
	if n.lost > 0 {
		d["lost_lines"] = n.lost
	}
	if n.head != (Head{}) {
		d["head"] = n.head.String()
	}
	return Event{Kind: KindRecovered, Details: d}
}
