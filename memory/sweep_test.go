package memory

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

// forgetFresh has the store take all that was put for old.
func (s *Store) forgetFresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.fresh {
		s.fresh[d] = time.Now().Add(-2 * spared)
	}
}

func TestSweep(t *testing.T) {
	s, db := openT(t, t.TempDir())
	long := `"` + strings.Repeat("x", 3*partBytes) + `"`
	shared := history(`"a"`, `"b"`)
	kept := history(`"a"`, `"b"`, `"kept"`, long)
	live := history(`"a"`, `"live"`)
	gone := history(`"a"`, `"b"`, `"gone"`, `"`+strings.Repeat("y", 3*partBytes)+`"`)
	put(t, s, shared)
	keptRef, goneRef, liveRef := put(t, s, kept), put(t, s, gone), put(t, s, live)
	var b kv.Batch
	commit, err := s.StageLive(&b, "main", Threads{MainThread: liveRef})
	if err == nil {
		err = db.Apply(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	commit()
	if n, err := s.Sweep([]Ref{keptRef}); n != 0 || err != nil {
		t.Fatalf("what was just put: %d records swept, %v", n, err)
	}
	s.forgetFresh()
	n, err := s.Sweep([]Ref{keptRef})
	if err != nil || n != 2+1+4 { // two links, a small message, a large one of four parts
		t.Fatalf("swept %d records, %v", n, err)
	}
	check(t, s, keptRef, kept)
	check(t, s, liveRef, live)
	if _, err := s.Get(goneRef); err == nil {
		t.Fatal("a history that nobody names is still there")
	}
	if again := put(t, s, gone); again != goneRef {
		t.Fatalf("put again it is %v", again)
	}
	check(t, s, goneRef, gone)
	// A read history is spared: a rollback may be about to make it live.
	s.forgetFresh()
	check(t, s, goneRef, gone)
	if n, err := s.Sweep([]Ref{keptRef}); n != 0 || err != nil {
		t.Fatalf("what was just read: %d records swept, %v", n, err)
	}
}

// TestSweepBesideAnImport: links that come one by one stay until something names the last.
func TestSweepBesideAnImport(t *testing.T) {
	s, _ := openT(t, t.TempDir())
	var at [32]byte
	for i := range 20 {
		var err error
		if at, err = s.PutLink(at, i, fmt.Appendf(nil, `"message %d"`, i)); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Sweep(nil); n != 0 || err != nil {
			t.Fatalf("swept %d records, %v", n, err)
		}
	}
	s.forgetFresh()
	if n, err := s.Sweep(nil); n != 40 || err != nil {
		t.Fatalf("swept %d records of an import that was refused, %v", n, err)
	}
}

// TestSweepBesidePuts: a Put that builds on links which nobody names is whole all the same.
func TestSweepBesidePuts(t *testing.T) {
	s, _ := openT(t, t.TempDir())
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.Sweep(nil); err != nil {
				t.Error(err)
			}
		}
	})
	var items []string
	for i := range 300 {
		if i%10 == 0 {
			s.forgetFresh() // what the next one builds on may go at any moment
		}
		items = append(items, fmt.Sprintf(`"message %d"`, i))
		ref := put(t, s, history(items...))
		if err := NewChecker(s.db).History(ref); err != nil {
			t.Fatalf("a history of %d messages that was just put: %v", i+1, err)
		}
	}
	var before [32]byte
	for i := range 100 {
		d, err := s.PutLink(before, i, fmt.Appendf(nil, `"link %d"`, i))
		if err != nil {
			t.Fatalf("link %d of an archive, beside sweeps: %v", i, err)
		}
		before = d
	}
	close(stop)
	wg.Wait()
}
