package layers

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// Bytes at the far end of the largest file are kept like any others, when they are cut and when others are; behind it is EFBIG.
func TestFarthestBytes(t *testing.T) {
	s := newStore(t, t.TempDir())
	s.write("f", "begin")
	for _, at := range []int64{maxSize - 4, 1 << 62, 1<<62 - 2} {
		s.put("f", "here", at)
	}
	s.put("f", "y", slotSize-1) // which ends a slot, and has all be cut
	s.seal()
	for _, at := range []int64{maxSize - 4, 1<<62 - 2} {
		if got := s.bytes("f", at, 4); got != "here" {
			t.Errorf("at %d: %q", at, got)
		}
	}
	ino := s.ino("f")
	defer s.b.Forget(ino, 1)
	over := int64(maxSize + 1)
	_, written := s.b.Write(ino, []byte("xx"), maxSize-1, WriteFlags{})
	_, grown := s.b.Setattr(ino, SetAttr{Size: &over})
	s.write("g", "from")
	from := s.ino("g")
	defer s.b.Forget(from, 1)
	_, copied := s.b.CopyRange(from, 0, ino, maxSize-2, 4, false)
	for what, err := range map[string]error{"write": written, "truncate": grown, "allocate": s.b.Fallocate(ino, 0, maxSize, 1, false), "copy": copied} {
		if !errors.Is(err, unix.EFBIG) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func (s *store) bytes(p string, off int64, n int) string {
	s.t.Helper()
	ino := s.ino(p)
	defer s.b.Forget(ino, 1)
	b := make([]byte, n)
	_, err := s.b.ReadAt(ino, b, off)
	s.ok(err)
	return string(b)
}
