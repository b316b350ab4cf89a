package valid

import (
	"bytes"
	"encoding/json"
)

// A history may be tens of megabytes, most of it text that no rule looks at. So each
// item is held to the grammar once, by the standard library (grammatical), and then taken
// apart one level at a time by the functions here, which rely on that and copy nothing.

// grammatical refuses the first item that is not one JSON value, or nested too deeply
// for the standard library (10,000 levels).
func grammatical(items []json.RawMessage) *Error {
	for i, raw := range items {
		if !json.Valid(raw) {
			return refuse(i, RuleShape, "%s: not a valid JSON value", messages(i))
		}
	}
	return nil
}

// object is one level of a JSON object. Keys are matched exactly, as providers do; of
// equal ones the last counts.
type object map[string]json.RawMessage

func asObject(raw json.RawMessage) (object, bool) {
	if kind(raw) != '{' {
		return nil, false
	}
	o := object{}
	for i := next(raw, 0) + 1; ; {
		if i = next(raw, i); raw[i] == '}' {
			return o, true
		}
		keyEnd := skip(raw, i)
		key, _ := asString(raw[i:keyEnd])
		i = next(raw, next(raw, keyEnd)+1) // behind the colon
		end := skip(raw, i)
		o[key] = raw[i:end:end]
		if i = next(raw, end); raw[i] == ',' {
			i++
		}
	}
}

func asArray(raw json.RawMessage) ([]json.RawMessage, bool) {
	if kind(raw) != '[' {
		return nil, false
	}
	list := []json.RawMessage{}
	for i := next(raw, 0) + 1; ; {
		if i = next(raw, i); raw[i] == ']' {
			return list, true
		}
		end := skip(raw, i)
		list = append(list, raw[i:end:end])
		if i = next(raw, end); raw[i] == ',' {
			i++
		}
	}
}

func asString(raw json.RawMessage) (string, bool) {
	raw = bytes.TrimSpace(raw)
	if kind(raw) != '"' {
		return "", false
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), true
	}
	var s string
	return s, json.Unmarshal(raw, &s) == nil
}

// next is the index of the first byte from i on that is not white space.
func next(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t' {
		i++
	}
	return i
}

// skip is the index behind the value that begins at i.
func skip(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = closing(b, i)
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 { // the value in front of it was a number or a word
				return i
			}
			depth--
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// closing is the index of the quote that ends the string whose first quote is at i.
func closing(b []byte, i int) int {
	for {
		i += 1 + bytes.IndexByte(b[i+1:], '"')
		escapes := 0
		for b[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
}
