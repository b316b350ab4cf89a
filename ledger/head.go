package ledger

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/zeebo/blake3"
)

// headName is the file that says where the last line is. It has headSize bytes, one
// disk sector, so that it is written as a whole or not at all, also by a machine that
// loses its power; and written over in place, so that it needs no room on a full disk.
const (
	headName = "head"
	headSize = 512
)

// tip is a line and where it is. The zero tip is before the first line.
type tip struct {
	Head
	file       int
	start, end int64 // in that file, bytes
}

// headRecord is the content of the head file.
type headRecord struct {
	tip           // the last line
	synced uint64 // lines up to this one are on the disk, as is every file but the newest
	op     uint64 // the highest operation number in the lines
	open   bool   // a daemon appends, or was killed: there may be more lines than this says
	boot   string // of the machine, when it was written
}

// headFields is headRecord in JSON, in this order. sum is 16 bytes of the BLAKE3 of the
// genesis value and all before it, so that the head of another store does not check. In
// all versions it comes last.
type headFields struct {
	V      int    `json:"v"`
	Seq    uint64 `json:"seq"`
	Hash   string `json:"hash"`
	File   int    `json:"file"`
	Start  int64  `json:"start"`
	End    int64  `json:"end"`
	Synced uint64 `json:"synced"`
	Op     uint64 `json:"op"`
	Open   bool   `json:"open"`
	Boot   string `json:"boot"`
	Sum    string `json:"sum"`
}

const sumKey = `,"sum":"`

// encode appends the head file's content to dst, which is empty.
func (r *headRecord) encode(dst []byte, genesis Hash) []byte {
	dst = append(dst, `{"v":1,"seq":`...)
	dst = strconv.AppendUint(dst, r.Seq, 10)
	dst = append(dst, `,"hash":"`...)
	dst = hex.AppendEncode(dst, r.Hash[:])
	dst = append(dst, `","file":`...)
	dst = strconv.AppendInt(dst, int64(r.file), 10)
	dst = append(dst, `,"start":`...)
	dst = strconv.AppendInt(dst, r.start, 10)
	dst = append(dst, `,"end":`...)
	dst = strconv.AppendInt(dst, r.end, 10)
	dst = append(dst, `,"synced":`...)
	dst = strconv.AppendUint(dst, r.synced, 10)
	dst = append(dst, `,"op":`...)
	dst = strconv.AppendUint(dst, r.op, 10)
	dst = append(dst, `,"open":`...)
	dst = strconv.AppendBool(dst, r.open)
	dst = append(dst, `,"boot":"`...)
	dst = append(dst, r.boot...)
	dst = append(dst, '"')
	sum := headSum(dst, genesis)
	dst = append(dst, sumKey...)
	dst = hex.AppendEncode(dst, sum[:])
	dst = append(dst, `"}`...)
	for len(dst) < headSize-1 {
		dst = append(dst, ' ')
	}
	return append(dst, '\n')
}

func headSum(fields []byte, genesis Hash) (sum [16]byte) {
	var buf [len(Hash{}) + headSize]byte
	n := copy(buf[:], genesis[:])
	n += copy(buf[n:], fields)
	full := blake3.Sum256(buf[:n])
	copy(sum[:], full[:])
	return sum
}

// maxBoot bounds boot, so that a head always fits.
const maxBoot = 64

// decodeHead reads the head file's content. It takes nothing but what encode writes.
func decodeHead(b []byte, genesis Hash) (*headRecord, error) {
	at := bytes.LastIndex(b, []byte(sumKey))
	if len(b) != headSize || at < 0 {
		return nil, fmt.Errorf("%w: the file head is not what was written", ErrDamaged)
	}
	sum := headSum(b[:at], genesis)
	if !bytes.HasPrefix(b[at+len(sumKey):], hex.AppendEncode(nil, sum[:])) {
		return nil, fmt.Errorf("%w: the file head does not check: it was changed, or is of another store", ErrDamaged)
	}
	var f headFields
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("%w: the file head: %w", ErrDamaged, err)
	}
	if f.V > version {
		return nil, fmt.Errorf("the ledger's head is of version %d, %w", f.V, ErrNewer)
	}
	hash, _ := parseHash(f.Hash)
	r := &headRecord{
		tip:    tip{Head: Head{Seq: f.Seq, Hash: hash}, file: f.File, start: f.Start, end: f.End},
		synced: f.Synced, op: f.Op, open: f.Open, boot: f.Boot,
	}
	if len(r.boot) > maxBoot || !bytes.Equal(r.encode(nil, genesis), b) {
		return nil, fmt.Errorf("%w: the file head is not spelled as it is written", ErrDamaged)
	}
	return r, nil
}

// readHead reads the head of the ledger in dir. An fs.ErrNotExist error says that
// there is none, ErrDamaged that it is of no use.
func readHead(dir string, genesis Hash) (*headRecord, error) {
	f, err := openRegular(filepath.Join(dir, headName), os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("read the ledger's head: %w", err)
	}
	defer f.Close()
	// A running daemon may write at this moment, and what is read be half of each: then it is read again.
	// What stays the same is what is there.
	var last []byte
	for {
		b := make([]byte, headSize+1)
		n, err := f.ReadAt(b, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the ledger's head: %w", err)
		}
		r, err := decodeHead(b[:n], genesis)
		if err == nil || bytes.Equal(b[:n], last) {
			return r, err
		}
		last = b[:n]
	}
}

// createHead makes the head file of a new ledger, on the disk before it returns.
func createHead(dir string, content []byte) error {
	tmp := filepath.Join(dir, headName+".tmp")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("begin the ledger: %w", err)
	}
	f, err := createFile(tmp)
	if err != nil {
		return fmt.Errorf("begin the ledger: %w", err)
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, headName))
	}
	if err != nil {
		return fmt.Errorf("begin the ledger: %w", errors.Join(err, os.Remove(tmp)))
	}
	return nil
}
