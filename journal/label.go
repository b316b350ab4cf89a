package journal

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLabel is the longest label, in bytes.
const MaxLabel = 200

// The errors of labels.
var (
	ErrBadLabel       = errors.New("bad label")
	ErrDuplicateLabel = errors.New("label is taken")
)

// CheckLabel reports why s cannot be a label. A label is letters, digits, any of
// . _ - / : and single or several spaces inside; it never becomes a path of the
// host, but its /-separated parts are names below .rewind/checkpoints.
func CheckLabel(s string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w %s: %s; use letters, digits, . _ - / : and spaces inside", ErrBadLabel, quoteLabel(s), fmt.Sprintf(format, args...))
	}
	switch {
	case s == "":
		return bad("it is empty (leave it out for a checkpoint without a label)")
	case len(s) > MaxLabel:
		return bad("it has %d bytes, more than %d", len(s), MaxLabel)
	case !utf8.ValidString(s):
		return bad("it is not valid UTF-8")
	case s[0] == '-' || s[0] == '@':
		return bad("it starts with %q", s[0])
	case s == RefBase || s == RefLatest:
		return bad("the name is reserved")
	case strings.TrimSpace(s) != s:
		return bad("it starts or ends with a space")
	}
	for _, r := range s {
		if !labelRune(r) {
			return bad("%q is not allowed", r)
		}
	}
	for part := range strings.SplitSeq(s, "/") {
		switch part {
		case "":
			return bad("it has an empty part between slashes")
		case ".", "..":
			return bad("%q is not allowed as a part", part)
		}
	}
	return nil
}

func labelRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r) || strings.ContainsRune("._-/: ", r)
}

// quoteLabel shows a label that may hold anything, cut to a bearable length.
func quoteLabel(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%.60q…", s)
	}
	return fmt.Sprintf("%q", s)
}
