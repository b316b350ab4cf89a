package layers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

func (s *store) setSize(p string, size int64) {
	s.t.Helper()
	ino := s.ino(p)
	defer s.b.Forget(ino, 1)
	_, err := s.b.Setattr(ino, SetAttr{Size: &size})
	s.ok(err)
}

func (s *store) put(p, content string, off int64) {
	s.t.Helper()
	ino := s.ino(p)
	defer s.b.Forget(ino, 1)
	_, err := s.b.Write(ino, []byte(content), off, WriteFlags{})
	s.ok(err)
}

// A text that once was very large is merged at the cost of what it has, not of what it was.
func TestMergeOfWhatWasHuge(t *testing.T) {
	const far = 1 << 36 // 65,536 regions
	s := newStore(t, t.TempDir())
	s.write("f", "a\nb\nc\nd\ne\n")
	x := s.fork("x")
	s.setSize("f", far)
	s.put("f", "far", far-3)
	s.put("f", "between", far/2)
	s.seal()
	s.setSize("f", 10)
	s.put("f", "A", 0)
	x.put("f", "E", 8)
	s.mergeClean(x)
	s.want("f", "A\nb\nc\nd\nE\n")
	s.setSize("f", far)
	s.put("f", "!", far-1)
	ino := s.ino("f")
	defer s.b.Forget(ino, 1)
	got := make([]byte, 8)
	for _, at := range []int64{far/2 - 1, far - 9} {
		_, err := s.b.ReadAt(ino, got, at)
		s.ok(err)
		if strings.Trim(string(got), "\x00") != "" {
			t.Errorf("what it was shows through at %d: %q", at, got)
		}
	}
	n := 0
	s.ok(s.tree.db.Scan(kv.ExtentInoPrefix(uint64(ino)), nil, func(_, _ []byte) bool { n++; return true }))
	if n > 20 {
		t.Errorf("the file has %d records of extents", n)
	}
}

// Files are compared at the cost of their data: holes of exbibytes are none.
func TestMergeOfHoles(t *testing.T) {
	const size = maxSize
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, tc := range []struct {
		ours, theirs string
		conflicts    int
	}{{"same", "same", 0}, {"same", "sAme", 1}} {
		s := newStore(t, t.TempDir())
		x := s.fork("x")
		for i, b := range []*store{s, x} {
			b.write("huge", "begin")
			b.setSize("huge", size)
			b.put("huge", []string{tc.ours, tc.theirs}[i], size-4)
		}
		x.put("huge", "\x00", size/2) // other pieces, the same bytes
		for _, b := range []*store{s, x} {
			ino := b.ino("huge")
			when := Time{Sec: 1}
			_, err := b.b.Setattr(ino, SetAttr{Mtime: &when})
			b.ok(err)
			b.b.Forget(ino, 1)
			b.seal()
		}
		m, err := s.b.PlanMerge(ctx, x.b.Parent())
		s.ok(err)
		if len(m.Conflicts) != tc.conflicts {
			t.Errorf("%q and %q: %v", tc.ours, tc.theirs, m.Conflicts)
		}
		m.Close()
	}
	s := newStore(t, t.TempDir())
	x := s.fork("x")
	x.write("f", "f")
	x.seal()
	cancel()
	if _, err := s.b.PlanMerge(ctx, x.b.Parent()); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}
