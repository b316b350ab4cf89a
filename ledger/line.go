package ledger

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"
)

// version is the form of lines and of head that this program writes.
const version = 1

// Bounds on a line, in bytes. Longer details are left out, and the line says so.
const (
	maxLine   = 256 << 10 // with the newline
	maxHeader = 512       // all up to "repair"
)

// timeLayout is how times are written, always in UTC and 30 characters long.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

var (
	// ErrDamaged marks what cannot be what this package wrote.
	ErrDamaged = errors.New("the ledger is damaged")
	// ErrNewer is returned for what a newer rewindfs wrote.
	ErrNewer = errors.New("written by a newer rewindfs: update this one")
	// ErrTooLong is returned for an event whose names alone fill more than a line may hold.
	ErrTooLong = errors.New("the event is too long to record")
)

// body is what follows the header in a line, in this order.
type body struct {
	Session    string         `json:"session"`
	Branch     string         `json:"branch"`
	Checkpoint string         `json:"checkpoint"`
	Label      string         `json:"label"`
	Layer      uint64         `json:"layer"`
	Op         uint64         `json:"op"`
	Details    map[string]any `json:"details"`
}

// encodeBody is the part of e's line that does not depend on its place: from
// the comma behind the header to the newline.
func encodeBody(e *Event) ([]byte, error) {
	var details []byte
	if len(e.Details) > 0 {
		var err error
		if details, err = marshal(e.Details); err != nil {
			return nil, fmt.Errorf("encode the details of the event %s: %w", e.Kind, err)
		}
	}
	out := appendBody(make([]byte, 0, 192+len(details)), e, details)
	if len(out) > maxLine-maxHeader && details != nil {
		out = appendBody(nil, e, omitted(len(details)))
	}
	if len(out) > maxLine-maxHeader {
		return nil, fmt.Errorf("%w: its names take %d bytes, a line may have %d", ErrTooLong, len(out), maxLine-maxHeader)
	}
	return out, nil
}

func appendBody(dst []byte, e *Event, details []byte) []byte {
	dst = appendString(dst, `,"session":`, e.Session)
	dst = appendString(dst, `,"branch":`, e.Branch)
	dst = appendString(dst, `,"checkpoint":`, e.Checkpoint)
	dst = appendString(dst, `,"label":`, e.Label)
	dst = appendNumber(dst, `,"layer":`, e.Layer)
	dst = appendNumber(dst, `,"op":`, e.Op)
	if details != nil {
		dst = append(append(dst, `,"details":`...), details...)
	}
	return append(dst, "}\n"...)
}

func appendNumber(dst []byte, key string, n uint64) []byte {
	if n == 0 {
		return dst
	}
	return strconv.AppendUint(append(dst, key...), n, 10)
}

func appendString(dst []byte, key, s string) []byte {
	if s == "" {
		return dst
	}
	dst = append(dst, key...)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			b, err := marshal(s)
			if err != nil {
				b = []byte(`"\ufffd"`) // never: any string can be encoded
			}
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// omitted stands for details of n bytes that do not fit.
func omitted(n int) []byte {
	return []byte(`{"omitted_bytes":` + strconv.Itoa(n) + `}`)
}

// marshal is json.Marshal without \u003c for <, so that lines can be read and searched.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// place is what a line's position in the chain adds to it.
type place struct {
	seq  uint64
	prev Hash
	file int // in the first line of a file
}

// appendLine appends the line of an event to dst.
func appendLine(dst []byte, p place, at time.Time, kind Kind, repair string, body []byte) []byte {
	dst = append(dst, `{"v":1,"seq":`...)
	dst = strconv.AppendUint(dst, p.seq, 10)
	dst = append(dst, `,"prev":"`...)
	dst = hex.AppendEncode(dst, p.prev[:])
	dst = append(dst, '"')
	if p.file > 0 {
		dst = append(dst, `,"file":`...)
		dst = strconv.AppendInt(dst, int64(p.file), 10)
	}
	dst = append(dst, `,"at":"`...)
	dst = at.UTC().AppendFormat(dst, timeLayout)
	dst = append(dst, `","event":"`...)
	dst = append(dst, kind...)
	dst = append(dst, '"')
	if repair != "" {
		dst = append(dst, `,"repair":"`...)
		dst = append(dst, repair...)
		dst = append(dst, '"')
	}
	return append(dst, body...)
}

// header is what a line begins with. In a line of a newer version only place is known.
type header struct {
	place
	version int
	at      []byte // these point into the line
	event   []byte
	repair  []byte
	rest    []byte // from the comma or brace behind
}

// parseHeader reads the beginning of a line, which ends in a newline. It takes
// nothing but what appendLine writes.
func parseHeader(line []byte) (h header, err error) {
	p := parser{line}
	if !bytes.HasSuffix(line, []byte("\n")) {
		return h, fmt.Errorf("%w: the line has no end", ErrDamaged)
	}
	v := p.number(`{"v":`)
	h.seq = p.number(`,"seq":`)
	sum, ok := parseHash(p.text(`,"prev":"`))
	h.prev = sum
	if !ok || v < 1 || v > 1<<16 || h.seq < 1 {
		return h, fmt.Errorf("%w: the line does not begin with v, seq and prev", ErrDamaged)
	}
	if h.version = int(v); bytes.HasPrefix(p.left, []byte(`,"file":`)) {
		n := p.number(`,"file":`)
		if n < 1 || n > maxFileNumber {
			return h, fmt.Errorf("%w: file is not a number of a file", ErrDamaged)
		}
		h.file = int(n)
	}
	if h.version > version {
		return h, nil
	}
	h.at = p.text(`,"at":"`)
	h.event = p.text(`,"event":"`)
	if len(h.at) != len(timeLayout) || !wellFormed(h.event) {
		return h, fmt.Errorf("%w: at and event do not follow seq and prev", ErrDamaged)
	}
	if bytes.HasPrefix(p.left, []byte(`,"repair":"`)) {
		if h.repair = p.text(`,"repair":"`); !wellFormed(h.repair) {
			return h, fmt.Errorf("%w: repair is not a word", ErrDamaged)
		}
	}
	if h.rest = p.left; !bytes.HasPrefix(h.rest, []byte(`,"`)) && string(h.rest) != "}\n" {
		return h, fmt.Errorf("%w: the line goes on in an unknown way behind event", ErrDamaged)
	}
	return h, nil
}

// parser takes a line apart. After a mismatch left is nil, and so is all that follows.
type parser struct{ left []byte }

// number takes key and a number without needless zeros; 0 means that there is none.
func (p *parser) number(key string) uint64 {
	rest, ok := bytes.CutPrefix(p.left, []byte(key))
	n := 0
	for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	p.left = nil
	if !ok || n == 0 || rest[0] == '0' {
		return 0
	}
	v, err := strconv.ParseUint(string(rest[:n]), 10, 64)
	if err != nil {
		return 0
	}
	p.left = rest[n:]
	return v
}

// text takes key, which ends in a quote, and what is before the next quote.
func (p *parser) text(key string) []byte {
	rest, ok := bytes.CutPrefix(p.left, []byte(key))
	p.left = nil
	if !ok {
		return nil
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return nil
	}
	p.left = rest[end+1:]
	return rest[:end]
}

// parseRecord reads a line, which ends in a newline. Raw is a copy.
func parseRecord(line []byte) (*Record, error) {
	h, err := parseHeader(line)
	if err != nil {
		return nil, err
	}
	return h.record(line)
}

// record reads the rest of the line that h was read from.
func (h *header) record(line []byte) (*Record, error) {
	if h.version > version {
		return nil, fmt.Errorf("line %d is of version %d, %w", h.seq, h.version, ErrNewer)
	}
	at, err := time.Parse(timeLayout, string(h.at))
	if err != nil || at.Format(timeLayout) != string(h.at) {
		return nil, fmt.Errorf("%w: line %d: at is not a time", ErrDamaged, h.seq)
	}
	var b body
	raw := append([]byte("{"), bytes.TrimPrefix(h.rest, []byte(","))...)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	dec.DisallowUnknownFields() // a field more is a version more; and none of the header's comes twice
	if err := dec.Decode(&b); err != nil {
		return nil, fmt.Errorf("%w: line %d: %w", ErrDamaged, h.seq, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: line %d: something follows the event", ErrDamaged, h.seq)
	}
	return &Record{
		Event: Event{
			Kind: Kind(h.event), At: at, Session: b.Session, Branch: b.Branch, Checkpoint: b.Checkpoint,
			Label: b.Label, Layer: b.Layer, Op: b.Op, Details: b.Details,
		},
		Version: h.version, Seq: h.seq, Prev: h.prev, File: h.file, Repair: string(h.repair),
		Raw: bytes.Clone(bytes.TrimSuffix(line, []byte("\n"))),
	}, nil
}
