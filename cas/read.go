package cas

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rewindfs/rewindfs/kv"
)

// ReadAt fills p from offset off of chunk h, after checking the whole chunk
// against h: ErrCorrupt, never a wrong byte. A read beyond the chunk's end is
// ErrCorrupt too, as whoever asks for it holds a wrong record.
func (s *Store) ReadAt(h Hash, p []byte, off int) error {
	if hit, err := s.cache.read(h, p, off); hit {
		return err
	}
	at, err := s.find(h)
	if err != nil {
		return err
	}
	if off == 0 && len(p) == at.n {
		if err := s.readWhole(h, at, p); err != nil {
			clear(p)
			return err
		}
		return nil
	}
	data := s.cache.buf(at.n)
	if err := s.readWhole(h, at, data); err != nil {
		s.cache.free(data)
		return err
	}
	err = cut(h, p, data, off)
	s.cache.add(h, data) // whoever reads a part will want another one
	return err
}

// cut copies what is asked for out of a checked chunk.
func cut(h Hash, p, data []byte, off int) error {
	if off < 0 || off > len(data) || len(p) > len(data)-off {
		return fmt.Errorf("chunk %s of %d bytes has no %d bytes at %d: %w", h, len(data), len(p), off, ErrCorrupt)
	}
	copy(p, data[off:])
	return nil
}

// Size returns the length of chunk h in bytes.
func (s *Store) Size(h Hash) (int, error) {
	at, err := s.find(h)
	return at.n, err
}

// find asks the index.
func (s *Store) find(h Hash) (place, error) {
	rec, ok, err := s.db.Get(kv.Chunk(h[:]))
	if err != nil {
		return place{}, fmt.Errorf("looking for chunk %s: %w", h, err)
	}
	if !ok {
		return place{}, fmt.Errorf("chunk %s is not in the index: %w", h, ErrCorrupt)
	}
	at, ok := parsePlace(rec)
	if !ok {
		return place{}, fmt.Errorf("index record of chunk %s does not decode: %w", h, ErrCorrupt)
	}
	return at, nil
}

// readWhole fills p, as long as the chunk, and checks it.
func (s *Store) readWhole(h Hash, at place, p []byte) error {
	err := s.fault("pack.read")
	if err == nil {
		err = s.readPack(at, p)
	}
	if err == io.EOF {
		err = fmt.Errorf("pack is cut off: %w", ErrCorrupt)
	}
	if err == nil && HashOf(p) != h {
		err = fmt.Errorf("hash does not match: %w", ErrCorrupt)
	}
	if err != nil {
		return fmt.Errorf("reading chunk %s (pack %s at %d): %w", h, packName(at.pack), at.off, err)
	}
	return nil
}

func (s *Store) readPack(at place, p []byte) error {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return kv.ErrClosed
		}
		f, err := s.files.get(at.pack)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		_, err = f.ReadAt(p, at.off)
		if errors.Is(err, os.ErrClosed) {
			continue // it was one file too many
		}
		return err
	}
}
