package fstree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func scan(t *testing.T, dir string) *Tree {
	t.Helper()
	tr, err := Scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestCopyIsExact(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	if err := MakeBase(src); err != nil {
		t.Fatal(err)
	}
	if err := MakeDeep(src); err != nil {
		t.Fatal(err)
	}
	if err := Copy(src, dst); err != nil {
		t.Fatal(err)
	}
	want, got := scan(t, src), scan(t, dst)
	delete(want.Entries, ".") // MakeDeep moved its times
	delete(got.Entries, ".")
	if len(want.Entries) < 60 {
		t.Fatalf("the base has only %d objects", len(want.Entries))
	}
	for _, d := range Diff(want, got, Fields{Nlink: true, Mtime: true}, "source", "copy") {
		t.Error(d)
	}
}

func TestDiffSeesEachField(t *testing.T) {
	change := map[string]func(p string) error{
		"content": func(p string) error { return os.WriteFile(p, Bytes(7, 100), 0o644) },
		"size":    func(p string) error { return os.Truncate(p, 50) },
		"mode":    func(p string) error { return os.Chmod(p, 0o600) },
		"links":   func(p string) error { return os.Link(p, p+"2") },
		"nlink":   func(p string) error { return os.Link(p, p+"2") },
		"xattrs":  func(p string) error { return unix.Setxattr(p, "user.x", []byte("y"), 0) },
		"mtime":   func(p string) error { return os.Chtimes(p, time.Time{}, time.Unix(5, 5)) },
		"only in": os.Remove,
	}
	for want, f := range change {
		dir := t.TempDir()
		p := filepath.Join(dir, "file")
		if err := os.WriteFile(p, Bytes(6, 100), 0o644); err != nil {
			t.Fatal(err)
		}
		before := scan(t, dir)
		if d := Diff(before, scan(t, dir), Exact, "a", "b"); len(d) != 0 {
			t.Errorf("nothing changed, but: %v", d)
		}
		if err := f(p); err != nil {
			t.Fatal(err)
		}
		if d := strings.Join(Diff(before, scan(t, dir), Exact, "a", "b"), "\n"); !strings.Contains(d, want) {
			t.Errorf("a changed %s is not seen; diff:\n%s", want, d)
		}
	}
}
