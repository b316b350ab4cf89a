package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/fs/transport"
	"github.com/rewindfs/rewindfs/layers"
)

// Freeze holds up whatever changes a file until thaw is called. A move of the head
// must happen within, or a write that was on its way lands in the new head:
//
//	m.Barrier(ctx)
//	thaw := m.Freeze()
//	moved, err := branch.MoveHead(target, touch, extra, m.Swapped)
//	thaw()
//	m.Notify(moved)
//
// Nothing that takes long may happen while frozen, and neither may Barrier or Notify.
func (m *Mount) Freeze() (thaw func()) {
	m.fs.gate.Lock()
	return m.fs.gate.Unlock
}

// Swapped is for MoveHead to call while the tree is locked: files that differ
// between the two heads, and directories that the kernel holds for dead (S_DEAD,
// since their rmdir) though they are back, get new node ids from now on, and what programs still send for
// the old ones changes nothing.
func (m *Mount) Swapped(mv layers.Moved) {
	f := m.fs
	f.inc.bump(mv.Renew, mv.Merged)
	f.acls.clear()
	f.noCaps.clear()
}

// Notify has the kernel forget what it knows of the names and inodes in mv. When it
// returns, every program sees the tree as it is. Call it with no lock held.
func (m *Mount) Notify(mv layers.Moved) error {
	// An answer from before the move that is still on its way would be remembered for ever.
	m.conn.Quiesce()
	var first error
	note := func(err error) error {
		if err != nil && !errors.Is(err, unix.ENOENT) && first == nil {
			first = err
		}
		return err
	}
	if len(mv.Names) > epochNames && m.conn.HasEpoch() {
		note(m.conn.IncEpoch())
	} else {
		for _, k := range mv.Names {
			for _, dir := range m.fs.inc.ids(k.Dir) {
				note(m.conn.InvalEntry(dir, k.Name))
			}
		}
	}
	renewed := mv.Renew
	for _, ino := range mv.Inos {
		ids := m.fs.inc.ids(ino)
		if len(renewed) > 0 && renewed[0] == ino { // the present id came with the move
			ids, renewed = ids[:len(ids)-1], renewed[1:]
		}
		for _, node := range ids {
			if errors.Is(note(m.conn.InvalInode(node, 0, 0)), unix.ENOENT) {
				m.fs.inc.forgotten(node)
			}
		}
	}
	if first != nil && !errors.Is(first, unix.ENODEV) { // ENODEV: unmounted meanwhile
		return fmt.Errorf("tell the kernel what changed: %w", first)
	}
	m.lookAt(mv.Dirs)
	return nil
}

// lookAt looks directories up where they are now. The kernel hangs one that is in use on
// its new name when somebody does, and until then getcwd(2) and /proc tell the old one.
func (m *Mount) lookAt(dirs []string) {
	if len(dirs) == 0 {
		return
	}
	if err := m.conn.Apart(func() error {
		root, err := m.openRoot()
		if err != nil {
			return err
		}
		defer unix.Close(root)
		for _, dir := range dirs {
			fd, err := unix.Openat2(root, dir, &unix.OpenHow{
				Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
			})
			if err == nil {
				unix.Close(fd)
			}
		}
		return nil
	}); err != nil {
		m.log.Debug("the mount cannot be opened; the kernel finds moved directories when somebody looks", "error", err)
	}
}

// Changing is to be called in front of a change that Changed is called after: from then on, appends go to the file's end.
func (m *Mount) Changing(ino layers.Ino) { m.fs.resized.add(ino) }

// Changed has the kernel forget the content of a file, some names and what it knows
// of their directories, after a change that did not come through the mount.
func (m *Mount) Changed(ino layers.Ino, names []layers.NameKey) error {
	mv := layers.Moved{Inos: []layers.Ino{ino}, Names: names}
	for _, k := range names {
		mv.Inos = append(mv.Inos, k.Dir)
	}
	if m.fs.writeback {
		m.fs.inc.bump(mv.Inos[:1], false) // the kernel would keep the size it knows
	}
	return m.Notify(mv)
}

// Drifted has the kernel forget the content of a base file that turned out to have
// changed and, with a name, what that leads to. It does not wait, so a handler may
// be the one to find out.
func (m *Mount) Drifted(ino layers.Ino, name *layers.NameKey) {
	m.fs.resized.add(ino)
	m.fs.drifts.add(ino)
	for _, node := range m.fs.inc.ids(ino) {
		m.fs.voider.data(node)
	}
	if name != nil {
		for _, dir := range m.fs.inc.ids(name.Dir) {
			m.fs.voider.name(dir, name.Name)
		}
	}
}

// voidDrift drops the data of node before the answer that tells its new size, if its
// file was found to have changed: else old bytes would be read in the new size. Only for requests
// that hold none of its pages: LOOKUP and GETATTR.
func (f *FS) voidDrift(ino layers.Ino, node uint64) {
	if node&viewBit == 0 && f.drifts.drop(ino) {
		if err := f.voider.dataNow(node); err != nil && !errors.Is(err, unix.ENOENT) {
			f.log.Warn("cannot have the kernel forget a changed file", "inode", ino, "error", err)
		}
	}
}

// epochNames is how many changed names make the kernel's epoch worth its price:
// it has every name looked up again and drops the data of closed files.
const epochNames = 200_000

// voider tells the kernel what handlers may not tell it themselves, because the
// request they answer holds the page or directory concerned.
type voider struct {
	log  *slog.Logger
	conn *transport.Conn // set by attach, before the first request
	wake chan struct{}
	quit chan struct{}

	mu   sync.Mutex
	todo map[stale]struct{} // guarded by mu
}

// stale is something for the kernel to forget: the name in the directory node or,
// when that is empty, the attributes of node and perhaps its data.
type stale struct {
	node uint64
	name string
	data bool
}

func newVoider(log *slog.Logger) *voider {
	return &voider{log: log, wake: make(chan struct{}, 1), quit: make(chan struct{}), todo: map[stale]struct{}{}}
}

// attrs has the attributes of node forgotten soon.
func (v *voider) attrs(node uint64) { v.queue(stale{node: node}) }

// data has the attributes and data, or listing, of node forgotten soon.
func (v *voider) data(node uint64) { v.queue(stale{node: node, data: true}) }

// name has what name in the directory dir leads to forgotten soon.
func (v *voider) name(dir uint64, name string) { v.queue(stale{node: dir, name: name}) }

func (v *voider) queue(s stale) {
	v.mu.Lock()
	v.todo[s] = struct{}{}
	v.mu.Unlock()
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// attrsNow has the attributes of node forgotten before it returns.
func (v *voider) attrsNow(node uint64) error { return v.send(stale{node: node}) }

// dataNow has attributes and data forgotten before it returns.
func (v *voider) dataNow(node uint64) error { return v.send(stale{node: node, data: true}) }

func (v *voider) send(s stale) error {
	switch {
	case s.name != "":
		return v.conn.InvalEntry(s.node, s.name)
	case s.data:
		return v.conn.InvalInode(s.node, 0, 0)
	}
	return v.conn.InvalInode(s.node, -1, 0)
}

func (v *voider) attach(c *transport.Conn) { v.conn = c }

func (v *voider) run() {
	for {
		select {
		case <-v.wake:
		case <-v.quit:
			return
		}
		v.mu.Lock()
		todo := v.todo
		v.todo = map[stale]struct{}{}
		v.mu.Unlock()
		for s := range todo {
			if err := v.send(s); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
				v.log.Warn("cannot have the kernel forget what changed", "node", s.node, "name", s.name, "error", err)
			}
		}
	}
}

func (v *voider) stop() { close(v.quit) }
