package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// A pack file: a header, then records, appended. Numbers are big-endian.
//
//	header  magic "RWPK", u32 version, store id [16], u32 pack number,
//	        u32 CRC-32C of all that, padded to 64 bytes
//	record  magic "RWCH", u32 length, hash [32], data [length]
const (
	packMagic   = "RWPK"
	packVersion = 1
	packHdrLen  = 64
	packCRCAt   = 4 + 4 + 16 + 4

	recMagic  = "RWCH"
	recHdrLen = 4 + 4 + 32

	packExt   = ".pack"
	packLimit = 256 << 20 // a pack of this size gets no more records
)

// place is where a chunk's data is. In kv: u32 pack, u64 offset, u32 length.
type place struct {
	pack uint32
	off  int64
	n    int
}

const placeLen = 4 + 8 + 4

func (p place) encode() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, placeLen), p.pack)
	b = binary.BigEndian.AppendUint64(b, uint64(p.off))
	return binary.BigEndian.AppendUint32(b, uint32(p.n))
}

func parsePlace(b []byte) (p place, ok bool) {
	if len(b) != placeLen {
		return place{}, false
	}
	p = place{binary.BigEndian.Uint32(b), int64(binary.BigEndian.Uint64(b[4:])), int(binary.BigEndian.Uint32(b[12:]))}
	return p, p.off >= packHdrLen+recHdrLen && p.n > 0 && p.n <= ChunkSize
}

func packName(n uint32) string { return fmt.Sprintf("%08x%s", n, packExt) }

// parsePackName undoes packName.
func parsePackName(name string) (n uint32, ok bool) {
	hex, ok := strings.CutSuffix(name, packExt)
	if !ok || len(hex) != 8 {
		return 0, false
	}
	v, err := strconv.ParseUint(hex, 16, 32)
	return uint32(v), err == nil
}

// pack is a pack file open for appending.
type pack struct {
	n    uint32
	f    *os.File
	tail int64 // Store.mu: where the next record goes
	// writers counts the Puts that are writing to it. Guarded by Store.mu.
	writers int
	// unsynced are the records since the last good Sync. Guarded by Store.mu.
	unsynced []written
	// failed: a sync failed, so the kernel may have dropped what is unsynced
	// although it has it in memory. Guarded by Store.syncMu.
	failed bool
	// fresh: the name is not durable yet. Guarded by Store.syncMu.
	fresh bool
}

// written is a chunk in a pack.
type written struct {
	h  Hash
	at place
}

func recordHeader(h Hash, n int) []byte {
	b := append(make([]byte, 0, recHdrLen), recMagic...)
	return append(binary.BigEndian.AppendUint32(b, uint32(n)), h[:]...)
}

func packHeader(id [16]byte, n uint32) []byte {
	h := append(make([]byte, 0, packHdrLen), packMagic...)
	h = binary.BigEndian.AppendUint32(h, packVersion)
	h = append(h, id[:]...)
	h = binary.BigEndian.AppendUint32(h, n)
	h = binary.BigEndian.AppendUint32(h, crc32.Checksum(h, crc32.MakeTable(crc32.Castagnoli)))
	return h[:packHdrLen]
}

var errNotAPack = errors.New("pack file has no valid header")

// checkPackHeader checks the header of f.
func checkPackHeader(f *os.File, id [16]byte, n uint32) error {
	h := make([]byte, packHdrLen)
	if _, err := f.ReadAt(h, 0); err == io.EOF {
		return errNotAPack
	} else if err != nil {
		return err
	}
	crc := crc32.Checksum(h[:packCRCAt], crc32.MakeTable(crc32.Castagnoli))
	if string(h[:4]) != packMagic || binary.BigEndian.Uint32(h[packCRCAt:]) != crc {
		return errNotAPack
	}
	if v := binary.BigEndian.Uint32(h[4:]); v > packVersion {
		return fmt.Errorf("pack file version %d: %w", v, kv.ErrNewerFormat)
	}
	if [16]byte(h[8:24]) != id || binary.BigEndian.Uint32(h[24:]) != n {
		return fmt.Errorf("pack file belongs elsewhere: %w", ErrCorrupt)
	}
	return nil
}

// createPack makes pack n in dir, which must not exist.
func createPack(dir string, id [16]byte, n uint32) (*pack, error) {
	path := filepath.Join(dir, packName(n))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating pack: %w", spaceErr(err))
	}
	if _, err := f.WriteAt(packHeader(id, n), 0); err != nil {
		f.Close()
		os.Remove(path)
		return nil, fmt.Errorf("creating pack: %w", spaceErr(err))
	}
	return &pack{n: n, f: f, tail: packHdrLen, fresh: true}, nil
}

// lastPack opens the newest pack in dir for appending behind its end: what a
// crash left there is skipped. It returns nil when there is none to go on with,
// and the number of the newest pack, 0 for none.
func lastPack(dir string, id [16]byte) (*pack, uint32, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("listing packs: %w", err)
	}
	var last uint32
	for _, name := range names {
		if n, ok := parsePackName(name.Name()); ok {
			last = max(last, n)
		}
	}
	if last == 0 {
		return nil, 0, nil
	}
	f, err := os.OpenFile(filepath.Join(dir, packName(last)), os.O_RDWR, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("opening pack: %w", err)
	}
	err = checkPackHeader(f, id, last)
	var end int64
	if err == nil {
		end, err = f.Seek(0, io.SeekEnd)
	}
	if errors.Is(err, errNotAPack) || err == nil && end >= packLimit {
		f.Close()
		return nil, last, nil
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("opening pack %s: %w", packName(last), err)
	}
	return &pack{n: last, f: f, tail: end, fresh: true}, last, nil
}

// write puts pieces at off, one behind the other, in one system call unless it is cut short.
func (p *pack) write(off int64, pieces [][]byte) error {
	for len(pieces) > 0 {
		n, err := unix.Pwritev(int(p.f.Fd()), pieces, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		off += int64(n)
		for len(pieces) > 0 && n >= len(pieces[0]) {
			n -= len(pieces[0])
			pieces = pieces[1:]
		}
		if n > 0 {
			pieces[0] = pieces[0][n:]
		}
	}
	return nil
}

// spaceErr turns ENOSPC and EDQUOT into kv.ErrNoSpace.
func spaceErr(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w (%v)", kv.ErrNoSpace, err)
	}
	return err
}

// files are packs open for reading. A pack's file may be closed under a reader,
// who then gets os.ErrClosed and asks again.
type files struct {
	dir  string
	open map[uint32]*os.File // at most maxOpen
}

const maxOpen = 64

// get returns pack n's file. The caller holds Store.mu.
func (f *files) get(n uint32) (*os.File, error) {
	if file := f.open[n]; file != nil {
		return file, nil
	}
	file, err := os.Open(filepath.Join(f.dir, packName(n)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pack is missing: %w", ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	for old, victim := range f.open { // any one will do
		if len(f.open) < maxOpen {
			break
		}
		victim.Close()
		delete(f.open, old)
	}
	f.open[n] = file
	return file, nil
}

func (f *files) close() {
	for n, file := range f.open {
		file.Close()
		delete(f.open, n)
	}
}
