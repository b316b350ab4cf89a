package layers

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A hole over a base file is a record for each of its regions, all in one operation with the tree locked: nobody may ask for millions.
func TestHolesOverHugeBaseFilesAreRefused(t *testing.T) {
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	const size = 1 << 43
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "huge"), []byte("begins"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "huge"), size); err != nil {
		t.Skip(err)
	}
	s := newStore(t, dir)
	ino := s.ino("huge")
	if err := s.b.Fallocate(ino, punch, 3, size-4, false); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatalf("nearly all of it: %v", err)
	}
	begins := func(want string) {
		t.Helper()
		p := make([]byte, 6)
		if n, err := s.b.ReadAt(ino, p, 0); err != nil || string(p[:n]) != want {
			t.Errorf("it begins with %q, %v; want %q", p[:n], err, want)
		}
	}
	begins("begins")
	s.ok(s.b.Fallocate(ino, punch, 3, 100*regionSize, false))
	begins("beg\x00\x00\x00")
	s.ok(s.b.Fallocate(ino, punch, 1, size-1, false)) // up to the end: no record is needed
	begins("b\x00\x00\x00\x00\x00")
}
