package kv

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A log segment is a file of allocated blocks: a header, then records. All
// numbers are big-endian.
//
//	header   magic "RWLG", u32 version, store id [16], u64 first sequence,
//	         salt [8], u32 CRC-32C of all that
//	record   u32 CRC-32C, u32 payload length, u64 sequence, payload
//	payload  kind byte; recBatch: an encoded batch; recSalt: a salt [8]
//
// A record's CRC covers the salt, the length, the sequence and the payload. The
// salt is new each time a file is used, and after each open (recSalt), so what
// an earlier use or a cut-off tail left behind never passes for a record, not
// even when a user's file content was made to look like one.
const (
	segMagic   = "RWLG"
	segVersion = 1
	segHdrLen  = 64
	recHdrLen  = 16
	saltLen    = 8
	maxPayload = 1 << 30

	recBatch = 1
	recSalt  = 2

	segExt    = ".log"
	lostExt   = ".lost"
	spareName = "spare"
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

type storeID [16]byte

// segment is one file of the log. Only the holder of DB.wmu appends; sync may
// run at the same time under DB.syncMu, which also guards close and recycle.
type segment struct {
	f     *os.File
	path  string
	first uint64 // sequence of the first record
	tail  int64  // wmu: where the next record goes, in bytes
	alloc int64  // wmu: bytes of the file that have blocks
	salt  uint32 // wmu: CRC of the salt, the start of every record's CRC

	// suspect is set for good when an fdatasync failed: the kernel may have
	// dropped the pages and would report success the next time. Guarded by syncMu.
	suspect bool
}

func segName(first uint64) string { return fmt.Sprintf("%016x%s", first, segExt) }

// parseSegName undoes segName.
func parseSegName(name string) (first uint64, ok bool) {
	hex, ok := strings.CutSuffix(name, segExt)
	if !ok || len(hex) != 16 {
		return 0, false
	}
	first, err := strconv.ParseUint(hex, 16, 64)
	return first, err == nil
}

func newSalt() (s [saltLen]byte) {
	rand.Read(s[:]) // never fails
	return s
}

func appendSegHeader(p []byte, id storeID, first uint64, salt [saltLen]byte) []byte {
	start := len(p)
	p = append(p, segMagic...)
	p = binary.BigEndian.AppendUint32(p, segVersion)
	p = append(p, id[:]...)
	p = binary.BigEndian.AppendUint64(p, first)
	p = append(p, salt[:]...)
	p = binary.BigEndian.AppendUint32(p, crc32.Checksum(p[start:], crcTable))
	return append(p, make([]byte, segHdrLen-(len(p)-start))...)
}

var errSegHeader = errors.New("log segment has no valid header")

// parseSegHeader checks p, which holds the first segHdrLen bytes of a segment.
func parseSegHeader(p []byte, id storeID) (first uint64, salt uint32, err error) {
	const crcAt = 4 + 4 + len(id) + 8 + saltLen
	if string(p[:4]) != segMagic || crc32.Checksum(p[:crcAt], crcTable) != binary.BigEndian.Uint32(p[crcAt:]) {
		return 0, 0, errSegHeader
	}
	if v := binary.BigEndian.Uint32(p[4:]); v > segVersion {
		return 0, 0, fmt.Errorf("log segment version %d: %w", v, ErrNewerFormat)
	}
	if storeID(p[8:8+len(id)]) != id {
		return 0, 0, fmt.Errorf("log segment belongs to another store: %w", ErrCorrupt)
	}
	saltAt := crcAt - saltLen
	return binary.BigEndian.Uint64(p[saltAt-8:]), crc32.Checksum(p[saltAt:crcAt], crcTable), nil
}

// recordCRC is the checksum of the record rec, header and payload.
func recordCRC(salt uint32, rec []byte) uint32 {
	return crc32.Update(salt, crcTable, rec[4:])
}

// sealRecord fills in the header of rec, whose payload stands behind recHdrLen bytes.
func sealRecord(rec []byte, salt uint32, seq uint64) {
	binary.BigEndian.PutUint32(rec[4:], uint32(len(rec)-recHdrLen))
	binary.BigEndian.PutUint64(rec[8:], seq)
	binary.BigEndian.PutUint32(rec, recordCRC(salt, rec))
}

// createSegment makes a segment at path for records from first on, out of the
// file that is there, if any, and allocates at least size bytes for it. The file
// gets its name only when it is ready.
func createSegment(dir string, id storeID, first uint64, size int64) (*segment, error) {
	spare := filepath.Join(dir, spareName)
	f, err := os.OpenFile(spare, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating log segment: %w", spaceErr(err))
	}
	s := &segment{f: f, path: filepath.Join(dir, segName(first)), first: first, tail: segHdrLen}
	if err := s.prepare(spare, id, size); err != nil {
		f.Close()
		return nil, fmt.Errorf("creating log segment %s: %w", s.path, spaceErr(err))
	}
	return s, nil
}

func (s *segment) prepare(spare string, id storeID, size int64) error {
	st, err := s.f.Stat()
	if err != nil {
		return err
	}
	if s.alloc = st.Size(); s.alloc < size {
		if err := s.extend(size); err != nil {
			return err
		}
	}
	salt := newSalt()
	s.salt = crc32.Checksum(salt[:], crcTable)
	if _, err := s.f.WriteAt(appendSegHeader(nil, id, s.first, salt), 0); err != nil {
		return err
	}
	return os.Rename(spare, s.path)
}

// extend gives the file blocks up to size bytes, so that writes into them cannot
// fail for lack of space.
func (s *segment) extend(size int64) error {
	err := fallocate(s.f, s.alloc, size-s.alloc)
	if err != nil {
		return fmt.Errorf("extending log segment %s: %w", s.path, spaceErr(err))
	}
	s.alloc = size
	return nil
}

// trim gives back the blocks from size on, which is behind the tail.
func (s *segment) trim(size int64) error {
	if s.alloc <= size {
		return nil
	}
	if err := s.f.Truncate(size); err != nil {
		return fmt.Errorf("shortening log segment %s: %w", s.path, err)
	}
	s.alloc = size
	return nil
}

// fallocate gives [off, off+n) of f blocks and makes f at least that long. A
// file system that cannot reserve gets a longer, sparse file.
func fallocate(f *os.File, off, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, off, n)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EOPNOTSUPP, err == unix.ENOSYS:
			return f.Truncate(off + n)
		}
		return err
	}
}

// append writes the sealed record rec at the tail. When it fails nothing is
// visible, and the next record takes its place.
func (s *segment) append(rec []byte) error {
	if _, err := s.f.WriteAt(rec, s.tail); err != nil {
		s.wipe()
		return fmt.Errorf("writing to the log %s: %w", s.path, spaceErr(err))
	}
	s.tail += int64(len(rec))
	return nil
}

// wipe takes away the header of a record whose write failed: all of it may be in
// the file although the kernel said no, and a crash now would bring it back.
func (s *segment) wipe() {
	s.f.WriteAt(make([]byte, recHdrLen), s.tail) // if this fails, too, there is no more to do
}

// blank writes zeros over what is behind the tail.
func (s *segment) blank() error {
	zeros := make([]byte, mib)
	for at := s.tail; at < s.alloc; {
		n, err := s.f.WriteAt(zeros[:min(mib, s.alloc-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return s.datasync()
}

// datasync makes all that was appended survive a power cut.
func (s *segment) datasync() error {
	if err := retryIntr(func() error { return unix.Fdatasync(int(s.f.Fd())) }); err != nil {
		s.suspect = true
		return fmt.Errorf("syncing the log %s: %w", s.path, spaceErr(err))
	}
	return nil
}

func retryIntr(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// syncDir makes the names in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing directory %s: %w", dir, err)
	}
	return nil
}
