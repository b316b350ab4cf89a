package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// faulty fails the writes that it is told to, after the first bytes of them.
type faulty struct {
	lines, head bool // which writes fail
	bytes       int  // how much of them is written
	err         error
}

func (w *faulty) writeAt(f *os.File, b []byte, off int64) (int, error) {
	isHead := filepath.Base(f.Name()) == headName
	if isHead && !w.head || !isHead && !w.lines {
		return f.WriteAt(b, off)
	}
	n, err := f.WriteAt(b[:min(len(b), w.bytes)], off)
	return n, errors.Join(err, w.err)
}

func TestFullDisk(t *testing.T) {
	for _, n := range []int{0, 1, 50, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := testDir(t)
			w := &faulty{bytes: n, err: syscall.ENOSPC}
			l := open(t, dir, Options{writeAt: w.writeAt})
			appendN(t, l, 3)
			w.lines = true
			for range 2 {
				seq, err := l.Append(Event{Kind: KindRollback, Op: 9})
				if seq != 0 || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the disk is full") {
					t.Fatalf("append: %d, %v", seq, err)
				}
				mustVerify(t, dir, 3)
			}
			if l.Head().Seq != 3 || l.LastOp() != 0 {
				t.Fatalf("head %v, op %d", l.Head(), l.LastOp())
			}
			w.lines = false
			appendN(t, l, 1)
			closeLedger(t, l)
			if rep := mustVerify(t, dir, 4); rep.NoteSum > 0 {
				t.Errorf("notes:\n%s", findings(rep.Notes))
			}
		})
	}
}

// Of a group that is written in part, the whole lines count.
func TestPartOfAGroup(t *testing.T) {
	dir := testDir(t)
	w := &faulty{}
	l := open(t, dir, Options{writeAt: w.writeAt})
	appendN(t, l, 1)
	size := int(l.off)
	group := make([]*entry, 5)
	for i := range group {
		e, err := newEntry(Event{Kind: KindExec, Session: "s", Branch: "main", Details: map[string]any{"command": "make test"}})
		if err != nil {
			t.Fatal(err)
		}
		group[i] = e
	}
	*w = faulty{lines: true, bytes: 2*size + 20, err: syscall.EIO} // without "file", later lines are shorter
	l.writing.Lock()
	l.writeGroup(group)
	l.writing.Unlock()
	for i, e := range group {
		if !e.done || (e.err == nil) != (i < 2) || i < 2 && e.seq != uint64(i+2) || i >= 2 && !errors.Is(e.err, syscall.EIO) {
			t.Errorf("event %d: done %v, %d, %v", i, e.done, e.seq, e.err)
		}
	}
	mustVerify(t, dir, 3)
	w.lines = false
	appendN(t, l, 1)
	closeLedger(t, l)
	mustVerify(t, dir, 4)
}

// A daemon that could not even cut off what it wrote in part, and was killed.
func TestPartOfALineStaysBehind(t *testing.T) {
	dir := testDir(t)
	w := &faulty{}
	l := open(t, dir, Options{writeAt: w.writeAt})
	appendN(t, l, 2)
	file := l.file
	*w = faulty{lines: true, bytes: 30, err: syscall.EIO}
	l.o.writeAt = func(f *os.File, b []byte, off int64) (int, error) {
		n, err := w.writeAt(f, b, off)
		l.file = nil // so that it is not repaired now
		return n, err
	}
	if _, err := l.Append(Event{Kind: KindExec}); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	l.file, l.o.writeAt = file, w.writeAt
	kill(t, l)
	l = open(t, dir, Options{})
	closeLedger(t, l)
	if rep := mustVerify(t, dir, 3); rep.NoteSum != 1 {
		t.Errorf("notes:\n%s", findings(rep.Notes))
	}
}

// A head that cannot be written takes no event back; Sync and Close say so, and it is tried again.
func TestHeadCannotBeWritten(t *testing.T) {
	dir := testDir(t)
	w := &faulty{}
	l := open(t, dir, Options{writeAt: w.writeAt, MaxFile: 700})
	appendN(t, l, 2)
	*w = faulty{head: true, err: syscall.EIO}
	appendN(t, l, 5)
	if l.cur != 1 {
		t.Error("a new file was begun while the head is behind")
	}
	mustVerify(t, dir, 7)
	if _, err := l.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	w.head = false
	if h, err := l.Sync(); err != nil || h.Seq != 7 {
		t.Errorf("sync: %v, %v", h, err)
	}
	w.head = true
	appendN(t, l, 1)
	if err := l.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("close: %v", err)
	}
	l = open(t, dir, Options{})
	if len(l.Found()) > 0 || l.Head().Seq != 8 {
		t.Errorf("found %v, head %v", l.Found(), l.Head())
	}
	closeLedger(t, l)
	mustVerify(t, dir, 8)
}

// On a full disk a ledger is opened all the same, and what was found is recorded when there is room.
func TestOpenOnAFullDisk(t *testing.T) {
	dir, last := killed(t, 3)
	edit(t, dir, fileName(1), func(s string) string { return s + `{"v":1` })
	w := &faulty{lines: true, bytes: 3, err: syscall.ENOSPC}
	l := open(t, dir, Options{writeAt: w.writeAt})
	if len(l.Found()) != 1 || l.Head() != last.Head {
		t.Fatalf("found %v, head %v", l.Found(), l.Head())
	}
	if _, err := l.Append(Event{Kind: KindExec}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := l.Sync(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("sync: %v", err)
	}
	mustVerify(t, dir, 3)
	w.lines = false
	if seq, err := l.Append(Event{Kind: KindExec}); err != nil || seq != 5 {
		t.Fatalf("append: %d, %v", seq, err)
	}
	closeLedger(t, l)
	if rep := mustVerify(t, dir, 5); rep.NoteSum != 1 {
		t.Errorf("notes:\n%s", findings(rep.Notes))
	}

	// Damage that cannot be recorded is found again the next time.
	edit(t, dir, fileName(1), func(s string) string { return cutLines(s, 1) })
	w.lines = true
	l = open(t, dir, Options{writeAt: w.writeAt})
	if err := l.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("close: %v", err)
	}
	l = open(t, dir, Options{})
	if len(l.Found()) != 1 {
		t.Errorf("found %v", l.Found())
	}
	closeLedger(t, l)
	mustFind(t, dir, "found to be damaged")
}

// On a disk that others have filled, there is room for the last events that matter.
func TestReserve(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	disk := t.TempDir()
	if err := syscall.Mount("ledger-test", disk, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err, syscall.Unmount(disk, syscall.MNT_DETACH))
		}
	})
	dir := filepath.Join(disk, "ledger")
	l := open(t, dir, Options{MaxFile: 50_000})
	appendN(t, l, 1)
	fill(t, filepath.Join(disk, "filler"))
	n, err := 0, error(nil)
	for ; err == nil && n < 100_000; n++ {
		_, err = l.Append(Event{Kind: KindRollback, Details: map[string]any{"to": "stable"}})
	}
	if !errors.Is(err, syscall.ENOSPC) || n < 200 {
		t.Fatalf("after %d events: %v", n, err)
	}
	mustVerify(t, dir, uint64(n))
	kill(t, l)
	l = open(t, dir, Options{MaxFile: 50_000})
	if len(l.Found()) > 0 {
		t.Errorf("found %v", l.Found())
	}
	if _, err := l.Append(Event{Kind: KindExec}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("append: %v", err)
	}
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 1)
	closeLedger(t, l)
	mustVerify(t, dir, uint64(n)+1)
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// Somebody else is at the files while the daemon runs.
func TestOthersAtTheFiles(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(path string) error
		want string
	}{
		"removed":  {os.Remove, "was removed while it was written to"},
		"emptied":  {func(p string) error { return os.Truncate(p, 0) }, "changed by somebody else"},
		"cut off":  {func(p string) error { return os.Truncate(p, 500) }, "changed by somebody else"},
		"added to": {func(p string) error { return addTo(p, "x\n") }, "changed by somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := testDir(t)
			l := open(t, dir, Options{})
			appendN(t, l, 5)
			if err := c.do(filepath.Join(dir, fileName(1))); err != nil {
				t.Fatal(err)
			}
			if seq, err := l.Append(Event{Kind: KindExec}); err != nil || seq != 7 {
				t.Fatalf("append: %d, %v", seq, err)
			}
			appendN(t, l, 1)
			mustFind(t, dir, c.want)
			closeLedger(t, l)
			mustFind(t, dir, c.want)
			if l = open(t, dir, Options{}); len(l.Found()) > 0 || l.Head().Seq != 8 {
				t.Errorf("found %v, head %v", l.Found(), l.Head())
			}
			closeLedger(t, l)
		})
	}
}

func addTo(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}
