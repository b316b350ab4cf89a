package layers

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite golden files: only together with a new record version and a migration")

func sampleInode() *inode {
	return &inode{
		layer: 7, born: 3, mode: 0o100644, nlink: 2, uid: 1000, gid: 1001, rdev: 0x801, flags: flagXattrs | flagSparse,
		size: 1 << 33, atime: Time{-1, 5}, mtime: Time{1 << 33, 999999999}, ctime: Time{0, 0}, btime: Time{12, 34},
		parent: 1 << 40, name: "na\xffme", target: "t", limit: 4096, regions: 9, blocks: 16,
		origin: &origin{path: "a/b", dev: 1, ino: 2, btime: Time{3, 4}, size: 5, mtime: Time{6, 7}, ctime: Time{8, 9}},
	}
}

func sampleSourced() *inode {
	in := sampleInode()
	in.origin, in.source = nil, in.origin
	return in
}

func sampleExtents() []extent {
	x := extent{off: regionSize + 10, n: 100, kind: kindChunk, coff: 3}
	for i := range x.hash {
		x.hash[i] = byte(i)
	}
	return []extent{x, {off: regionSize + 4096, n: 4096, kind: kindHole}}
}

func sampleWas() nameRec {
	w := &wasBase{given: 1<<47 + 1}
	w.Built = Built{Known: true, Exists: true, Type: 0o100000, Ino: 77, Btime: Time{1, 2}, Mtime: Time{3, 4}, Ctime: Time{5, 6}, Size: 7}
	return nameRec{ino: 1 << 40, typ: 0o40000, under: underSomething, was: w}
}

func samplePreimage() *preimage {
	return &preimage{whole: true, hasXattrs: true, body: 1<<40 + 2, target: "t", dir: "a/b", st: baseStat{
		dev: 1, ino: 2, mode: 0o40755, nlink: 3, uid: 4, gid: 5, rdev: 6, size: 7, blocks: 8,
		atime: Time{-1, 1}, mtime: Time{2, 3}, ctime: Time{4, 5}, btime: Time{6, 7}, given: 9,
	}}
}

// TestGoldenRecords keeps the on-disk form from changing by accident.
func TestGoldenRecords(t *testing.T) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "inode  %x\n", sampleInode().encode())
	fmt.Fprintf(&b, "source %x\n", sampleSourced().encode())
	fmt.Fprintf(&b, "lost   %x\n", lostInode().encode())
	fmt.Fprintf(&b, "plain  %x\n", (&inode{mode: 0o40755, nlink: 2}).encode())
	fmt.Fprintf(&b, "name   %x\n", nameRec{ino: 1 << 40, typ: 0o100000, under: underWhiteout}.encode())
	fmt.Fprintf(&b, "white  %x\n", nameRec{}.encode())
	fmt.Fprintf(&b, "extent %x\n", encodeExtents(1, sampleExtents()))
	fmt.Fprintf(&b, "layer  %x\n", layerRec{parent: 4, sealed: true, changed: 12, at: Time{1, 2}}.encode())
	fmt.Fprintf(&b, "given  %x\n", layerRec{parent: 4, sealed: true, changed: 12, at: Time{1, 2}, given: givenLink}.encode())
	fmt.Fprintf(&b, "lgen   %x\n", layerRec{sealed: true, changed: 12, at: Time{1, 2}, gen: 3}.encode())
	fmt.Fprintf(&b, "lgone  %x\n", layerRec{sealed: true, changed: 12, at: Time{1, 2}, gen: 3, given: givenAll}.encode())
	fmt.Fprintf(&b, "lmerge %x\n", layerRec{parent: 4, sealed: true, changed: 12, at: Time{1, 2}, merged: 3}.encode())
	fmt.Fprintf(&b, "wnone  %x\n", nameRec{was: &wasBase{none: true}}.encode())
	fmt.Fprintf(&b, "was    %x\n", sampleWas().encode())
	fmt.Fprintf(&b, "pre    %x\n", samplePreimage().encode())
	fmt.Fprintf(&b, "prenot %x\n", (&preimage{none: true}).encode())
	fmt.Fprintf(&b, "head   %x\n", headRec{layer: 5}.encode())
	const file = "testdata/records.golden"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("records are\n%swant\n%s", b.Bytes(), want)
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	in := sampleInode()
	out, err := decodeInode(7, in.encode())
	if err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("inode %+v came back as %+v, %v", in, out, err)
	}
	in = sampleSourced()
	if out, err = decodeInode(7, in.encode()); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("inode %+v came back as %+v, %v", in, out, err)
	}
	xs, err := decodeExtents(1, encodeExtents(1, sampleExtents()))
	if err != nil || !reflect.DeepEqual(xs, sampleExtents()) {
		t.Errorf("extents came back as %+v, %v", xs, err)
	}
	for given := givenNot; given <= givenAll; given++ {
		for gen := range uint64(2) {
			for merged := range Layer(2) {
				l := layerRec{parent: 4, sealed: true, changed: 12, at: Time{1, 2}, given: given, gen: gen, merged: merged}
				if out, err := decodeLayer(l.encode()); err != nil || out != l {
					t.Errorf("layer %+v came back as %+v, %v", l, out, err)
				}
			}
		}
	}
	for _, n := range []nameRec{{}, {ino: 5, under: underNothing}, sampleWas(), {was: &wasBase{none: true}}} {
		if out, err := decodeName(0, n.encode()); err != nil || !reflect.DeepEqual(out, n) {
			t.Errorf("name %+v came back as %+v, %v", n, out, err)
		}
	}
	for _, k := range []*preimage{samplePreimage(), {none: true}, {none: true, dir: "d"}, {unread: true, st: baseStat{given: 1}}} {
		if out, err := decodePreimage(k.encode()); err != nil || !reflect.DeepEqual(out, k) {
			t.Errorf("pre-image %+v came back as %+v, %v", k, out, err)
		}
	}
}

// TestDamagedRecords: a record cut anywhere, or of another version, is ErrCorrupt and never a panic.
func TestDamagedRecords(t *testing.T) {
	decoders := map[string]func([]byte) error{
		"source": func(b []byte) error { _, err := decodeInode(1, b); return err },
		"inode":  func(b []byte) error { _, err := decodeInode(1, b); return err },
		"name":   func(b []byte) error { _, err := decodeName(1, b); return err },
		"extent": func(b []byte) error { _, err := decodeExtents(1, b); return err },
		"layer":  func(b []byte) error { _, err := decodeLayer(b); return err },
		"head":   func(b []byte) error { _, err := decodeHead(b); return err },
		"was":    func(b []byte) error { _, err := decodeName(1, b); return err },
		"line":   func(b []byte) error { _, err := decodeLayer(b); return err },
		"pre":    func(b []byte) error { _, err := decodePreimage(b); return err },
	}
	whole := map[string][]byte{
		"source": sampleSourced().encode(),
		"inode":  sampleInode().encode(), "name": nameRec{ino: 300}.encode(), "extent": encodeExtents(1, sampleExtents()),
		"layer": layerRec{parent: 300}.encode(), "head": headRec{layer: 300}.encode(),
		"was": sampleWas().encode(), "line": layerRec{gen: 300}.encode(), "pre": samplePreimage().encode(),
	}
	for kind, b := range whole {
		for n := range b {
			if err := decoders[kind](b[:n]); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s cut to %d of %d bytes: %v", kind, n, len(b), err)
			}
		}
		other := append([]byte{b[0] + 9}, b[1:]...)
		if err := decoders[kind](other); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s of version %d: %v", kind, other[0], err)
		}
	}
}

func FuzzRecords(f *testing.F) {
	f.Add(sampleInode().encode())
	f.Add(sampleSourced().encode())
	f.Add(encodeExtents(1, sampleExtents()))
	f.Fuzz(func(t *testing.T, b []byte) {
		decodeInode(1, b)
		decodeName(1, b)
		decodeLayer(b)
		decodePreimage(b)
		if xs, err := decodeExtents(3, b); err == nil {
			again, err := decodeExtents(3, encodeExtents(3, xs))
			if err != nil || len(again) != len(xs) {
				t.Fatalf("%s: %v", hex.EncodeToString(b), err)
			}
		}
	})
}

// TestOverlayModel compares the extent algebra with an array of bytes.
func TestOverlayModel(t *testing.T) {
	const size = 64
	rapid.Check(t, func(t *rapid.T) {
		var xs []extent
		var model [size]byte // the chunk each byte comes from, 0 for none
		var from [size]int64 // and the place in it
		for i := range rapid.IntRange(1, 20).Draw(t, "n") {
			off := rapid.Int64Range(0, size-1).Draw(t, "off")
			n := rapid.Int64Range(1, size-off).Draw(t, "len")
			if rapid.Bool().Draw(t, "trim") && i%4 == 3 {
				xs = trim(xs, off)
				for k := off; k < size; k++ {
					model[k] = 0
				}
				continue
			}
			e := extent{off: off, n: n, kind: kindChunk, coff: 1000}
			e.hash[0] = byte(i + 1)
			xs = overlay(xs, e)
			for k := off; k < off+n; k++ {
				model[k], from[k] = byte(i+1), 1000+k-off
			}
		}
		var got [size]byte
		at := int64(0)
		for _, x := range xs {
			if x.off < at || x.n <= 0 {
				t.Fatalf("out of order: %+v", xs)
			}
			at = x.end()
			for k := x.off; k < x.end(); k++ {
				got[k] = x.hash[0]
				if p := x.coff + k - x.off; p != from[k] {
					t.Fatalf("byte %d comes from %d of its chunk, want %d", k, p, from[k])
				}
			}
		}
		if got != model {
			t.Fatalf("got %v want %v", got, model)
		}
	})
}
