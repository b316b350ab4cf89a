package layers

import (
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/kv"
)

// TestPurgeClearsAwayWhatIsLost: after damage, a repair and a purge of what is lost the store is clean.
func TestPurgeClearsAwayWhatIsLost(t *testing.T) {
	for _, d := range []struct{ class, has, path string }{
		{"x/", "", "big"}, {"n/", "", "big"}, {"d/", "/g\x00", "dir/g"}, {"b/", "", "big"},
	} {
		t.Run(d.class, func(t *testing.T) {
			s, first, second := damagedStore(t)
			big := s.ino("big")
			want := map[Layer][]string{first: s.lines(first), second: s.lines(second)}
			var hashes []string // of the chunks of big
			s.ok(s.db.Scan(kv.ExtentInoPrefix(uint64(big)), nil, func(k, v []byte) bool {
				xs, err := decodeExtents(0, v)
				s.ok(err)
				for _, x := range xs {
					hashes = append(hashes, string(x.hash[:]))
				}
				return true
			}))
			var b kv.Batch
			s.ok(s.db.Scan([]byte(d.class), nil, func(k, _ []byte) bool {
				mine := d.has != "" && strings.Contains(string(k), d.has)
				switch d.class {
				case "x/", "n/":
					mine = Ino(inoIn(k)) == big
				case "b/":
					mine = slices.Contains(hashes, string(k[2:]))
				}
				if mine && b.Len() == 0 {
					b.Put(slices.Clone(k), []byte{0xff})
				}
				return true
			}))
			s.ok(s.tree.Close())
			s.ok(s.db.Apply(&b))
			if found := s.check(CheckOptions{Repair: true}); len(found) == 0 {
				t.Fatal("nothing found")
			}
			s.open2(t)
			gone, _, err := s.tree.Purge([]string{d.path}, false)
			s.ok(err)
			if len(gone) == 0 || gone[0].Path != d.path {
				t.Fatalf("purged %+v", gone)
			}
			s.clean()
			for l, lines := range want {
				now := s.lines(l)
				for _, line := range lines {
					if p, _, _ := strings.Cut(line, " "); p != d.path && !slices.Contains(now, line) {
						t.Errorf("layer %d: %s is another one", l, p)
					}
				}
			}
		})
	}
}
