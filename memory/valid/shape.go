package valid

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// kind is the first byte of a value, which tells its type; 0 if there is none.
func kind(raw json.RawMessage) byte {
	t := bytes.TrimLeft(raw, " \t\r\n")
	if len(t) == 0 {
		return 0
	}
	if t[0] == '-' || (t[0] >= '0' && t[0] <= '9') {
		return '0'
	}
	return t[0]
}

func kindName(k byte) string {
	switch k {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case '0':
		return "a number"
	case 'n':
		return "null"
	case 0:
		return "nothing"
	}
	return "invalid JSON"
}

// kindNames puts the kinds that a field may have into words.
func kindNames(kinds string) string {
	var names []string
	for _, k := range []byte(kinds) {
		if k != 'f' { // named by 't'
			names = append(names, kindName(k))
		}
	}
	return strings.Join(names, " or ")
}

// absent: the field is not there, or null.
func absent(raw json.RawMessage) bool {
	k := kind(raw)
	return k == 0 || k == 'n'
}

// str is a field's text; "" if it is absent or no string.
func (o object) str(key string) string {
	s, _ := asString(o[key])
	return s
}

// truth is a field's boolean value; false if it is absent or something else.
func (o object) truth(key string) bool { return kind(o[key]) == 't' }

// isEmptyText: the value is the string "".
func isEmptyText(raw json.RawMessage) bool {
	return string(bytes.TrimSpace(raw)) == `""`
}

// need refuses the object if the field is absent or of none of the kinds.
func (o object) need(at int, where, key, kinds string) *Error {
	if absent(o[key]) {
		return refuse(at, RuleShape, "%s.%s: missing required field: expected %s", where, key, kindNames(kinds))
	}
	return o.maybe(at, where, key, kinds)
}

// maybe refuses the object if the field is there and of none of the kinds.
func (o object) maybe(at int, where, key, kinds string) *Error {
	if k := kind(o[key]); !absent(o[key]) && !strings.ContainsRune(kinds, rune(k)) {
		return refuse(at, RuleShape, "%s.%s: invalid type: expected %s, but got %s instead",
			where, key, kindNames(kinds), kindName(k))
	}
	return nil
}

// needText refuses the object unless the field is a string with something in it.
func (o object) needText(at int, where, key string) *Error {
	if err := o.need(at, where, key, `"`); err != nil {
		return err
	}
	if isEmptyText(o[key]) {
		return refuse(at, RuleShape, "%s.%s: expected a string that is not empty", where, key)
	}
	return nil
}

// message decodes one item, which must be an object.
func message(at int, raw json.RawMessage) (object, *Error) {
	o, ok := asObject(raw)
	if !ok {
		return nil, refuse(at, RuleShape, "%s: expected an object, but got %s instead", messages(at), kindName(kind(raw)))
	}
	return o, nil
}

// messages is how providers name the item with this index.
func messages(at int) string { return fmt.Sprintf("messages.%d", at) }

// typed decodes an element that must be an object with a type.
func typed(at int, where string, raw json.RawMessage) (object, string, *Error) {
	o, ok := asObject(raw)
	if !ok {
		return nil, "", refuse(at, RuleShape, "%s: expected an object, but got %s instead", where, kindName(kind(raw)))
	}
	if err := o.needText(at, where, "type"); err != nil {
		return nil, "", err
	}
	return o, o.str("type"), nil
}

// parts checks a content field: absent, a string, or an array of objects with a type
// (and of strings, where plain is set). It reports whether it holds anything; the
// string "" does.
func parts(at int, where string, o object, plain bool) (holds bool, err *Error) {
	if err := o.maybe(at, where, "content", `"[`); err != nil {
		return false, err
	}
	list, ok := asArray(o["content"])
	if !ok {
		return !absent(o["content"]), nil
	}
	for j, raw := range list {
		if plain && kind(raw) == '"' {
			continue
		}
		if _, _, err := typed(at, fmt.Sprintf("%s.content.%d", where, j), raw); err != nil {
			return false, err
		}
	}
	return len(list) > 0, nil
}

// list decodes a field that may be absent and is else an array.
func (o object) list(at int, where, key string) ([]json.RawMessage, *Error) {
	if err := o.maybe(at, where, key, "["); err != nil {
		return nil, err
	}
	a, _ := asArray(o[key])
	return a, nil
}
