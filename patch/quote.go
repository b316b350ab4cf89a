package patch

import (
	"fmt"
	"strings"
)

// Quote writes a path as git does: between quotes, with escapes, when it has bytes that are no
// printable ASCII, a quote or a backslash.
func Quote(p string) string {
	plain := func(c byte) bool { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\' }
	odd := false
	for i := range len(p) {
		odd = odd || !plain(p[i])
	}
	if !odd {
		return p
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(p) {
		c := p[i]
		if plain(c) {
			b.WriteByte(c)
			continue
		}
		if k := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); k >= 0 {
			b.WriteByte('\\')
			b.WriteByte(`abtnvfr"\`[k])
			continue
		}
		fmt.Fprintf(&b, `\%03o`, c)
	}
	b.WriteByte('"')
	return b.String()
}

// inLine is Quote for a --- or +++ line, where a blank would end the name without a tab behind it.
func inLine(p string) string {
	q := Quote(p)
	if q == p && strings.ContainsRune(p, ' ') {
		return q + "\t"
	}
	return q
}
