package memory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/memory/convo"
)

func openT(t testing.TB, dir string) (*Store, *kv.DB) {
	t.Helper()
	db, err := kv.Open(filepath.Join(dir, "kv"), kv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s, err := Open(db)
	if err != nil {
		t.Fatal(err)
	}
	return s, db
}

func history(items ...string) convo.History {
	h := convo.History{Format: convo.OpenAIChat}
	for _, it := range items {
		h.Items = append(h.Items, json.RawMessage(it))
	}
	return h
}

func put(t testing.TB, s *Store, h convo.History) Ref {
	t.Helper()
	ref, err := s.Put(h)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func check(t testing.TB, s *Store, ref Ref, want convo.History) {
	t.Helper()
	got, err := s.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	if got.Format != want.Format || got.Lines != want.Lines || len(got.Items) != len(want.Items) {
		t.Fatalf("%s history of %d messages, want %s of %d", got.Format, len(got.Items), want.Format, len(want.Items))
	}
	for i := range want.Items {
		if !bytes.Equal(got.Items[i], want.Items[i]) {
			t.Fatalf("message %d is %.80q, want %.80q", i, got.Items[i], want.Items[i])
		}
	}
}

// records counts the messages and the links in the store.
func records(t testing.TB, db *kv.DB) (messages, links int) {
	t.Helper()
	err := db.Scan([]byte("v/"), nil, func(k, _ []byte) bool {
		if k[2] == 'c' {
			links++
		} else if bytes.HasSuffix(k, []byte{0, 0, 0, 0}) {
			messages++
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return messages, links
}

// Any bytes come back as they were put, after a restart, too.
func TestPutGet(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir)
	long := `{"role":"tool","content":"` + strings.Repeat("x", 600<<10) + `"}`
	huge := make([]byte, 9<<20)
	for i := range huge {
		huge[i] = "abcdefgh"[rand.IntN(8)]
	}
	hs := []convo.History{
		history(),
		history(`{"a": 1.0e+2, "é":"\u00e9"}`, ` {"b":123456789012345678901234567890}`, `null`, ``),
		history(long, `{}`, long),
		history(`{"role":"tool","content":"`+string(huge)+`"}`, `{}`),
		{Format: convo.ClaudeCode, Lines: true, Items: []json.RawMessage{json.RawMessage(`{"x":1}`)}},
	}
	var refs []Ref
	for _, h := range hs {
		refs = append(refs, put(t, s, h))
	}
	for range 2 {
		for i, ref := range refs {
			check(t, s, ref, hs[i])
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		s, db = openT(t, dir)
	}
}

// A history that grows stores each message once; one that was edited shares its start.
func TestEachMessageOnce(t *testing.T) {
	s, db := openT(t, t.TempDir())
	var items []string
	for i := range 5000 {
		items = append(items, fmt.Sprintf(`{"role":"user","content":"message %d"}`, i))
	}
	for n := 4900; n <= 5000; n++ {
		check(t, s, put(t, s, history(items[:n]...)), history(items[:n]...))
	}
	if m, l := records(t, db); m != 5000 || l != 5000 {
		t.Errorf("%d messages and %d links are stored of 5,000", m, l)
	}
	edited := append([]string{}, items...)
	edited[4990] = `{"role":"user","content":"another"}`
	check(t, s, put(t, s, history(edited...)), history(edited...))
	if m, l := records(t, db); m != 5001 || l != 5010 {
		t.Errorf("after an edit near the end %d messages and %d links are stored", m, l)
	}
}

// A Put that fails in the middle of a long history leaves nothing that is wrong.
func TestPutThatFails(t *testing.T) {
	var left int
	fail := errors.New("no")
	db, err := kv.Open(t.TempDir(), kv.Options{Fault: func(step string) error {
		if step != "log.write" {
			return nil
		}
		if left--; left < 0 {
			return fail
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	left = 1 << 30
	s, err := Open(db)
	if err != nil {
		t.Fatal(err)
	}
	var items []string
	for i := range 12 {
		items = append(items, fmt.Sprintf(`{"n":%d,"c":"%s"}`, i, strings.Repeat("y", 1<<20)))
	}
	items = append(items, strings.Repeat(" ", 5<<20)+"1")
	for n := range 6 {
		left = n
		if _, err := s.Put(history(items...)); err != nil && !errors.Is(err, fail) {
			t.Fatalf("with %d writes: %v", n, err)
		}
		left = 1 << 30
		check(t, s, put(t, s, history(items[:2*n]...)), history(items[:2*n]...))
	}
	check(t, s, put(t, s, history(items...)), history(items...))
}

// What the disk changed is an error, never another conversation.
func TestDamage(t *testing.T) {
	s, db := openT(t, t.TempDir())
	ref := put(t, s, history(`{"a":1}`, `{"b":2}`, `{"c":3}`))
	keys := [][]byte{}
	err := db.Scan([]byte("v/"), nil, func(k, _ []byte) bool {
		keys = append(keys, bytes.Clone(k))
		return true
	})
	if err != nil || len(keys) != 6 {
		t.Fatalf("%d records, %v", len(keys), err)
	}
	for _, k := range keys {
		old, _, err := db.Get(k)
		if err != nil {
			t.Fatal(err)
		}
		old = bytes.Clone(old)
		for i := -1; i <= len(old); i++ {
			var b kv.Batch
			switch {
			case i < 0:
				b.Delete(k)
			case i == len(old):
				b.Put(k, append(bytes.Clone(old), 7))
			default:
				bad := bytes.Clone(old)
				bad[i] ^= 1
				b.Put(k, bad)
			}
			if err := db.Apply(&b); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Get(ref); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("record %q changed at %d: %v", k, i, err)
			}
		}
		var b kv.Batch
		b.Put(k, old)
		if err := db.Apply(&b); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []Ref{
		{Messages: 2, Digest: ref.Digest}, {Messages: 4, Digest: ref.Digest}, {Messages: 3, Digest: ref.Digest[2:]}, {Messages: 3, Digest: "x"},
	} {
		if _, err := s.Get(bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// The live conversations move with the batch, all together, and survive.
func TestLive(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir)
	one, two := put(t, s, history(`1`)), put(t, s, history(`1`, `2`))
	set := func(branch string, now Threads) {
		t.Helper()
		var b kv.Batch
		commit, err := s.StageLive(&b, branch, now)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Apply(&b); err != nil {
			t.Fatal(err)
		}
		commit()
	}
	set("main", Threads{MainThread: one, "sub\xff": two})
	set("other", Threads{MainThread: two})
	set("main", Threads{MainThread: two, "third": one})
	var forgotten kv.Batch
	if _, err := s.StageLive(&forgotten, "main", nil); err != nil || forgotten.Len() != 2 {
		t.Errorf("clearing two threads takes %d records, %v", forgotten.Len(), err)
	}
	for range 2 {
		if got := s.Live("main"); !maps.Equal(got, Threads{MainThread: two, "third": one}) {
			t.Errorf("main: %v", got)
		}
		if got := s.Live("other"); !maps.Equal(got, Threads{MainThread: two}) {
			t.Errorf("other: %v", got)
		}
		if s.Live("none") != nil {
			t.Error("a branch without a conversation has one")
		}
		db.Close()
		s, db = openT(t, dir)
	}
}

// BenchmarkGrowByOne puts a history of 5,000 messages that is one longer than the last.
func BenchmarkGrowByOne(b *testing.B) {
	s, _ := openT(b, b.TempDir())
	h := history()
	for i := range 5000 {
		h.Items = append(h.Items, json.RawMessage(fmt.Sprintf(`{"role":"user","content":"message %d"}`, i)))
	}
	put(b, s, h)
	n := 0
	for b.Loop() {
		n++
		h.Items = append(h.Items, json.RawMessage(fmt.Sprintf(`{"role":"user","content":"more %d"}`, n)))
		put(b, s, h)
	}
}
