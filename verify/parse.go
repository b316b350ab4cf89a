package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonSpace is the white space of JSON; nothing else may surround the object.
const jsonSpace = " \t\r\n"

// Parse reads a verifier's stdout, which must be complete. An error says why it is
// no verdict; the verdict is then zero, and the status to go by is Unknown.
func Parse(stdout []byte) (Verdict, error) {
	body := bytes.Trim(stdout, jsonSpace)
	if err := oneObject(body); err != nil {
		return Verdict{}, err
	}
	v := Verdict{Raw: bytes.Clone(body)}
	seen := make(map[string]bool)
	dec := json.NewDecoder(bytes.NewReader(body))
	if _, err := dec.Token(); err != nil {
		return Verdict{}, fmt.Errorf("stdout is not JSON: %w", err)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return Verdict{}, fmt.Errorf("stdout is not JSON: %w", err)
		}
		name, ok := key.(string)
		if !ok {
			return Verdict{}, fmt.Errorf("stdout is not JSON: %v is no field name", key)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return Verdict{}, fmt.Errorf("stdout is not JSON: %w", err)
		}
		ours, err := v.set(name, value)
		if err != nil {
			return Verdict{}, err
		}
		if ours && seen[name] {
			return Verdict{}, fmt.Errorf("the field %q is there twice", name)
		}
		seen[name] = true
	}
	if !seen["status"] {
		return Verdict{}, errors.New(`the object has no field "status"`)
	}
	return v, nil
}

// oneObject tells one JSON object from everything else.
func oneObject(body []byte) error {
	switch {
	case len(body) == 0:
		return errors.New("stdout is empty; a verifier prints one JSON object")
	case !utf8.Valid(body):
		return errors.New("stdout is not UTF-8")
	case body[0] != '{':
		return fmt.Errorf("stdout begins with %s, not with a JSON object; send progress messages to stderr", quoteStart(body))
	case json.Valid(body):
		return nil
	}
	// Something is wrong: say whether it is behind the object or in it.
	dec := json.NewDecoder(bytes.NewReader(body))
	var first json.RawMessage
	if err := dec.Decode(&first); err != nil {
		return fmt.Errorf("stdout is not JSON: %w", err)
	}
	rest := bytes.Trim(body[dec.InputOffset():], jsonSpace)
	return fmt.Errorf("behind the JSON object stdout goes on with %s", quoteStart(rest))
}

// quoteStart shows the first few characters of data.
func quoteStart(data []byte) string {
	const most = 20
	runes := []rune(string(data[:min(len(data), 4*most)]))
	if len(runes) <= most {
		return strconv.QuoteToASCII(string(runes))
	}
	return strconv.QuoteToASCII(string(runes[:most])) + "…"
}

// set takes a field of the object; ours says that it is one of the contract.
func (v *Verdict) set(name string, value json.RawMessage) (ours bool, err error) {
	switch name {
	case "status":
		s, ok := stringOf(value)
		v.Status = Status(s)
		if !ok || v.Status != Pass && v.Status != Fail && v.Status != Unknown {
			return true, fmt.Errorf(`"status" is %s; it must be "pass", "fail" or "unknown"`, quoteStart(value))
		}
		return true, nil
	case "summary":
		s, ok := stringOf(value)
		if !ok && !isNull(value) {
			return true, fmt.Errorf(`"summary" is %s; it must be a string`, quoteStart(value))
		}
		v.Summary = s
		return true, nil
	case "errors":
		v.Errors, err = parseProblems(value)
		return true, err
	}
	if v.Extra == nil {
		v.Extra = make(map[string]json.RawMessage)
	}
	v.Extra[name] = value
	return false, nil
}

func parseProblems(value json.RawMessage) ([]Problem, error) {
	// Go, among others, writes an empty list as null.
	if isNull(value) {
		return nil, nil
	}
	var list []json.RawMessage
	if value[0] != '[' {
		return nil, fmt.Errorf(`"errors" is %s; it must be a list`, quoteStart(value))
	}
	if err := json.Unmarshal(value, &list); err != nil {
		return nil, fmt.Errorf(`"errors": %w`, err)
	}
	out := make([]Problem, 0, len(list))
	for i, item := range list {
		p, err := parseProblem(item)
		if err != nil {
			return nil, fmt.Errorf(`"errors", entry %d: %w`, i+1, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// parseProblem takes a string or an object. An object without a message that is a string
// becomes its own JSON text, so that nothing a verifier says is lost.
func parseProblem(item json.RawMessage) (Problem, error) {
	if s, ok := stringOf(item); ok {
		return Problem{Message: s}, nil
	}
	if len(item) == 0 || item[0] != '{' {
		return Problem{}, fmt.Errorf("it is %s; it must be a string or an object", quoteStart(item))
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(item, &fields); err != nil {
		return Problem{}, err
	}
	message, hasMessage := stringOf(fields["message"])
	file, hasFile := stringOf(fields["file"])
	line, hasLine := lineOf(fields["line"])
	if !hasMessage || !hasFile && !isNull(fields["file"]) || !hasLine && !isNull(fields["line"]) {
		var text bytes.Buffer
		if err := json.Compact(&text, item); err != nil {
			return Problem{}, err
		}
		return Problem{Message: text.String()}, nil
	}
	return Problem{File: file, Line: line, Message: message}, nil
}

// stringOf returns value if it is a JSON string.
func stringOf(value json.RawMessage) (string, bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", false
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return "", false
	}
	return s, true
}

// lineOf returns value if it is a line number, also one written as a string.
func lineOf(value json.RawMessage) (int, bool) {
	n, err := strconv.Atoi(strings.Trim(string(value), `"`))
	return n, err == nil && n >= 0
}

// isNull says that a field is missing or null.
func isNull(value json.RawMessage) bool {
	return len(value) == 0 || string(value) == "null"
}
