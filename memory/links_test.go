package memory

import (
	"errors"
	"strings"
	"testing"
)

// Histories go link by link into another store, what they share once.
func TestLinksIntoAnotherStore(t *testing.T) {
	from, _ := openT(t, t.TempDir())
	to, _ := openT(t, t.TempDir())
	large := `"` + strings.Repeat("x", batchBytes+partBytes/2) + `"`
	short, long := history(`{"a": 1}`, `{"b":2}`), history(`{"a": 1}`, `{"b":2}`, large, `{"d":4}`)
	sent := map[[32]byte]bool{}
	n := 0
	send := func(ref Ref) {
		t.Helper()
		links, err := from.Since(ref, func(d [32]byte) bool { return sent[d] })
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			m, err := from.Message(l)
			if err != nil {
				t.Fatal(err)
			}
			d, err := to.PutLink(l.Before, l.Index, m)
			if err != nil || d != l.Digest {
				t.Fatalf("link %d is %x, %v; want %x", l.Index, d, err, l.Digest)
			}
			sent[d] = true
			n++
		}
	}
	a, b := put(t, from, short), put(t, from, long)
	send(a)
	send(b)
	send(b)
	send(put(t, from, history()))
	check(t, to, a, short)
	check(t, to, b, long)
	if n != 4 {
		t.Errorf("%d links were sent, want 4", n)
	}

	for what, err := range map[string]error{
		"a first message behind another":   second(to.PutLink([32]byte{1}, 0, []byte(`1`))),
		"a message behind nothing":         second(to.PutLink([32]byte{}, 1, []byte(`1`))),
		"a message behind what is no link": second(to.PutLink([32]byte{1}, 1, []byte(`1`))),
		"no JSON":                          second(to.PutLink([32]byte{}, 0, []byte(`{`))),
	} {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second(_ [32]byte, err error) error { return err }
