package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxShown bounds how much of one detail Format shows, in characters.
const maxShown = 100

// Format is one line for people, without a newline, with times in loc. It has no control
// characters, whatever is in r, so that it may go to a terminal.
func Format(r *Record, loc *time.Location) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  #%-5d %-12s", r.At.In(loc).Format("2006-01-02 15:04:05"), r.Seq, r.Kind)
	space := "  "
	put := func(s string) {
		b.WriteString(space)
		b.WriteString(s)
		space = " "
	}
	switch {
	case r.Label != "":
		put(word(r.Label))
	case r.Checkpoint != "":
		put(word(r.Checkpoint))
	}
	if r.Repair != "" {
		put(strings.ToUpper(r.Repair))
	}
	if r.Layer > 0 {
		put("layer=" + strconv.FormatUint(r.Layer, 10))
	}
	for _, k := range sortedKeys(r.Details) {
		put(word(k) + "=" + value(r.Details[k]))
	}
	switch {
	case r.Session != "" && r.Branch != "":
		put("[" + word(r.Session) + "/" + word(r.Branch) + "]")
	case r.Session != "" || r.Branch != "":
		put("[" + word(r.Session+r.Branch) + "]")
	}
	return strings.TrimRight(b.String(), " ")
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// value shows one detail.
func value(v any) string {
	switch v := v.(type) {
	case string:
		return word(clip(v))
	case json.Number, bool, nil, int, int64, uint64, float64:
		return escape(clip(fmt.Sprint(v)))
	}
	b, err := marshal(v)
	if err != nil {
		return "?"
	}
	return escape(clip(string(b)))
}

// clip cuts s after maxShown characters.
func clip(s string) string {
	n := 0
	for i := range s {
		if n == maxShown {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// word quotes s when its end could not be told otherwise.
func word(s string) string {
	if e := escape(s); e != s || s == "" || strings.ContainsAny(s, " \"=") {
		return strconv.Quote(s)
	}
	return s
}

// escape makes control characters, and others that a terminal does not show as they are, visible.
func escape(s string) string {
	plain := func(r rune) bool { return r != utf8.RuneError && (unicode.IsPrint(r) || r == ' ') }
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
