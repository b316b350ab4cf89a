package archive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

var update = flag.Bool("update", false, "write the golden files anew")

func node(id uint64, mode uint32, size int64) Node {
	t := layers.Time{Sec: -5, Nsec: uint32(id)}
	return Node{ID: id, Mode: mode, UID: 1000, GID: 5, Size: size, Atime: t, Mtime: t, Ctime: layers.Time{Sec: 1 << 33}}
}

// put writes one record with the Writer.
func put(t testing.TB, w *Writer, rec Record) {
	t.Helper()
	var err error
	switch r := rec.(type) {
	case Begin:
		err = w.Begin(r.Section)
	case Take:
		err = w.Take(r)
	case Make:
		err = w.Make(r)
	case Name:
		err = w.Name(r)
	case Set:
		err = w.Set(r)
	case Clear:
		err = w.Clear(r)
	case Data:
		err = w.Chunk(r.Off, r.Bytes)
	case Print:
		err = w.Print(r.Hash)
	case Link:
		err = w.Link(r)
	case End:
		err = w.End()
	case *Checkpoint:
		err = w.Checkpoint(r)
	default:
		t.Fatalf("a %T", rec)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// written is an archive of these records, closed.
func written(t testing.TB, h Header, recs ...Record) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		put(t, w, r)
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var (
	madeAt  = time.Date(2026, 11, 30, 8, 0, 0, 5, time.UTC)
	noBase  = Header{Made: madeAt, Version: "test", Session: "s", Base: "proj", History: true}
	allBase = Header{Made: madeAt, Version: "test", WithBase: true}
	talk    = []Record{Begin{SectionTalk}, Link{Message: []byte(`{"a":1}`)}, Link{Before: Digest{1}, Index: 1, Message: bytes.Repeat([]byte("m"), partSize+1)}, End{SectionTalk}}
)

// sample has every record there is.
func sample(t testing.TB) []byte {
	file := node(4, unix.S_IFREG|0o644, 300_000)
	file.Xattrs = map[string][]byte{"user.b": {0, 1}, "user.a": nil}
	link := node(5, unix.S_IFLNK|0o777, 0)
	link.Target = "../x"
	dev := node(6, unix.S_IFCHR|0o600, 0)
	dev.Rdev = 0x103
	chunk := bytes.Repeat([]byte("chunk"), 1000)
	changed := node(4, unix.S_IFREG|0o600, 10_000)
	recs := []Record{
		Begin{SectionBase}, Make{1, "d", node(2, unix.S_IFDIR|0o755, 0)}, Make{2, "f", node(3, unix.S_IFREG|0o644, 7)}, Print{Digest{9}}, Name{1, 3, "hard"}, End{SectionBase},
		Begin{SectionTree}, Take{1, 3, "hard"}, Make{1, "new", file}, Data{Off: 0, Bytes: chunk}, Data{Off: 131072, Bytes: chunk},
		Make{2, "l\xff", link}, Make{2, "dev", dev}, Name{2, 4, "again"}, Set{node(1, unix.S_IFDIR|0o700, 0)}, End{SectionTree},
		&Checkpoint{ID: "X", Label: "one", Metadata: map[string]string{"k": "v"}, CreatedAt: madeAt, Threads: map[string]Thread{"main": {Format: "anthropic", Messages: 1, Digest: "ab"}}},
		Begin{SectionTree}, End{SectionTree}, &Checkpoint{ID: "Y", SameLayer: true, CreatedAt: madeAt, Tool: []byte(`{"step":"s"}`)},
		Begin{SectionTree}, Set{changed}, Clear{0, 5000}, Data{Off: 1, Bytes: []byte("x")}, End{SectionTree}, &Checkpoint{ID: "Z", CreatedAt: madeAt},
	}
	return written(t, noBase, append(recs, talk...)...)
}

// dump shows the records of an archive as text.
func dump(t *testing.T, file []byte) string {
	t.Helper()
	r, err := NewReader(bytes.NewReader(file), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out := fmt.Sprintf("%+v\n", r.Header)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%v, after:\n%s", err, out)
		}
		switch x := rec.(type) {
		case Data:
			out += fmt.Sprintf("Data %d: %d bytes, %x\n", x.Off, len(x.Bytes), x.Hash[:4])
		case Link:
			out += fmt.Sprintf("Link %d behind %x: %d bytes\n", x.Index, x.Before[:2], len(x.Message))
		case *Checkpoint:
			out += fmt.Sprintf("Checkpoint %+v\n", *x)
		case *Counts:
			out += fmt.Sprintf("Counts %+v\n", *x)
		default:
			out += fmt.Sprintf("%T %+v\n", rec, rec)
		}
	}
}

// An archive that an older version wrote reads as it did.
func TestGolden(t *testing.T) {
	const file, text = "testdata/v1.rwa", "testdata/v1.txt"
	if *update {
		p := sample(t)
		if err := errors.Join(os.WriteFile(file, p, 0o644), os.WriteFile(text, []byte(dump(t, p)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := dump(t, p); got != string(want) {
		t.Errorf("it reads:\n%s\nand read:\n%s", got, want)
	}
	if a, b := unpacked(t, p), unpacked(t, sample(t)); !bytes.Equal(a, b) {
		t.Error("what is written now is not what was written: a change of the format needs a new version")
	}
}

const headSize, sumSize = 20, 32

func unpacked(t testing.TB, file []byte) []byte {
	t.Helper()
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	p, err := z.DecodeAll(file[headSize:len(file)-sumSize], nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// packed makes an archive of a stream of records, with a right digest.
func packed(t testing.TB, stream []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	out := z.EncodeAll(stream, binary.BigEndian.AppendUint32([]byte(magic), Version))
	d := blake3.Sum256(out)
	return append(out, d[:]...)
}

func TestEveryDamagedByteIsFound(t *testing.T) {
	file := written(t, allBase, small()...)
	if _, have, err := Check(bytes.NewReader(file), Limits{}); err != nil || have.Objects != 2 || have.Checkpoints != 1 {
		t.Fatalf("%+v, %v", have, err)
	}
	refused := func(p []byte, what string) {
		t.Helper()
		if _, _, err := Check(bytes.NewReader(p), Limits{}); !errors.Is(err, ErrBad) && !errors.Is(err, ErrNewer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range file {
		for _, flip := range []byte{1, 0x80, 0xff} {
			p := bytes.Clone(file)
			p[i] ^= flip
			refused(p, fmt.Sprintf("byte %d of %d changed by %x", i, len(file), flip))
		}
		refused(file[:i], fmt.Sprintf("cut at %d", i))
	}
	refused(append(bytes.Clone(file), 0), "a byte behind it")
	refused(append(bytes.Clone(file), file...), "twice")
}

func small() []Record {
	return append([]Record{
		Begin{SectionTree}, Make{1, "d", node(2, unix.S_IFDIR|0o755, 0)}, Make{2, "f", node(3, unix.S_IFREG|0o644, 5)}, Data{Off: 0, Bytes: []byte("hello")}, End{SectionTree},
		&Checkpoint{ID: "X", CreatedAt: madeAt},
	}, talk[0], talk[1], talk[3])
}

// Archives that are whole, and that nobody may want.
func TestHostileArchives(t *testing.T) {
	dir := func(id uint64) Node { return node(id, unix.S_IFDIR|0o755, 0) }
	file := func(id uint64, size int64) Node { return node(id, unix.S_IFREG|0o644, size) }
	noTarget, target := node(2, unix.S_IFLNK|0o777, 0), file(2, 0)
	target.Target = "x"
	late := dir(2)
	late.Mtime.Nsec = 1_000_000_000
	nul := file(2, 0)
	nul.Xattrs = map[string][]byte{"user.\x00": nil}
	long := node(2, unix.S_IFLNK|0o777, 0)
	long.Target = strings.Repeat("x", unix.PathMax)
	chunk := bytes.Repeat([]byte("x"), ChunkSize)
	cp := &Checkpoint{CreatedAt: madeAt}
	tree := func(recs ...Record) []Record {
		return append(append([]Record{Begin{SectionTree}}, recs...), End{SectionTree}, cp, talk[0], talk[3])
	}
	for name, recs := range map[string][]Record{
		"a name with a slash":            tree(Make{1, "a/b", dir(2)}),
		"a name that leads up":           tree(Make{1, "..", dir(2)}),
		"an absolute name":               tree(Make{1, "/etc", dir(2)}),
		"the directory itself":           tree(Make{1, ".", dir(2)}),
		"no name":                        tree(Make{1, "", dir(2)}),
		"a NUL in a name":                tree(Make{1, "a\x00", dir(2)}),
		"a name too long":                tree(Make{1, strings.Repeat("n", 256), dir(2)}),
		"a second name with a slash":     tree(Make{1, "f", file(2, 0)}, Name{1, 2, "../f"}),
		"a link without a target":        tree(Make{1, "l", noTarget}),
		"a file with a target":           tree(Make{1, "l", target}),
		"a target too long":              tree(Make{1, "l", long}),
		"no type":                        tree(Make{1, "f", node(2, 0o644, 0)}),
		"no id":                          tree(Make{1, "f", file(0, 0)}),
		"nanoseconds":                    tree(Make{1, "f", late}),
		"a NUL in an attribute":          tree(Make{1, "f", nul}),
		"bytes behind the end":           tree(Make{1, "f", file(2, 4)}, Data{Off: 0, Bytes: []byte("hello")}),
		"bytes far behind the end":       tree(Make{1, "f", file(2, 4)}, Data{Off: 1 << 61, Bytes: []byte("h")}),
		"bytes out of order":             tree(Make{1, "f", file(2, 9)}, Data{Off: 4, Bytes: []byte("h")}, Data{Off: 3, Bytes: []byte("i")}),
		"a chunk across two":             tree(Make{1, "f", file(2, 1<<20)}, Data{Off: 1, Bytes: chunk}),
		"a large range cleared":          tree(Set{file(2, 1<<60)}, Clear{0, 1 << 60}),
		"bytes of a directory":           tree(Make{1, "f", dir(2)}, Data{Off: 0, Bytes: []byte("h")}),
		"bytes of nothing":               tree(Data{Off: 0, Bytes: []byte("h")}),
		"a range cleared of a new file":  tree(Make{1, "f", file(2, 9)}, Clear{0, 1}),
		"names that go too late":         tree(Make{1, "f", file(2, 9)}, Take{1, 2, "f"}),
		"objects that come too late":     tree(Set{dir(1)}, Make{1, "f", file(2, 9)}),
		"a print in a tree":              tree(Make{1, "f", file(2, 0)}, Print{}),
		"no checkpoint":                  talk,
		"a checkpoint without a tree":    {cp, talk[0], talk[3]},
		"two checkpoints of a tree":      append([]Record{Begin{SectionTree}, End{SectionTree}, cp}, append([]Record{cp}, talk...)...),
		"a tree without a checkpoint":    append([]Record{Begin{SectionTree}, End{SectionTree}}, talk...),
		"a section in a section":         tree(Begin{SectionTree}),
		"a base that is not announced":   append([]Record{Begin{SectionBase}, End{SectionBase}}, tree()...),
		"a base after a tree":            append([]Record{Begin{SectionTree}, End{SectionTree}, cp, Begin{SectionBase}, End{SectionBase}}, tree()...),
		"no conversations":               {Begin{SectionTree}, End{SectionTree}, cp},
		"a tree behind the conversation": append(tree(), Begin{SectionTree}, End{SectionTree}),
		"a message in a tree":            tree(talk[1]),
		"a section of another kind":      append(tree(), Begin{7}, End{7}),
	} {
		_, _, err := Check(bytes.NewReader(written(t, allBase, recs...)), Limits{})
		if !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := Check(bytes.NewReader(written(t, noBase, tree()...)), Limits{}); !errors.Is(err, ErrBad) {
		t.Errorf("an archive without the base that it announces: %v", err)
	}
	if _, _, err := Check(bytes.NewReader(written(t, allBase, tree(Make{1, "f", file(2, 0)})...)), Limits{}); err != nil {
		t.Errorf("one that is in order: %v", err)
	}
}

// Records that the Writer does not write.
func TestHostileRecords(t *testing.T) {
	var e encoder
	rec := func(letter byte, p []byte) []byte {
		return append(binary.AppendUvarint([]byte{letter}, uint64(len(p))), p...)
	}
	head := rec('H', []byte(`{"with_base":true}`))
	begin := rec('B', []byte{2})
	n := node(2, unix.S_IFREG|0o644, 9)
	e.num(1)
	e.text("f")
	e.node(&n)
	made := rec('M', e.b)
	ref := rec('R', append([]byte{0, 5}, make([]byte, 32)...))
	data := rec('D', append([]byte{0, 2}, "hi"...))
	again := rec('D', append([]byte{2, 2}, "hi"...))
	for name, stream := range map[string][]byte{
		"nothing":                    nil,
		"no header":                  begin,
		"a header that is no JSON":   rec('H', []byte("{")),
		"a header with more":         rec('H', []byte(`{} {}`)),
		"a header with a bracket":    rec('H', []byte(`{}}`)),
		"a header with other fields": rec('H', []byte(`{"x":1}`)),
		"a record too large":         append(bytes.Clone(head), binary.AppendUvarint([]byte{'D'}, MaxRecord+1)...),
		"a record far too large":     append(bytes.Clone(head), binary.AppendUvarint([]byte{'D'}, 1<<63)...),
		"an unknown record":          append(bytes.Clone(head), rec('?', nil)...),
		"a record with more":         bytes.Join([][]byte{head, rec('B', []byte{2, 0})}, nil),
		"a chunk that never came":    bytes.Join([][]byte{head, begin, made, ref}, nil),
		"a chunk that comes twice":   bytes.Join([][]byte{head, begin, made, data, again}, nil),
		"a wrong section digest":     bytes.Join([][]byte{head, begin, rec('E', make([]byte, 32))}, nil),
		"a part without a message":   bytes.Join([][]byte{head, rec('P', []byte{0})}, nil),
		"a second header":            bytes.Join([][]byte{head, head}, nil),
		"attributes without end":     bytes.Join([][]byte{head, begin, rec('S', []byte{2, 0xa4, 0x83, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0x3f})}, nil),
	} {
		_, _, err := Check(bytes.NewReader(packed(t, stream)), Limits{})
		if !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whole but for one thing, which the tree would not mind.
func TestChunksComeOnceAndCountsAreTrue(t *testing.T) {
	file := written(t, allBase, append([]Record{
		Begin{SectionTree}, Make{1, "f", node(3, unix.S_IFREG|0o644, 1000)}, Data{Off: 0, Bytes: []byte("hello")}, Data{Off: 7, Bytes: []byte("there")}, End{SectionTree},
		&Checkpoint{ID: "X", CreatedAt: madeAt},
	}, talk[0], talk[3])...)
	for what, change := range map[string][2]string{
		"is there twice": {"there", "hello"}, "does not hold what it says": {`"chunks":2`, `"chunks":3`},
	} {
		p := sealedUp(bytes.Replace(unpacked(t, file), []byte(change[0]), []byte(change[1]), 1))
		if _, _, err := Check(bytes.NewReader(packed(t, p)), Limits{}); !errors.Is(err, ErrBad) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", change[1], err)
		}
	}
}

func TestLimits(t *testing.T) {
	file := written(t, allBase, small()...)
	for _, l := range []Limits{{Bytes: 4}, {Bytes: 5}, {Objects: 1}} { // there are messages, too
		if _, _, err := Check(bytes.NewReader(file), l); !errors.Is(err, ErrBad) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if _, _, err := Check(bytes.NewReader(file), Limits{Bytes: 5 + talkBytes(), Objects: 2}); err != nil {
		t.Error(err)
	}
	// Two pieces that have no bytes of their own.
	file = written(t, allBase, Begin{SectionTree}, Make{1, "f", node(2, unix.S_IFREG|0o644, 15)},
		Data{Off: 0, Bytes: []byte("hello")}, Data{Off: 5, Bytes: []byte("hello")}, Set{node(2, unix.S_IFREG|0o644, 15)}, Clear{Off: 10, N: 5}, End{SectionTree}, &Checkpoint{CreatedAt: madeAt}, talk[0], talk[3])
	for room, want := range map[int64]error{5 + 2*PieceBytes: nil, 4 + 2*PieceBytes: ErrBad} {
		if _, _, err := Check(bytes.NewReader(file), Limits{Bytes: room}); !errors.Is(err, want) {
			t.Errorf("room for %d bytes: %v", room, err)
		}
	}
}

func talkBytes() (n int64) {
	for _, rec := range small() {
		if l, ok := rec.(Link); ok {
			n += int64(len(l.Message))
		}
	}
	return n
}

// bomb gives the records of an archive whose content is much, and nearly all the same.
type bomb struct {
	buf bytes.Buffer
	n   uint64
}

func (b *bomb) Read(p []byte) (int, error) {
	for b.buf.Len() < len(p) {
		chunk := make([]byte, ChunkSize)
		binary.BigEndian.PutUint64(chunk, b.n)
		var e encoder
		e.num(b.n * ChunkSize)
		e.bytes(chunk)
		b.buf.Write(binary.AppendUvarint([]byte{'D'}, uint64(len(e.b))))
		b.buf.Write(e.b)
		b.n++
	}
	return b.buf.Read(p)
}

func TestBombsAreRefused(t *testing.T) {
	var e encoder
	b := &bomb{}
	b.buf.Write([]byte("H\x12{\"with_base\":true}B\x01\x02"))
	n := node(2, unix.S_IFREG|0o644, 1<<50)
	e.num(1)
	e.text("f")
	e.node(&n)
	b.buf.Write(binary.AppendUvarint([]byte{'M'}, uint64(len(e.b))))
	b.buf.Write(e.b)
	in, out := io.Pipe()
	go func() {
		_, _ = out.Write(binary.BigEndian.AppendUint32([]byte(magic), Version))
		z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err == nil {
			_, err = io.Copy(z, b)
		}
		_ = out.CloseWithError(err)
	}()
	_, _, err := Check(in, Limits{})
	_ = in.CloseWithError(io.ErrClosedPipe)
	if !errors.Is(err, ErrBad) || !strings.Contains(err.Error(), "as it is large") {
		t.Errorf("a bomb: %v", err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(unpacked(f, sample(f)))
	f.Add(unpacked(f, written(f, allBase, small()...)))
	f.Add(unpacked(f, written(f, allBase, talk...)))
	f.Fuzz(func(t *testing.T, stream []byte) {
		if len(stream) > 1<<20 {
			return
		}
		file := packed(t, stream)
		_, have, err := Check(bytes.NewReader(file), Limits{})
		if err != nil && !errors.Is(err, ErrBad) && !errors.Is(err, ErrNewer) {
			t.Fatalf("an error that does not say that the archive is bad: %v", err)
		}
		if err == nil && have.Bytes > int64(len(stream)) {
			t.Fatalf("%+v came out of %d bytes", have, len(stream))
		}
	})
}

// FuzzFile has the compression in it, and the digest.
func FuzzFile(f *testing.F) {
	f.Add(sample(f))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, file []byte) {
		if _, _, err := Check(bytes.NewReader(file), Limits{Bytes: 1 << 20}); err != nil && !errors.Is(err, ErrBad) && !errors.Is(err, ErrNewer) {
			t.Fatalf("an error that does not say that the archive is bad: %v", err)
		}
	})
}
