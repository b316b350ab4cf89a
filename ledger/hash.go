package ledger

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"
)

// Hash is the BLAKE3 of a line, its newline included.
type Hash [32]byte

// String is the hash in lower-case hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// parseHash reads what String writes, and nothing else.
func parseHash[T ~string | ~[]byte](s T) (h Hash, ok bool) {
	if len(s) != 2*len(h) {
		return h, false
	}
	for i := range h {
		hi, lo := nibble(s[2*i]), nibble(s[2*i+1])
		if hi > 15 || lo > 15 {
			return Hash{}, false
		}
		h[i] = hi<<4 | lo
	}
	return h, true
}

func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

func hashOf(line []byte) Hash { return blake3.Sum256(line) }

// genesis is what the first line of a store's ledger is chained to.
func genesis(storeID string) Hash {
	return hashOf([]byte("rewindfs ledger 1\n" + storeID + "\n"))
}

// Head names a line of a ledger, and by its hash all lines before. The zero Head
// names none. Kept where the ledger's directory is not, it pins the ledger: see the package comment.
type Head struct {
	Seq  uint64
	Hash Hash
}

// String is the form to keep: "103:9f86d0…".
func (h Head) String() string { return strconv.FormatUint(h.Seq, 10) + ":" + h.Hash.String() }

// MarshalText is String, and empty for the zero Head.
func (h Head) MarshalText() ([]byte, error) {
	if h == (Head{}) {
		return nil, nil
	}
	return []byte(h.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (h *Head) UnmarshalText(b []byte) (err error) {
	if *h = (Head{}); len(b) > 0 {
		*h, err = ParseHead(string(b))
	}
	return err
}

// ParseHead reads what String writes.
func ParseHead(s string) (Head, error) {
	seq, sum, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(seq, 10, 64)
	h, hashOK := parseHash(sum)
	if !ok || err != nil || !hashOK {
		return Head{}, fmt.Errorf("%q is no head of a ledger: write it as verify prints it, NUMBER:HASH with 64 hexadecimal digits", s)
	}
	return Head{Seq: n, Hash: h}, nil
}
