package transport

import (
	"sort"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

const forever = 1 << 30

// memFS is a small file system behind the no-open protocol.
type memFS struct {
	fuse.RawFileSystem
	mu    sync.RWMutex
	nodes map[uint64]*memNode // guarded by mu, as are the nodes
	next  uint64

	entered func(op, name string) fuse.Status // called first by some requests, which end with what is not OK
	unpark  func()                            // lets parked handlers go on
}

type memNode struct {
	ino   uint64
	mode  uint32
	data  []byte
	names map[string]uint64
	mtime time.Time
	nlink uint32
	refs  uint64
}

func newMemFS() *memFS {
	m := &memFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), nodes: map[uint64]*memNode{}, next: 2, unpark: func() {}}
	m.nodes[1] = &memNode{ino: 1, mode: syscall.S_IFDIR | 0o777, names: map[string]uint64{}, nlink: 2}
	return m
}

func (m *memFS) String() string { return "memfs" }

func (m *memFS) enter(op, name string) fuse.Status {
	if m.entered == nil {
		return fuse.OK
	}
	return m.entered(op, name)
}

func (n *memNode) attr(a *fuse.Attr) {
	a.Ino, a.Mode, a.Size, a.Nlink = n.ino, n.mode, uint64(len(n.data)), n.nlink
	a.SetTimes(&n.mtime, &n.mtime, &n.mtime)
}

func (n *memNode) entry(out *fuse.EntryOut) {
	n.refs++
	out.NodeId, out.EntryValid, out.AttrValid = n.ino, forever, forever
	n.attr(&out.Attr)
}

func (m *memFS) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if st := m.enter("LOOKUP", name); st != fuse.OK {
		return st
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ino, ok := m.nodes[h.NodeId].names[name]
	if !ok {
		out.EntryValid = forever
		return fuse.OK
	}
	m.nodes[ino].entry(out)
	return fuse.OK
}

func (m *memFS) Forget(node, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if nd := m.nodes[node]; nd != nil {
		if nd.refs -= n; nd.refs == 0 && nd.nlink == 0 {
			delete(m.nodes, node)
		}
	}
}

func (m *memFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out.AttrValid = forever
	m.nodes[in.NodeId].attr(&out.Attr)
	return fuse.OK
}

func (m *memFS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[in.NodeId]
	if size, ok := in.GetSize(); ok {
		n.resize(int(size))
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = n.mode&syscall.S_IFMT | mode
	}
	out.AttrValid = forever
	n.attr(&out.Attr)
	return fuse.OK
}

func (n *memNode) resize(size int) {
	for len(n.data) < size {
		n.data = append(n.data, make([]byte, size-len(n.data))...)
	}
	n.data = n.data[:size]
}

func (m *memFS) make(dir uint64, name string, mode uint32, out *fuse.EntryOut) fuse.Status {
	if st := m.enter("MAKE", name); st != fuse.OK {
		return st
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.nodes[dir]
	if _, ok := d.names[name]; ok {
		return fuse.Status(syscall.EEXIST)
	}
	n := &memNode{ino: m.next, mode: mode, nlink: 1, mtime: time.Now()}
	m.next++
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		n.names, n.nlink = map[string]uint64{}, 2
	}
	m.nodes[n.ino] = n
	d.names[name] = n.ino
	n.entry(out)
	return fuse.OK
}

func (m *memFS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return m.make(in.NodeId, name, in.Mode&^in.Umask, out)
}

func (m *memFS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return m.make(in.NodeId, name, in.Mode&^in.Umask|syscall.S_IFDIR, out)
}

func (m *memFS) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.nodes[h.NodeId]
	n := m.nodes[d.names[name]]
	delete(d.names, name)
	if n.nlink--; n.refs == 0 && n.nlink == 0 {
		delete(m.nodes, n.ino)
	}
	return fuse.OK
}

func (m *memFS) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.nodes[h.NodeId]
	n := m.nodes[d.names[name]]
	if len(n.names) > 0 {
		return fuse.Status(syscall.ENOTEMPTY)
	}
	delete(d.names, name)
	n.nlink = 0
	return fuse.OK
}

func (m *memFS) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, e := m.nodes[in.NodeId], m.nodes[in.Newdir]
	ino := d.names[from]
	if old, ok := e.names[to]; ok && old != ino {
		m.nodes[old].nlink = 0
	}
	delete(d.names, from)
	e.names[to] = ino
	return fuse.OK
}

func (m *memFS) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[in.Oldnodeid]
	m.nodes[in.NodeId].names[name] = n.ino
	n.nlink++
	n.entry(out)
	return fuse.OK
}

func (m *memFS) Symlink(_ <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	st := m.make(h.NodeId, name, syscall.S_IFLNK|0o777, out)
	if st == fuse.OK {
		m.mu.Lock()
		m.nodes[out.NodeId].data = []byte(target)
		m.mu.Unlock()
		out.Size = uint64(len(target))
	}
	return st
}

func (m *memFS) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.nodes[h.NodeId].data, fuse.OK
}

func (m *memFS) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

func (m *memFS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (m *memFS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if st := m.enter("FSYNC", ""); st != fuse.OK {
		return st
	}
	return fuse.OK
}

func (m *memFS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.NameLen, out.Bsize = 255, 4096
	return fuse.OK
}

func (m *memFS) GetXAttr(_ <-chan struct{}, _ *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if name != "user.hello" {
		return 0, fuse.ENODATA
	}
	if len(dest) < len(name) {
		return uint32(len(name)), fuse.ERANGE
	}
	return uint32(copy(dest, name)), fuse.OK
}

func (m *memFS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if st := m.enter("READ", ""); st != fuse.OK {
		return nil, st
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	data := m.nodes[in.NodeId].data
	if in.Offset >= uint64(len(data)) {
		return fuse.ReadResultData(nil), fuse.OK
	}
	return fuse.ReadResultData(buf[:copy(buf, data[in.Offset:])]), fuse.OK
}

func (m *memFS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[in.NodeId]
	if end := int(in.Offset) + len(data); end > len(n.data) {
		n.resize(end)
	}
	copy(n.data[in.Offset:], data)
	n.mtime = time.Now()
	return uint32(len(data)), fuse.OK
}

func (m *memFS) list(node uint64) []fuse.DirEntry {
	var l []fuse.DirEntry
	for name, ino := range m.nodes[node].names {
		l = append(l, fuse.DirEntry{Name: name, Ino: ino, Off: ino, Mode: m.nodes[ino].mode})
	}
	sort.Slice(l, func(i, j int) bool { return l[i].Off < l[j].Off })
	return l
}

func (m *memFS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, e := range m.list(in.NodeId) {
		if e.Off > in.Offset && !out.AddDirEntry(e) {
			break
		}
	}
	return fuse.OK
}

func (m *memFS) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.list(in.NodeId) {
		if e.Off <= in.Offset {
			continue
		}
		eo := out.AddDirLookupEntry(e)
		if eo == nil {
			break
		}
		m.nodes[e.Ino].entry(eo)
	}
	return fuse.OK
}
