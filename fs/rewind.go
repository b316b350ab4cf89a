package fs

import (
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// The directory .rewind of the root is not in the tree: it is found by name and
// listed by nobody. It holds checkpoints, and that holds one directory for each
// checkpoint: the tree as it was, read-only. An object of the base called .rewind in its root
// stays out of sight.
const (
	rewindName      = ".rewind"
	checkpointsName = "checkpoints"
)

// Node ids of the directories that exist only here: of a view that there never is.
const (
	virtualView     = uint64(viewBit | tagMask<<tagShift)
	nodeRewind      = virtualView | 1
	nodeCheckpoints = virtualView | 2
)

func isVirtual(node uint64) bool { return node&^inoMask == virtualView }

// Checkpoints is what .rewind/checkpoints shows. Its methods are called from
// requests and must not wait for the mount.
type Checkpoints interface {
	// Names lists labels and, for checkpoints without one, ids.
	Names() []string
	// Lookup finds a checkpoint by label or id.
	Lookup(name string) (layers.Layer, bool)
}

// dirName makes a directory name of a label. Labels may hold slashes and directory names
// may not, so those are written %2F; a label has no percent sign of its own.
func dirName(label string) string {
	if label == "." || label == ".." {
		return strings.ReplaceAll(label, ".", "%2E")
	}
	return strings.ReplaceAll(label, "/", "%2F")
}

// labelOf is the inverse of dirName.
func labelOf(name string) string {
	return strings.NewReplacer("%2F", "/", "%2E", ".").Replace(name)
}

// virtualAttr describes a directory that exists only here. That of the checkpoints
// was changed this moment, whenever it is asked, as those in /proc are: the kernel
// takes no listing that it has kept for one of now, however soon after another it is read.
func virtualAttr(node uint64) layers.Attr {
	a := layers.Attr{Mode: unix.S_IFDIR | 0o555, Nlink: 2}
	if node == nodeRewind {
		a.Nlink = 3
		return a
	}
	now := time.Now()
	a.Mtime = layers.Time{Sec: now.Unix(), Nsec: uint32(now.Nanosecond())}
	a.Ctime = a.Mtime
	return a
}

// lookupVirtual finds .rewind and what is directly in the directories that exist
// only here. None of it may be remembered: checkpoints come and go, and labels move.
func (f *FS) lookupVirtual(parent uint64, name string, out *fuse.EntryOut) fuse.Status {
	node := uint64(0)
	switch {
	case parent == fuse.FUSE_ROOT_ID:
		node = nodeRewind
	case parent == nodeRewind && name == checkpointsName:
		node = nodeCheckpoints
	case parent == nodeCheckpoints:
		return f.lookupCheckpoint(name, out)
	}
	if node == 0 || f.checkpoints == nil {
		return fuse.ENOENT
	}
	a := virtualAttr(node)
	out.NodeId = node
	f.fillAttr(&out.Attr, &a, node)
	return fuse.OK
}

func (f *FS) lookupCheckpoint(name string, out *fuse.EntryOut) fuse.Status {
	if f.checkpoints == nil {
		return fuse.ENOENT
	}
	layer, ok := f.checkpoints.Lookup(labelOf(name))
	if !ok || dirName(labelOf(name)) != name {
		return fuse.ENOENT
	}
	p, err := f.views.open(f.tree, layer)
	if err != nil {
		return f.status("open checkpoint", nodeCheckpoints, err)
	}
	a, err := p.view.Getattr(layers.RootIno)
	if err != nil {
		f.views.ref(p.num, -1)
		return f.status("open checkpoint", nodeCheckpoints, err)
	}
	// The reference that open took becomes the kernel's.
	out.NodeId, out.AttrValid = f.id(p, &a), forever
	f.fillAttr(&out.Attr, &a, p.statIno(a.Ino))
	return fuse.OK
}

// listVirtual lists a directory that exists only here. Cookies are positions; a
// checkpoint made or dropped meanwhile may shift them.
func (f *FS) listVirtual(in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	names := []string{".", "..", checkpointsName}
	if in.NodeId == nodeCheckpoints {
		names = names[:2]
		if f.checkpoints != nil {
			for _, l := range f.checkpoints.Names() {
				if d := dirName(l); len(d) <= nameMax {
					names = append(names, d)
				}
			}
		}
		// The kernel keeps what it listed; have it forget that soon, for those
		// that read the directory again without looking it up.
		defer f.voider.data(nodeCheckpoints)
	}
	for i := int(min(in.Offset, uint64(len(names)))); i < len(names); i++ {
		e := fuse.DirEntry{Name: names[i], Mode: unix.S_IFDIR, Off: uint64(i + 1)}
		if in.Opcode == opReaddirplus {
			if out.AddDirLookupEntry(e) == nil {
				break
			}
		} else if !out.AddDirEntry(e) {
			break
		}
	}
	return fuse.OK
}

// views are the read-only views that the kernel has nodes of. They are opened when
// first looked up and closed with the last reference.
type views struct {
	mu      sync.RWMutex
	byNum   map[uint16]*openView // guarded by mu
	byLayer map[layers.Layer]*openView
	last    uint16 // guarded by mu: number given last
}

type openView struct {
	view  *layers.View
	layer layers.Layer
	num   uint16
	refs  int64 // guarded by views.mu: the kernel's, to any node of the view
}

func (v *views) get(num uint16) *layers.View {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if o := v.byNum[num]; o != nil {
		return o.view
	}
	return nil
}

// open returns the root of the view of a layer and takes a reference for it.
func (v *views) open(t *layers.Tree, l layers.Layer) (place, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.byLayer[l]
	if o == nil {
		if len(v.byNum) >= tagMask-1 {
			return place{}, unix.ENFILE
		}
		view, err := t.View(l)
		if err != nil {
			return place{}, err
		}
		for v.last = v.last%(tagMask-1) + 1; v.byNum[v.last] != nil; {
			v.last = v.last%(tagMask-1) + 1
		}
		o = &openView{view: view, layer: l, num: v.last}
		if v.byNum == nil {
			v.byNum, v.byLayer = map[uint16]*openView{}, map[layers.Layer]*openView{}
		}
		v.byNum[o.num], v.byLayer[l] = o, o
	}
	o.refs++
	return place{o.view, layers.RootIno, o.num}, nil
}

// ref adds n references to a view, which goes when none is left.
func (v *views) ref(num uint16, n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.byNum[num]
	if o == nil {
		return
	}
	if o.refs += n; o.refs <= 0 {
		delete(v.byNum, num)
		delete(v.byLayer, o.layer)
		o.view.Close()
	}
}

// closeAll is for the end of the mount.
func (v *views) closeAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.byNum {
		o.view.Close()
	}
	v.byNum, v.byLayer = nil, nil
}
