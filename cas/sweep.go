package cas

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// A sweep gives the bytes of chunks back that nobody needs any more, in three steps
// that its caller ties together:
//
//	Unneeded  finds the index records that the caller does not need; slow, no lock
//	Drop      forgets them. The caller makes sure that meanwhile nobody applies a
//	          batch that names a chunk, and tells which chunks were named since before
//	          Unneeded. What was Put before and is not applied yet is void afterwards:
//	          it shows by Sweeps, and must be Put again
//	Free      frees the bytes: of whole packs, and of blocks of packs that are left
//
// Between Drop and Free the caller makes kv durable: an index record that came back
// after a power cut would name bytes that are gone. A crash between them costs
// nothing but the bytes until the next sweep, because Free frees all that no index
// record names, also what failed writes and dead daemons left.

// Sweeps counts the sweeps that have forgotten chunks so far. Who finds another number
// than before a Put must Put again; and so must who was told ErrCorrupt by a read look
// again at what it was reading.
func (s *Store) Sweeps() uint64 { return s.sweeps.Load() }

// Garbage is what a sweep is about. It is for one goroutine.
type Garbage struct {
	s    *Store
	dead []Hash
	size int64             // bytes of the dead chunks
	live map[uint32][]span // what the packs must keep, by pack
	// Wipe has Free write zeros over the bytes that it cannot give back, because their blocks are shared.
	Wipe bool
	upTo uint32 // number of the last pack that takes no more records, once dropped
}

// span is a part of a pack: a record, or several one behind the other.
type span struct{ from, to int64 }

// Unneeded finds the chunks of the index that needed does not want to keep.
func (s *Store) Unneeded(needed func(Hash) bool) (*Garbage, error) {
	g := &Garbage{s: s, live: map[uint32][]span{}}
	var bad error
	err := s.db.Scan(kv.ChunkPrefix(), nil, func(k, v []byte) bool {
		raw, _ := kv.ParseChunk(k)
		at, ok := parsePlace(v)
		if !ok || len(raw) != len(Hash{}) {
			bad = fmt.Errorf("index record %x does not decode: %w", k, ErrCorrupt)
			return false
		}
		if h := Hash(raw); needed(h) {
			g.keep(at)
		} else {
			g.dead = append(g.dead, h)
			g.size += recHdrLen + int64(at.n)
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("looking for chunks that nobody needs: %w", err)
	}
	return g, nil
}

// Bytes is how much the unneeded chunks take in the packs.
func (g *Garbage) Bytes() int64 { return g.size }

// keep spares the record whose data is at.
func (g *Garbage) keep(at place) {
	spans := g.live[at.pack]
	s := span{at.off - recHdrLen, at.off + int64(at.n)}
	if k := len(spans) - 1; k >= 0 && spans[k].to == s.from {
		spans[k].to = s.to
		return
	}
	g.live[at.pack] = append(spans, s)
}

// dropBatch is how many index records one batch forgets.
const dropBatch = 4096

// Drop forgets the chunks found, but for those in named. See above for what the
// caller owes. It returns how many were forgotten; after an error some may be, and
// Free must not be called.
func (g *Garbage) Drop(named map[Hash]struct{}) (n int, err error) {
	s := g.s
	for h := range named {
		at, err := s.find(h)
		if errors.Is(err, ErrCorrupt) {
			continue // its batch failed
		}
		if err != nil {
			return 0, err
		}
		g.keep(at)
	}
	dead := slices.DeleteFunc(g.dead, func(h Hash) bool { _, ok := named[h]; return ok })
	for part := range slices.Chunk(dead, dropBatch) {
		var b kv.Batch
		b.UseReserve()
		for _, h := range part {
			b.Delete(kv.Chunk(h[:]))
		}
		if err = s.db.Apply(&b); err != nil {
			err = fmt.Errorf("forgetting %d chunks: %w", len(part), err)
			break
		}
		n += len(part)
	}
	for _, spans := range g.live {
		slices.SortFunc(spans, func(a, b span) int { return int(min(1, max(-1, a.from-b.from))) })
	}
	s.syncMu.Lock() // a Sync under way has records in hand that would be missing
	defer s.syncMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeps.Add(1)
	s.recent = newRecent()
	if s.cur != nil { // whoever still writes to it has been voided
		s.dirty[s.cur.n] = s.cur
		s.cur = nil
	}
	g.upTo = s.last
	for _, p := range s.dirty {
		p.unsynced = slices.DeleteFunc(p.unsynced, func(w written) bool { return !g.keeps(w.at) })
	}
	return n, err
}

// keeps reports whether at is in what the packs must keep, once that is sorted.
func (g *Garbage) keeps(at place) bool {
	spans := g.live[at.pack]
	i, ok := slices.BinarySearchFunc(spans, at.off, func(s span, off int64) int { return int(min(1, max(-1, s.from-off))) })
	if !ok {
		i--
	}
	return i >= 0 && at.off < spans[i].to
}

// Free gives back what no index record names, in bytes of the disk. It goes on after
// an error.
func (g *Garbage) Free() (freed int64, err error) {
	names, err := os.ReadDir(g.s.dir)
	if err != nil {
		return 0, fmt.Errorf("listing packs: %w", err)
	}
	var bad error
	for _, name := range names {
		n, ok := parsePackName(name.Name())
		if !ok || n > g.upTo {
			continue
		}
		k, err := g.freeIn(n)
		if err != nil {
			bad = errors.Join(bad, fmt.Errorf("freeing bytes of pack %s: %w", name.Name(), err))
		}
		freed += k
	}
	return freed, bad
}

func (g *Garbage) freeIn(n uint32) (freed int64, err error) {
	path := filepath.Join(g.s.dir, packName(n))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	before, size, err := blocks(f)
	if err != nil {
		return 0, err
	}
	if len(g.live[n]) == 0 {
		g.s.letGo(n)
		if err := os.Remove(path); err != nil {
			return 0, err
		}
		return before, nil
	}
	err = punch(f, g.live[n], size)
	if g.Wipe {
		err = errors.Join(err, wipe(f, g.live[n], size))
	}
	after, _, err2 := blocks(f)
	return before - after, errors.Join(err, err2)
}

// letGo closes pack n, whose records nobody wants. If somebody still writes to it, the
// next Sync closes it.
func (s *Store) letGo(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files.open[n]; f != nil {
		f.Close()
		delete(s.files.open, n)
	}
	if p := s.dirty[n]; p != nil && p.writers == 0 {
		p.f.Close()
		delete(s.dirty, n)
	}
}

// block is what file systems give back at the least, in bytes. What a smaller one
// could give back besides is not worth touching blocks that live bytes share.
const block = 4096

// punch frees the blocks of f between the spans, which are sorted, and behind them.
func punch(f *os.File, spans []span, size int64) error {
	at := int64(packHdrLen)
	for i := 0; i <= len(spans); i++ {
		gap := span{at, size}
		if i < len(spans) {
			gap.to, at = spans[i].from, max(at, spans[i].to)
		} else if size%block != 0 {
			gap.to = size + block // nothing lives in the last block
		}
		lo, hi := (gap.from+block-1)/block*block, gap.to/block*block
		if lo >= hi {
			continue
		}
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, lo, hi-lo)
		for err == unix.EINTR {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, lo, hi-lo)
		}
		if err != nil {
			return spaceErr(err)
		}
	}
	return nil
}

// wipe writes zeros over what is left between the spans, which are sorted, and behind them, once the blocks in between
// are punched out.
func wipe(f *os.File, spans []span, size int64) error {
	zeros := make([]byte, block)
	clear := func(lo, hi int64) error {
		for lo < hi {
			n, err := f.WriteAt(zeros[:min(hi-lo, block)], lo)
			if err != nil {
				return spaceErr(err)
			}
			lo += int64(n)
		}
		return nil
	}
	at := int64(packHdrLen)
	for i := 0; i <= len(spans); i++ {
		gap := span{at, size}
		if i < len(spans) {
			gap.to, at = spans[i].from, max(at, spans[i].to)
		}
		lo, hi := (gap.from+block-1)/block*block, gap.to/block*block
		err := clear(gap.from, min(lo, gap.to))
		if err == nil && hi >= lo {
			err = clear(max(hi, gap.from), gap.to)
		}
		if err != nil {
			return err
		}
	}
	return fdatasync(f)
}

// blocks tells what f takes on the disk and how long it is, in bytes.
func blocks(f *os.File) (disk, size int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, 0, err
	}
	return st.Blocks * 512, st.Size, nil
}
