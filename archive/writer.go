package archive

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

const magic = "rewindfs archive"

// window is how far back the compression looks, in bytes: what both sides hold in memory.
const window = 4 << 20

// chunkKey is enough of a chunk's digest to tell it apart.
type chunkKey [16]byte

func keyOf(h Digest) chunkKey { return chunkKey(h[:16]) }

// Writer writes an archive. It checks nothing but sizes: what it is given must be in the order of the format.
type Writer struct {
	out     io.Writer // the file, hashed on its way
	file    *blake3.Hasher
	z       *zstd.Encoder
	section *blake3.Hasher
	chunks  map[chunkKey]struct{}
	buf     encoder
	head    []byte
	Counts  Counts
}

// NewWriter begins an archive. Close ends it.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	file := blake3.New()
	a := &Writer{out: io.MultiWriter(w, file), file: file, section: blake3.New(), chunks: map[chunkKey]struct{}{}}
	if _, err := a.out.Write(binary.BigEndian.AppendUint32([]byte(magic), Version)); err != nil {
		return nil, err
	}
	var err error
	if a.z, err = zstd.NewWriter(a.out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window), zstd.WithEncoderCRC(false)); err != nil {
		return nil, fmt.Errorf("begin the archive: %w", err)
	}
	return a, a.json('H', h)
}

func (a *Writer) put(letter byte, p []byte) error {
	if len(p) > MaxRecord {
		return fmt.Errorf("a record of the archive would have %d bytes, more than %d", len(p), MaxRecord)
	}
	a.head = binary.AppendUvarint(append(a.head[:0], letter), uint64(len(p)))
	for _, b := range [][]byte{a.head, p} {
		_, _ = a.section.Write(b)
		if _, err := a.z.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (a *Writer) json(letter byte, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a record of the archive: %w", err)
	}
	return a.put(letter, p)
}

// Begin begins a section.
func (a *Writer) Begin(s Section) error {
	a.section.Reset()
	return a.fields('B', func(e *encoder) { e.num(uint64(s)) })
}

// End ends a section.
func (a *Writer) End() error {
	var d Digest
	a.section.Sum(d[:0])
	return a.put('E', d[:])
}

func (a *Writer) fields(letter byte, fill func(*encoder)) error {
	a.buf.b = a.buf.b[:0]
	fill(&a.buf)
	return a.put(letter, a.buf.b)
}

// Take writes that a name goes.
func (a *Writer) Take(r Take) error {
	return a.fields('T', func(e *encoder) { e.num(r.Dir); e.num(r.ID); e.text(r.Name) })
}

// Make writes a new object.
func (a *Writer) Make(r Make) error {
	a.Counts.Objects++
	return a.fields('M', func(e *encoder) { e.num(r.Dir); e.text(r.Name); e.node(&r.Node) })
}

// Name writes a name of an object that is there.
func (a *Writer) Name(r Name) error {
	return a.fields('N', func(e *encoder) { e.num(r.Dir); e.num(r.ID); e.text(r.Name) })
}

// Set writes what an object is.
func (a *Writer) Set(r Set) error {
	return a.fields('S', func(e *encoder) { e.node(&r.Node) })
}

// Clear writes that a range of the file last set gets new bytes.
func (a *Writer) Clear(r Clear) error {
	return a.fields('X', func(e *encoder) { e.num(uint64(r.Off)); e.num(uint64(r.N)) })
}

// Chunk writes bytes of the file last made or set: themselves, or where they came before their digest.
func (a *Writer) Chunk(off int64, p []byte) error {
	h := Digest(blake3.Sum256(p))
	if _, ok := a.chunks[keyOf(h)]; ok {
		return a.fields('R', func(e *encoder) { e.num(uint64(off)); e.num(uint64(len(p))); e.digest(h) })
	}
	a.chunks[keyOf(h)] = struct{}{}
	a.Counts.Chunks++
	a.Counts.Bytes += int64(len(p))
	return a.fields('D', func(e *encoder) { e.num(uint64(off)); e.bytes(p) })
}

// Print writes the digest of the file last made.
func (a *Writer) Print(h Digest) error { return a.put('F', h[:]) }

// Checkpoint writes the entry of the state that the last section made.
func (a *Writer) Checkpoint(c *Checkpoint) error {
	a.Counts.Checkpoints++
	return a.json('C', c)
}

// Link writes a message.
func (a *Writer) Link(l Link) error {
	if len(l.Message) > maxMessage {
		return fmt.Errorf("a message of %d bytes does not fit into an archive", len(l.Message))
	}
	a.Counts.Messages++
	err := a.fields('K', func(e *encoder) { e.digest(l.Before); e.num(l.Index); e.num(uint64(len(l.Message))) })
	for m := l.Message; len(m) > 0 && err == nil; {
		p := m[:min(len(m), partSize)]
		m = m[len(p):]
		err = a.fields('P', func(e *encoder) { e.bytes(p) })
	}
	return err
}

// Close ends the archive and returns the digest of the file, which its last bytes are.
func (a *Writer) Close() (Digest, error) {
	var d Digest
	err := a.json('Z', a.Counts)
	if err == nil {
		err = a.z.Close()
	}
	if err == nil {
		a.file.Sum(d[:0])
		_, err = a.out.Write(d[:])
	}
	return d, err
}
