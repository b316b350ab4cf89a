package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Exporter writes the trees of an archive: Base or Full once, then Delta for each state.
type Exporter struct {
	ctx  context.Context
	w    *Writer
	tree *layers.Tree
	buf  []byte

	// links counts the names of everything that the archive has so far.
	links map[layers.Ino]uint32

	// Of the section that is being written.
	to     *layers.View            // the state it makes
	taken  []layers.Ino            // what lost a name
	made   map[layers.Ino]struct{} // what was told whole; nil when all is
	prints bool
}

// NewExporter writes what it is told to of tree to w.
func NewExporter(ctx context.Context, w *Writer, tree *layers.Tree) *Exporter {
	return &Exporter{ctx: ctx, w: w, tree: tree, buf: make([]byte, ChunkSize), links: map[layers.Ino]uint32{layers.RootIno: 1}}
}

// errMoved is what a tree that must not change says when it did: the base changed on the host.
func errMoved(name string) error {
	return fmt.Errorf("%q changed on the host while it was read: export again", name)
}

// Base writes what the base is, without its content.
func (x *Exporter) Base(v *layers.View) error {
	x.prints = true
	defer func() { x.prints = false }()
	return x.section(SectionBase, v, func() error { return x.below(layers.RootIno) })
}

// Full writes a state on its own.
func (x *Exporter) Full(v *layers.View) error {
	return x.section(SectionTree, v, func() error {
		if err := x.below(layers.RootIno); err != nil {
			return err
		}
		return x.set(nil, layers.RootIno)
	})
}

// Same writes the state again.
func (x *Exporter) Same() error { return x.section(SectionTree, nil, func() error { return nil }) }

func (x *Exporter) section(s Section, v *layers.View, fill func() error) error {
	x.to, x.taken, x.made = v, nil, nil
	err := x.w.Begin(s)
	if err == nil {
		err = fill()
	}
	if err == nil {
		err = x.w.End()
	}
	return err
}

// Delta writes how the state of layer to, which b shows, comes from that of layer from, which a shows and the archive has.
func (x *Exporter) Delta(from, to layers.Layer, a, b *layers.View) error {
	inos, names, err := x.tree.Touched(from, to)
	if err != nil {
		return err
	}
	return x.section(SectionTree, b, func() error {
		x.made = map[layers.Ino]struct{}{}
		comes, err := x.takes(a, names)
		if err != nil {
			return err
		}
		for _, c := range comes {
			if err := x.entry(c.Dir, c.Name); err != nil {
				return err
			}
		}
		for _, ino := range inos {
			if _, made := x.made[ino]; made || x.links[ino] == 0 {
				continue
			}
			if err := firstOf(x.ctx.Err(), x.set(a, ino)); err != nil {
				return err
			}
		}
		for _, ino := range x.taken { // what has no name any more
			if x.links[ino] == 0 {
				delete(x.links, ino)
			}
		}
		return nil
	})
}

// takes writes the names that go, and returns those that come.
func (x *Exporter) takes(from *layers.View, names []layers.NameKey) (comes []layers.NameKey, err error) {
	for _, k := range names {
		if _, live := x.links[k.Dir]; !live {
			continue // of a directory that comes, or never was there
		}
		old, err := childOf(from, k)
		if err != nil {
			return nil, err
		}
		now, err := childOf(x.to, k)
		if err != nil {
			return nil, err
		}
		if old == now {
			continue
		}
		if old != 0 {
			if err := x.w.Take(Take{Dir: uint64(k.Dir), ID: uint64(old), Name: k.Name}); err != nil {
				return nil, err
			}
			x.links[old]--
			x.taken = append(x.taken, old)
		}
		if now != 0 {
			comes = append(comes, k)
		}
	}
	return comes, x.ctx.Err()
}

// childOf finds what a name shows, 0 for nothing.
func childOf(v *layers.View, k layers.NameKey) (layers.Ino, error) {
	if _, err := v.Acquire(k.Dir); err != nil {
		return 0, missing(err)
	}
	defer v.Forget(k.Dir, 1)
	a, err := v.Lookup(k.Dir, k.Name)
	if err != nil {
		return 0, missing(err)
	}
	v.Forget(a.Ino, 1)
	return a.Ino, nil
}

// missing lets errors pass that say more than that something is not there.
func missing(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// entry writes a name that comes, with all below it. The view holds dir, or can find it.
func (x *Exporter) entry(dir layers.Ino, name string) error {
	if err := x.ctx.Err(); err != nil {
		return err
	}
	if _, err := x.to.Acquire(dir); err == nil {
		defer x.to.Forget(dir, 1)
	}
	a, err := x.to.Lookup(dir, name)
	if missing(err) == nil && err != nil {
		return errMoved(name)
	} else if err != nil {
		return fmt.Errorf("look at %q: %w", name, err)
	}
	defer x.to.Forget(a.Ino, 1)
	if _, known := x.links[a.Ino]; known {
		x.links[a.Ino]++
		return x.w.Name(Name{Dir: uint64(dir), ID: uint64(a.Ino), Name: name})
	}
	x.links[a.Ino] = 1
	if x.made != nil {
		x.made[a.Ino] = struct{}{}
	}
	n, err := nodeOf(x.to, &a)
	if err != nil {
		return fmt.Errorf("look at %q: %w", name, err)
	}
	if err := x.w.Make(Make{Dir: uint64(dir), Name: name, Node: *n}); err != nil {
		return err
	}
	switch {
	case a.IsDir():
		return x.below(a.Ino)
	case !n.isFile():
		return nil
	case x.prints:
		err = x.print(&a)
	default:
		err = x.data(a.Ino, 0, a.Size)
	}
	if err != nil {
		return fmt.Errorf("read %q: %w", name, err)
	}
	now, err := x.to.Getattr(a.Ino)
	if err == nil && (now.Size != a.Size || now.Mtime != a.Mtime || now.Ctime != a.Ctime) {
		err = errMoved(name)
	}
	return err
}

// below writes all that is in a directory, which the view holds.
func (x *Exporter) below(dir layers.Ino) error {
	var bad error
	err := x.to.ReadDir(dir, 0, func(e layers.Entry) bool {
		bad = x.entry(dir, e.Name)
		return bad == nil
	})
	return firstOf(bad, err)
}

// nodeOf describes an object that the view holds.
func nodeOf(v *layers.View, a *layers.Attr) (*Node, error) {
	n := &Node{
		ID: uint64(a.Ino), Mode: a.Mode, UID: a.UID, GID: a.GID, Rdev: a.Rdev,
		Atime: a.Atime, Mtime: a.Mtime, Ctime: a.Ctime,
	}
	if n.isFile() {
		n.Size = a.Size
	}
	var err error
	if n.typ() == unix.S_IFLNK {
		if n.Target, err = v.Readlink(a.Ino); err != nil {
			return nil, err
		}
	}
	n.Xattrs, err = xattrsOf(v, a.Ino)
	return n, err
}

func xattrsOf(v *layers.View, ino layers.Ino) (map[string][]byte, error) {
	names, err := v.Listxattr(ino)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	out := make(map[string][]byte, len(names))
	for _, name := range names {
		if out[name], err = v.Getxattr(ino, name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// runs calls fn for the runs of data in a range of a file, none of them longer than a chunk, or across two.
func runs(v *layers.View, ino layers.Ino, lo, hi int64, buf []byte, fn func(off int64, p []byte) error) error {
	for at := lo; at < hi; {
		from, err := v.Seek(ino, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && from >= hi {
			return nil
		} else if err != nil {
			return err
		}
		to, err := v.Seek(ino, from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for to = min(to, hi); from < to; {
			p := buf[:min(to, slotEnd(from))-from]
			if n, err := v.ReadAt(ino, p, from); err != nil {
				return err
			} else if n < len(p) {
				return fmt.Errorf("it became shorter while it was read: %w", io.ErrUnexpectedEOF)
			}
			if err := fn(from, p); err != nil {
				return err
			}
			from += int64(len(p))
		}
		at = to
	}
	return nil
}

func (x *Exporter) data(ino layers.Ino, lo, hi int64) error {
	return runs(x.to, ino, lo, hi, x.buf, func(off int64, p []byte) error {
		return firstOf(x.ctx.Err(), x.w.Chunk(off, p))
	})
}

func (x *Exporter) print(a *layers.Attr) error {
	d, err := printOf(x.ctx, x.to, a, x.buf)
	if err != nil {
		return err
	}
	return x.w.Print(d)
}

// printOf is a digest of the whole content of a file: of the places and bytes of all its chunks that are not zero. So holes cost nothing, and
// may be others elsewhere.
func printOf(ctx context.Context, v *layers.View, a *layers.Attr, buf []byte) (d Digest, err error) {
	h := blake3.New()
	at, slot, zero := int64(-1), make([]byte, ChunkSize), make([]byte, ChunkSize)
	flush := func() {
		if !bytes.Equal(slot, zero) {
			_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(at)))
			_, _ = h.Write(slot)
			clear(slot)
		}
	}
	err = runs(v, a.Ino, 0, a.Size, buf, func(off int64, p []byte) error {
		if in := off - off%ChunkSize; in != at {
			flush()
			at = in
		}
		copy(slot[off-at:], p)
		return ctx.Err()
	})
	flush()
	h.Sum(d[:0])
	return d, err
}

// set writes what an object is that was there before. What a file holds is compared with from, unless that is nil.
func (x *Exporter) set(from *layers.View, ino layers.Ino) error {
	b, err := x.to.Acquire(ino)
	if err != nil {
		return fmt.Errorf("look at inode %d: %w", ino, err)
	}
	defer x.to.Forget(ino, 1)
	n, err := nodeOf(x.to, &b)
	if err != nil {
		return err
	}
	if err := x.w.Set(Set{*n}); err != nil {
		return err
	}
	if from == nil || !n.isFile() {
		return nil
	}
	a, err := from.Acquire(ino)
	if err != nil {
		return err
	}
	defer from.Forget(ino, 1)
	if err := x.changed(from, &a, &b); err != nil {
		return fmt.Errorf("read inode %d: %w", ino, err)
	}
	return nil
}

// Of a file, step is compared at first, and at most farthest at once.
const (
	step     = 8 * ChunkSize
	farthest = 1 << 60
)

// changed writes the parts of a file that may hold something else than they did. What is the same is passed over in
// ever larger steps: its size says nothing about what is in a sparse file.
func (x *Exporter) changed(from *layers.View, a, b *layers.Attr) error {
	both := min(a.Size, b.Size)
	for at, width := int64(0), int64(step); at < both; {
		end := min(at+width, both)
		same, err := layers.SameBytes(from, x.to, b.Ino, at, end)
		switch {
		case err != nil:
			return err
		case same:
			at, width = end, min(2*width, farthest)
		case end-at > ChunkSize: // look closer
			width = max(ChunkSize, width/8)
		default:
			if err := x.rewrite(b.Ino, at, end); err != nil {
				return err
			}
			at = end
		}
	}
	return x.data(b.Ino, both, b.Size) // where nothing was
}

// rewrite writes a part of a file that was there before.
func (x *Exporter) rewrite(ino layers.Ino, at, end int64) error {
	if err := x.w.Clear(Clear{at, end - at}); err != nil {
		return err
	}
	return x.data(ino, at, end)
}
