package layers

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

// extents returns the explicit extents of a region that v sees, nil for none.
func (v *View) extents(ino Ino, region uint64) ([]extent, error) {
	var xs []extent
	err := v.newest(kv.ExtentPrefix(uint64(ino), region), func(_ Layer, val []byte) (err error) {
		xs, err = decodeExtents(region, val)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read extents of inode %d: %w", ino, err)
	}
	return xs, nil
}

// regions calls fn for the regions of ino from first to last (inclusive) that have
// explicit extents v sees, in order, until fn returns false. Its work is that of
// the records there are, not of the size of the file.
func (v *View) regions(ino Ino, first, last uint64, fn func(region uint64, xs []extent) bool) error {
	var bad error
	seen, any := uint64(0), false
	from := kv.ExtentPrefix(uint64(ino), first)
	err := v.t.db.Scan(kv.ExtentInoPrefix(uint64(ino)), from, func(k, val []byte) bool {
		_, region, l, ok := kv.ParseExtent(k)
		if !ok {
			bad = fmt.Errorf("extent key %x: %w", k, ErrCorrupt)
			return false
		}
		if region > last {
			return false
		}
		if (any && region == seen) || !v.anc.has(Layer(l)) {
			return true
		}
		seen, any = region, true
		var xs []extent
		if xs, bad = decodeExtents(region, val); bad != nil {
			return false
		}
		return fn(region, xs)
	})
	if err = errors.Join(err, bad); err != nil {
		return fmt.Errorf("read extents of inode %d: %w", ino, err)
	}
	return nil
}

// layout is where the bytes of a range of a file come from, computed with the
// tree locked and then read without the lock: chunks and the base do not change.
type layout struct {
	hi     int64    // the range ends here
	exts   []extent // sorted; what none covers is the base's below limit, else zero
	path   string   // of the base file, if its bytes are needed
	base   era      // as of which generation
	limit  int64
	origin *origin // what the base file must still be, nil: whatever it is
	mark   uint64  // baseStat.mark at the last look, without an origin
	node   *node
}

// maxLayout bounds the extents of one layout, so that a huge file is laid out in parts.
const maxLayout = 4096

// plan computes the layout of [lo, hi) of n, or of a shorter range where there are
// very many extents. With p, pending bytes are copied to it at once (p starts at
// lo) and their ranges come out as extents of kind 0.
func (v *View) plan(n *node, lo, hi int64, p []byte) (*layout, error) {
	l, err := v.stored(n, lo, hi)
	if err != nil || n.rec == nil {
		return l, err
	}
	for _, pd := range v.visiblePending(n.ino) {
		for _, s := range pd.segs {
			from, to := max(lo, s.off), min(l.hi, s.end(), n.rec.size)
			if from >= to {
				continue
			}
			if p != nil {
				copy(p[from-lo:to-lo], s.data[from-s.off:])
			}
			l.exts = overlay(l.exts, extent{off: from, n: to - from})
		}
	}
	return l, nil
}

// stored is plan without what is pending.
func (v *View) stored(n *node, lo, hi int64) (*layout, error) {
	l := &layout{node: n, hi: hi, base: v.base}
	if n.rec == nil {
		l.path, l.limit, l.mark = n.path(), hi, n.mark
		return l, nil
	}
	rec := n.rec
	if from := rec.content(); from != nil {
		l.path, l.limit, l.origin = from.path, rec.limit, from
	}
	first, last := uint64(lo/regionSize), uint64((hi-1)/regionSize)
	var err error
	switch {
	case lo >= hi || first >= rec.regions:
	case first == last:
		var xs []extent
		xs, err = v.extents(n.ino, first)
		l.exts = slice(xs, lo, hi)
	default:
		err = v.regions(n.ino, first, last, func(region uint64, xs []extent) bool {
			if len(l.exts) >= maxLayout {
				l.hi = int64(region) * regionSize
				return false
			}
			l.exts = append(l.exts, slice(xs, lo, hi)...)
			return true
		})
	}
	return l, err
}

// ReadAt fills p from offset off. It is short only at the end of the file, without an error.
func (v *View) ReadAt(ino Ino, p []byte, off int64) (int, error) {
	for {
		sweep, kept := v.t.chunks.Sweeps(), v.t.kept.Load()
		n, err := v.readAt(ino, p, off)
		if kept != v.t.kept.Load() {
			continue // what was read may be what the host has since put there
		}
		if err == nil || !errors.Is(err, cas.ErrCorrupt) || sweep == v.t.chunks.Sweeps() {
			return n, err
		}
		// A chunk that was overwritten since the extents were read may have been swept away.
	}
}

func (v *View) readAt(ino Ino, p []byte, off int64) (int, error) {
	v.t.mu.RLock()
	n, err := v.get(ino)
	if err == nil && n.rec != nil && n.rec.mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
	}
	if err != nil {
		v.t.mu.RUnlock()
		return 0, err
	}
	if n.rec != nil {
		if off >= n.rec.size {
			v.t.mu.RUnlock()
			return 0, nil
		}
		p = p[:min(int64(len(p)), n.rec.size-off)]
	}
	based := n.rec == nil
	l, err := v.plan(n, off, off+int64(len(p)), p)
	var next []string
	if based && off == 0 && err == nil {
		next = following(n)
	}
	v.t.mu.RUnlock()
	if err != nil {
		return 0, err
	}
	p = p[:l.hi-off]
	if based {
		v.base.prefetch(l.path, next)
		return v.readBase(l, p, off)
	}
	return len(p), v.t.fill(l, p, off)
}

// fill reads every byte of p that did not come from pending.
func (t *Tree) fill(l *layout, p []byte, off int64) error {
	at, end := off, off+int64(len(p))
	for _, x := range l.exts {
		if err := t.under(l, p[at-off:x.off-off], at); err != nil {
			return err
		}
		dst := p[x.off-off : x.end()-off]
		switch x.kind {
		case kindChunk:
			if err := t.chunks.ReadAt(x.hash, dst, int(x.coff)); err != nil {
				return fmt.Errorf("read %d bytes at %d: %w", x.n, x.off, err)
			}
		case kindHole:
			clear(dst)
		}
		at = x.end()
	}
	return t.under(l, p[at-off:], end-int64(len(p[at-off:])))
}

// under fills p with what lies under the extents: the base's bytes, then zeros.
func (t *Tree) under(l *layout, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	have := min(int64(len(p)), max(0, l.limit-off))
	if have > 0 && l.path != "" {
		if err := t.readOrigin(l, p[:have], off); err != nil {
			return err
		}
	} else {
		have = 0
	}
	clear(p[have:])
	return nil
}

// readOrigin reads base bytes under a copied-up inode. The base file must be just
// what it was at copy-up: else old and new bytes would mix. Where it is not, its original
// has the bytes, if there is one; else it is EIO.
func (t *Tree) readOrigin(l *layout, p []byte, off int64) error {
	f, err := t.openOrigin(l)
	if err != nil {
		text, ok := t.originalOf(l)
		if !ok {
			return err
		}
		n := 0
		if off < int64(len(text)) {
			n = copy(p, text[off:])
		}
		clear(p[n:])
		return nil
	}
	defer f.release()
	n, err := f.readAt(p, off)
	if err != nil {
		return fmt.Errorf("read base file %q: %w", l.path, err)
	}
	clear(p[n:])
	return nil
}

// openOrigin opens the base file under a copied-up inode.
func (t *Tree) openOrigin(l *layout) (baseFile, error) {
	for range 2 { // what is held open may be a file that has lost this name to another one
		f, st, err := l.base.open(l.path)
		if err != nil {
			return f, fmt.Errorf("read base file %q, which lies under a changed file: %w: %w", l.path, err, unix.EIO)
		}
		o := l.origin
		if st.ino == o.ino && st.size == o.size && st.mtime == o.mtime && st.ctime == o.ctime {
			return f, nil
		}
		f.release()
		t.base.forgetFile(l.path)
	}
	return baseFile{}, fmt.Errorf("base file %q changed after it was first written here; its old bytes are lost: %w", l.path, unix.EIO)
}

// readBase reads a file that is as it is in the base. When the base file changed
// underneath, the new bytes are served and the kernel's cache of the old ones is voided.
func (v *View) readBase(l *layout, p []byte, off int64) (int, error) {
	f, st, err := v.openBase(l)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			err = unix.ESTALE
		}
		return 0, err
	}
	defer f.release()
	p = p[:min(int64(len(p)), max(0, st.size-off))] // spares the call that finds the end
	return f.readAt(p, off)
}

// openBase opens the base file of l as it is now and notes when that is not what it was.
func (v *View) openBase(l *layout) (baseFile, baseStat, error) {
	f, st, err := l.base.open(l.path)
	if err != nil || st.mark() == l.mark && st.nlink > 0 {
		return f, st, err
	}
	// What is open may be a file that has lost this name to another one.
	f.release()
	v.t.base.forgetFile(l.path)
	if f, st, err = l.base.open(l.path); err != nil {
		return f, st, err
	}
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	if l.node.rec == nil {
		v.look(l.node, &st)
	}
	return f, st, nil
}

func preadFull(fd int, p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		k, err := unix.Pread(fd, p[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		if k == 0 {
			break
		}
		n += k
	}
	return n, nil
}

// allocated counts the bytes of a sparse file that are not holes. Of base bytes it
// only knows how many the base file had. Pending bytes count as the extents they
// will be, so that cutting them changes nothing.
func (v *View) allocated(ino Ino, rec *inode) (int64, error) {
	n := rec.blocks * 512
	for at := int64(0); at < rec.size; {
		l, err := v.plan(&node{ino: ino, rec: rec}, at, rec.size, nil)
		if err != nil {
			return 0, err
		}
		for _, x := range l.exts {
			if x.kind != kindHole {
				n += x.n
			}
		}
		at = l.hi
	}
	return n, nil
}

// Seek finds the next data or hole at or behind off; whence is unix.SEEK_DATA or
// unix.SEEK_HOLE. ENXIO behind the end of the file.
func (v *View) Seek(ino Ino, off int64, whence int) (int64, error) {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	n, err := v.get(ino)
	if err != nil {
		return 0, err
	}
	a, err := v.attr(n)
	if err != nil {
		return 0, err
	}
	if off < 0 || off >= a.Size {
		return 0, unix.ENXIO
	}
	for at := off; at < a.Size; {
		l, err := v.plan(n, at, a.Size, nil)
		if err != nil {
			return 0, err
		}
		found, err := v.t.seekIn(l, at, whence)
		if err != nil || found >= 0 {
			return found, err
		}
		at = l.hi
	}
	if whence == unix.SEEK_HOLE {
		return a.Size, nil
	}
	return 0, unix.ENXIO
}

// seekIn looks for data or a hole within a layout that begins at lo; -1 when there is none.
func (t *Tree) seekIn(l *layout, lo int64, whence int) (int64, error) {
	at := lo
	check := func(isData bool, from int64) bool { return isData == (whence == unix.SEEK_DATA) && from < l.hi }
	gap := func(to int64) (int64, error) { // [at, to) is not covered: base below limit, hole above
		if at >= to {
			return -1, nil
		}
		mid := min(to, max(at, l.limit))
		if l.path == "" {
			mid = at
		}
		if at < mid {
			found, err := t.seekBase(l, at, mid, whence)
			if err != nil || found >= 0 {
				return found, err
			}
		}
		if mid < to && check(false, mid) {
			return mid, nil
		}
		return -1, nil
	}
	for _, x := range l.exts {
		if found, err := gap(x.off); err != nil || found >= 0 {
			return found, err
		}
		if check(x.kind != kindHole, x.off) {
			return x.off, nil
		}
		at = x.end()
	}
	return gap(l.hi)
}

// seekBase asks the base file for data or a hole within [lo, hi); -1 for none. Where it is not any more
// what an inode stands on, nobody knows its holes: all of it is data, and whether that is still there a read says.
func (t *Tree) seekBase(l *layout, lo, hi int64, whence int) (int64, error) {
	var f baseFile
	var err error
	if l.origin == nil {
		f, _, err = l.base.open(l.path)
	} else if f, err = t.openOrigin(l); err != nil {
		if whence == unix.SEEK_DATA {
			return lo, nil
		}
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.release()
	at, err := f.seek(lo, whence)
	switch {
	case errors.Is(err, unix.ENXIO):
		if whence == unix.SEEK_HOLE {
			return lo, nil // behind the base file's end
		}
		return -1, nil
	case err != nil:
		return 0, err
	case at >= hi:
		return -1, nil
	}
	return at, nil
}
