package convo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

const (
	// MaxSize is the largest history that is read, in bytes.
	MaxSize = 128 << 20
	// MaxDepth is how deep lists and objects may be nested in each other.
	MaxDepth = 512
	// MaxItems is how many messages a history may have. Each costs some hundred bytes of
	// memory while it is read, however short it is.
	MaxItems = 250_000
	// MaxValues is how many values, lists and objects there may be in all messages together:
	// of an object that is looked at, each member costs memory, too.
	MaxValues = 4_000_000
)

// refuse makes an ErrNotHistory.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrNotHistory}, args...)...)
}

// Parse reads a history: a JSON array, or JSON lines. The format is told apart by shape
// when want is "". Every item keeps its bytes. The error is ErrNotHistory, with what is
// wrong and where, when data is anything else; a line that was cut short, as in a
// transcript that is just being written, is named, so that reading can be tried again.
func Parse(data []byte, want Format) (History, error) {
	h := History{Format: want}
	if want != "" && want.adapter() == nil {
		return h, fmt.Errorf("parse a history of format %q: no such format", want)
	}
	if len(data) > MaxSize {
		return h, refuse("it has %d bytes; %d are the most that is read", len(data), MaxSize)
	}
	if !utf8.Valid(data) {
		return h, refuse("it is not UTF-8 text")
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	trimmed := bytes.TrimSpace(data)
	if err := checkShape(trimmed); err != nil {
		return h, err
	}
	var err error
	switch {
	case len(trimmed) == 0:
		if want != ClaudeCode && want != Codex {
			return h, refuse("there is nothing in it; an empty history is []")
		}
		h.Lines = true
	case trimmed[0] == '[':
		h.Items, err = parseArray(trimmed)
	case trimmed[0] == '{':
		h.Lines = true
		h.Items, err = parseLines(data)
	default:
		return h, refuse("it starts with %q; a history is a JSON array, or JSON lines", first(trimmed))
	}
	if err != nil {
		return h, err
	}
	if h.Format == "" {
		if h.Format, err = Detect(h.Items); err != nil {
			return h, err
		}
	}
	return h, checkItems(h)
}

func first(b []byte) []byte {
	_, n := utf8.DecodeRune(b)
	return b[:n]
}

// checkShape bounds the nesting, before anything recursive sees the text, and the number
// of items, before there is a list of them.
func checkShape(b []byte) error {
	depth, items, values := 0, 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
		case '{', '[':
			if depth++; depth > MaxDepth {
				return refuse("at byte %d its values are nested deeper than %d", i, MaxDepth)
			}
		case '}', ']':
			depth--
		case ',', '\n':
			if b[i] == ',' {
				if values++; values >= MaxValues {
					return refuse("it has more than %d values", MaxValues)
				}
			}
			// In an array a comma ends an item; among lines it only ends a member of one.
			if b[i] == ',' && depth == 1 && b[0] == '[' || b[i] == '\n' && depth <= 0 {
				if items++; items >= MaxItems {
					return refuse("it has more than %d messages", MaxItems)
				}
			}
		}
	}
	return nil
}

func parseArray(data []byte) ([]json.RawMessage, error) {
	if err := validJSON(data); err != nil {
		return nil, refuse("it is no JSON: %v", err)
	}
	list, _ := asArray(data)
	if list.items == nil {
		list.items = []json.RawMessage{}
	}
	return list.items, nil
}

func parseLines(data []byte) ([]json.RawMessage, error) {
	var items []json.RawMessage
	for no := 1; len(data) > 0; no++ {
		line, rest, ended := bytes.Cut(data, []byte("\n"))
		data = rest
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if err := validJSON(line); err != nil {
			if !ended {
				return nil, refuse("line %d, the last one, is not complete (%v): is it still being written?", no, err)
			}
			return nil, refuse("line %d is no JSON (%v): a history that is no array has one value on each line", no, err)
		}
		items = append(items, line[:len(line):len(line)])
	}
	return items, nil
}

// validJSON is json.Valid with the reason.
func validJSON(b []byte) error {
	if json.Valid(b) {
		return nil
	}
	var v json.RawMessage
	err := json.Unmarshal(b, &v)
	if err == nil {
		err = fmt.Errorf("not valid")
	}
	return err
}

// checkItems reads every item as what the format says it is, and looks for calls that
// no result can be told apart for.
func checkItems(h History) error {
	w := &work{adapter: h.Format.adapter()}
	w.traits = w.adapter.traits()
	for i, raw := range h.Items {
		n, err := read(w.adapter, raw)
		if err != nil {
			return refuse("item %d, as %s: %w", i, h.Format, err)
		}
		n.in, n.pos = i, i
		w.nodes = append(w.nodes, n)
	}
	w.prepare(w) // takes out what is there twice in all its bytes
	w.renumber()
	w.link()
	for _, s := range w.steps {
		seen := map[string]bool{}
		for _, c := range slices.Concat(s.calls, s.server) {
			if c.id != "" && seen[c.id] {
				return refuse("item %d, as %s: the call id %q is there twice in one response", c.node.in, h.Format, c.id)
			}
			seen[c.id] = true
		}
	}
	return nil
}

// Encode writes the history: an array, or JSON lines when it came as such.
func (h History) Encode() []byte {
	size := 4
	for _, it := range h.Items {
		size += len(it) + 2
	}
	out := make([]byte, 0, size)
	if h.Lines {
		for _, it := range h.Items {
			out = append(append(out, it...), '\n')
		}
		return out
	}
	out = append(out, '[')
	for i, it := range h.Items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, '\n'), it...)
	}
	if len(h.Items) > 0 {
		out = append(out, '\n')
	}
	return append(out, ']', '\n')
}
