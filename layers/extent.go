package layers

import (
	"fmt"
	"math"

	"github.com/rewindfs/rewindfs/cas"
)

// regionSize is how much of a file one x/ record describes. A record holds every
// explicit extent of its region, those of older layers included, so the newest
// visible record alone is enough to read.
const regionSize = 1 << 20

// maxSize is the largest size that a file can get. Up to it, the ends of regions and slots are numbers.
const maxSize = math.MaxInt64 / regionSize * regionSize

// slotSize is the grid on which pending bytes are cut into chunks.
const slotSize = cas.ChunkSize

type extentKind byte

const (
	kindChunk extentKind = 1 // bytes of a chunk
	kindHole  extentKind = 2 // zeros, also where the base has bytes
)

// extent says where n bytes at off (in the file) come from. What no extent covers
// is the base's below inode.limit and zeros above.
type extent struct {
	off, n int64
	kind   extentKind
	hash   cas.Hash
	coff   int64 // where in the chunk the bytes start
}

func (x extent) end() int64 { return x.off + x.n }

// cut returns the part of x within [lo, hi), which must not be empty.
func (x extent) cut(lo, hi int64) extent {
	if lo > x.off {
		x.coff += lo - x.off
		x.n -= lo - x.off
		x.off = lo
	}
	if hi < x.end() {
		x.n = hi - x.off
	}
	return x
}

// overlay puts e over the sorted, disjoint list xs and returns a new list.
func overlay(xs []extent, e extent) []extent {
	if e.n <= 0 {
		return xs
	}
	out := make([]extent, 0, len(xs)+2)
	placed := false
	for _, x := range xs {
		if x.off < e.off {
			out = append(out, x.cut(x.off, min(x.end(), e.off)))
		}
		if !placed && x.end() > e.off {
			out = append(out, e)
			placed = true
		}
		if x.end() > e.end() {
			out = append(out, x.cut(max(x.off, e.end()), x.end()))
		}
	}
	if !placed {
		out = append(out, e)
	}
	return joinHoles(out)
}

// joinHoles merges neighbouring holes, which punching would otherwise pile up.
func joinHoles(xs []extent) []extent {
	out := xs[:0]
	for _, x := range xs {
		if k := len(out) - 1; k >= 0 && x.kind == kindHole && out[k].kind == kindHole && out[k].end() == x.off {
			out[k].n += x.n
			continue
		}
		out = append(out, x)
	}
	return out
}

// trim drops what lies at or behind size.
func trim(xs []extent, size int64) []extent {
	out := make([]extent, 0, len(xs))
	for _, x := range xs {
		if x.off < size {
			out = append(out, x.cut(x.off, min(x.end(), size)))
		}
	}
	return out
}

// slice returns the parts of xs within [lo, hi).
func slice(xs []extent, lo, hi int64) []extent {
	var out []extent
	for _, x := range xs {
		if x.off < hi && x.end() > lo {
			out = append(out, x.cut(max(x.off, lo), min(x.end(), hi)))
		}
	}
	return out
}

func encodeExtents(region uint64, xs []extent) []byte {
	e := enc{b: make([]byte, 0, 2+len(xs)*44)}
	e.byte(extentVersion)
	e.u(uint64(len(xs)))
	start := int64(region) * regionSize
	for _, x := range xs {
		e.byte(byte(x.kind))
		e.u(uint64(x.off - start))
		e.u(uint64(x.n))
		if x.kind == kindChunk {
			e.b = append(e.b, x.hash[:]...)
			e.u(uint64(x.coff))
		}
	}
	return e.b
}

func decodeExtents(region uint64, v []byte) ([]extent, error) {
	d := dec{b: v}
	d.version(extentVersion, "extent")
	n := d.u()
	start := int64(region) * regionSize
	xs := make([]extent, 0, min(n, 64))
	at := start
	for i := uint64(0); i < n && d.err == nil; i++ {
		x := extent{kind: extentKind(d.byte())}
		x.off = start + int64(d.u())
		x.n = int64(d.u())
		if x.kind == kindChunk {
			copy(x.hash[:], d.bytes(uint64(len(x.hash))))
			x.coff = int64(d.u())
		}
		if d.err == nil && (x.off < at || x.n <= 0 || x.end() > start+regionSize || (x.kind != kindChunk && x.kind != kindHole)) {
			return nil, fmt.Errorf("extent %d of region %d is out of order or range: %w", i, region, ErrCorrupt)
		}
		at = x.end()
		xs = append(xs, x)
	}
	return xs, d.err
}
