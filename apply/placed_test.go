package apply

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/layers"
)

func samplePlaced() *placed {
	m := func(n int64) mark {
		at := layers.Time{Sec: -n, Nsec: 999_999_999}
		return mark{ino: layers.Ino(1 << 40), mode: 0o100644, uid: 1000, gid: 100, size: n << 33, mtime: at, ctime: layers.Time{Sec: n}, btime: at}
	}
	return &placed{n: 7, branch: "main", layer: 1 << 33, gen: 3, putBack: true, host: m(1), want: m(2), sum: []byte("0123456789abcdef"), xattrs: []byte("x")}
}

// TestPlacedGolden: a difference is a change of the on-disk format. REWIND_GOLDEN=1 writes the file.
func TestPlacedGolden(t *testing.T) {
	long := strings.Repeat("long/", 300) + "x"
	var got strings.Builder
	for _, c := range []struct {
		path string
		r    *placed
	}{{"a/b", samplePlaced()}, {"gone", &placed{n: 7, none: true, branch: "b", layer: 2}}, {long, samplePlaced()}} {
		v := c.r.encode(c.path)
		fmt.Fprintf(&got, "%s\n", hex.EncodeToString(v))
		key := c.path
		if c.path == long {
			key = "/hash"
		}
		back, path, err := decodePlaced(7, key, v)
		if err != nil || path != c.path || fmt.Sprint(*back) != fmt.Sprint(*c.r) {
			t.Errorf("%.20s: %+v became %+v, %q: %v", c.path, c.r, back, path, err)
		}
		for n := range v {
			if _, _, err := decodePlaced(7, key, v[:n]); err == nil {
				t.Errorf("%.20s: cut off at %d it is still taken", c.path, n)
			}
		}
	}
	const file = "testdata/placed.golden"
	if os.Getenv("REWIND_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != got.String() {
		t.Errorf("the format has changed (%v):\n%s", err, got.String())
	}
}

func FuzzPlaced(f *testing.F) {
	f.Add(samplePlaced().encode("a"))
	f.Add((&placed{none: true}).encode("a"))
	f.Fuzz(func(t *testing.T, v []byte) {
		r, path, err := decodePlaced(1, "a", v)
		if err != nil {
			return
		}
		if _, _, err := decodePlaced(1, "a", r.encode(path)); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	})
}
