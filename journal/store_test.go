package journal

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

var update = flag.Bool("update", false, "rewrite the golden records")

func goldenEntry() Entry {
	return Entry{
		ID: "01HF7YAT000000000000000000", Layer: 7, Parent: 3, Branch: "main", Label: "fix/login é",
		Message: "before the migration\n\"quoted\" <tag>", Metadata: map[string]string{"model": "m1", "b": "2"},
		Phase: "act", Turn: "turn-12", ToolCall: "call_9",
		CreatedAt:    time.Date(2026, 11, 29, 18, 1, 2, 345678901, time.UTC),
		ChangedPaths: 412, Auto: true, Conversation: NoConversation(),
	}
}

func goldenOp() Op {
	return Op{N: 9, Kind: OpUndo, Branch: "main", From: 12, To: 7, Open: 13, Steps: 2, Label: "stable", At: time.Date(2026, 11, 29, 18, 1, 2, 0, time.UTC)}
}

// goldenSame is of a movement that left a state as it was found: the base.
func goldenSame() Op {
	return Op{N: 10, Kind: OpRollback, Branch: "main", From: 13, To: 7, Open: 14, Untouched: true, Label: "stable", At: time.Date(2026, 11, 29, 18, 1, 3, 0, time.UTC)}
}

// The stored form is a contract with stores that exist: a difference means a new
// record version, not a new golden file.
func TestGolden(t *testing.T) {
	e, op, same := goldenEntry(), goldenOp(), goldenSame()
	eb, err := encodeEntry(&e)
	if err != nil {
		t.Fatal(err)
	}
	ob, err := encodeOp(&op)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := encodeOp(&same)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"entry.v1.json": eb, "op.v1.json": ob, "op_same.v1.json": sb} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, bytes.TrimSuffix(want, []byte("\n"))) {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
	back, err := decodeEntry(eb)
	if err != nil {
		t.Fatal(err)
	}
	again, err := encodeEntry(back)
	if err != nil || !bytes.Equal(again, eb) {
		t.Errorf("the entry came back as %s, %v", again, err)
	}
	for _, c := range []struct {
		b    []byte
		want Op
	}{{ob, op}, {sb, same}} {
		if got, err := decodeOp(c.b); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("the operation came back as %+v, %v; want %+v", got, err, c.want)
		}
	}
}

func TestNewerRecordIsRefused(t *testing.T) {
	if _, err := decodeEntry([]byte(`{"v":2,"id":"x","layer":1}`)); !errors.Is(err, ErrNewer) {
		t.Errorf("entry: %v", err)
	}
	if _, err := decodeOp([]byte(`{"v":2,"op":1}`)); !errors.Is(err, ErrNewer) {
		t.Errorf("operation: %v", err)
	}
	for _, s := range []string{"", "{}", "null", "[", `{"v":0}`} {
		if _, err := decodeEntry([]byte(s)); err == nil {
			t.Errorf("%q was decoded", s)
		}
	}
}

func openDB(t *testing.T, dir string) *kv.DB {
	t.Helper()
	db, err := kv.Open(dir, kv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestSurvivesReopen(t *testing.T) {
	dir := t.TempDir()
	db := openDB(t, dir)
	j, err := Open(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, label := range []string{"one", "", "three"} {
		b := &kv.Batch{}
		e, err := j.StageEntry(b, Entry{Layer: uint64(i + 1), Branch: "main", Label: label})
		if err != nil {
			t.Fatal(err)
		}
		op, err := j.StageOp(b, Op{Kind: OpCheckpoint, Branch: "main", From: e.Layer})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Apply(b); err != nil {
			t.Fatal(err)
		}
		j.Commit(&e, &op)
	}
	b := &kv.Batch{}
	op, err := j.StageOp(b, Op{Kind: OpRollback, Branch: "main", From: 4, To: 1, Open: 5})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Apply(b); err != nil {
		t.Fatal(err)
	}
	j.Commit(nil, &op)
	if _, err := j.StageEntry(&kv.Batch{}, Entry{Layer: 9, Label: "never applied"}); err != nil {
		t.Fatal(err)
	}
	want := j.List(nil)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	db = openDB(t, dir)
	defer db.Close()
	j, err = Open(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := j.List(nil)
	if len(got) != 3 {
		t.Fatalf("%d checkpoints came back", len(got))
	}
	for i := range got {
		if got[i].ID != want[i].ID || got[i].Label != want[i].Label || got[i].Layer != want[i].Layer || !got[i].CreatedAt.Equal(want[i].CreatedAt) {
			t.Errorf("checkpoint %d came back as %+v, was %+v", i, got[i], want[i])
		}
	}
	if ops := j.Ops(2); len(ops) != 2 || ops[0].N != 4 || ops[0].Kind != OpRollback || ops[1].N != 3 {
		t.Errorf("operations came back as %+v", ops)
	}
	if steps, err := j.Undo("main", 1); err != nil || steps[0].Back != 4 {
		t.Errorf("undo after a restart: %+v, %v", steps, err)
	}
	if _, err := j.Resolve("never applied", all); !errors.Is(err, ErrUnknownRef) {
		t.Errorf("what was not applied resolves: %v", err)
	}
}

func TestDamagedRecordStopsOpen(t *testing.T) {
	db := openDB(t, t.TempDir())
	defer db.Close()
	b := &kv.Batch{}
	b.Put(kv.Journal(3), []byte(`{"v":1,"id`))
	if err := db.Apply(b); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(db, nil); err == nil {
		t.Fatal("a damaged journal was opened")
	}
}

func TestBadEntries(t *testing.T) {
	for name, e := range map[string]Entry{
		"label":        {Label: "@x"},
		"message":      {Message: strings.Repeat("x", maxMessage+1)},
		"UTF-8":        {Message: "\xff"},
		"turn":         {Turn: strings.Repeat("x", maxID+1)},
		"empty key":    {Metadata: map[string]string{"": "x"}},
		"metadata":     {Metadata: map[string]string{"a": strings.Repeat("x", maxMetadata)}},
		"metadata sum": {Metadata: map[string]string{"a": strings.Repeat("x", maxMetadata/2), "b": strings.Repeat("x", maxMetadata/2)}},
	} {
		j := newJournal(nil)
		if _, err := j.StageEntry(nil, e); !errors.Is(err, ErrBadEntry) && !errors.Is(err, ErrBadLabel) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeEntry(f *testing.F) {
	e := goldenEntry()
	b, err := encodeEntry(&e)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEntry(b)
		if err != nil {
			return
		}
		if _, err := encodeEntry(e); err != nil && !strings.Contains(err.Error(), "year outside") {
			t.Fatal(err)
		}
	})
}
