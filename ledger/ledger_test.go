package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestAppendCloseOpen(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{})
	if h := l.Head(); h.Seq != 0 {
		t.Fatalf("a new ledger has the head %v", h)
	}
	mustVerify(t, dir, 0)
	for i := range 5 {
		seq, err := l.Append(Event{Kind: KindCheckpoint, Session: "web", Branch: "main", Checkpoint: "01ABCDEFGHJKMNPQRSTVWXYZ00", Label: fmt.Sprint("c", i), Layer: uint64(i + 1), Op: uint64(10 + i)})
		if err != nil || seq != uint64(i+1) {
			t.Fatalf("append %d: %d, %v", i, seq, err)
		}
		mustVerify(t, dir, uint64(i+1)) // at any time, also while a daemon appends
	}
	head := l.Head()
	closeLedger(t, l)
	rep := mustVerify(t, dir, 5, head)
	if rep.Open || rep.Head != head {
		t.Fatalf("after Close: %+v, head %v", rep, head)
	}
	l = open(t, dir, Options{Expect: head})
	defer l.Close()
	if len(l.Found()) > 0 || l.Head() != head || l.LastOp() != 14 || l.Synced() != head {
		t.Fatalf("opened again: found %v, head %v, op %d, synced %v", l.Found(), l.Head(), l.LastOp(), l.Synced())
	}
	appendN(t, l, 1)
	mustVerify(t, dir, 6, head, l.Head())
	rs := records(t, dir, Filter{})
	if len(rs) != 6 || rs[0].Label != "c0" || rs[4].Layer != 5 || rs[4].Op != 14 || rs[5].Details["command"] != "make test" {
		t.Fatalf("records: %+v", rs)
	}
	if !rs[1].At.After(rs[0].At) {
		t.Fatalf("times: %v, %v", rs[0].At, rs[1].At)
	}
}

func TestModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := testDir(t)
	l := open(t, dir, Options{MaxFile: 300})
	appendN(t, l, 4)
	closeLedger(t, l)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	closeLedger(t, open(t, dir, Options{}))
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v (%v)", path, st.Mode().Perm(), want, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneWriter(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{})
	if _, err := Open(dir, testStore, Options{}); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second writer: %v", err)
	}
	closeLedger(t, l)
	if err := l.Close(); !errors.Is(err, ErrClosed) {
		t.Fatalf("closed twice: %v", err)
	}
	if _, err := l.Append(Event{Kind: KindExec}); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after Close: %v", err)
	}
	if _, err := l.Sync(); !errors.Is(err, ErrClosed) {
		t.Fatalf("sync after Close: %v", err)
	}
	closeLedger(t, open(t, dir, Options{}))
}

func TestRotation(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{MaxFile: 2000})
	appendN(t, l, 50)
	if l.Synced().Seq == 0 {
		t.Error("full files are not on the disk")
	}
	files, err := listFiles(dir)
	if err != nil || len(files) < 5 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, n := range files {
		st, err := os.Stat(filepath.Join(dir, fileName(n)))
		if err != nil || st.Size() > 2000+400 {
			t.Errorf("%s has %d bytes, %v", fileName(n), st.Size(), err)
		}
	}
	mustVerify(t, dir, 50)
	kill(t, l)
	mustVerify(t, dir, 50)
	l = open(t, dir, Options{MaxFile: 2000})
	appendN(t, l, 50)
	closeLedger(t, l)
	mustVerify(t, dir, 100)
	for i, r := range records(t, dir, Filter{}) {
		if r.Seq != uint64(i+1) {
			t.Fatalf("record %d has number %d", i, r.Seq)
		}
	}
}

func TestRotationIsTriedAgainLater(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{MaxFile: 1000})
	appendN(t, l, 1)
	// Something is in the way of the next file, so this one grows on.
	if err := os.Mkdir(filepath.Join(dir, fileName(2)), 0o700); err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 20)
	if l.cur != 1 {
		t.Fatalf("writes to file %d", l.cur)
	}
	if err := os.Remove(filepath.Join(dir, fileName(2))); err != nil {
		t.Fatal(err)
	}
	l.rotateAt = 0
	appendN(t, l, 1)
	if l.cur != 2 {
		t.Fatalf("writes to file %d", l.cur)
	}
	closeLedger(t, l)
	mustVerify(t, dir, 22)
}

func TestConcurrentAppends(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{MaxFile: 20_000})
	const writers, each = 8, 200
	seqs := make([][]uint64, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				seq, err := l.Append(Event{Kind: KindToolBegin, Session: fmt.Sprint("w", w), Op: uint64(i + 1)})
				if err != nil {
					t.Error(err)
					return
				}
				seqs[w] = append(seqs[w], seq)
				if i%50 == 0 {
					if _, err := l.Sync(); err != nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	wg.Wait()
	closeLedger(t, l)
	mustVerify(t, dir, writers*each)
	all := records(t, dir, Filter{})
	for w, mine := range seqs {
		for i, seq := range mine {
			r := all[seq-1]
			if r.Session != fmt.Sprint("w", w) || r.Op != uint64(i+1) {
				t.Fatalf("writer %d was told %d for its event %d, which is %+v", w, seq, i, r)
			}
			if i > 0 && seq <= mine[i-1] {
				t.Fatalf("writer %d: %d comes behind %d", w, seq, mine[i-1])
			}
		}
	}
}

// Events that queue up behind a slow write go into the file in one write.
func TestGroups(t *testing.T) {
	dir := testDir(t)
	writes := 0
	l := open(t, dir, Options{writeAt: func(f *os.File, b []byte, off int64) (int, error) {
		if strings.HasSuffix(f.Name(), suffix) {
			writes++
		}
		return f.WriteAt(b, off)
	}})
	l.writing.Lock() // as a writer that is not done yet
	const n = 20
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := l.Append(Event{Kind: KindDrift})
			errs <- err
		}()
	}
	queued := func() int {
		l.queueMu.Lock()
		defer l.queueMu.Unlock()
		return len(l.queue)
	}
	for queued() < n {
		runtime.Gosched()
	}
	l.writing.Unlock()
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if writes != 1 {
		t.Errorf("%d events were written in %d writes", n, writes)
	}
	closeLedger(t, l)
	mustVerify(t, dir, n)
}

func TestEventsThatCannotBeRecorded(t *testing.T) {
	l := open(t, testDir(t), Options{})
	defer l.Close()
	for name, e := range map[string]Event{
		"no kind":     {},
		"bad kind":    {Kind: `x","seq":1`},
		"bad details": {Kind: KindExec, Details: map[string]any{"f": func() {}}},
		"bad year":    {Kind: KindExec, At: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"long name":   {Kind: KindExec, Label: strings.Repeat("x", maxLine)},
	} {
		if seq, err := l.Append(e); err == nil {
			t.Errorf("%s: recorded as %d", name, seq)
		}
	}
	if _, err := l.Append(Event{Kind: KindExec, Label: strings.Repeat("\x01", maxLine)}); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long label: %v", err)
	}
}

func TestLongDetailsAreLeftOut(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{})
	for _, n := range []int{maxLine - 2*maxHeader, maxLine - maxHeader - 10, maxLine, 3 * maxLine} {
		if _, err := l.Append(Event{Kind: KindVerification, Label: "l", Details: map[string]any{"out": strings.Repeat("x", n)}}); err != nil {
			t.Fatal(err)
		}
	}
	closeLedger(t, l)
	mustVerify(t, dir, 4)
	rs := records(t, dir, Filter{})
	if out, _ := rs[0].Details["out"].(string); len(out) != maxLine-2*maxHeader {
		t.Errorf("details that fit: %d bytes", len(out))
	}
	for _, r := range rs[1:] {
		if r.Details["omitted_bytes"] == nil || r.Label != "l" {
			t.Errorf("line %d: %.200s", r.Seq, r.Raw)
		}
	}
}
