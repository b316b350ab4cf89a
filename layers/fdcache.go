package layers

import (
	"container/list"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// sharedFD is a descriptor that closes when its last user releases it.
type sharedFD struct {
	fd   int
	refs atomic.Int32

	// Of a file: set with the owner's lock held before others see it, and ahead is cleared under it.
	dev, ino uint64
	ahead    bool // opened for a read to come, and not used yet
}

func (f *sharedFD) release() {
	if f.refs.Add(-1) == 0 {
		unix.Close(f.fd)
	}
}

// fdCache keeps the most recently used descriptors open. The owner's lock guards it.
type fdCache struct {
	max   int
	order *list.List // of *fdEntry, most recent first
	byKey map[string]*list.Element
}

type fdEntry struct {
	key string
	f   *sharedFD
}

func newFDCache(max int) *fdCache {
	return &fdCache{max: max, order: list.New(), byKey: map[string]*list.Element{}}
}

// get returns the descriptor for key with a reference for the caller, or nil.
func (c *fdCache) get(key string) *sharedFD {
	e := c.byKey[key]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	f := e.Value.(*fdEntry).f
	f.refs.Add(1)
	return f
}

// put takes over fd and returns it with a reference for the caller. If key is
// there already, fd is the newer one and replaces it.
func (c *fdCache) put(key string, fd int) *sharedFD {
	c.forget(key)
	f := &sharedFD{fd: fd}
	f.refs.Store(2)
	c.byKey[key] = c.order.PushFront(&fdEntry{key, f})
	for c.order.Len() > c.max {
		c.forget(c.order.Back().Value.(*fdEntry).key)
	}
	return f
}

func (c *fdCache) forget(key string) {
	e := c.byKey[key]
	if e == nil {
		return
	}
	c.order.Remove(e)
	delete(c.byKey, key)
	e.Value.(*fdEntry).f.release()
}

func (c *fdCache) drop() {
	for c.order.Len() > 0 {
		c.forget(c.order.Back().Value.(*fdEntry).key)
	}
}
