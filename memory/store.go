package memory

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sort"
	"sync"
	"time"

	"github.com/zeebo/blake3"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/memory/convo"
)

const (
	// recordVersion starts every record of this package. Higher ones are refused.
	recordVersion = 1
	// partBytes is how much of a message one record holds at most, in bytes.
	partBytes = 256 << 10
	// batchBytes is about how much one batch writes: a history may be large.
	batchBytes = 4 << 20
)

// ErrCorrupt says that a stored conversation is not what its digest says, or not
// there. It also is kv.ErrCorrupt.
var ErrCorrupt = fmt.Errorf("conversation is damaged: %w", kv.ErrCorrupt)

// digest is a BLAKE3 digest: of a message, or of a link and so of all up to it.
type digest [32]byte

// Ref names a history in the store.
type Ref struct {
	Format   convo.Format `json:"format"`
	Lines    bool         `json:"lines,omitempty"` // JSONL, not an array
	Messages int          `json:"messages"`
	Digest   string       `json:"digest,omitempty"`  // of the last link, in hex; "" when there is no message
	Missing  bool         `json:"missing,omitempty"` // there is a conversation, but it could not be read
}

// Threads are conversations by name.
type Threads map[string]Ref

// MainThread is the name of the conversation that has no other.
const MainThread = "main"

// Store is the conversations of one store. Its methods may be called by any goroutine.
type Store struct {
	db *kv.DB

	// sweeping is held by a Sweep, and shared by Puts, which build on what is there. Taken before mu.
	sweeping sync.RWMutex

	mu    sync.RWMutex
	live  map[string]Threads   // mu: by branch; the Threads are replaced, never changed
	fresh map[string]time.Time // mu: when histories were put or asked for, by digest, see Sweep
}

// Open loads the live conversations of db.
func Open(db *kv.DB) (*Store, error) {
	s := &Store{db: db, live: map[string]Threads{}}
	var bad error
	err := db.Scan(kv.ThreadPrefix(), nil, func(k, v []byte) bool {
		branch, thread, ok := kv.ParseThread(k)
		var rec threadRecord
		if err := json.Unmarshal(v, &rec); !ok || err != nil || rec.V < 1 {
			bad = fmt.Errorf("live conversation %q: %w", k, ErrCorrupt)
			return false
		}
		if rec.V > recordVersion {
			bad = fmt.Errorf("live conversation %q of version %d: %w", k, rec.V, kv.ErrNewerFormat)
			return false
		}
		if s.live[branch] == nil {
			s.live[branch] = Threads{}
		}
		s.live[branch][thread] = rec.Ref
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("load the conversations: %w", err)
	}
	return s, nil
}

type threadRecord struct {
	V int `json:"v"`
	Ref
}

// Live returns the live conversations of branch, which the caller must not change.
func (s *Store) Live(branch string) Threads {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.live[branch]
}

// StageLive adds to b that now are the live conversations of branch. The caller calls
// commit once b is applied; from then on Live returns them.
func (s *Store) StageLive(b *kv.Batch, branch string, now Threads) (commit func(), err error) {
	now = maps.Clone(now)
	if now == nil {
		now = Threads{}
	}
	old := s.Live(branch)
	for name := range old {
		if _, ok := now[name]; !ok {
			b.Delete(kv.Thread(branch, name))
		}
	}
	for name, ref := range now {
		if old[name] == ref {
			continue
		}
		v, err := json.Marshal(threadRecord{recordVersion, ref})
		if err != nil {
			return nil, fmt.Errorf("encode the live conversation %q: %w", name, err)
		}
		b.Put(kv.Thread(branch, name), v)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.live[branch] = now
	}, nil
}

// Put stores what is new of h. It survives SIGKILL when Put returns, but is nothing
// yet that anybody refers to.
func (s *Store) Put(h convo.History) (Ref, error) {
	ref := Ref{Format: h.Format, Lines: h.Lines, Messages: len(h.Items)}
	if len(h.Items) == 0 {
		return ref, nil
	}
	hashes, links := make([]digest, len(h.Items)), make([]digest, len(h.Items))
	var prev digest
	for i, m := range h.Items {
		hashes[i] = blake3.Sum256(m)
		links[i] = link(prev, hashes[i])
		prev = links[i]
	}
	ref.Digest = hex.EncodeToString(prev[:])
	s.sweeping.RLock()
	defer s.sweeping.RUnlock()
	s.note(ref.Digest)
	have, err := s.known(links)
	if err != nil {
		return Ref{}, fmt.Errorf("look for the conversation: %w", err)
	}
	var b kv.Batch
	bytes := 0
	for i := have; i < len(links); i++ {
		n, err := s.putMessage(&b, hashes[i], h.Items[i])
		if err != nil {
			return Ref{}, err
		}
		var before digest
		if i > 0 {
			before = links[i-1]
		}
		b.Put(kv.Chain(links[i][:]), encodeLink(i, before, hashes[i]))
		if bytes += n + 128; bytes >= batchBytes || i == len(links)-1 {
			if err := s.db.Apply(&b); err != nil {
				return Ref{}, fmt.Errorf("store the conversation: %w", err)
			}
			b.Reset()
			bytes = 0
		}
	}
	return ref, nil
}

// known returns how many of links, from the first, are stored: a link never is
// without those before it.
func (s *Store) known(links []digest) (int, error) {
	var bad error
	n := sort.Search(len(links), func(i int) bool {
		i = len(links) - 1 - i // the newest that is there is likely the last but one
		_, ok, err := s.db.Get(kv.Chain(links[i][:]))
		bad = errors.Join(bad, err)
		return ok
	})
	return len(links) - n, bad
}

// putMessage adds m to b unless it is stored, and returns how many bytes that took.
func (s *Store) putMessage(b *kv.Batch, h digest, m []byte) (int, error) {
	if _, ok, err := s.db.Get(kv.Message(h[:], 0)); ok || err != nil {
		return 0, err
	}
	first := binary.AppendUvarint([]byte{recordVersion}, uint64(len(m)))
	n := len(m)
	if n <= batchBytes {
		for part := uint32(0); part == 0 || len(m) > 0; part++ {
			k := min(len(m), partBytes)
			b.Put(kv.Message(h[:], part), append(first, m[:k]...))
			m, first = m[k:], nil
		}
		return n, nil
	}
	// A very large one: batches of its own, the first part last, which is what says that it is there.
	for part := uint32((n - 1) / partBytes); ; part-- {
		lo := int(part) * partBytes
		p := append([]byte(nil), m[lo:min(n, lo+partBytes)]...)
		if part == 0 {
			b.Put(kv.Message(h[:], 0), append(first, p...))
			return partBytes, nil
		}
		var own kv.Batch
		own.Put(kv.Message(h[:], part), p)
		if err := s.db.Apply(&own); err != nil {
			return 0, fmt.Errorf("store a message of %d bytes: %w", n, err)
		}
	}
}

// Has returns an error unless ref, made up by somebody else, names a history that is there.
func (s *Store) Has(ref Ref) error {
	if ref.Messages == 0 && ref.Digest == "" {
		return nil
	}
	s.sweeping.RLock()
	defer s.sweeping.RUnlock()
	at, err := parseDigest(ref.Digest)
	if err == nil {
		_, _, err = s.link(ref.Messages-1, at)
	}
	if err == nil {
		s.note(ref.Digest)
	}
	if err != nil {
		return fmt.Errorf("there is no conversation %s of %d messages in the store", ref.Digest, ref.Messages)
	}
	return nil
}

// Get returns the history that ref names, in the bytes that were put.
func (s *Store) Get(ref Ref) (convo.History, error) {
	h := convo.History{Format: ref.Format, Lines: ref.Lines, Items: make([]json.RawMessage, ref.Messages)}
	if ref.Digest == "" {
		return h, nil
	}
	s.sweeping.RLock()
	defer s.sweeping.RUnlock()
	s.note(ref.Digest) // it may become a live one
	at, err := parseDigest(ref.Digest)
	if err != nil {
		return h, err
	}
	for i := ref.Messages - 1; i >= 0; i-- {
		before, m, err := s.link(i, at)
		if err != nil {
			return h, err
		}
		if h.Items[i], err = s.message(m); err != nil {
			return h, err
		}
		at = before
	}
	if at != (digest{}) {
		return h, fmt.Errorf("history %s has more than %d messages: %w", ref.Digest, ref.Messages, ErrCorrupt)
	}
	return h, nil
}

// link reads and checks the link at, which must be the i-th.
func (s *Store) link(i int, at digest) (before, message digest, err error) {
	v, ok, err := s.db.Get(kv.Chain(at[:]))
	if err != nil {
		return before, message, fmt.Errorf("read link %x: %w", at, err)
	}
	if ok {
		var n int
		n, before, message, ok = decodeLink(v)
		ok = ok && n == i && link(before, message) == at
	}
	if !ok {
		return before, message, fmt.Errorf("link %x, message %d: %w", at, i, ErrCorrupt)
	}
	return before, message, nil
}

// message reads and checks a message.
func (s *Store) message(h digest) ([]byte, error) {
	var m []byte
	size, parts := uint64(0), uint32(0)
	ok := true
	err := s.db.Scan(kv.MessagePrefix(h[:]), nil, func(k, v []byte) bool {
		if string(k) != string(kv.Message(h[:], parts)) {
			ok = false
			return false
		}
		if parts == 0 {
			n := 0
			if len(v) == 0 || v[0] != recordVersion {
				ok = false
				return false
			}
			if size, n = binary.Uvarint(v[1:]); n <= 0 {
				ok = false
				return false
			}
			v = v[1+n:]
		}
		parts++
		m = append(m, v...)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read message %x: %w", h, err)
	}
	if !ok || parts == 0 || uint64(len(m)) != size || digest(blake3.Sum256(m)) != h {
		return nil, fmt.Errorf("message %x: %w", h, ErrCorrupt)
	}
	return m, nil
}

// linkContext sets the digests of links apart from all others.
const linkContext = "rewindfs conversation link 1"

// link is the digest of a link: of the one before it, and of a message.
func link(before, message digest) digest {
	h := blake3.New()
	_, _ = h.WriteString(linkContext)
	_, _ = h.Write(before[:])
	_, _ = h.Write(message[:])
	return digest(h.Sum(nil))
}

func encodeLink(i int, before, message digest) []byte {
	v := binary.AppendUvarint([]byte{recordVersion}, uint64(i))
	return append(append(v, before[:]...), message[:]...)
}

func decodeLink(v []byte) (i int, before, message digest, ok bool) {
	if len(v) == 0 || v[0] != recordVersion {
		return 0, before, message, false
	}
	n, k := binary.Uvarint(v[1:])
	if k <= 0 || len(v) != 1+k+64 {
		return 0, before, message, false
	}
	copy(before[:], v[1+k:])
	copy(message[:], v[1+k+32:])
	return int(n), before, message, true
}

func parseDigest(s string) (d digest, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(d) {
		return d, fmt.Errorf("conversation digest %q: %w", s, ErrCorrupt)
	}
	return digest(b), nil
}
