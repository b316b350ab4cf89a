package control

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
)

// RawHolder is an answer that holds messages in their own bytes: RawMessages points to its lists of them.
type RawHolder interface{ RawMessages() []*[]json.RawMessage }

// RawMessages makes Messages a RawHolder.
func (m *Messages) RawMessages() []*[]json.RawMessage { return []*[]json.RawMessage{&m.Messages} }

// RawMessages makes Rollback a RawHolder.
func (r *Rollback) RawMessages() []*[]json.RawMessage {
	if r == nil {
		return nil
	}
	return []*[]json.RawMessage{&r.Messages}
}

// RawMessages makes ToolEnded a RawHolder.
func (t *ToolEnded) RawMessages() []*[]json.RawMessage { return t.RolledBack.RawMessages() }

// RawMessages makes Verified a RawHolder.
func (v *Verified) RawMessages() []*[]json.RawMessage { return v.RolledBack.RawMessages() }

// EncodeRaw is json.Marshal that keeps the messages of a RawHolder byte for byte. The
// encoder compacts a RawMessage whatever it is told, and may escape < and >; so each list
// is encoded as a word of its own, which the bytes then replace. v must not be in use by
// another goroutine meanwhile; it is afterwards what it was.
func EncodeRaw(v any) ([]byte, error) {
	var lists []*[]json.RawMessage
	if h, ok := v.(RawHolder); ok {
		lists = h.RawMessages()
	}
	kept, words := make([][]json.RawMessage, len(lists)), make([]json.RawMessage, len(lists))
	for i, l := range lists {
		kept[i] = *l
		if len(*l) > 0 {
			words[i] = json.RawMessage(`"` + rand.Text() + `"`)
			*l = words[i : i+1]
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	for i, l := range lists {
		*l = kept[i]
	}
	if err != nil {
		return nil, err
	}
	out := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	for i, items := range kept {
		if len(items) == 0 {
			continue
		}
		head, tail, _ := bytes.Cut(out, words[i])
		size := len(head) + len(tail)
		for _, it := range items {
			size += len(it) + 1
		}
		out = append(make([]byte, 0, size), head...)
		for n, it := range items {
			if n > 0 {
				out = append(out, ',')
			}
			out = append(out, it...)
		}
		out = append(out, tail...)
	}
	return out, nil
}
