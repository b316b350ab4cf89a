package cas

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/rewindfs/rewindfs/kv"
)

// Put stores data unless the store has it, and adds the index record to b. The
// chunk exists once b is applied. data may be used again when Put returns.
//
// While sweeps may happen, the caller must look at Sweeps before, and when b is
// about to be applied: see Garbage.
//
// Errors: kv.ErrNoSpace, ErrSize, and what the disk says; then b is as before.
func (s *Store) Put(b *kv.Batch, data []byte) (Hash, error) {
	hashes, err := s.PutAll(b, [][]byte{data})
	if err != nil {
		return Hash{}, err
	}
	return hashes[0], nil
}

// PutAll is Put for several chunks, of which large ones are hashed and written by
// several processors. The hashes are in the order of the chunks.
func (s *Store) PutAll(b *kv.Batch, chunks [][]byte) ([]Hash, error) {
	for _, data := range chunks {
		if len(data) == 0 || len(data) > ChunkSize {
			return nil, fmt.Errorf("%d bytes: %w", len(data), ErrSize)
		}
	}
	hashes, places := make([]Hash, len(chunks)), make([]place, len(chunks))
	parts := split(chunks)
	errs := make([]error, len(parts))
	var others sync.WaitGroup
	do := func(i int) {
		lo, hi := parts[i][0], parts[i][1]
		errs[i] = s.putPart(chunks[lo:hi], hashes[lo:hi], places[lo:hi])
	}
	for i := 1; i < len(parts); i++ {
		others.Go(func() { do(i) })
	}
	if len(parts) > 0 {
		do(0)
	}
	others.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("storing chunks: %w", err)
		}
	}
	for i, at := range places {
		if at.n > 0 {
			b.Put(kv.Chunk(hashes[i][:]), at.encode())
		}
	}
	return hashes, nil
}

const (
	// partBytes are worth waking another processor for: BLAKE3 takes about 100 µs.
	partBytes = 256 << 10
	// partChunks is the most that one pwritev can take, two pieces each (IOV_MAX is 1024).
	partChunks = 512
)

// split divides chunks into consecutive parts, one for each processor if there is so much.
func split(chunks [][]byte) (parts [][2]int) {
	total := 0
	for _, c := range chunks {
		total += len(c)
	}
	size := max(partBytes, (total+runtime.NumCPU()-1)/runtime.NumCPU())
	lo, bytes := 0, 0
	for i, c := range chunks {
		if bytes += len(c); bytes >= size || i+1-lo == partChunks {
			parts = append(parts, [2]int{lo, i + 1})
			lo, bytes = i+1, 0
		}
	}
	if lo < len(chunks) {
		parts = append(parts, [2]int{lo, len(chunks)})
	}
	return parts
}

// putPart hashes chunks and stores those that are new. It fills hashes, and places
// for those whose index record the caller is to write.
func (s *Store) putPart(chunks [][]byte, hashes []Hash, places []place) error {
	sweep := s.sweeps.Load() // before the index is asked
	fresh := make([]int, 0, len(chunks))
	have := make(map[Hash]bool, len(chunks))
	for i, data := range chunks {
		h := HashOf(data)
		hashes[i] = h
		if have[h] {
			continue // its record is written for the first of them
		}
		have[h] = true
		if _, ok, err := s.db.Get(kv.Chunk(h[:])); err != nil {
			return err
		} else if ok {
			continue
		}
		s.mu.Lock()
		at, ok := s.recent.at[h]
		s.mu.Unlock()
		if ok {
			places[i] = at
		} else {
			fresh = append(fresh, i)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return s.store(sweep, fresh, chunks, hashes, places)
}

// store writes those of chunks that are fresh to a pack, in one piece. Puts at the
// same time get places of their own and write in parallel. sweep is Sweeps as it was
// when they were found to be fresh.
func (s *Store) store(sweep uint64, fresh []int, chunks [][]byte, hashes []Hash, places []place) error {
	size := int64(0)
	pieces := make([][]byte, 0, 2*len(fresh))
	for _, i := range fresh {
		pieces = append(pieces, recordHeader(hashes[i], len(chunks[i])), chunks[i])
		size += int64(recHdrLen + len(chunks[i]))
	}
	if err := s.db.CheckSpace(size); err != nil {
		return err
	}
	p, off, err := s.allot(size)
	if err != nil {
		return err
	}
	if err = s.fault("pack.write"); err == nil {
		err = p.write(off, pieces)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.writers--
	if err != nil {
		if p.tail == off+size {
			p.tail = off // nobody is behind us: the place can be had again
		}
		return spaceErr(fmt.Errorf("writing to pack %s: %w", packName(p.n), err))
	}
	s.dirty[p.n] = p
	for _, i := range fresh {
		at := place{p.n, off + recHdrLen, len(chunks[i])}
		off += recHdrLen + int64(at.n)
		places[i] = at
		if sweep == s.sweeps.Load() { // else it is void, and maybe punched already
			p.unsynced = append(p.unsynced, written{hashes[i], at})
			s.recent.add(hashes[i], at)
		}
	}
	return nil
}

// allot gives the caller size bytes of a pack at off.
func (s *Store) allot(size int64) (p *pack, off int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, kv.ErrClosed
	}
	if s.cur == nil || s.cur.tail >= s.opts.packLimit {
		if err := s.fault("pack.create"); err != nil {
			return nil, 0, spaceErr(err)
		}
		next, err := createPack(s.dir, s.db.StoreID(), s.last+1)
		if err != nil {
			return nil, 0, err
		}
		if s.cur != nil {
			s.dirty[s.cur.n] = s.cur
		}
		s.cur, s.last = next, next.n
	}
	p, off = s.cur, s.cur.tail
	p.tail += size
	p.writers++
	return p, off, nil
}
