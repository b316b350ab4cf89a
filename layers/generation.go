package layers

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Generations. A commit writes to the base, and what was built on it before must go on
// showing what it showed. So the base has generations, counted by the commits; each line of
// layers is built on one, which its root layer records, and sees the base as of that: where
// later commits changed something, by the pre-images they left (kept.go, keep.go).
//
// A head never changes its generation. A new branch on top of BaseLayer gets the newest one.

// Generation is the generation of the base that a new branch is built on: how many
// commits there were.
func (t *Tree) Generation() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.gen
}

// Generation is the generation of the base that v is built on.
func (v *View) Generation() uint64 { return v.base.gen }

// BaseView opens the base as of a generation. Close it when done. ErrNoLayer when no
// layer is built on the generation any more, nor will be.
func (t *Tree) BaseView(gen uint64) (*View, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if gen > t.gen || gen < t.oldestGen(nil) {
		return nil, fmt.Errorf("generation %d of the base: %w", gen, ErrNoLayer)
	}
	v := t.newView(BaseLayer)
	v.base.gen = gen
	return t.openView(v)
}

// At opens the tree as of layer l, as View does. BaseLayer means the base as of the
// generation that b is built on.
func (b *Branch) At(l Layer) (*View, error) {
	if l == BaseLayer {
		return b.t.BaseView(b.base.gen)
	}
	return b.t.View(l)
}

// baseOf opens the base that layer l is built on.
func (t *Tree) baseOf(l Layer) (*View, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held(l) == nil {
		return nil, fmt.Errorf("layer %d: %w", l, ErrNoLayer)
	}
	v := t.newView(BaseLayer)
	v.base.gen = t.genOf(t.ancestry(l))
	return t.openView(v)
}

// genOf returns the generation that the line of anc is built on. The caller holds t.mu.
func (t *Tree) genOf(anc ancestry) uint64 {
	if len(anc) == 0 {
		return t.gen
	}
	if root := t.layers[anc[len(anc)-1].lo]; root != nil {
		return root.gen
	}
	return t.gen // a layer that is on its way out
}

// oldestGen returns the oldest generation that a layer or an open view is built on: older
// ones are never asked for again. Of s, if it is not nil, the layers that will be gone do
// not count. The caller holds t.mu.
func (t *Tree) oldestGen(s *shape) uint64 {
	oldest := t.gen
	for l, rec := range t.layers {
		if rec.parent == BaseLayer && (s == nil || s.gone[l] == nil) {
			oldest = min(oldest, rec.gen)
		}
	}
	for v := range t.views {
		if !v.stale {
			oldest = min(oldest, v.base.gen)
		}
	}
	return oldest
}

// BaseChanged is to be called once the host has been changed as KeepBase was told: files
// and directories that are held open may have lost their names to others. Until then a view
// of the new generation may see the old objects.
func (t *Tree) BaseChanged() { t.base.forget() }

// era is the base as of one generation. Whoever uses it holds Tree.mu, or looks whether
// Tree.kept has changed meanwhile: then the host may have, too, in the way of a commit.
type era struct {
	t   *Tree
	gen uint64
}

// past returns what there is of pre-images, nil if none of them is of this generation or a later one.
func (e era) past() *keptIndex {
	if x := e.t.kept.Load(); x != nil && e.gen < x.gen {
		return x
	}
	return nil
}

// object returns the pre-image that says what was at p, nil for what is on the host.
func (e era) object(p string) (*preimage, error) {
	x := e.past()
	if x == nil {
		return nil, nil
	}
	k, err := x.find(e, p)
	if k != nil || err != nil || !x.links {
		return k, err
	}
	st, err := e.t.base.stat(p)
	if err != nil {
		return nil, nil // whoever wants it will see
	}
	return x.findLink(e, &st, never)
}

// stat is Base.stat.
func (e era) stat(p string) (baseStat, error) {
	for {
		x := e.t.kept.Load()
		if x != nil && e.gen < x.gen {
			if k, err := x.find(e, p); k != nil || err != nil {
				return k.found(err)
			}
		}
		st, err := e.t.base.stat(p)
		if x != e.t.kept.Load() {
			continue
		}
		if err == nil && x != nil && e.gen < x.gen && x.links {
			if k, err := x.findLink(e, &st, never); k != nil || err != nil {
				return k.found(err)
			}
		}
		return st, err
	}
}

// found is the answer of stat where there is a pre-image.
func (k *preimage) found(err error) (baseStat, error) {
	switch {
	case err != nil:
		return baseStat{}, err
	case k.none:
		return baseStat{}, unix.ENOENT
	}
	return k.st, nil
}

// readlink is Base.readlink.
func (e era) readlink(p string) (string, error) {
	k, err := e.object(p)
	switch {
	case err != nil:
		return "", err
	case k == nil:
		return e.t.base.readlink(p)
	case k.none:
		return "", unix.ENOENT
	case k.st.mode&unix.S_IFMT != unix.S_IFLNK:
		return "", unix.EINVAL
	}
	return k.target, nil
}

// xattrs is Base.xattrs.
func (e era) xattrs(p string) (map[string][]byte, error) {
	k, err := e.object(p)
	switch {
	case err != nil:
		return nil, err
	case k == nil:
		return e.t.base.xattrs(p)
	case k.none:
		return nil, unix.ENOENT
	case !k.hasXattrs:
		return nil, nil
	}
	return k.view(e.t).xattrs(k.body)
}

// xattr is Base.xattr.
func (e era) xattr(p, name string) ([]byte, error) {
	k, err := e.object(p)
	switch {
	case err != nil:
		return nil, err
	case k == nil:
		return e.t.base.xattr(p, name)
	case k.none:
		return nil, unix.ENOENT
	case !k.hasXattrs:
		return nil, unix.ENODATA
	}
	return k.view(e.t).xattr(k.body, name)
}

// readDir is Base.readDir.
func (e era) readDir(p string) ([]baseEntry, error) {
	x := e.past()
	if x == nil {
		return e.t.base.readDir(p)
	}
	k, err := x.find(e, p)
	switch {
	case err != nil:
		return nil, err
	case k == nil:
		return e.t.base.readDir(p)
	case k.none:
		return nil, unix.ENOENT
	case !k.st.isDir():
		return nil, unix.ENOTDIR
	}
	return x.list(e, p)
}

// walk calls fn for every object below the directory at p, directories first.
// What cannot be listed is left out.
func (e era) walk(p string, fn func(dir string, e baseEntry) error) error {
	entries, err := e.readDir(p)
	if err != nil {
		return nil
	}
	for _, x := range entries {
		if err := fn(p, x); err != nil {
			return err
		}
		if x.typ == unix.S_IFDIR {
			if err := e.walk(join(p, x.name), fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// baseFile is a regular file of the base, open for reading.
type baseFile struct {
	f    *sharedFD // on the host
	t    *Tree
	kept *preimage // or what was kept of it
}

// open is Base.open.
func (e era) open(p string) (baseFile, baseStat, error) {
	k, err := e.object(p)
	switch {
	case err != nil:
		return baseFile{}, baseStat{}, err
	case k == nil:
		f, st, err := e.t.base.open(p)
		return baseFile{f: f}, st, err
	case k.none:
		return baseFile{}, baseStat{}, unix.ENOENT
	case k.st.mode&unix.S_IFMT != unix.S_IFREG:
		return baseFile{}, baseStat{}, unix.ESTALE
	case k.unread:
		return baseFile{}, baseStat{}, unix.EACCES
	}
	return baseFile{t: e.t, kept: k}, k.st, nil
}

func (f baseFile) release() {
	if f.f != nil {
		f.f.release()
	}
}

// readAt fills p from off; it is short only at the end of the file.
func (f baseFile) readAt(p []byte, off int64) (int, error) {
	if f.kept == nil {
		return preadFull(f.f.fd, p, off)
	}
	p = p[:min(int64(len(p)), max(0, f.kept.st.size-off))]
	for done := 0; done < len(p); {
		l, err := f.kept.layout(f.t, off+int64(done), off+int64(len(p)))
		if err != nil {
			return done, err
		}
		part := p[done:min(int64(len(p)), l.hi-off)]
		if err := f.t.fill(l, part, off+int64(done)); err != nil {
			return done, err
		}
		done += len(part)
	}
	return len(p), nil
}

// seek is lseek(2) with SEEK_DATA or SEEK_HOLE.
func (f baseFile) seek(off int64, whence int) (int64, error) {
	if f.kept == nil {
		return unix.Seek(f.f.fd, off, whence) // reads are positional: the shared offset means nothing
	}
	size := f.kept.st.size
	if off >= size {
		return 0, unix.ENXIO
	}
	for at := off; at < size; {
		l, err := f.kept.layout(f.t, at, size)
		if err != nil {
			return 0, err
		}
		found, err := f.t.seekIn(l, at, whence)
		if err != nil || found >= 0 {
			return found, err
		}
		at = l.hi
	}
	if whence == unix.SEEK_HOLE {
		return size, nil
	}
	return 0, unix.ENXIO
}

// prefetch is Base.prefetch, for what is on the host.
func (e era) prefetch(p string, names []string) {
	x := e.past()
	if x == nil || len(names) == 0 {
		e.t.base.prefetch(p, names)
		return
	}
	dir, _ := split(p)
	var here []string
	for _, name := range names {
		if !x.any(join(dir, name)) {
			here = append(here, name)
		}
	}
	e.t.base.prefetch(p, here)
}
