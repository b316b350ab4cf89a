package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// KeepBase records what the base has at paths, which are relative to it, and then, in one last
// batch with what extra adds (it may be nil), starts the next generation, gen: from then on, layers that
// exist show at these paths what was recorded, whatever the host has there: name all that come into
// being, go, change, are moved, or are moved over. Of a directory
// all that is below it is recorded, too; of one given with a trailing slash only itself.
// The directories that hold the paths, and the base's own, are recorded without being asked for:
// their times and link counts will change. So are, by their numbers, the other names of
// files that have several.
//
// When it returns, everything is on the disk, and the host may be changed. Call BaseChanged
// when that is done. After an error nothing has changed, unless gen is not 0: then the
// generation has begun, but may not survive a power cut.
//
// ENOSPC; EBUSY when a file goes on changing while it is read; EINVAL for a path that is
// absolute or has "." or ".." in it. Memory does not grow with the sizes of files: about 10 MB, and 100 bytes for each object.
func (t *Tree) KeepBase(ctx context.Context, paths []string, extra func(b *kv.Batch, gen uint64) error) (gen uint64, err error) {
	k, err := t.Keep(ctx, paths)
	if err != nil {
		return 0, err
	}
	return k.Start(extra)
}

// Kept is what the base has, recorded for the next generation, which has not begun. End it with Start or Drop: until then
// nothing else is kept.
type Kept struct{ k *keeper }

// Keep is the first half of KeepBase: it records, and changes nothing.
func (t *Tree) Keep(ctx context.Context, paths []string) (*Kept, error) {
	t.keeping.Lock()
	k := &keeper{t: t, ctx: ctx, gen: t.Generation(), x: newKeptIndex(), done: map[uint64]keptKind{}, buf: make([]byte, 0, keepBuf)}
	if old := t.kept.Load(); old != nil {
		k.x.seed = old.seed
	}
	if err := k.keep(paths); err != nil {
		return nil, fmt.Errorf("keep what the base has: %w", errors.Join(err, (&Kept{k}).Drop()))
	}
	return &Kept{k}, nil
}

// Start is the second half of KeepBase.
func (k *Kept) Start(extra func(b *kv.Batch, gen uint64) error) (gen uint64, err error) {
	t := k.k.t
	if err := k.k.start(extra); err != nil {
		return 0, fmt.Errorf("start generation %d of the base: %w", k.k.gen+1, errors.Join(err, k.Drop()))
	}
	defer t.keeping.Unlock()
	if err := t.db.Sync(); err != nil {
		return k.k.gen + 1, fmt.Errorf("sync the start of generation %d of the base: %w", k.k.gen+1, err)
	}
	return k.k.gen + 1, nil
}

// Drop gives up what was recorded.
func (k *Kept) Drop() error {
	defer k.k.t.keeping.Unlock()
	k.k.t.leftover = true
	return k.k.t.dropLeftover()
}

const (
	// keepBytes and keepRecords are how much a keeper gathers for one batch.
	keepBytes   = 8 << 20
	keepRecords = 2048
	// keepBuf has room for one region more.
	keepBuf = keepBytes + regionSize
	// keepTries is how often a file is read that changes while it is read.
	keepTries = 3
)

// keeper is one KeepBase at work.
type keeper struct {
	t     *Tree
	ctx   context.Context
	gen   uint64 // which will have been
	x     *keptIndex
	done  map[uint64]keptKind // paths that have a pre-image
	batch kv.Batch            // records not applied yet
	runs  []run               // bytes not stored yet,
	owner []Ino               // whose they are,
	buf   []byte              // and where they are
}

func (k *keeper) keep(paths []string) error {
	if err := k.t.dropLeftover(); err != nil {
		return err
	}
	k.t.base.forget()
	if err := k.object("", false); err != nil {
		return err
	}
	for _, p := range slices.Sorted(slices.Values(paths)) {
		below := !strings.HasSuffix(p, "/")
		p = strings.TrimSuffix(p, "/")
		if !validPath(p) {
			return fmt.Errorf("path %q: %w", p, unix.EINVAL)
		}
		there, err := k.parent(p)
		if err == nil && there {
			err = k.object(p, below)
		}
		if err != nil {
			return err
		}
	}
	if err := k.flush(); err != nil {
		return err
	}
	return k.t.Sync()
}

func validPath(p string) bool {
	if p == "" {
		return true
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "." || part == ".." || strings.Contains(part, "\x00") {
			return false
		}
	}
	return true
}

// parent records the directory that holds p, itself. Where there is none it records that, and
// reports false: then there is nothing at p either.
func (k *keeper) parent(p string) (there bool, err error) {
	if p == "" {
		return true, nil
	}
	dir, _ := split(p)
	if _, ok := k.done[k.x.pathID(dir)]; !ok {
		if there, err = k.parent(dir); err != nil || !there {
			return false, err
		}
		if err := k.object(dir, false); err != nil {
			return false, err
		}
	}
	return k.done[k.x.pathID(dir)] != keptLeaf, nil
}

// object records what is at p and, if it is a directory and below is set, all below it.
func (k *keeper) object(p string, below bool) error {
	if err := k.ctx.Err(); err != nil {
		return err
	}
	if kind, ok := k.done[k.x.pathID(p)]; ok && (kind != keptDir || !below) {
		return nil
	}
	st, err := k.t.base.stat(p)
	switch {
	case notThere(err) != nil:
		return fmt.Errorf("look at %q: %w", p, err)
	case err != nil:
		return k.put(p, &preimage{none: true})
	}
	if p == "" {
		if err := k.withoutStage(&st); err != nil {
			return err
		}
	}
	pre := &preimage{st: st}
	var entries []baseEntry
	if below && st.isDir() {
		entries, err = k.t.base.readDir(p)
		if err != nil && !errors.Is(err, unix.EACCES) { // what nobody can list nobody can remove
			return fmt.Errorf("list %q: %w", p, err)
		}
		pre.whole = err == nil
	}
	if err := k.describe(p, pre); err != nil {
		return fmt.Errorf("keep %q: %w", p, err)
	}
	for _, e := range entries {
		if err := k.object(join(p, e.name), true); err != nil {
			return err
		}
	}
	return nil
}

// withoutStage takes the stages of commits, which no view shows, out of the link count of the base's root.
func (k *keeper) withoutStage(st *baseStat) error {
	all, err := k.t.base.list("")
	if err != nil {
		return fmt.Errorf("list the base: %w", err)
	}
	for _, e := range all {
		if staged(e.name) && st.nlink > 2 { // some file systems do not count directories
			st.nlink--
		}
	}
	return nil
}

// describe completes pre, which has the stat of what is at p, and records it.
func (k *keeper) describe(p string, pre *preimage) error {
	t := k.t
	var err error
	if p == "" {
		pre.st.given = RootIno
	} else {
		t.mu.Lock()
		pre.st.given, err = t.inoOf(p, &pre.st)
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
	if pre.st.mode&unix.S_IFMT == unix.S_IFLNK {
		if pre.target, err = t.base.readlink(p); err != nil {
			return err
		}
	}
	if pre.st.mode&unix.S_IFMT == unix.S_IFREG && pre.st.size > 0 {
		return k.file(p, pre)
	}
	if err := k.attributes(pre, func() (map[string][]byte, error) { return t.base.xattrs(p) }); err != nil {
		return err
	}
	return k.put(p, pre)
}

// attributes records the extended attributes that read gives.
func (k *keeper) attributes(pre *preimage, read func() (map[string][]byte, error)) error {
	xs, err := read()
	if err != nil {
		return fmt.Errorf("read extended attributes: %w", err)
	}
	if len(xs) > 0 && pre.body == 0 {
		if pre.body, err = k.t.newBody(); err != nil {
			return err
		}
	}
	for name, v := range xs {
		pre.hasXattrs = true
		k.batch.Put(kv.Xattr(uint64(pre.body), name, uint64(BaseLayer)), xattrValue(v))
	}
	return nil
}

// newBody takes an inode number for what belongs to a pre-image.
func (t *Tree) newBody() (Ino, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b kv.Batch
	ino := t.own.take(&b)
	if b.Len() == 0 {
		return ino, nil
	}
	return ino, t.db.Apply(&b)
}

// put records a pre-image of p. Its record comes no later than what belongs to it, which could
// not be found without.
func (k *keeper) put(p string, pre *preimage) error {
	dir, name := split(p)
	if kv.PreImageHashed(dir) {
		pre.dir = dir
	}
	k.batch.Put(kv.PreImage(dir, name, k.gen), pre.encode())
	if !pre.none && !pre.st.isDir() && pre.st.nlink > 1 {
		k.batch.Put(kv.PreImageLink(pre.st.dev, pre.st.ino, k.gen), pre.encode())
	}
	id := k.x.pathID(p)
	if _, again := k.done[id]; !again {
		k.x.note(p, k.gen, pre)
		if !pre.none && !pre.st.isDir() && pre.st.nlink > 1 {
			k.x.noteLink(k.gen, &pre.st)
		}
	} else { // the directory that was kept itself is now kept with all below, or a file is read again
		i := slices.IndexFunc(k.x.at, func(a keptAt) bool { return a.id == id })
		k.x.at[i].kind = pre.kind()
	}
	k.done[id] = pre.kind()
	return k.flushIf(keepBytes, keepRecords)
}

// file records the file at p with its content and attributes.
func (k *keeper) file(p string, pre *preimage) (err error) {
	if pre.body, err = k.t.newBody(); err != nil {
		return err
	}
	for try := range keepTries {
		same, err := k.content(p, pre, try == 0)
		if err != nil || same {
			return err
		}
		// What has been stored of it is not to be mixed with what it is now.
		if err := k.flush(); err != nil {
			return err
		}
		d := keptDropper{t: k.t}
		if err := errors.Join(d.body(pre.body, false), d.apply()); err != nil {
			return err
		}
	}
	return fmt.Errorf("it changes again and again while it is read, so some program writes to it; wait for that, and try again: %w", unix.EBUSY)
}

// content records the file at p, which was a regular file just now, as it is when it is opened, with its attributes if they are asked
// for. It reports false if it was changed meanwhile.
func (k *keeper) content(p string, pre *preimage, attributes bool) (same bool, err error) {
	f, st, err := k.t.base.openFile(p, false)
	if errors.Is(err, unix.EACCES) { // not for us to read: whoever could not does not lose it
		pre.unread = true
		if err := k.attributes(pre, func() (map[string][]byte, error) { return k.t.base.xattrs(p) }); err != nil {
			return false, err
		}
		return true, k.put(p, pre)
	}
	if err != nil {
		return false, err
	}
	defer f.release()
	if st.ino != pre.st.ino || st.dev != pre.st.dev || st.btime != pre.st.btime {
		return false, fmt.Errorf("another file has just taken its place; try again: %w", unix.EBUSY)
	}
	if attributes {
		if err := k.attributes(pre, func() (map[string][]byte, error) { return fdXattrs(f.fd) }); err != nil {
			return false, err
		}
	}
	given := pre.st.given
	pre.st = st
	pre.st.given = given
	if err := k.put(p, pre); err != nil {
		return false, err
	}
	for at := int64(0); at < st.size; {
		if err := k.ctx.Err(); err != nil {
			return false, err
		}
		if at, err = k.region(f.fd, pre.body, at, st.size); err != nil {
			return false, fmt.Errorf("read: %w", err)
		}
	}
	now, err := k.t.base.statFD(f.fd)
	return err == nil && now.mark() == st.mark(), err
}

// region reads the data of one region of a file, the next one that has any at or behind at,
// and returns where to go on.
func (k *keeper) region(fd int, body Ino, at, size int64) (int64, error) {
	at, err := unix.Seek(fd, at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || at >= size {
		return size, nil
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return 0, fmt.Errorf("find its holes: %w", err)
	}
	if err != nil {
		return 0, err
	}
	end := min(size, (at/regionSize+1)*regionSize)
	for from := at; from < end; {
		hole, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return 0, err
		}
		if hole <= from || errors.Is(err, unix.ENXIO) {
			break // it has just been cut off: that will be noticed
		}
		if err := k.read(fd, body, from, min(hole, end)); err != nil {
			return 0, err
		}
		if hole >= end {
			break
		}
		from, err = unix.Seek(fd, hole, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	return end, k.flushIf(keepBytes, keepRecords)
}

// read gathers the bytes [from, to) of a file, which are within one region.
func (k *keeper) read(fd int, body Ino, from, to int64) error {
	start := len(k.buf)
	k.buf = k.buf[:start+int(to-from)]
	n, err := preadFull(fd, k.buf[start:], from)
	if err == nil && n < int(to-from) {
		clear(k.buf[start+n:]) // it has just been cut off: that will be noticed
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	data := k.buf[start:]
	for len(data) > 0 {
		n := min(int64(len(data)), slotSize-from%slotSize)
		k.runs, k.owner = append(k.runs, run{from, data[:n]}), append(k.owner, body)
		data, from = data[n:], from+n
	}
	return nil
}

// flushIf applies what has been gathered if it is at least so much.
func (k *keeper) flushIf(bytes, records int) error {
	if len(k.buf) < bytes && k.batch.Len() < records {
		return nil
	}
	return k.flush()
}

// flush stores what has been gathered. It comes between regions only: the extents of one
// are one record.
func (k *keeper) flush() error {
	t := k.t
	if k.batch.Len() == 0 && len(k.runs) == 0 {
		return nil
	}
	if err := t.db.CheckSpace(int64(len(k.buf))); err != nil {
		return unix.ENOSPC
	}
	st, err := t.store(k.runs)
	t.mu.Lock()
	defer t.mu.Unlock()
	for err == nil && t.void(st) {
		t.mu.Unlock()
		st, err = t.store(k.runs)
		t.mu.Lock()
	}
	if err != nil {
		return err
	}
	k.batch.Append(&st.index)
	for i := 0; i < len(st.exts); {
		j, region := i, st.exts[i].off/regionSize
		for j < len(st.exts) && k.owner[j] == k.owner[i] && st.exts[j].off/regionSize == region {
			j++
		}
		t.putRegion(&k.batch, k.owner[i], uint64(region), BaseLayer, st.exts[i:j])
		i = j
	}
	if err := t.db.Apply(&k.batch); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return unix.ENOSPC
		}
		return err
	}
	k.batch = kv.Batch{} // Apply took the old one
	k.runs, k.owner, k.buf = k.runs[:0], k.owner[:0], k.buf[:0]
	return nil
}

// start begins the next generation.
func (k *keeper) start(extra func(*kv.Batch, uint64) error) error {
	t := k.t
	var b kv.Batch
	next := k.gen + 1
	t.mu.Lock()
	defer t.mu.Unlock()
	putCounter(&b, metaBaseGen, next)
	if extra != nil {
		if err := extra(&b, next); err != nil {
			return err
		}
	}
	if err := t.db.Apply(&b); err != nil {
		return err
	}
	x := k.x
	x.gen = next
	if old := t.kept.Load(); old != nil {
		x.at, x.inos, x.links = append(x.at, old.at...), append(x.inos, old.inos...), x.links || old.links
	}
	x.sort()
	t.gen = next
	t.kept.Store(x)
	return nil
}
