package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenEvents has one of each kind of content.
func goldenEvents() []Event {
	return []Event{
		{Kind: KindMount, Session: "web", Branch: "main", Op: 1, Details: map[string]any{"base": "/home/u/web", "generation": 3, "pid": 4711}},
		{Kind: KindCheckpoint, Session: "web", Branch: "main", Checkpoint: "01JDW5Z0000000000000000001", Label: "stable", Layer: 1, Op: 2, Details: map[string]any{"changed_paths": 12, "conversation": map[string]any{"state": "missing"}}},
		{Kind: KindExec, Session: "web", Branch: "main", Details: map[string]any{"argv": []string{"sh", "-c", `echo "<a>" & echo 'b'`}, "exit_code": 1, "big": json.Number("12345678901234567890.50")}},
		{Kind: KindSkippedNoop},
		{Kind: KindRollback, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 7200)), Label: "übung\n\x1b[31m\u2028", Layer: 3, Op: 3},
		{Kind: KindUnmount, Session: "web"},
	}
}

// goldenLedger makes the ledger whose bytes are kept in testdata/v1.
func goldenLedger(t *testing.T, dir string) {
	t.Helper()
	l := open(t, dir, Options{MaxFile: 900})
	for _, e := range goldenEvents() {
		if _, err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	kill(t, l)
	name := fileName(l.cur)
	edit(t, dir, name, func(s string) string { return s + `{"v":1,"seq":7,"pr` })
	l = open(t, dir, Options{MaxFile: 900})
	appendN(t, l, 1)
	closeLedger(t, l)
}

func TestGoldenFiles(t *testing.T) {
	dir := testDir(t)
	goldenLedger(t, dir)
	golden := filepath.Join("testdata", "v1")
	if *update {
		if err := os.MkdirAll(golden, 0o755); err != nil {
			t.Fatal(err)
		}
		writeTree(t, golden, readTree(t, golden), readTree(t, dir))
	}
	if got, want := readTree(t, dir), readTree(t, golden); !reflect.DeepEqual(got, want) {
		t.Errorf("the form on the disk has changed: that needs a new version\n got: %q\nwant: %q", got, want)
	}
	// What is in the repository has to be readable for ever.
	rep := mustVerify(t, golden, 8)
	if rep.NoteSum != 1 || rep.Notes[0].Problem != Repaired {
		t.Errorf("notes:\n%s", findings(rep.Notes))
	}
	var text strings.Builder
	for _, r := range records(t, golden, Filter{}) {
		text.WriteString(Format(r, time.UTC) + "\n")
	}
	path := filepath.Join("testdata", "format.golden")
	if *update {
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || text.String() != string(want) {
		t.Errorf("%v\n got:\n%s\nwant:\n%s", err, text.String(), want)
	}
}

func TestRecordsComeBack(t *testing.T) {
	dir := testDir(t)
	goldenLedger(t, dir)
	got := records(t, dir, Filter{})
	for i, want := range goldenEvents() {
		r := got[i]
		if want.At.IsZero() {
			want.At = r.At
		}
		a, err := json.Marshal(want.Details)
		b, err2 := json.Marshal(r.Details)
		if err != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("details %s came back as %s", a, b)
		}
		same := r.Event
		same.Details, want.Details = nil, nil
		if !want.At.Equal(same.At) {
			t.Errorf("%v came back as %v", want.At, same.At)
		}
		same.At, want.At = time.Time{}, time.Time{}
		if !reflect.DeepEqual(same, want) {
			t.Errorf("%+v came back as %+v", want, same)
		}
		if !json.Valid(r.Raw) {
			t.Errorf("no JSON: %s", r.Raw)
		}
	}
}

func TestFormatIsSafeForTerminals(t *testing.T) {
	r := &Record{Event: Event{
		Kind: KindExec, Session: "a b\x1b]0;x\x07", Label: "x\ny\x9b1m\u202e", Details: map[string]any{"k\r": "v\x7f", "l": []any{"\x1b"}, "m": strings.Repeat("ü", 500), "n": ""},
	}, Repair: "x"}
	s := Format(r, time.UTC)
	for _, c := range s {
		if c < ' ' || c >= 0x7f && c < 0xa0 || c == 0x202e || c == 0xfffd {
			t.Errorf("%q goes to the terminal in %q", c, s)
		}
	}
	if len(s) > 500 || !strings.Contains(s, `n=""`) {
		t.Errorf("%d bytes: %s", len(s), s)
	}
}

func TestParseKind(t *testing.T) {
	for _, k := range Kinds() {
		if got, err := ParseKind(string(k)); got != k || err != nil || !wellFormed(k) {
			t.Errorf("%s: %s, %v", k, got, err)
		}
	}
	if _, err := ParseKind("checkpoints"); err == nil || !strings.Contains(err.Error(), "checkpoint,") {
		t.Errorf("an unknown kind: %v", err)
	}
}

func TestNewerVersions(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{})
	appendN(t, l, 2)
	head := l.head
	closeLedger(t, l)

	// A line of a newer version is checked as far as its links go, and said to be newer when it is read.
	line := `{"v":2,"seq":3,"prev":"` + head.Hash.String() + `","when":"tomorrow"}` + "\n"
	edit(t, dir, fileName(1), func(s string) string { return s + line })
	head.tip = tip{Head: Head{3, hashOf([]byte(line))}, file: 1, start: head.end, end: head.end + int64(len(line))}
	head.open = false
	if err := os.WriteFile(filepath.Join(dir, headName), head.encode(nil, genesis(testStore)), 0o600); err != nil {
		t.Fatal(err)
	}
	if rep := mustVerify(t, dir, 3); rep.Newer != 1 {
		t.Errorf("%+v", rep)
	}
	n := 0
	if err := Read(dir, Filter{}, func(*Record) error { n++; return nil }); !errors.Is(err, ErrNewer) || n != 2 {
		t.Errorf("read %d, %v", n, err)
	}

	// A newer head is refused, not taken for damage.
	fields := bytes.Replace(head.encode(nil, genesis(testStore)), []byte(`"v":1`), []byte(`"v":2`), 1)
	at := bytes.LastIndex(fields, []byte(sumKey))
	sum := headSum(fields[:at], genesis(testStore))
	copy(fields[at+len(sumKey):], []byte(Hash(append(sum[:], make([]byte, 16)...)).String())[:32])
	if err := os.WriteFile(filepath.Join(dir, headName), fields, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, testStore, Options{}); !errors.Is(err, ErrNewer) {
		t.Errorf("open: %v", err)
	}
	if _, err := Verify(dir, testStore); !errors.Is(err, ErrNewer) {
		t.Errorf("verify: %v", err)
	}
}

func TestHeads(t *testing.T) {
	h := Head{Seq: 103, Hash: hashOf([]byte("x"))}
	if got, err := ParseHead(h.String()); got != h || err != nil {
		t.Errorf("%v came back as %v, %v", h, got, err)
	}
	for _, s := range []string{"", "1", "1:", ":" + h.Hash.String(), "-1:" + h.Hash.String(), "1:" + strings.ToUpper(h.Hash.String()), h.String() + "0"} {
		if got, err := ParseHead(s); err == nil {
			t.Errorf("%q was read as %v", s, got)
		}
	}
	b, err := json.Marshal(Report{Head: h})
	var r Report
	if err != nil || json.Unmarshal(b, &r) != nil || r.Head != h || !strings.Contains(string(b), h.String()) {
		t.Errorf("%s, %v", b, err)
	}
	full := headRecord{
		tip: tip{Head: Head{1<<64 - 1, h.Hash}, file: maxFileNumber, start: 1<<63 - 1, end: 1<<63 - 1}, synced: 1<<64 - 1,
		op: 1<<64 - 1, open: true, boot: strings.Repeat("x", maxBoot),
	}
	b = full.encode(nil, Hash{})
	if got, err := decodeHead(b, Hash{}); err != nil || *got != full || len(b) != headSize {
		t.Errorf("%d bytes, %+v, %v", len(b), got, err)
	}
}

func FuzzLine(f *testing.F) {
	entries, err := filepath.Glob(filepath.Join("testdata", "v1", "*"+suffix))
	if err != nil || len(entries) == 0 {
		f.Fatal("no golden files", err)
	}
	for _, name := range entries {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		h, err := parseHeader(line)
		if err == nil && (h.seq == 0 || h.version < 1) {
			t.Fatalf("%q was taken for line %d", line, h.seq)
		}
		r, err := parseRecord(line)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Fatalf("%q: %v", line, err)
			}
			return
		}
		if h.seq != r.Seq || h.prev != r.Prev || !json.Valid(r.Raw) || strings.ContainsAny(Format(r, time.UTC), "\n\r\x1b") {
			t.Fatalf("%q: %+v", line, r)
		}
		// What was read can be written, and read again as the same.
		body, err := encodeBody(&r.Event)
		if errors.Is(err, ErrTooLong) {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		again, err := parseRecord(appendLine(nil, place{r.Seq, r.Prev, r.File}, r.At, r.Kind, r.Repair, body))
		if err != nil {
			t.Fatalf("%q was written as %q: %v", line, body, err)
		}
		r.Raw, again.Raw = nil, nil
		if len(r.Details) == 0 {
			r.Details = nil
		}
		if r.Details != nil && len(body) > maxLine-2*maxHeader {
			return // left out
		}
		if !reflect.DeepEqual(r, again) {
			t.Fatalf("%q: %+v came back as %+v", line, r, again)
		}
	})
}

func FuzzHead(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "v1", headName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		// With the sum made right, so that all behind it is reached.
		if at := bytes.LastIndex(b, []byte(sumKey)); at >= 0 && at <= headSize && len(b) >= at+len(sumKey)+32 {
			b = bytes.Clone(b)
			sum := headSum(b[:at], Hash{})
			copy(b[at+len(sumKey):], []byte(Hash(append(sum[:], make([]byte, 16)...)).String())[:32])
		}
		r, err := decodeHead(b, Hash{})
		if err == nil && !bytes.Equal(r.encode(nil, Hash{}), b) {
			t.Fatalf("%q was read as %+v", b, r)
		}
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			t.Fatal(err)
		}
	})
}
