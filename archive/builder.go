package archive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// maxDepth is how deep directories may be in each other.
const maxDepth = 4096

// maxHeld is how many objects are held in memory between two records, about.
const maxHeld = 8192

// Builder carries the tree sections of an archive out on a branch that nobody else uses. After an
// error the branch is good for nothing.
type Builder struct {
	ctx  context.Context
	tree *layers.Tree
	b    *layers.Branch

	inos  map[uint64]layers.Ino
	held  map[layers.Ino]struct{} // what we refer to, and may give back between two records
	base  *matcher                // in the base section, and what it found
	begun bool
	buf   []byte

	// Of the section.
	lot    layers.Ino // a directory for what has lost its names; 0: not made yet
	lotAs  string
	parked map[uint64][]string // names in lot, by id
	lots   int
	times  map[layers.Ino]times // of what no Set need follow for, and operations move: given back at the end
	file   *Node                // that is being made or set
	fileAs layers.Ino
	isSet  bool
}

// times are what operations on the entries and names of an object move.
type times struct{ a, m, c layers.Time }

// NewBuilder builds on b. Close it when done.
func NewBuilder(ctx context.Context, tree *layers.Tree, b *layers.Branch) *Builder {
	return &Builder{
		ctx: ctx, tree: tree, b: b, buf: make([]byte, ChunkSize),
		inos: map[uint64]layers.Ino{RootID: layers.RootIno}, held: map[layers.Ino]struct{}{},
	}
}

// Close gives back what the builder holds.
func (m *Builder) Close() {
	m.release()
	if m.base != nil {
		for ino := range m.base.inos {
			m.b.Forget(ino, 1)
		}
		m.base = nil
	}
}

func (m *Builder) release() {
	for ino := range m.held {
		m.b.Forget(ino, 1)
	}
	clear(m.held)
}

// Apply carries out one record of a base or tree section. *BaseError at the end of a base section whose base is
// another one.
func (m *Builder) Apply(rec Record) error {
	err := m.ctx.Err()
	if err == nil {
		err = m.apply(rec)
	}
	for _, e := range []error{
		unix.ENOENT, unix.EEXIST, unix.ENOTDIR, unix.EISDIR, unix.EINVAL, unix.EPERM, unix.EMLINK, unix.ENOTEMPTY, unix.ENAMETOOLONG, unix.ESTALE, unix.ELOOP, unix.EFBIG,
	} {
		if errors.Is(err, e) && !errors.Is(err, ErrBad) {
			return fmt.Errorf("%w: %w", ErrBad, err)
		}
	}
	return err
}

func (m *Builder) apply(rec Record) error {
	switch r := rec.(type) {
	case Clear:
		return m.clear(r)
	case Data:
		return m.write(r.Off, r.Bytes)
	case Ref:
		p, err := m.tree.Chunk(r.Hash, int(r.N))
		if err != nil {
			return err
		}
		return m.write(r.Off, p)
	}
	if err := m.finish(); err != nil {
		return err
	}
	if len(m.held) > maxHeld {
		m.release()
	}
	switch r := rec.(type) {
	case Begin:
		return m.begin(r.Section)
	case Take:
		return m.take(r)
	case Make:
		if m.base != nil && m.base.open {
			return m.match(r)
		}
		return m.make(r)
	case Name:
		if m.base != nil && m.base.open {
			return m.matchName(r)
		}
		return m.name(r)
	case Print:
		return m.matchPrint(r)
	case Set:
		return m.set(r)
	case End:
		return m.end()
	}
	return bad("a %T is no matter of the tree", rec)
}

func (m *Builder) begin(s Section) error {
	m.lot, m.parked, m.times = 0, map[uint64][]string{}, map[layers.Ino]times{}
	first := !m.begun
	m.begun = true
	switch {
	case s == SectionBase:
		m.base = newMatcher()
		return nil
	case first: // it begins with nothing, whatever the base here has
		_, err := m.wipe(layers.RootIno)
		return err
	}
	return nil
}

func (m *Builder) end() error {
	if m.base != nil && m.base.open {
		return m.matched()
	}
	if err := m.clean(); err != nil {
		return err
	}
	for ino, t := range m.times {
		if err := m.hold(ino); err != nil {
			if errors.Is(err, unix.ESTALE) {
				continue // it is gone
			}
			return err
		}
		if _, err := m.b.Setattr(ino, layers.SetAttr{Atime: &t.a, Mtime: &t.m, Ctime: &t.c}); err != nil {
			return err
		}
	}
	return nil
}

// hold sees to it that we refer to an object.
func (m *Builder) hold(ino layers.Ino) error {
	if _, ok := m.held[ino]; ok || ino == layers.RootIno || m.base.has(ino) {
		return nil
	}
	if _, err := m.b.Acquire(ino); err != nil {
		return err
	}
	m.held[ino] = struct{}{}
	return nil
}

// holds notes a reference that an operation gave us.
func (m *Builder) holds(ino layers.Ino) {
	if _, twice := m.held[ino]; twice || m.base.has(ino) {
		m.b.Forget(ino, 1)
		return
	}
	m.held[ino] = struct{}{}
}

// use finds an object and holds it.
func (m *Builder) use(id uint64) (layers.Ino, error) {
	ino, ok := m.inos[id]
	if !ok {
		return 0, bad("it speaks of object %d, which is not there", id)
	}
	return ino, m.hold(ino)
}

// keep notes the times of an object, which are about to be moved. It is held.
func (m *Builder) keep(ino layers.Ino) error {
	if _, ok := m.times[ino]; ok {
		return nil
	}
	a, err := m.b.Getattr(ino)
	if err == nil {
		m.times[ino] = times{a.Atime, a.Mtime, a.Ctime}
	}
	return err
}

func (m *Builder) take(r Take) error {
	dir, err := m.use(r.Dir)
	if err != nil {
		return err
	}
	ino, err := m.use(r.ID)
	if err != nil {
		return err
	}
	a, err := m.b.Lookup(dir, r.Name)
	if err != nil {
		return fmt.Errorf("take %q: %w", r.Name, err)
	}
	m.b.Forget(a.Ino, 1)
	if a.Ino != ino {
		return bad("%q is not object %d", r.Name, r.ID)
	}
	if err := m.needLot(); err != nil {
		return err
	}
	m.lots++
	as := strconv.Itoa(m.lots)
	if err := m.b.Rename(dir, r.Name, m.lot, as, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("take %q: %w", r.Name, err)
	}
	m.parked[r.ID] = append(m.parked[r.ID], as)
	return nil
}

// needLot makes the directory for what has lost its names, under a name that no archive can know.
func (m *Builder) needLot() error {
	if m.lot != 0 {
		return m.hold(m.lot)
	}
	if err := m.keep(layers.RootIno); err != nil {
		return err
	}
	m.lotAs = ".rewindfs-import-" + rand.Text()
	a, err := m.b.Mkdir(layers.RootIno, m.lotAs, 0o700, layers.Cred{})
	if err != nil {
		return err
	}
	m.holds(a.Ino)
	m.lot = a.Ino
	return nil
}

// clean removes what has lost its names and got no new one. No name changes after it in a section.
func (m *Builder) clean() error {
	if m.lot == 0 {
		return nil
	}
	if err := m.hold(m.lot); err != nil {
		return err
	}
	gone, err := m.wipe(m.lot)
	if err == nil {
		err = m.b.Rmdir(layers.RootIno, m.lotAs)
	}
	if err != nil {
		return fmt.Errorf("remove what is gone: %w", err)
	}
	m.lot, m.parked = 0, map[uint64][]string{}
	if len(gone) > 0 {
		for id, ino := range m.inos {
			if _, is := gone[ino]; is {
				delete(m.inos, id)
			}
		}
	}
	for ino := range gone {
		delete(m.times, ino)
	}
	return nil
}

// wipe removes all that is in a directory, which is held, and returns what has no name any more.
func (m *Builder) wipe(dir layers.Ino) (map[layers.Ino]struct{}, error) {
	gone := map[layers.Ino]struct{}{}
	return gone, m.wipeInto(dir, gone)
}

func (m *Builder) wipeInto(dir layers.Ino, gone map[layers.Ino]struct{}) error {
	var all []layers.Entry
	if err := m.b.ReadDir(dir, 0, func(e layers.Entry) bool { all = append(all, e); return true }); err != nil {
		return err
	}
	for _, e := range all {
		a, err := m.b.Lookup(dir, e.Name)
		if err = firstOf(err, m.ctx.Err()); err != nil {
			return err
		}
		if a.IsDir() {
			if err = m.wipeInto(a.Ino, gone); err == nil {
				err = m.b.Rmdir(dir, e.Name)
			}
		} else {
			err = m.b.Unlink(dir, e.Name)
		}
		if err == nil && (a.IsDir() || a.Nlink <= 1) {
			gone[a.Ino] = struct{}{}
		}
		m.b.Forget(a.Ino, 1)
		if err != nil {
			return fmt.Errorf("remove %q: %w", e.Name, err)
		}
	}
	return nil
}

func (m *Builder) make(r Make) error {
	n := &r.Node
	if _, twice := m.inos[n.ID]; twice {
		return bad("object %d is there twice", n.ID)
	}
	dir, err := m.use(r.Dir)
	if err == nil && n.isDir() {
		err = m.underRoot(dir, 0)
	}
	if err != nil {
		return err
	}
	cred := layers.Cred{UID: n.UID, GID: n.GID, Xattrs: n.Xattrs}
	var a layers.Attr
	switch n.typ() {
	case unix.S_IFDIR:
		a, err = m.b.Mkdir(dir, r.Name, permOf(n.Mode), cred)
	case unix.S_IFLNK:
		a, err = m.b.Symlink(dir, r.Name, n.Target, cred)
	default:
		a, err = m.b.Mknod(dir, r.Name, n.Mode, n.Rdev, cred)
	}
	if err != nil {
		return fmt.Errorf("make %q: %w", r.Name, err)
	}
	m.holds(a.Ino)
	m.inos[n.ID] = a.Ino
	if n.isDir() { // what is made in it moves its times
		m.times[a.Ino] = times{n.Atime, n.Mtime, n.Ctime}
		return nil
	}
	m.file, m.fileAs, m.isSet = n, a.Ino, false
	return nil
}

func (m *Builder) name(r Name) error {
	dir, err := m.use(r.Dir)
	if err != nil {
		return err
	}
	ino, err := m.use(r.ID)
	if err = firstOf(err, m.keep(ino)); err != nil {
		return err
	}
	list := m.parked[r.ID]
	if len(list) == 0 {
		a, err := m.b.Link(ino, dir, r.Name)
		if err != nil {
			return fmt.Errorf("link %q: %w", r.Name, err)
		}
		m.holds(a.Ino)
		return nil
	}
	if err := firstOf(m.hold(m.lot), m.underRoot(dir, ino)); err != nil {
		return err
	}
	if err := m.b.Rename(m.lot, list[len(list)-1], dir, r.Name, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("name %q: %w", r.Name, err)
	}
	m.parked[r.ID] = list[:len(list)-1]
	return nil
}

// underRoot refuses a directory that is in not, or too deep.
func (m *Builder) underRoot(dir, not layers.Ino) error {
	for range maxDepth {
		if dir == not {
			return bad("a directory would be in itself")
		}
		if dir == layers.RootIno {
			return nil
		}
		if err := m.hold(dir); err != nil {
			return err
		}
		up, err := m.b.View.Parent(dir)
		if err != nil {
			return err
		}
		dir = up
	}
	return bad("directories are more than %d deep in each other", maxDepth)
}

func (m *Builder) set(r Set) error {
	if err := m.clean(); err != nil {
		return err
	}
	n := &r.Node
	ino, err := m.use(n.ID)
	if err != nil {
		return err
	}
	a, err := m.b.Getattr(ino)
	if err != nil {
		return err
	}
	if kindOf(a.Mode) != n.typ() {
		return bad("object %d becomes another kind of thing", n.ID)
	}
	if n.isFile() && a.Size != n.Size {
		if _, err := m.b.Setattr(ino, layers.SetAttr{Size: &n.Size}); err != nil {
			return err
		}
	}
	if n.typ() == unix.S_IFLNK {
		if target, err := m.b.Readlink(ino); err != nil || target != n.Target {
			return firstOf(err, bad("the link %d leads elsewhere", n.ID))
		}
	}
	m.file, m.fileAs, m.isSet = n, ino, true
	return nil
}

func (m *Builder) clear(r Clear) error {
	if m.file == nil {
		return bad("bytes come without a file")
	}
	return m.b.Fallocate(m.fileAs, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, r.Off, r.N, false)
}

func (m *Builder) write(off int64, p []byte) error {
	if m.file == nil {
		return bad("bytes come without a file")
	}
	_, err := m.b.Write(m.fileAs, p, off, layers.WriteFlags{Chunks: true})
	return err
}

// finish gives the object that is being made or set what its node says.
func (m *Builder) finish() error {
	n := m.file
	if n == nil {
		return nil
	}
	m.file = nil
	mode := permOf(n.Mode)
	s := layers.SetAttr{Mode: &mode, UID: &n.UID, GID: &n.GID, Atime: &n.Atime, Mtime: &n.Mtime, Ctime: &n.Ctime}
	if m.isSet {
		have, err := m.b.Listxattr(m.fileAs)
		if err != nil {
			return err
		}
		s.Xattrs = map[string][]byte{}
		for _, name := range have {
			s.Xattrs[name] = nil
		}
		for name, v := range n.Xattrs {
			s.Xattrs[name] = append([]byte{}, v...)
		}
	} else if n.isFile() {
		s.Size = &n.Size
	}
	delete(m.times, m.fileAs)
	if _, err := m.b.Setattr(m.fileAs, s); err != nil {
		return fmt.Errorf("set what object %d is: %w", n.ID, err)
	}
	return nil
}
