package convo

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// This file reads and edits JSON text in place, one level at a time. It only ever sees
// text that json.Valid has accepted. encoding/json is no use here: it folds the case of
// keys, and what it writes has lost order, spelling and unknown keys.

// field is one member of an object, as offsets into its text.
type field struct {
	key      string
	from, to int // the value
	start    int // the key's first quote
}

// object is the text of a JSON object and where its members are.
type object struct {
	raw    []byte
	fields []field
}

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

func skipSpace(b []byte, i int) int {
	for i < len(b) && space(b[i]) {
		i++
	}
	return i
}

// skipString returns the offset behind the string that starts at i.
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipValue returns the offset behind the value that starts at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch c := b[i]; c {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\r', '\t':
			i++
			continue
		default:
			for i < len(b) && !bytes.ContainsRune([]byte(",:]} \n\r\t"), rune(b[i])) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return i
}

// asObject reads raw as an object; false when it is none.
func asObject(raw []byte) (object, bool) {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '{' {
		return object{}, false
	}
	o := object{raw: raw, fields: make([]field, 0, 8)}
	for i = skipSpace(raw, i+1); i < len(raw) && raw[i] != '}'; i = skipSpace(raw, i) {
		end := skipString(raw, i)
		f := field{key: unquote(raw[i:end]), start: i}
		i = skipSpace(raw, end)
		f.from = skipSpace(raw, i+1) // behind the colon
		f.to = skipValue(raw, f.from)
		o.fields = append(o.fields, f)
		if i = skipSpace(raw, f.to); i < len(raw) && raw[i] == ',' {
			i++
		}
	}
	return o, true
}

// find returns the member of that name, the last one when there are several, as
// every JSON reader has it.
func (o object) find(key string) (field, bool) {
	for i := len(o.fields) - 1; i >= 0; i-- {
		if o.fields[i].key == key {
			return o.fields[i], true
		}
	}
	return field{}, false
}

// get returns the value of a member; nil when it is absent or null.
func (o object) get(key string) []byte {
	f, ok := o.find(key)
	if !ok {
		return nil
	}
	if v := o.raw[f.from:f.to]; !bytes.Equal(v, []byte("null")) {
		return v
	}
	return nil
}

func (o object) has(key string) bool { _, ok := o.find(key); return ok }

// str returns a member that is a string; "" when it is anything else.
func (o object) str(key string) string { return unquote(o.get(key)) }

// truth tells whether a member is the literal true.
func (o object) truth(key string) bool { return string(o.get(key)) == "true" }

// sub returns a member that is an object; one without members when it is anything else.
func (o object) sub(key string) object { s, _ := asObject(o.get(key)); return s }

// with returns the text of the object with one value replaced, or added at the end.
func (o object) with(key string, value []byte) json.RawMessage {
	if f, ok := o.find(key); ok {
		return splice(o.raw, f.from, f.to, value)
	}
	end := bytes.LastIndexByte(o.raw, '}')
	member := append(append(quote(key), ':'), value...)
	if len(o.fields) > 0 {
		// Written as the last member is: the same space in front of key and value.
		last := o.fields[len(o.fields)-1]
		lead := o.raw[o.gapBefore(len(o.fields)-1):last.start]
		colon := o.raw[skipString(o.raw, last.start):last.from]
		member = append(append(append([]byte{','}, lead...), quote(key)...), append(bytes.Clone(colon), value...)...)
		end = last.to
	}
	return splice(o.raw, end, end, member)
}

// gapBefore returns the offset behind the comma or brace in front of member i.
func (o object) gapBefore(i int) int {
	at := o.fields[i].start
	for at > 0 && space(o.raw[at-1]) {
		at--
	}
	return at
}

// without returns the text of the object without a member.
func (o object) without(key string) json.RawMessage {
	for i, f := range o.fields {
		if f.key != key {
			continue
		}
		from, to := o.gapBefore(i), f.to
		if i+1 < len(o.fields) {
			to = o.gapBefore(i + 1)
		} else if i > 0 {
			from = o.fields[i-1].to
		}
		rest, _ := asObject(splice(o.raw, from, to, nil))
		return rest.without(key) // a key may be there twice
	}
	return o.raw
}

// splice returns b with the bytes between two offsets replaced. b is not changed.
func splice(b []byte, from, to int, by []byte) json.RawMessage {
	out := make([]byte, 0, len(b)-(to-from)+len(by))
	out = append(out, b[:from]...)
	out = append(out, by...)
	return append(out, b[to:]...)
}

// array is the elements of a JSON array and the white space around them, so that one
// written anew looks like the old one.
type array struct {
	items               []json.RawMessage
	lead, between, tail string
}

// asArray reads raw as an array; false when it is none.
func asArray(raw []byte) (array, bool) {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '[' {
		return array{}, false
	}
	a := array{between: ","}
	end := i + 1
	for i = skipSpace(raw, end); i < len(raw) && raw[i] != ']'; i = skipSpace(raw, i) {
		switch len(a.items) {
		case 0:
			a.lead = string(raw[end:i])
		case 1:
			a.between = string(raw[end:i])
		}
		end = skipValue(raw, i)
		a.items = append(a.items, raw[i:end:end])
		if i = skipSpace(raw, end); i < len(raw) && raw[i] == ',' {
			i++
		}
	}
	if len(a.items) > 0 {
		a.tail = string(raw[end:skipSpace(raw, end)])
		if len(a.items) == 1 && a.lead != "" {
			a.between = "," + a.lead
		}
	}
	return a, true
}

// text writes the array with other elements.
func (a array) text(items []json.RawMessage) json.RawMessage {
	if a.between == "" {
		a.between = ","
	}
	out := []byte("[" + a.lead)
	for i, it := range items {
		if i > 0 {
			out = append(out, a.between...)
		}
		out = append(out, it...)
	}
	return append(append(out, a.tail...), ']')
}

func isString(raw []byte) bool { return len(raw) > 0 && raw[0] == '"' }

// unquote returns the text of a JSON string; "" for any other value. Bytes that are no
// UTF-8 are replaced, as quote does, so that what is written is what was read.
func unquote(raw []byte) string {
	if !isString(raw) {
		return ""
	}
	if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// quote returns s as a JSON string, with < and > as they are.
func quote(s string) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string can always be encoded
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

// obj writes an object of pairs: key, value, key, value. A value is raw text.
func obj(pairs ...any) json.RawMessage {
	out := []byte{'{'}
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, quote(pairs[i].(string))...), ':')
		switch v := pairs[i+1].(type) {
		case string:
			out = append(out, quote(v)...)
		case []byte:
			out = append(out, v...)
		case json.RawMessage:
			out = append(out, v...)
		}
	}
	return append(out, '}')
}
