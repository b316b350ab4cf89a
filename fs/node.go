package fs

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rewindfs/rewindfs/layers"
)

const (
	tagShift = layers.InoBits
	inoMask  = 1<<tagShift - 1
	tagMask  = 1<<15 - 1
	viewBit  = 1 << 63
)

// place is what a node id stands for.
type place struct {
	view *layers.View
	ino  layers.Ino
	num  uint16 // of the read-only view, 0 in the live tree
}

// at finds the place of a node. ESTALE when its view is gone, EISDIR for the
// directories that exist only here: whoever accepts those asks first.
func (f *FS) at(node uint64) (place, fuse.Status) {
	if node&viewBit == 0 {
		return place{&f.branch.View, layers.Ino(node & inoMask), 0}, fuse.OK
	}
	if isVirtual(node) {
		return place{}, fuse.EISDIR
	}
	num := uint16(node >> tagShift & tagMask)
	v := f.views.get(num)
	if v == nil {
		return place{}, estale
	}
	return place{v, layers.Ino(node & inoMask), num}, fuse.OK
}

// live returns the inode number of a node that may be changed. EROFS for read-only views.
func (f *FS) live(node uint64) (layers.Ino, fuse.Status) {
	if node&viewBit != 0 {
		return 0, fuse.EROFS
	}
	return layers.Ino(node & inoMask), fuse.OK
}

// id is the node id for the object a found from p.
func (f *FS) id(p place, a *layers.Attr) uint64 {
	if p.num != 0 {
		return viewBit | uint64(p.num)<<tagShift | uint64(a.Ino)
	}
	return uint64(a.Ino) | uint64(f.inc.current(a.Ino))<<tagShift
}

// statIno is the st_ino of an object: in a read-only view it is not that of the
// live file, or tools would take the two for one.
func (p place) statIno(ino layers.Ino) uint64 {
	if p.num != 0 {
		return viewBit | uint64(p.num)<<tagShift | uint64(ino)
	}
	return uint64(ino)
}

// incarnations remember which files, and which directories that had been removed,
// got new node ids.
type incarnations struct {
	n atomic.Int64 // len(m): most mounts never need mu
	// moves counts calls of bump: attributes and a node id are of one head if it is the same before the one is asked for and after the other.
	moves atomic.Uint64
	mu    sync.RWMutex
	m     map[layers.Ino]incarnation // guarded by mu
}

type incarnation struct {
	now  uint16
	held []uint16 // earlier ones that the kernel may still know
	// merged is how many of the last of held have been superseded by nothing but merges: what they had is there still.
	merged int
}

func (c *incarnations) current(ino layers.Ino) uint16 {
	if c.n.Load() == 0 {
		return 0
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.m[ino].now
}

// stale reports whether node is an earlier incarnation.
func (c *incarnations) stale(node uint64) bool {
	return node&viewBit == 0 && c.n.Load() > 0 &&
		c.current(layers.Ino(node&inoMask)) != uint16(node>>tagShift&tagMask)
}

// merged reports whether node is an earlier incarnation, and nothing but merges came since.
func (c *incarnations) merged(node uint64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	i := c.m[layers.Ino(node&inoMask)]
	return slices.Contains(i.held[len(i.held)-i.merged:], uint16(node>>tagShift&tagMask))
}

// bump starts a new incarnation of each inode; merged says that they have what they had, and more.
func (c *incarnations) bump(inos []layers.Ino, merged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moves.Add(1) // first: who finds a new id is to find this changed
	if c.m == nil {
		c.m = make(map[layers.Ino]incarnation, len(inos))
	}
	for _, ino := range inos {
		i := c.m[ino]
		i.held = append(slices.Clip(i.held), i.now)
		if i.merged++; !merged {
			i.merged = 0
		}
		for i.now = i.now%tagMask + 1; slices.Contains(i.held, i.now); {
			i.now = i.now%tagMask + 1
		}
		c.m[ino] = i
	}
	c.n.Store(int64(len(c.m)))
}

// ids returns the node ids of ino that the kernel may know: the current one last.
func (c *incarnations) ids(ino layers.Ino) []uint64 {
	if c.n.Load() == 0 {
		return []uint64{uint64(ino)}
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return append(c.m[ino].before(ino), uint64(ino)|uint64(c.m[ino].now)<<tagShift)
}

// before returns the node ids of the earlier incarnations.
func (i incarnation) before(ino layers.Ino) []uint64 {
	var out []uint64
	for _, tag := range i.held {
		out = append(out, uint64(ino)|uint64(tag)<<tagShift)
	}
	return out
}

// older returns the earlier incarnations of a node that is the current one, and
// nothing for a node that has been superseded.
func (c *incarnations) older(node uint64) []uint64 {
	if c.n.Load() == 0 {
		return nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	ino := layers.Ino(node & inoMask)
	if i := c.m[ino]; i.now == uint16(node>>tagShift&tagMask) {
		return i.before(ino)
	}
	return nil
}

// forgotten drops an earlier incarnation that the kernel does not know any more.
func (c *incarnations) forgotten(node uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ino, tag := layers.Ino(node&inoMask), uint16(node>>tagShift&tagMask)
	i, ok := c.m[ino]
	if at := slices.Index(i.held, tag); ok && at >= 0 {
		if at >= len(i.held)-i.merged {
			i.merged--
		}
		i.held = slices.Delete(slices.Clone(i.held), at, at+1)
		c.m[ino] = i
	}
}
