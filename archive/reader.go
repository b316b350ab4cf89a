package archive

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

// Limits bound what an archive may make of a reader. 0 means no bound, but for the one on how much may come out of how little,
// which always holds.
type Limits struct {
	Bytes   int64 // of content, each chunk counted once, of messages, and PieceBytes for each place that has a chunk again, or nothing
	Objects int64 // files, directories and so on
}

// PieceBytes is about what a store needs to remember of a part of a file.
const PieceBytes = 64

// Of a stream of more than freeBytes, at most maxRatio times as much may come out as went in.
const (
	freeBytes = 256 << 20
	maxRatio  = 1000
)

// Reader reads an archive, and refuses one that is not in order. It is used by one goroutine.
type Reader struct {
	Header Header

	file    *tail
	z       *zstd.Decoder
	in      *bufio.Reader
	limits  Limits
	section *blake3.Hasher
	chunks  map[chunkKey]struct{}
	order   order
	have    Counts
	talk    int64 // bytes of messages
	pieces  int64 // Ref and Clear records
	out     int64 // bytes that came out of z
	buf     []byte
}

// NewReader begins to read an archive. Close it when done.
func NewReader(r io.Reader, l Limits) (*Reader, error) {
	a := &Reader{file: &tail{r: bufio.NewReaderSize(r, 64<<10), hash: blake3.New()}, limits: l, section: blake3.New(), chunks: map[chunkKey]struct{}{}}
	start := make([]byte, len(magic)+4)
	if _, err := io.ReadFull(a.file, start); err != nil {
		return nil, a.broken(err, "it is too short to be an archive of rewindfs")
	}
	if string(start[:len(magic)]) != magic {
		return nil, bad("it is no archive of rewindfs")
	}
	switch v := binary.BigEndian.Uint32(start[len(magic):]); {
	case v > Version:
		return nil, fmt.Errorf("%w: it has format %d, and this one reads %d", ErrNewer, v, Version)
	case v != Version:
		return nil, bad("it has format %d, which there never was", v)
	}
	var err error
	if a.z, err = zstd.NewReader(a.file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(2*window)); err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	a.in = bufio.NewReaderSize(a.z, 64<<10)
	rec, err := a.read()
	if h, ok := rec.(*Header); ok && err == nil {
		a.Header = *h
		a.order.base = !h.WithBase
		return a, nil
	}
	a.Close()
	return nil, firstOf(err, bad("it does not begin with a header"))
}

// Close gives back what the reader holds.
func (a *Reader) Close() { a.z.Close() }

// Next returns the next record. After *Counts comes io.EOF, once the digest of the whole file was found right.
func (a *Reader) Next() (Record, error) {
	if a.order.closed {
		return nil, a.finish()
	}
	rec, err := a.read()
	if err == nil {
		err = a.check(rec)
	}
	if err != nil {
		return nil, err
	}
	switch r := rec.(type) {
	case Data:
		r.Hash = blake3.Sum256(r.Bytes)
		return r, a.fresh(r)
	case link:
		return a.message(r)
	case end:
		return End{a.order.in}, a.order.end()
	}
	return rec, nil
}

// read reads and decodes one record.
func (a *Reader) read() (Record, error) {
	letter, err := a.in.ReadByte()
	if err != nil {
		return nil, a.broken(err, "it ends early")
	}
	head := &recorded{in: a.in, b: []byte{letter}}
	n, err := binary.ReadUvarint(head)
	if err != nil {
		return nil, a.broken(err, "it ends early")
	}
	if n > MaxRecord {
		return nil, bad("a record of %d bytes is too large", n)
	}
	if uint64(cap(a.buf)) < n {
		a.buf = make([]byte, n)
	}
	p := a.buf[:n]
	if _, err := io.ReadFull(a.in, p); err != nil {
		return nil, a.broken(err, "it ends early")
	}
	a.out += int64(len(head.b)) + int64(n)
	if a.out > freeBytes && a.out/maxRatio > a.file.n {
		return nil, bad("more than %d times as much comes out of it as it is large", maxRatio)
	}
	rec, err := parse(letter, p)
	if err != nil {
		return nil, err
	}
	switch r := rec.(type) {
	case Begin:
		a.section.Reset()
	case end:
		var now Digest
		a.section.Sum(now[:0])
		if r.digest != now {
			return nil, bad("a section of it is damaged")
		}
	}
	_, _ = a.section.Write(head.b)
	_, _ = a.section.Write(p)
	return rec, nil
}

type recorded struct {
	in io.ByteReader
	b  []byte
}

func (r *recorded) ReadByte() (byte, error) {
	c, err := r.in.ReadByte()
	if err == nil {
		r.b = append(r.b, c)
	}
	return c, err
}

// check looks whether rec may come here.
func (a *Reader) check(rec Record) error {
	if err := a.order.next(rec); err != nil {
		return err
	}
	switch r := rec.(type) {
	case Make:
		a.have.Objects++
		if a.limits.Objects > 0 && a.have.Objects > a.limits.Objects {
			return bad("it has more than %d files", a.limits.Objects)
		}
	case Ref:
		if _, ok := a.chunks[keyOf(r.Hash)]; !ok {
			return bad("bytes of it are missing: chunk %x", r.Hash[:8])
		}
		a.pieces++
		return a.room()
	case Clear:
		a.pieces++
		return a.room()
	case *Checkpoint:
		a.have.Checkpoints++
	case *Counts:
		if *r != a.have {
			return bad("it does not hold what it says it does")
		}
	}
	return nil
}

// fresh notes a chunk.
func (a *Reader) fresh(r Data) error {
	k := keyOf(r.Hash)
	if _, twice := a.chunks[k]; twice {
		return bad("chunk %x is there twice", r.Hash[:8])
	}
	a.chunks[k] = struct{}{}
	a.have.Chunks++
	a.have.Bytes += int64(len(r.Bytes))
	return a.room()
}

// room refuses more bytes than there is room for.
func (a *Reader) room() error {
	if a.limits.Bytes > 0 && a.have.Bytes+a.talk+a.pieces*PieceBytes > a.limits.Bytes {
		return bad("its content has more than the %d bytes that there is room for", a.limits.Bytes)
	}
	return nil
}

// message puts the parts of a message together.
func (a *Reader) message(l link) (Record, error) {
	if l.Size > maxMessage {
		return nil, bad("a message of %d bytes is too large", l.Size)
	}
	a.talk += l.Size
	if err := a.room(); err != nil {
		return nil, err
	}
	var m []byte
	for int64(len(m)) < l.Size {
		rec, err := a.read()
		if err != nil {
			return nil, err
		}
		p, ok := rec.(part)
		if !ok || len(p.bytes) == 0 || int64(len(m)+len(p.bytes)) > l.Size {
			return nil, bad("a message is not as large as it says")
		}
		m = append(m, p.bytes...)
	}
	a.have.Messages++
	return Link{Before: l.Before, Index: l.Index, Message: m}, nil
}

// finish finds out whether the file ends here, and is what its digest says.
func (a *Reader) finish() error {
	if _, err := a.in.ReadByte(); !errors.Is(err, io.EOF) {
		return firstOf(a.broken(err, "it goes on behind its end"), bad("it goes on behind its end"))
	}
	sum, err := a.file.rest()
	if err != nil {
		return err
	}
	var now Digest
	a.file.hash.Sum(now[:0])
	if !bytes.Equal(sum, now[:]) {
		return bad("it is damaged: its digest is wrong")
	}
	return io.EOF
}

// tail reads all but the last bytes of a file, which are its digest, and hashes them.
type tail struct {
	r    *bufio.Reader
	hash *blake3.Hasher
	n    int64
	err  error // of reading the file, but for its end
}

func (t *tail) Read(p []byte) (int, error) {
	const sum = len(Digest{})
	if _, err := t.r.Peek(sum + 1); errors.Is(err, io.EOF) {
		return 0, err // only the digest is left, or not even that
	} else if err != nil {
		t.err = err
		return 0, err
	}
	n, err := t.r.Read(p[:min(len(p), t.r.Buffered()-sum)])
	_, _ = t.hash.Write(p[:n])
	t.n += int64(n)
	return n, err
}

// rest returns the digest at the end.
func (t *tail) rest() ([]byte, error) {
	b, err := io.ReadAll(t.r)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	return b, nil
}

// broken says why reading failed: the file could not be read, it ends, with what that means, or else what is in it is damaged.
func (a *Reader) broken(err error, ends string) error {
	switch {
	case err == nil:
		return nil
	case a.file.err != nil:
		return fmt.Errorf("read the archive: %w", a.file.err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return bad("%s", ends)
	}
	return bad("it is damaged: %v", err)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Check reads the whole archive and returns what is in it: nothing of it has to be believed afterwards but what a tree
// has to say, see Builder.
func Check(r io.Reader, l Limits) (Header, Counts, error) {
	a, err := NewReader(r, l)
	if err != nil {
		return Header{}, Counts{}, err
	}
	defer a.Close()
	for {
		switch _, err := a.Next(); {
		case errors.Is(err, io.EOF):
			return a.Header, a.have, nil
		case err != nil:
			return Header{}, Counts{}, err
		}
	}
}
