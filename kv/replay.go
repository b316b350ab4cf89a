package kv

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// recovery is what replaying the log came to.
type recovery struct {
	records int
	lastSeq uint64
	segs    []*segment // open, oldest first; the last one can be appended to
	// lost says that records behind the last good one exist, which a power cut
	// or damage made unusable; where names the place.
	lost  bool
	where string
}

// replayLog reads the segments in dir in order and gives every batch to apply,
// until a record does not check. Segments behind that one are put aside. apply
// may end the replay with an error: that record and all behind it are lost.
func replayLog(dir string, id storeID, apply func(payload []byte) error) (r *recovery, err error) {
	firsts, err := listSegments(dir)
	if err != nil {
		return nil, err
	}
	r = &recovery{}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for i, first := range firsts {
		path := filepath.Join(dir, segName(first))
		if r.lost || i > 0 && first != r.lastSeq+1 {
			if n := len(r.segs); n > 0 {
				r.noteLoss(r.segs[n-1].path, r.segs[n-1].tail)
			}
			r.noteLoss(path, 0)
			if err := os.Rename(path, path+lostExt); err != nil {
				return r, fmt.Errorf("putting a lost log segment aside: %w", err)
			}
			continue
		}
		if i == 0 {
			r.lastSeq = first - 1
		}
		s, err := openSegment(path, first, id)
		if errors.Is(err, errSegHeader) {
			// A power cut came between creating and syncing it, or it is damaged.
			r.noteLoss(path, 0)
			if err := os.Rename(path, path+lostExt); err != nil {
				return r, fmt.Errorf("putting a lost log segment aside: %w", err)
			}
			continue
		}
		if err != nil {
			return r, err
		}
		r.segs = append(r.segs, s)
		if err := r.replay(s, apply); err != nil {
			return r, err
		}
	}
	return r, nil
}

// lastDeletes reads the log as replayLog does, without changing anything, and says
// which batch, counted from 1, is the last to delete a key: the bytes that an earlier
// put of that key points at may be gone. Whoever frees such bytes syncs the delete
// before, so it is in every log that a power cut leaves.
func lastDeletes(dir string, id storeID) (map[string]int, error) {
	firsts, err := listSegments(dir)
	if err != nil {
		return nil, err
	}
	last := map[string]int{}
	r := &recovery{}
	defer r.close()
	n := 0
	for i, first := range firsts {
		if i == 0 {
			r.lastSeq = first - 1
		}
		s, err := openSegment(filepath.Join(dir, segName(first)), first, id)
		if r.lost || first != r.lastSeq+1 || errors.Is(err, errSegHeader) {
			if err == nil {
				s.f.Close()
			}
			break // replayLog finds out, and says so
		}
		if err != nil {
			return nil, err
		}
		r.segs = append(r.segs, s)
		err = r.replay(s, func(payload []byte) error {
			n++
			return decodeBatch(payload, func(k, v []byte) {
				if v == nil {
					last[string(k)] = n
				}
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return last, nil
}

func (r *recovery) close() {
	for _, s := range r.segs {
		s.f.Close()
	}
}

func (r *recovery) noteLoss(path string, off int64) {
	if !r.lost {
		r.lost, r.where = true, fmt.Sprintf("%s at byte %d", path, off)
	}
}

// listSegments returns the first sequences of the segments in dir, ascending.
func listSegments(dir string) ([]uint64, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing the log: %w", err)
	}
	var firsts []uint64
	for _, n := range names {
		if first, ok := parseSegName(n.Name()); ok {
			firsts = append(firsts, first)
		}
	}
	slices.Sort(firsts)
	return firsts, nil
}

func openSegment(path string, first uint64, id storeID) (*segment, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("opening log segment: %w", err)
	}
	s := &segment{f: f, path: path, first: first, tail: segHdrLen}
	hdr := make([]byte, segHdrLen)
	var inFile uint64
	if _, err = f.ReadAt(hdr, 0); err == io.EOF {
		err = errSegHeader
	}
	if err == nil {
		inFile, s.salt, err = parseSegHeader(hdr, id)
	}
	if err == nil && inFile != first {
		err = errSegHeader
	}
	if err == nil {
		s.alloc, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("opening log segment %s: %w", path, err)
	}
	return s, nil
}

// replay reads the records of s up to the first that does not check.
func (r *recovery) replay(s *segment, apply func([]byte) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(s.f, segHdrLen, s.alloc-segHdrLen), 256<<10)
	for {
		rec, err := readRecord(in, s.alloc-s.tail)
		if err != nil {
			return fmt.Errorf("reading log segment %s: %w", s.path, err)
		}
		if rec == nil || !goodRecord(rec, s.salt, r.lastSeq+1) {
			if rec != nil && r.goodFollows(in, s, len(rec)) {
				r.noteLoss(s.path, s.tail)
			}
			return nil
		}
		payload := rec[recHdrLen:]
		switch payload[0] {
		case recSalt:
			if len(payload) != 1+saltLen {
				return fmt.Errorf("log segment %s at byte %d: %w", s.path, s.tail, errBadBatch)
			}
			s.salt = crc32.Checksum(payload[1:], crcTable)
		case recBatch:
			if err := apply(payload[1:]); errors.Is(err, errStopReplay) {
				r.noteLoss(s.path, s.tail)
				return nil
			} else if err != nil {
				return fmt.Errorf("log segment %s at byte %d: %w", s.path, s.tail, err)
			}
			r.records++
		default:
			return fmt.Errorf("log segment %s at byte %d: record of unknown kind %d: %w", s.path, s.tail, payload[0], ErrNewerFormat)
		}
		r.lastSeq++
		s.tail += int64(len(rec))
	}
}

// errStopReplay, returned by apply, ends the replay before the record.
var errStopReplay = errors.New("record names bytes that are not there")

// readRecord reads what looks like a record of at most left bytes; nil if the
// length makes no sense.
func readRecord(in io.Reader, left int64) ([]byte, error) {
	var hdr [recHdrLen]byte
	if left < recHdrLen+1 {
		return nil, nil
	}
	if _, err := io.ReadFull(in, hdr[:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(hdr[4:]))
	if n == 0 || n > maxPayload || n > left-recHdrLen {
		return nil, nil
	}
	rec := make([]byte, recHdrLen+n)
	copy(rec, hdr[:])
	if _, err := io.ReadFull(in, rec[recHdrLen:]); err != nil {
		return nil, err
	}
	return rec, nil
}

func goodRecord(rec []byte, salt uint32, seq uint64) bool {
	return binary.BigEndian.Uint64(rec[8:]) == seq && binary.BigEndian.Uint32(rec) == recordCRC(salt, rec)
}

// goodFollows tells whether the bad record of n bytes at the tail has a good
// successor: then it is no torn end but a hole.
func (r *recovery) goodFollows(in io.Reader, s *segment, n int) bool {
	next, err := readRecord(in, s.alloc-s.tail-int64(n))
	return err == nil && next != nil && goodRecord(next, s.salt, r.lastSeq+2)
}
