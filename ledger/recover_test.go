package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// killed makes the ledger of a killed daemon with n lines in one file.
func killed(t *testing.T, n int) (dir string, last headRecord) {
	t.Helper()
	dir = testDir(t)
	l := open(t, dir, Options{})
	appendN(t, l, n)
	last = l.head
	kill(t, l)
	return dir, last
}

func TestTornLine(t *testing.T) {
	dir, last := killed(t, 3)
	whole := readTree(t, dir)
	line := string(appendLine(nil, place{seq: 4, prev: last.Hash}, testTime()(), KindExec, "", []byte("}\n")))
	for cut := 1; cut < len(line); cut++ {
		tr := tree{headName: whole[headName], fileName(1): whole[fileName(1)] + line[:cut]}
		writeTree(t, dir, readTree(t, dir), tr)
		if rep := mustVerify(t, dir, 3); rep.NoteSum != 1 || rep.Notes[0].Problem != Unfinished {
			t.Fatalf("notes:\n%s", findings(rep.Notes))
		}
		l := open(t, dir, Options{Expect: last.Head})
		if f := l.Found(); len(f) != 1 || f[0].Problem != Repaired || f[0].Offset != last.end {
			t.Fatalf("found %+v", f)
		}
		if l.Head().Seq != 4 {
			t.Fatalf("head %v", l.Head())
		}
		appendN(t, l, 1)
		closeLedger(t, l)
		rep := mustVerify(t, dir, 5, last.Head)
		if rep.NoteSum != 1 || rep.Notes[0].Problem != Repaired {
			t.Fatalf("notes:\n%s", findings(rep.Notes))
		}
		r := records(t, dir, Filter{Kinds: []Kind{KindRecovered}})
		if len(r) != 1 || r[0].Repair != RepairTornLine || fmt.Sprint(r[0].Details["cut_bytes"]) != fmt.Sprint(cut) {
			t.Fatalf("%+v", r)
		}
	}
}

// Lines that were written before the kill and are not in head are taken as they are.
func TestLinesBehindHead(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{MaxFile: 600})
	appendN(t, l, 3)
	heads := []string{readTree(t, dir)[headName]}
	for range 4 {
		if _, err := l.Append(Event{Kind: KindRollback, Op: 7}); err != nil {
			t.Fatal(err)
		}
		heads = append(heads, readTree(t, dir)[headName])
	}
	end := l.Head()
	kill(t, l)
	for _, h := range heads {
		edit(t, dir, headName, func(string) string { return h })
		l = open(t, dir, Options{MaxFile: 600})
		if len(l.Found()) > 0 || l.Head() != end || l.LastOp() != 7 {
			t.Fatalf("found %v, head %v, op %d", l.Found(), l.Head(), l.LastOp())
		}
		kill(t, l)
	}
	mustVerify(t, dir, 7)
}

// A kill between making the next file and writing to it.
func TestEmptyNextFile(t *testing.T) {
	dir, _ := killed(t, 3)
	if err := os.WriteFile(filepath.Join(dir, fileName(2)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mustVerify(t, dir, 3)
	l := open(t, dir, Options{})
	if len(l.Found()) > 0 {
		t.Fatalf("found %v", l.Found())
	}
	closeLedger(t, l) // nothing was written to it
	mustVerify(t, dir, 3)
	if _, err := os.Stat(filepath.Join(dir, fileName(2))); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the empty file is still there: %v", err)
	}
}

func TestInterruptedBeginning(t *testing.T) {
	dir := testDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, headName+".tmp"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, dir, Options{})
	if len(l.Found()) > 0 {
		t.Fatalf("found %v", l.Found())
	}
	kill(t, l)
	mustVerify(t, dir, 0)
	l = open(t, dir, Options{})
	appendN(t, l, 1)
	closeLedger(t, l)
	mustVerify(t, dir, 1)
}

// Whatever Open finds that no kill explains is recorded and left as it is.
func TestDamageAtTheEnd(t *testing.T) {
	first := fileName(1)
	for name, c := range map[string]struct {
		closed bool
		edit   func(tr tree)
		o      Options
		found  string // by Open
		seq    uint64 // of the line that says so
	}{
		"last line changed":     {false, func(tr tree) { tr[first] = replaceLast(tr[first], "make", "Make") }, Options{}, "was changed", 6},
		"last line cut off":     {false, func(tr tree) { tr[first] = cutLines(tr[first], 1) }, Options{}, "was cut off", 6},
		"last line torn":        {false, func(tr tree) { tr[first] = tr[first][:len(tr[first])-1] }, Options{}, "was cut off", 6},
		"file gone":             {false, func(tr tree) { delete(tr, first) }, Options{}, "is gone", 6},
		"head gone":             {false, func(tr tree) { delete(tr, headName) }, Options{}, "head is gone", 6},
		"head changed":          {false, func(tr tree) { tr[headName] = strings.Replace(tr[headName], `"seq":5`, `"seq":4`, 1) }, Options{}, "head was damaged", 6},
		"head longer":           {false, func(tr tree) { tr[headName] += "x" }, Options{}, "head was damaged", 6},
		"all but head gone":     {true, func(tr tree) { delete(tr, first) }, Options{}, "is gone", 6},
		"all gone":              {true, func(tr tree) { clear(tr) }, Options{Expect: Head{5, hashOf(nil)}}, "the store knows of 5", 6},
		"foreign line":          {false, func(tr tree) { tr[first] += "x\n" }, Options{}, "does not belong there", 6},
		"foreign lines, torn":   {false, func(tr tree) { tr[first] += "x\nx" }, Options{}, "does not belong there", 6},
		"closed, torn":          {true, func(tr tree) { tr[first] += "x" }, Options{}, "after the ledger was closed", 6},
		"closed, another file":  {true, func(tr tree) { tr[fileName(2)] = "" }, Options{}, "after the ledger was closed", 6},
		"file far behind":       {false, func(tr tree) { tr[fileName(7)] = "" }, Options{}, "does not belong there", 6},
		"another one than kept": {true, func(tr tree) {}, Options{Expect: Head{5, hashOf(nil)}}, "another one than the store knows", 6},
		"less than kept":        {true, func(tr tree) {}, Options{Expect: Head{9, hashOf(nil)}}, "the store knows of 9", 10},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := killed(t, 5)
			if c.closed {
				closeLedger(t, open(t, dir, Options{}))
			}
			was, tr := readTree(t, dir), readTree(t, dir)
			c.edit(tr)
			writeTree(t, dir, was, tr)
			l := open(t, dir, c.o)
			if f := l.Found(); len(f) != 1 || f[0].Problem != Recorded || !strings.Contains(f[0].Message, c.found) {
				t.Fatalf("found:\n%s", findings(f))
			}
			if l.Head().Seq != c.seq {
				t.Fatalf("head %v", l.Head())
			}
			appendN(t, l, 2)
			closeLedger(t, l)
			mustFind(t, dir, "the ledger was found to be damaged: "+l.Found()[0].Message)
			for n, content := range readTree(t, dir) {
				if old, ok := tr[n]; ok && n != headName && old != content {
					t.Errorf("%s was touched", n)
				}
			}
			l = open(t, dir, Options{})
			if len(l.Found()) > 0 {
				t.Errorf("found again: %v", l.Found())
			}
			closeLedger(t, l)
		})
	}
}

func replaceLast(s, old, new string) string {
	at := strings.LastIndex(s, old)
	return s[:at] + new + s[at+len(old):]
}

func cutLines(s string, n int) string {
	ls := strings.SplitAfter(s, "\n")
	return strings.Join(ls[:len(ls)-1-n], "")
}

// After a power cut what was synced must be there, and of the rest a beginning is kept.
func TestPowerCut(t *testing.T) {
	first, second := fileName(1), fileName(2)
	for name, c := range map[string]struct {
		edit func(tr tree)
		want string // the note, or what Verify finds
		last uint64 // of the lines from before
		ok   bool
	}{
		"all there":        {func(tr tree) {}, "", 12, true},
		"lines lost":       {func(tr tree) { tr[second] = cutLines(tr[second], 2) }, "(2 lines)", 10, true},
		"zeros at the end": {func(tr tree) { tr[second] = cutLines(tr[second], 2) + strings.Repeat("\x00", 300) }, "(2 lines)", 10, true},
		"zeros between": {func(tr tree) {
			s := []byte(tr[second])
			at := strings.Index(tr[second], `"seq":10`)
			copy(s[at:], make([]byte, 60))
			tr[second] = string(s)
		}, "(3 lines)", 9, true},
		"all of the newest lost": {func(tr tree) { tr[second] = "" }, "(6 lines)", 6, true},
		"the newest gone":        {func(tr tree) { delete(tr, second) }, "(6 lines)", 6, true},
		"head older":             {func(tr tree) { tr[headName] = tr["head.8"] }, "", 12, true},
		"head older, torn":       {func(tr tree) { tr[headName] = tr["head.8"]; tr[second] = tr[second][:len(tr[second])-5] }, "are lost", 11, true},
		"head of the rotation":   {func(tr tree) { tr[headName] = tr["head.6"]; tr[second] = tr[second][:len(tr[second])-5] }, "are lost", 11, true},
		"synced lines lost":      {func(tr tree) { tr[first] = cutLines(tr[first], 1) }, "is missing", 0, false},
		"last line changed":      {func(tr tree) { tr[second] = replaceLast(tr[second], "xxx", "yyy") }, "another one than the file head says", 0, false},
		"all lost":               {func(tr tree) { delete(tr, first); delete(tr, second) }, "which were on the disk, are not all there", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := testDir(t)
			l := open(t, dir, Options{MaxFile: 1200})
			heads := tree{}
			for n := 1; n <= 12; n++ {
				if _, err := l.Append(Event{Kind: KindRollback, Op: uint64(n), Details: map[string]any{"text": strings.Repeat("x", 30)}}); err != nil {
					t.Fatal(err)
				}
				heads[fmt.Sprint("head.", n)] = readTree(t, dir)[headName]
			}
			if l.cur != 2 || l.Synced().Seq != 6 {
				t.Fatalf("file %d, synced %d: the test needs other sizes", l.cur, l.Synced().Seq)
			}
			synced := l.Synced()
			kill(t, l)
			was, tr := readTree(t, dir), readTree(t, dir)
			for n, h := range heads {
				tr[n] = h
			}
			c.edit(tr)
			for n := range heads {
				delete(tr, n)
			}
			writeTree(t, dir, was, tr)
			o := Options{BootID: "boot-2", MaxFile: 1200}
			if c.ok {
				o.Expect = synced
			}
			l = open(t, dir, o)
			want := c.last
			if c.want != "" {
				want++ // the note
			}
			if c.ok && (l.LastOp() != c.last || l.Head().Seq != want) {
				t.Errorf("operation %d and line %d, want %d and %d; found %v", l.LastOp(), l.Head().Seq, c.last, want, l.Found())
			}
			appendN(t, l, 2)
			closeLedger(t, l)
			if !c.ok {
				mustFind(t, dir, c.want)
				return
			}
			rep := mustVerify(t, dir, want+2, synced)
			if (rep.NoteSum > 0) != (c.want != "") || !strings.Contains(findings(rep.Notes), c.want) {
				t.Errorf("notes:\n%s", findings(rep.Notes))
			}
		})
	}
}

// The same lines missing without a power cut are damage.
func TestLostLinesWithoutAPowerCut(t *testing.T) {
	dir, _ := killed(t, 5)
	edit(t, dir, fileName(1), func(s string) string { return cutLines(s, 2) })
	closeLedger(t, open(t, dir, Options{}))
	mustFind(t, dir, "lines 4 to 5, which should be before this one, are missing")
}
