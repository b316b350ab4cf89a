package memory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf16"

	"github.com/rewindfs/rewindfs/kv"
)

// Mentions tells in how many messages each of names occurs, as itself or as JSON writes it, and not as a part of a longer word.
// It reads all messages of the store, piece by piece, those of histories that nothing names any more too.
func (s *Store) Mentions(names []string) ([]int, error) {
	m := mentions{found: make([]int, len(names))}
	for _, n := range names {
		forms := forms(n)
		for _, f := range forms {
			m.overlap = max(m.overlap, len(f)+1)
		}
		m.forms = append(m.forms, forms)
	}
	err := s.db.Scan(kv.MessagesPrefix(), nil, func(k, v []byte) bool {
		if at := k[:len(k)-partLen]; !bytes.Equal(at, m.message) {
			m.message, m.seen, m.tail = append(m.message[:0], at...), make([]bool, len(names)), m.tail[:0]
		}
		m.piece(v)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("look for names in the conversations: %w", err)
	}
	return m.found, nil
}

// forms lists the ways in which a name may be written in a message.
func forms(name string) [][]byte {
	out := [][]byte{[]byte(name)}
	quoted, err := json.Marshal(name)
	if err != nil {
		return out
	}
	quoted = quoted[1 : len(quoted)-1]
	var ascii []byte // as those write it who escape all that is not ASCII
	for _, r := range string(quoted) {
		if r < 0x80 {
			ascii = append(ascii, byte(r))
			continue
		}
		for _, u := range utf16.AppendRune(nil, r) {
			ascii = fmt.Appendf(ascii, "\\u%04x", u)
		}
	}
	for _, f := range [][]byte{quoted, ascii} {
		if string(f) != name {
			out = append(out, f)
		}
	}
	return out
}

// partLen is what a message's key ends with: the number of the piece.
const partLen = 4

// mentions is one look through all messages.
type mentions struct {
	forms   [][][]byte // of each name
	found   []int      // messages with it
	overlap int        // bytes of a piece that are looked at again with the next one
	message []byte     // the key of the message under way
	seen    []bool     // names found in it
	tail    []byte     // end of its last piece
}

func (m *mentions) piece(v []byte) {
	m.tail = append(m.tail, v...)
	for i, forms := range m.forms {
		for _, f := range forms {
			if !m.seen[i] && hasWord(m.tail, f) {
				m.seen[i] = true
				m.found[i]++
			}
		}
	}
	m.tail = append(m.tail[:0], m.tail[max(0, len(m.tail)-m.overlap):]...)
}

// hasWord reports whether text has word with nothing around it that would make it a part of a longer one.
func hasWord(text, word []byte) bool {
	for at := 0; len(word) > 0; at++ {
		i := bytes.Index(text[at:], word)
		if i < 0 {
			return false
		}
		at += i
		end := at + len(word)
		if (at == 0 || !inWord(text[at-1])) && (end == len(text) || !inWord(text[end])) {
			return true
		}
	}
	return false
}

func inWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c >= 0x80
}
