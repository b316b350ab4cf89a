package layers

import (
	"fmt"
	"testing"
)

// TestReopenOverManyNames: what a mount has to find out about the open layer is no work for each name that
// goes through all names of its directory. That took minutes for these, and no clock is needed to notice.
func TestReopenOverManyNames(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.mkdir("big")
	const n = 50_000
	for i := range n {
		s.write(fmt.Sprintf("big/%d", i), "")
	}
	s.reopen()
	if got := s.b.Changed(); got != n+1 {
		t.Errorf("%d paths changed, want %d", got, n+1)
	}
	s.seal()
	// Few of many: no more of the directory is read than that is worth.
	s.write("big/7", "changed")
	s.unlink("big/8")
	s.rename("big/9", "moved")
	s.write("big/new", "")
	before := s.b.Changed()
	s.reopen()
	if got := s.b.Changed(); got != before || got != 5 {
		t.Errorf("%d paths changed after the store was opened again, %d before, want 5", got, before)
	}
}
