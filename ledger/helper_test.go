package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const testStore = "00112233445566778899aabbccddeeff"

// testTime is a clock that moves 1.000000001 s with each look.
func testTime() func() time.Time {
	t := time.Date(2026, 11, 29, 14, 3, 22, 123456789, time.UTC)
	return func() time.Time {
		t = t.Add(time.Second + time.Nanosecond)
		return t
	}
}

func testDir(t testing.TB) string {
	t.Helper()
	// In memory if there is such a place: the property tests open and close thousands of ledgers.
	dir, err := os.MkdirTemp("/dev/shm", "ledger-")
	if err != nil {
		return filepath.Join(t.TempDir(), "ledger")
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "ledger")
}

func open(t testing.TB, dir string, o Options) *Ledger {
	t.Helper()
	if o.BootID == "" {
		o.BootID = "boot-1"
	}
	if o.Now == nil {
		o.Now = testTime()
	}
	l, err := Open(dir, testStore, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

func appendN(t testing.TB, l *Ledger, n int) {
	t.Helper()
	for range n {
		if _, err := l.Append(Event{Kind: KindExec, Session: "s", Branch: "main", Details: map[string]any{"command": "make test"}}); err != nil {
			t.Fatalf("append: %v", err)
		}
	}
}

func closeLedger(t testing.TB, l *Ledger) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// kill ends l as SIGKILL would: nothing more is written.
func kill(t testing.TB, l *Ledger) {
	t.Helper()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.closed = true
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, dir string, kept ...Head) Report {
	t.Helper()
	r, err := Verify(dir, testStore, kept...)
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	return r
}

// mustVerify fails unless the ledger is whole and has so many lines.
func mustVerify(t testing.TB, dir string, lines uint64, kept ...Head) Report {
	t.Helper()
	r := verify(t, dir, kept...)
	if !r.OK() || r.Lines != lines {
		t.Fatalf("verify: %d lines (want %d), damage:\n%s", r.Lines, lines, findings(r.Damage))
	}
	return r
}

// mustFind fails unless Verify finds damage whose text has part in it.
func mustFind(t testing.TB, dir, part string, kept ...Head) Report {
	t.Helper()
	r := verify(t, dir, kept...)
	if r.OK() || !strings.Contains(findings(r.Damage), part) {
		t.Fatalf("verify should have said %q; damage:\n%s", part, findings(r.Damage))
	}
	return r
}

func findings(fs []Finding) string {
	var b strings.Builder
	for _, f := range fs {
		fmt.Fprintf(&b, "  [%s] %s\n", f.Problem, f)
	}
	return b.String()
}

func records(t testing.TB, dir string, f Filter) []*Record {
	t.Helper()
	var out []*Record
	if err := Read(dir, f, func(r *Record) error { out = append(out, r); return nil }); err != nil {
		t.Fatalf("read: %v", err)
	}
	return out
}

// tree is the content of a ledger's directory by name.
type tree map[string]string

func readTree(t testing.TB, dir string) tree {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	tr := tree{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		tr[e.Name()] = string(b)
	}
	return tr
}

// writeTree makes dir hold tr instead of was, touching only what differs.
func writeTree(t testing.TB, dir string, was, tr tree) {
	t.Helper()
	for name := range was {
		if _, ok := tr[name]; !ok {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, content := range tr {
		if old, ok := was[name]; !ok || old != content {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// edit changes one file of the ledger.
func edit(t testing.TB, dir, name string, f func(string) string) {
	t.Helper()
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(f(string(b))), 0o600); err != nil {
		t.Fatal(err)
	}
}
