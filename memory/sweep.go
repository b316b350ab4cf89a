package memory

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/rewindfs/rewindfs/kv"
)

// Histories that no checkpoint, no state that undo leads to, and no live conversation names any more are swept: their links,
// and the messages that only they have. What was put, read or asked for a short while ago is spared,
// because a request that names it may be on its way; and no Put, which may build on old links, runs meanwhile.

// spared is how long a history is spared after it was put, read or asked for.
const spared = time.Hour

// sweepBatch is how many records one batch removes.
const sweepBatch = 4096

// note remembers that the history with this digest was just put or asked for.
func (s *Store) note(digest string) {
	if digest == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fresh == nil {
		s.fresh = map[string]time.Time{}
	}
	s.fresh[digest] = time.Now()
}

// noteInstead is note for the history that ends with at, of which the one that ends with before is a part.
func (s *Store) noteInstead(before, at digest) {
	s.note(hex.EncodeToString(at[:]))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fresh, hex.EncodeToString(before[:]))
}

// Sweep removes what neither refs nor the live conversations need, and returns how many records that were.
func (s *Store) Sweep(refs []Ref) (removed int, err error) {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	links, messages := map[digest]bool{}, map[digest]bool{}
	for _, d := range s.named(refs) {
		if err := s.mark(d, links, messages); err != nil {
			return 0, fmt.Errorf("sweep the conversations: %w", err)
		}
	}
	for _, class := range []struct {
		prefix []byte
		needed map[digest]bool
	}{{kv.ChainPrefix(), links}, {kv.MessagesPrefix(), messages}} { // links first: none is without its message
		n, err := s.sweep(class.prefix, class.needed)
		removed += n
		if err != nil {
			return removed, fmt.Errorf("sweep the conversations: %w", err)
		}
	}
	return removed, nil
}

// named lists the digests of refs, of live conversations, and of what is spared.
func (s *Store) named(refs []Ref) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range refs {
		out = append(out, r.Digest)
	}
	for _, threads := range s.live {
		for _, r := range threads {
			out = append(out, r.Digest)
		}
	}
	for d, at := range s.fresh {
		if time.Since(at) > spared {
			delete(s.fresh, d)
		} else {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// mark notes the links of a history and their messages.
func (s *Store) mark(name string, links, messages map[digest]bool) error {
	if name == "" {
		return nil
	}
	at, err := parseDigest(name)
	for err == nil && at != (digest{}) && !links[at] {
		v, ok, gerr := s.db.Get(kv.Chain(at[:]))
		if gerr != nil {
			return gerr
		}
		if !ok {
			return nil // what is missing is for fsck to say; the rest of the history cannot be found
		}
		_, before, m, ok := decodeLink(v)
		if !ok {
			return fmt.Errorf("link %x: %w", at, ErrCorrupt)
		}
		links[at], messages[m] = true, true
		at = before
	}
	return err
}

// sweep removes the records with prefix, behind which their digest stands, that are not needed.
func (s *Store) sweep(prefix []byte, needed map[digest]bool) (removed int, err error) {
	for from := prefix; from != nil; {
		var b kv.Batch
		var next []byte
		err := s.db.Scan(prefix, from, func(k, _ []byte) bool {
			if b.Len() == sweepBatch {
				next = slices.Clone(k)
				return false
			}
			if rest := k[len(prefix):]; len(rest) >= len(digest{}) && !needed[digest(rest[:len(digest{})])] {
				b.Delete(slices.Clone(k))
			}
			return true
		})
		b.UseReserve()
		if err == nil && b.Len() > 0 {
			err = s.db.Apply(&b)
		}
		if err != nil {
			return removed, err
		}
		removed += b.Len()
		from = next
	}
	return removed, nil
}
