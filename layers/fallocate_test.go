package layers

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
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

// A damaged record of written bytes makes all of a file lost, in one record when the file has too many regions for one each.
func TestRepairOfAHugeSparseFileEnds(t *testing.T) {
	s := newStore(t, kernelBase(t))
	s.write("far", "near")
	before := s.seal()
	ino := s.ino("far")
	_, err := s.b.Write(ino, []byte("far away"), 1<<60, WriteFlags{})
	s.ok(err)
	s.ok(s.tree.Close())
	var b kv.Batch
	b.Put(kv.Pending(uint64(ino), uint64(s.b.layer), 1), []byte{0xff})
	s.ok(s.db.Apply(&b))
	if found := s.check(CheckOptions{Repair: true}); len(found) != 1 || !found[0].Lost || !found[0].Fixed {
		t.Fatalf("found %+v", found)
	}
	s.open2(t)
	if a, err := s.b.Resolve("far"); err == nil {
		if _, err = s.b.ReadAt(a.Ino, make([]byte, 8), 1<<60); !errors.Is(err, unix.EIO) && !errors.Is(err, ErrCorrupt) {
			t.Errorf("reading it: %v", err)
		}
	} else if !errors.Is(err, ErrCorrupt) {
		t.Errorf("looking at it: %v", err)
	}
	v, err := s.tree.View(before)
	s.ok(err)
	defer v.Close()
	a, err := v.Resolve("far")
	s.ok(err)
	p := make([]byte, 4)
	if _, err := v.ReadAt(a.Ino, p, 0); err != nil || string(p) != "near" {
		t.Errorf("before: %q, %v", p, err)
	}
	if found := s.check(CheckOptions{Live: s.tree}); len(found) != 1 || !found[0].Lost {
		t.Errorf("afterwards: %+v", found)
	}
}
