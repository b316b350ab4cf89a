package cas

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rewindfs/rewindfs/kv"
)

// Check reads every chunk of the index, from the key from on (nil: the first), and gives fn what it found, with the key
// of the index record: err is nil for a good one, and says what is wrong with a bad one. It stops when fn returns false.
func (s *Store) Check(from []byte, fn func(key []byte, size int, err error) bool) error {
	buf := make([]byte, ChunkSize)
	return s.db.Scan(kv.ChunkPrefix(), from, func(k, v []byte) bool {
		raw, _ := kv.ParseChunk(k)
		var h Hash
		if copy(h[:], raw) != len(h) || len(raw) != len(h) {
			return fn(k, 0, fmt.Errorf("index key %x is no hash: %w", k, ErrCorrupt))
		}
		at, ok := parsePlace(v)
		if !ok {
			return fn(k, 0, fmt.Errorf("index record of chunk %s does not decode: %w", h, ErrCorrupt))
		}
		return fn(k, at.n, s.readWhole(h, at, buf[:at.n]))
	})
}

// ReplayCheck tells whether the chunks that index records name are really in the
// packs. Its Check is for kv.Options.CheckReplay: after a power cut a record may
// have reached the disk before the bytes that it names.
type ReplayCheck struct {
	files files
	buf   []byte
}

// NewReplayCheck is for the chunk store in dir, which need not be there yet.
func NewReplayCheck(dir string) *ReplayCheck {
	return &ReplayCheck{files{packDir(dir), map[uint32]*os.File{}}, make([]byte, ChunkSize)}
}

// Check returns an ErrCorrupt for an index record whose chunk is not there. Other
// records are none of its business.
func (c *ReplayCheck) Check(key, val []byte) error {
	raw, ok := kv.ParseChunk(key)
	if !ok {
		return nil
	}
	at, ok := parsePlace(val)
	if !ok || len(raw) != len(Hash{}) {
		return fmt.Errorf("index record of chunk %x does not decode: %w", raw, ErrCorrupt)
	}
	f, err := c.files.get(at.pack)
	if err == nil {
		_, err = f.ReadAt(c.buf[:at.n], at.off)
	}
	if err != nil {
		return fmt.Errorf("chunk %x in %s: %w", raw, filepath.Join(c.files.dir, packName(at.pack)), err)
	}
	if HashOf(c.buf[:at.n]) != Hash(raw) {
		return fmt.Errorf("chunk %x in pack %s is not there: %w", raw, packName(at.pack), ErrCorrupt)
	}
	return nil
}

// Close closes the packs. The ReplayCheck may be used again.
func (c *ReplayCheck) Close() { c.files.close() }
