package memory

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/zeebo/blake3"

	"github.com/rewindfs/rewindfs/kv"
)

// Link is one message of a history in its place: what an archive carries.
type Link struct {
	Digest, Before [32]byte // of the link, and of the one before it: zero for the first
	Index          int
	message        digest
}

// Since lists the links of the history that ref names, the oldest first, from the newest on that known knows of.
func (s *Store) Since(ref Ref, known func([32]byte) bool) ([]Link, error) {
	if ref.Digest == "" {
		return nil, nil
	}
	at, err := parseDigest(ref.Digest)
	if err != nil {
		return nil, err
	}
	var out []Link
	for i := ref.Messages - 1; i >= 0 && !known(at); i-- {
		before, m, err := s.link(i, at)
		if err != nil {
			return nil, err
		}
		out = append(out, Link{Digest: at, Before: before, Index: i, message: m})
		at = before
	}
	slices.Reverse(out)
	return out, nil
}

// Message reads the message of a link.
func (s *Store) Message(l Link) ([]byte, error) { return s.message(l.message) }

// PutLink stores a message as the one at index of a history, behind the link before, which must be there. It
// returns the digest of the new link. Like what Put stores, it is nothing yet that anybody refers to.
func (s *Store) PutLink(before [32]byte, index int, message []byte) (d [32]byte, err error) {
	if !json.Valid(message) {
		return d, fmt.Errorf("message %d of a conversation is not JSON: %w", index, ErrCorrupt)
	}
	s.sweeping.RLock()
	defer s.sweeping.RUnlock()
	switch {
	case index == 0 && before != digest{}:
		err = ErrCorrupt
	case index > 0:
		_, _, err = s.link(index-1, before)
	}
	if err != nil {
		return d, fmt.Errorf("message %d of a conversation comes without the one before it: %w", index, err)
	}
	h := digest(blake3.Sum256(message))
	at := link(before, h)
	s.noteInstead(before, at)
	var b kv.Batch
	if _, err := s.putMessage(&b, h, message); err != nil {
		return d, err
	}
	b.Put(kv.Chain(at[:]), encodeLink(index, before, h))
	if err := s.db.Apply(&b); err != nil {
		return d, fmt.Errorf("store the conversation: %w", err)
	}
	return at, nil
}
