package capture

import (
	"strings"
	"testing"
)

func TestCapture(t *testing.T) {
	var all strings.Builder
	for i := range 1000 {
		all.WriteString(string(rune('a' + i%26)))
	}
	text := all.String()
	for _, keep := range []int{0, 1, 2, 7, 100, 999, 1000, 1001, 5000} {
		for _, piece := range []int{1, 3, 49, 50, 51, 400, 1000} {
			c := New(keep)
			for rest := text; rest != ""; {
				n := min(piece, len(rest))
				c.write([]byte(rest[:n]))
				rest = rest[n:]
			}
			o := c.Output()
			half := keep / 2
			want := Output{Head: text[:min(half, 1000)]}
			if 2*half < len(text) {
				want.Tail, want.Dropped = text[1000-half:], int64(1000-2*half)
			} else {
				want.Tail = text[len(want.Head):]
			}
			if o != want {
				t.Fatalf("keep %d, pieces of %d: got %+v, want %+v", keep, piece, o, want)
			}
		}
	}
}
