package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// edits are the ways in which the property tests damage a ledger. One that finds nothing
// to do leaves tr as it is.
var edits = map[string]func(rnd *rand.Rand, tr tree){
	"flip a bit": func(rnd *rand.Rand, tr tree) {
		change(rnd, tr, func(s string) string {
			b := []byte(s)
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			return string(b)
		})
	},
	"remove bytes": func(rnd *rand.Rand, tr tree) {
		change(rnd, tr, func(s string) string {
			at := rnd.IntN(len(s))
			return s[:at] + s[min(len(s), at+1+rnd.IntN(20)):]
		})
	},
	"put in bytes": func(rnd *rand.Rand, tr tree) {
		change(rnd, tr, func(s string) string {
			at := rnd.IntN(len(s) + 1)
			return s[:at] + []string{"\n", " ", "x", "\x00", s}[rnd.IntN(5)] + s[at:]
		})
	},
	"write over": func(rnd *rand.Rand, tr tree) {
		change(rnd, tr, func(s string) string {
			at := rnd.IntN(len(s))
			n := min(len(s)-at, 1+rnd.IntN(600))
			return s[:at] + strings.Repeat("\x00", n) + s[at+n:]
		})
	},
	"cut off": func(rnd *rand.Rand, tr tree) {
		change(rnd, tr, func(s string) string { return s[:rnd.IntN(len(s))] })
	},
	"cut off lines": func(rnd *rand.Rand, tr tree) {
		editLines(rnd, tr, func(ls []string) []string { return ls[:rnd.IntN(len(ls))] })
	},
	"remove lines": func(rnd *rand.Rand, tr tree) {
		editLines(rnd, tr, func(ls []string) []string {
			at := rnd.IntN(len(ls))
			return slices.Delete(ls, at, min(len(ls), at+1+rnd.IntN(3)))
		})
	},
	"double a line": func(rnd *rand.Rand, tr tree) {
		editLines(rnd, tr, func(ls []string) []string {
			return slices.Insert(ls, rnd.IntN(len(ls)+1), ls[rnd.IntN(len(ls))])
		})
	},
	"exchange lines": func(rnd *rand.Rand, tr tree) {
		editLines(rnd, tr, func(ls []string) []string {
			a, b := rnd.IntN(len(ls)), rnd.IntN(len(ls))
			ls[a], ls[b] = ls[b], ls[a]
			return ls
		})
	},
	"turn lines around": func(rnd *rand.Rand, tr tree) {
		editLines(rnd, tr, func(ls []string) []string { slices.Reverse(ls); return ls })
	},
	"move a line to another file": func(rnd *rand.Rand, tr tree) {
		var taken string
		editLines(rnd, tr, func(ls []string) []string {
			at := rnd.IntN(len(ls))
			taken = ls[at]
			return slices.Delete(ls, at, at+1)
		})
		editLines(rnd, tr, func(ls []string) []string { return slices.Insert(ls, rnd.IntN(len(ls)+1), taken) })
	},
	"move the border of two files": func(rnd *rand.Rand, tr tree) {
		names := lineFiles(tr)
		i := rnd.IntN(len(names) - 1)
		both := tr[names[i]] + tr[names[i+1]]
		ls := strings.SplitAfter(both, "\n")
		at := len(strings.Join(ls[:rnd.IntN(len(ls))], ""))
		tr[names[i]], tr[names[i+1]] = both[:at], both[at:]
	},
	"rewrite a line and all links behind it": func(rnd *rand.Rand, tr tree) {
		names := lineFiles(tr)
		first := rnd.IntN(len(names))
		var prev Hash
		for _, name := range names[first:] {
			ls := strings.SplitAfter(strings.TrimSuffix(tr[name], "\n"), "\n")
			for i := range ls {
				if prev != (Hash{}) {
					h, err := parseHeader([]byte(strings.TrimSuffix(ls[i], "\n") + "\n"))
					if err != nil {
						return
					}
					ls[i] = strings.Replace(ls[i], h.prev.String(), prev.String(), 1)
				} else {
					ls[i] = strings.Replace(ls[i], "exec", "exeC", 1)
					ls[i] = strings.Replace(ls[i], "make test", "make tesT", 1)
				}
				prev = hashOf([]byte(strings.TrimSuffix(ls[i], "\n") + "\n"))
			}
			tr[name] = strings.Join(ls, "") + "\n"
		}
	},
	"remove a file": func(rnd *rand.Rand, tr tree) { delete(tr, pick(rnd, tr)) },
	"remove files at the end": func(rnd *rand.Rand, tr tree) {
		names := lineFiles(tr)
		for _, name := range names[rnd.IntN(len(names)):] {
			delete(tr, name)
		}
	},
	"empty a file": func(rnd *rand.Rand, tr tree) { tr[pick(rnd, tr)] = "" },
	"exchange files": func(rnd *rand.Rand, tr tree) {
		a, b := pick(rnd, tr), pick(rnd, tr)
		tr[a], tr[b] = tr[b], tr[a]
	},
	"copy a file over another": func(rnd *rand.Rand, tr tree) { tr[pick(rnd, tr)] = tr[pick(rnd, tr)] },
	"copy a file behind the last": func(rnd *rand.Rand, tr tree) {
		names := lineFiles(tr)
		tr[fileName(len(names)+1)] = tr[names[rnd.IntN(len(names))]]
	},
	"remove a file and close the gap": func(rnd *rand.Rand, tr tree) {
		names := lineFiles(tr)
		i := rnd.IntN(len(names))
		for ; i < len(names)-1; i++ {
			tr[names[i]] = tr[names[i+1]]
		}
		delete(tr, names[len(names)-1])
	},
	"put in an empty file": func(rnd *rand.Rand, tr tree) {
		names := lineFiles(tr)
		at := rnd.IntN(len(names) + 1)
		for i := len(names); i > at; i-- {
			tr[fileName(i+1)] = tr[fileName(i)]
		}
		tr[fileName(at+1)] = ""
	},
	"put in an unfinished line": func(rnd *rand.Rand, tr tree) { tr[pick(rnd, tr)] += `{"v":1,"seq":` },
}

func lineFiles(tr tree) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(tr)), func(n string) bool { return fileNumber(n) == 0 })
}

func pick(rnd *rand.Rand, tr tree) string {
	names := slices.Sorted(maps.Keys(tr))
	if len(names) == 0 {
		return fileName(1)
	}
	return names[rnd.IntN(len(names))]
}

func change(rnd *rand.Rand, tr tree, f func(string) string) {
	if name := pick(rnd, tr); tr[name] != "" {
		tr[name] = f(tr[name])
	}
}

func editLines(rnd *rand.Rand, tr tree, f func([]string) []string) {
	names := lineFiles(tr)
	if len(names) == 0 {
		return
	}
	name := names[rnd.IntN(len(names))]
	if s := strings.TrimSuffix(tr[name], "\n"); s != "" {
		tr[name] = strings.Join(f(strings.SplitAfter(s+"\n", "\n")[:strings.Count(s, "\n")+1]), "")
	}
}

// damagedTree returns tr after one to three edits, and their names.
func damagedTree(rnd *rand.Rand, tr tree, n int) (tree, string) {
	names := slices.Sorted(maps.Keys(edits))
	out := maps.Clone(tr)
	what := names[n%len(names)] // each as often as the others
	edits[what](rnd, out)
	for rnd.IntN(4) == 0 && len(lineFiles(out)) > 1 {
		more := names[rnd.IntN(len(names))]
		edits[more](rnd, out)
		what += ", " + more
	}
	return out, what
}

func rounds(t *testing.T, n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// seeded makes a random source: with seed 1, or what REWINDFS_TEST_SEED says, a number
// or "fresh". The seed is told when the test fails.
func seeded(t *testing.T) *rand.Rand {
	seed := uint64(1)
	switch v := os.Getenv("REWINDFS_TEST_SEED"); v {
	case "":
	case "fresh":
		seed = rand.Uint64()
	default:
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("REWINDFS_TEST_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat it with REWINDFS_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

func closedLedger(t *testing.T) (dir string, head Head) {
	t.Helper()
	dir = testDir(t)
	l := open(t, dir, Options{MaxFile: 2500})
	appendN(t, l, 50)
	head = l.Head()
	closeLedger(t, l)
	return dir, head
}

// Whatever is done to a ledger that was closed, Verify finds it.
func TestEveryEditIsFound(t *testing.T) {
	dir, _ := closedLedger(t)
	mustVerify(t, dir, 50)
	rnd := seeded(t)
	whole := readTree(t, dir)
	done := map[string]int{}
	for n, found := 0, 0; found < rounds(t, 10_000); n++ {
		tr, what := damagedTree(rnd, whole, n)
		if maps.Equal(tr, whole) {
			continue // it changed nothing
		}
		found++
		done[strings.Split(what, ",")[0]]++
		writeTree(t, dir, whole, tr)
		if r := verify(t, dir); r.OK() {
			t.Fatalf("not found: %s\n%q\n%q", what, tr, whole)
		}
		writeTree(t, dir, tr, whole)
	}
	mustVerify(t, dir, 50)
	for name := range edits {
		if done[name] == 0 {
			t.Errorf("%s never happened", name)
		}
	}
}

// The same of a killed daemon's ledger, as far as head covers it; and never is a kept head fooled.
func TestEditsOfAnOpenLedgerAreFound(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{MaxFile: 2500})
	appendN(t, l, 48)
	covered := l.head
	old := readTree(t, dir)[headName]
	appendN(t, l, 2)
	kept := l.Head()
	kill(t, l)
	edit(t, dir, headName, func(string) string { return old }) // head is two lines behind
	if rep := mustVerify(t, dir, 50, kept); !rep.Open || rep.NoteSum != 1 {
		t.Fatalf("%+v", rep)
	}
	rnd := seeded(t)
	whole := readTree(t, dir)
	sealed := func(tr tree) tree { // what head covers
		tr = maps.Clone(tr)
		for name, s := range tr {
			if n := fileNumber(name); n == covered.file {
				tr[name] = s[:min(len(s), int(covered.end))]
			} else if n > covered.file {
				delete(tr, name)
			}
		}
		return tr
	}
	for n := range rounds(t, 3000) {
		tr, what := damagedTree(rnd, whole, n)
		writeTree(t, dir, whole, tr)
		if !maps.Equal(sealed(tr), sealed(whole)) && verify(t, dir).OK() {
			t.Fatalf("not found: %s\n%q\n%q", what, tr, whole)
		}
		if r := verify(t, dir, kept); r.OK() && r.Lines < kept.Seq {
			t.Fatalf("not found with a head: %s\n%q", what, tr)
		}
		writeTree(t, dir, tr, whole)
	}
	mustVerify(t, dir, 50)
}

// That all files were removed stays visible when the machine goes down before the note
// about it is on the disk: the first file then begins in the middle of the chain.
func TestRemovedFilesAndPowerCut(t *testing.T) {
	dir, head := closedLedger(t)
	files, err := listFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range files {
		if err := os.Remove(filepath.Join(dir, fileName(n))); err != nil {
			t.Fatal(err)
		}
	}
	edit(t, dir, headName, func(string) string { return "" })
	for i, boot := range []string{"boot-1", "boot-2", "boot-3"} {
		l, err := Open(dir, testStore, Options{BootID: boot, Expect: head})
		if err != nil {
			t.Fatal(err)
		}
		if found := len(l.Found()) > 0; found != (i == 0) {
			t.Errorf("start %d found %v", i, l.Found())
		}
		appendN(t, l, 1)
		kill(t, l)
		if r := verify(t, dir); r.OK() {
			t.Errorf("start %d: nothing is wrong any more\n%q", i, readTree(t, dir))
		}
	}
}

// Damage stays visible after daemons have opened the ledger and appended to it.
func TestDamageStaysVisible(t *testing.T) {
	dir, head := closedLedger(t)
	rnd := seeded(t)
	whole := readTree(t, dir)
	was := whole
	for n := range rounds(t, 2000) {
		tr, what := damagedTree(rnd, whole, n)
		if maps.Equal(tr, whole) {
			continue
		}
		writeTree(t, dir, was, tr)
		o := Options{MaxFile: 2500}
		if rnd.IntN(2) == 0 {
			o.Expect = head
		}
		if rnd.IntN(2) == 0 {
			o.BootID = "boot-2"
		}
		l, err := Open(dir, testStore, o)
		if err != nil {
			t.Fatalf("%s: open: %v", what, err)
		}
		appendN(t, l, 1+rnd.IntN(4))
		if r := verify(t, dir); r.OK() {
			t.Fatalf("not found while the daemon runs: %s\n%q\n%q", what, readTree(t, dir), whole)
		}
		if rnd.IntN(2) == 0 {
			kill(t, l)
		} else {
			closeLedger(t, l)
		}
		l = open(t, dir, Options{BootID: o.BootID})
		if len(l.Found()) > 0 {
			t.Fatalf("%s: found again: %v\n%q", what, l.Found(), readTree(t, dir))
		}
		appendN(t, l, 1)
		closeLedger(t, l)
		if r := verify(t, dir); r.OK() {
			t.Fatalf("not found: %s\n%q\n%q", what, readTree(t, dir), whole)
		}
		was = readTree(t, dir)
	}
}

// Well-formed lines put behind the last one of a closed ledger are found; of an open one they are a note.
func TestLinesPutAtTheEnd(t *testing.T) {
	dir, head := closedLedger(t)
	files, err := listFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	line := appendLine(nil, place{seq: 51, prev: head.Hash}, testTime()(), KindExec, "", []byte("}\n"))
	if err := addTo(filepath.Join(dir, fileName(newest(files))), string(line)); err != nil {
		t.Fatal(err)
	}
	mustFind(t, dir, "closed after line 50, and there are lines up to 51")
	edit(t, dir, headName, func(s string) string {
		h, err := decodeHead([]byte(s), genesis(testStore))
		if err != nil {
			t.Fatal(err)
		}
		h.open = true
		return string(h.encode(nil, genesis(testStore)))
	})
	if rep := mustVerify(t, dir, 51); rep.NoteSum != 1 || rep.Notes[0].Problem != Unfinished {
		t.Errorf("notes:\n%s", findings(rep.Notes))
	}
}

// What the package comment says cannot be found without a head kept elsewhere, and can with one.
func TestKeptHeads(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{})
	appendN(t, l, 5)
	closeLedger(t, l)
	older := readTree(t, dir)
	l = open(t, dir, Options{})
	appendN(t, l, 5)
	kept := l.Head()
	closeLedger(t, l)
	whole := readTree(t, dir)
	mustVerify(t, dir, 10, kept, Head{})

	writeTree(t, dir, whole, older)
	mustVerify(t, dir, 5)
	mustFind(t, dir, "line 10, which was kept elsewhere, is missing", kept)

	writeTree(t, dir, older, tree{})
	l = open(t, dir, Options{Now: testTime()})
	appendN(t, l, 12)
	closeLedger(t, l)
	mustVerify(t, dir, 12)
	// The same events at other times: the clock of this daemon began anew, as the first one's did before its second start.
	mustFind(t, dir, "line 10 is another one than was kept elsewhere", kept)

	writeTree(t, dir, readTree(t, dir), whole)
	if _, err := Verify(filepath.Join(dir, "no"), testStore); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no ledger: %v", err)
	}
	mustFind(t, filepath.Join(dir, "no"), "is missing", kept)
	if r, err := Verify(dir, "another store"); err != nil || r.OK() {
		t.Errorf("the ledger of another store: %+v, %v", r, err)
	}
}

func TestFindingsSayWhere(t *testing.T) {
	dir, _ := closedLedger(t)
	whole := readTree(t, dir)
	at := func(name string, line int) int {
		return len(strings.Join(strings.SplitAfter(whole[name], "\n")[:line-1], ""))
	}
	first, second := fileName(1), fileName(2)
	lines := strings.Count(whole[first], "\n")
	for name, c := range map[string]struct {
		edit func(tr tree)
		want []string
	}{
		"bit": {func(tr tree) { tr[first] = strings.Replace(tr[first], "make", "Make", 1) },
			[]string{fmt.Sprintf("[changed] %s line 2 (byte %d, number 2): line 2 was written behind another line 1", first, at(first, 2))}},
		"no line": {func(tr tree) { tr[first] = strings.Replace(tr[first], `"seq":3`, `"sEq":3`, 1) },
			[]string{fmt.Sprintf("[changed] %s line 3 (byte %d, number 3): this is no line of a ledger", first, at(first, 3))}},
		"gap": {func(tr tree) { tr[first] = tr[first][:at(first, 4)] + tr[first][at(first, 6):] },
			[]string{fmt.Sprintf("[missing] %s line 4 (byte %d, number 6): lines 4 to 5, which should be", first, at(first, 4))}},
		"doubled": {func(tr tree) { tr[first] += tr[first][at(first, lines):] },
			[]string{fmt.Sprintf("[order] %s line %d (byte %d, number %d): line %d comes behind line %d", first, lines+1, len(whole[first]), lines, lines, lines)}},
		"file": {func(tr tree) { delete(tr, second) },
			[]string{"[missing] " + second + ": 1 of the ledger's files, from this one, are gone", "are missing"}},
		"end": {func(tr tree) { delete(tr, slices.Max(lineFiles(tr))) },
			[]string{"[missing] the lines at the end are missing", "head says 50"}},
		"head":   {func(tr tree) { delete(tr, headName) }, []string{"[head] head: the file head is gone"}},
		"behind": {func(tr tree) { tr[fileName(len(lineFiles(tr))+1)] = "" }, []string{"the file is empty"}},
		"link":   {func(tr tree) {}, []string{"is not a file"}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := maps.Clone(whole)
			c.edit(tr)
			writeTree(t, dir, whole, tr)
			if name == "link" {
				path := filepath.Join(dir, second)
				if err := errors.Join(os.Rename(path, path+".x"), os.Symlink(path+".x", path)); err != nil {
					t.Fatal(err)
				}
				defer os.Rename(path+".x", path)
			}
			for _, want := range c.want {
				mustFind(t, dir, want)
			}
			if name != "link" {
				writeTree(t, dir, tr, whole)
			}
		})
	}
	writeTree(t, dir, whole, tree{"x\x1b.txt": "x"})
	writeTree(t, dir, tree{}, whole)
	if r := mustVerify(t, dir, 50); r.NoteSum != 1 || strings.Contains(findings(r.Notes), "\x1b") {
		t.Errorf("a file of somebody else:\n%s", findings(r.Notes))
	}
}

// While daemons append, stop and start, the ledger is whole at any time.
func TestVerifyAlongsideADaemon(t *testing.T) {
	dir := testDir(t)
	closeLedger(t, open(t, dir, Options{}))
	ended := make(chan error, 1)
	go func() {
		for range rounds(t, 100) {
			l, err := Open(dir, testStore, Options{MaxFile: 5000, BootID: "boot-1"})
			for i := 0; err == nil && i < 100; i++ {
				_, err = l.Append(Event{Kind: KindExec})
			}
			if err == nil {
				err = l.Close()
			}
			if err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for last := uint64(0); ; {
		r := verify(t, dir)
		if !r.OK() || r.Lines < last {
			t.Errorf("%d lines after %d:\n%s", r.Lines, last, findings(r.Damage))
		}
		last = r.Lines
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			mustVerify(t, dir, uint64(100*rounds(t, 100)))
			return
		default:
		}
	}
}
