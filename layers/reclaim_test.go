package layers

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/rewindfs/rewindfs/cas"
)

// noise is n bytes that no other seed gives.
func noise(seed uint64, n int) []byte {
	p := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = rng.Read(p)
	return p
}

func (s *store) used() int64 {
	s.t.Helper()
	n, err := s.chunks.DiskBytes()
	s.ok(err)
	return n
}

func (s *store) reclaim() int64 {
	s.t.Helper()
	n, err := s.tree.Reclaim()
	s.ok(err)
	return n
}

// remove deletes a file that nobody has open.
func (s *store) remove(p string) {
	s.t.Helper()
	ino := s.ino(p)
	s.unlink(p)
	for range 100 { // as often as the test has looked it up
		s.b.Forget(ino, 1)
	}
}

// What the open layer deleted, cut off or wrote over gives its bytes back; what any
// layer still names does not, and reads as before.
func TestReclaim(t *testing.T) {
	s := newStore(t, sampleBase(t))
	const mib = 1 << 20
	for i, p := range []string{"sealed", "deleted", "cut", "over", "twice", "taken back"} {
		s.write(p, string(noise(uint64(i), mib)))
		if p == "sealed" {
			s.seal()
		}
	}
	s.write("copy", "")
	if n, err := s.b.CopyRange(s.ino("twice"), 0, s.ino("copy"), 0, mib, false); n != mib || err != nil {
		t.Fatalf("copied %d bytes: %v", n, err)
	}
	s.ok(s.tree.cutAll())
	full := s.used()
	if n := s.reclaim(); n != 0 || s.used() != full {
		t.Errorf("%d bytes were freed of what is in use", n)
	}

	s.remove("sealed") // a checkpoint has it
	s.remove("twice")  // a copy names its chunks
	s.remove("deleted")
	size := int64(0)
	_, err := s.b.Setattr(s.ino("cut"), SetAttr{Size: &size})
	s.ok(err)
	_, err = s.b.Write(s.ino("over"), noise(100, mib), 0, WriteFlags{})
	s.ok(err)
	freed := s.reclaim()
	if freed < 3*mib-64<<10 || freed > 3*mib+64<<10 {
		t.Errorf("%d bytes were freed of 3 MiB", freed)
	}

	after := s.seal()
	s.write("undone", string(noise(7, mib)))
	s.ok(s.tree.cutAll())
	from := s.back(after).From
	if n := s.reclaim(); n > 64<<10 {
		t.Errorf("%d bytes of a layer were freed that redo leads back to", n)
	}
	s.back(from)
	for range 2 {
		for p, seed := range map[string]uint64{"copy": 4, "over": 100, "undone": 7, "taken back": 5} {
			got, err := readAll(&s.b.View, s.ino(p))
			if err != nil || got != string(noise(seed, mib)) {
				t.Errorf("%s is not what it was (%v)", p, err)
			}
		}
		v, err := s.tree.View(1)
		s.ok(err)
		a, err := v.Resolve("sealed")
		s.ok(err)
		if got, err := readAll(v, a.Ino); err != nil || got != string(noise(0, mib)) {
			t.Errorf("the checkpoint has lost its bytes (%v)", err)
		}
		v.Close()
		s.reopen()
	}
}

// Of an older file, what the open layer wrote to it goes with its last name, too.
func TestReclaimOfAnOlderFile(t *testing.T) {
	const mib = 1 << 20
	s := newStore(t, sampleBase(t))
	s.write("old", "short")
	at := s.seal()
	_, err := s.b.Write(s.ino("old"), noise(1, mib), 0, WriteFlags{})
	s.ok(err)
	s.remove("old")
	if n := s.reclaim(); n < mib-8<<10 {
		t.Errorf("%d bytes were freed of 1 MiB", n)
	}
	s.back(at)
	if got, err := readAll(&s.b.View, s.ino("old")); err != nil || got != "short" {
		t.Errorf("after the rollback: %q, %v", got, err)
	}
}

// A file without a name keeps its bytes as long as it is open.
func TestReclaimSparesOpenFiles(t *testing.T) {
	s := newStore(t, sampleBase(t))
	want := noise(1, 300_000)
	s.write("f", string(want))
	ino := s.ino("f")
	s.ok(s.tree.cutAll())
	s.unlink("f")
	s.reclaim()
	got := make([]byte, len(want))
	if n, err := s.b.ReadAt(ino, got, 0); n != len(want) || err != nil || !bytes.Equal(got, want) {
		t.Errorf("an open file without a name: %d bytes, %v", n, err)
	}
}

// Bytes that were stored before a sweep and get their name after it are stored again.
func TestSweepBetweenStoringAndNaming(t *testing.T) {
	s := newStore(t, sampleBase(t))
	p := noise(1, slotSize)
	s.write("f", "")
	ino := s.ino("f")
	direct, _ := carve(p, 0, directBytes)
	st, err := s.tree.store(direct)
	s.ok(err)
	s.reclaim()
	if _, err := s.b.write(ino, p, 0, WriteFlags{}, st, nil); !errors.Is(err, errVoid) {
		t.Errorf("naming what was swept away: %v", err)
	}
	if n, err := s.b.Write(ino, p, 0, WriteFlags{}); n != len(p) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	if got, err := readAll(&s.b.View, ino); err != nil || got != string(p) {
		t.Errorf("the bytes are not there (%v)", err)
	}
}

// A chunk that gets a name while the others are looked through is not swept away.
func TestReclaimSeesNamesThatComeMeanwhile(t *testing.T) {
	s := newStore(t, sampleBase(t))
	p := noise(1, slotSize)
	s.write("f", string(p))
	s.ok(s.tree.cutAll())
	s.tree.mu.Lock()
	s.tree.named = map[cas.Hash]struct{}{}
	s.tree.mu.Unlock()
	g, err := s.tree.chunks.Unneeded(nameSet{}.has) // as if f had not been there when it was looked for
	s.ok(err)
	s.write("g", "")
	_, err = s.b.CopyRange(s.ino("f"), 0, s.ino("g"), 0, slotSize, false)
	s.ok(err)
	n, err := g.Drop(s.tree.named)
	s.ok(err)
	_, err = g.Free()
	s.ok(err)
	if got, err := readAll(&s.b.View, s.ino("g")); err != nil || got != string(p) {
		t.Errorf("a chunk named meanwhile was swept away (%v), with %d others", err, n)
	}
}

// With nothing to gain, a full disk costs no search.
func TestMakeRoomOnlyWhenWorthIt(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.reclaim()
	sweeps := s.chunks.Sweeps()
	s.write("f", string(noise(1, 2<<20)))
	if s.tree.MakeRoom() || s.chunks.Sweeps() != sweeps {
		t.Error("room was looked for though nothing was deleted")
	}
	s.remove("f")
	if !s.tree.MakeRoom() || s.chunks.Sweeps() == sweeps {
		t.Error("no room was made of what was deleted")
	}
}
