package layers

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rewindfs/rewindfs/kv"
)

// Against a look at all versions, on lines with gaps of any size.
func TestNewest(t *testing.T) {
	db, err := kv.Open(t.TempDir(), kv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tree, object := &Tree{db: db}, uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		object += 2
		var b kv.Batch
		have := map[Layer]bool{}
		for range rapid.IntRange(0, 60).Draw(t, "versions") {
			l := Layer(rapid.IntRange(0, 80).Draw(t, "layer"))
			have[l] = true
			b.Put(kv.Inode(object, uint64(l)), fmt.Append(nil, l))
		}
		b.Put(kv.Inode(object+1, 3), nil) // a neighbour
		if err := db.Apply(&b); err != nil {
			t.Fatal(err)
		}
		var anc ancestry
		for hi := rapid.IntRange(0, 90).Draw(t, "top"); hi > 0; hi -= rapid.IntRange(2, 40).Draw(t, "gap") {
			lo := rapid.IntRange(max(1, hi-20), hi).Draw(t, "lo")
			anc = append(anc, interval{Layer(lo), Layer(hi)})
			hi = lo
		}
		want := "none"
		for l := Layer(80); want == "none"; l-- {
			if have[l] && anc.has(l) {
				want = fmt.Sprint(l)
			}
			if l == 0 {
				break
			}
		}
		got := "none"
		err := (&View{t: tree, anc: anc}).newest(kv.InodePrefix(object), func(l Layer, val []byte) error {
			if got != "none" || fmt.Sprint(l) != string(val) {
				t.Fatalf("called with layer %d and %q after %s", l, val, got)
			}
			got = string(val)
			return nil
		})
		if err != nil || got != want {
			t.Fatalf("in %v of %v: %s, %v; want %s", anc, have, got, err, want)
		}
	})
}
