package cas

import (
	"container/list"
	"sync"
)

// cacheBytes bounds the verified chunks kept in memory.
const cacheBytes = 16 << 20

// cache keeps chunks that were checked a moment ago, so that small reads do not
// hash the same chunk again and again.
type cache struct {
	mu    sync.Mutex
	byKey map[Hash]*list.Element // mu
	order *list.List             // mu; of *cached, most recently used first
	bytes int                    // mu
	// bufs has buffers of ChunkSize, *[]byte, for chunks of about that size: what
	// falls out of the cache is used again. So data leaves the cache only by copy.
	bufs sync.Pool
}

type cached struct {
	h    Hash
	data []byte // never changed while it is in the cache
}

func newCache() *cache {
	c := &cache{byKey: map[Hash]*list.Element{}, order: list.New()}
	c.bufs.New = func() any { b := make([]byte, ChunkSize); return &b }
	return c
}

// read serves a read of a part of h if it is there.
func (c *cache) read(h Hash, p []byte, off int) (hit bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[h]
	if e == nil {
		return false, nil
	}
	c.order.MoveToFront(e)
	return true, cut(h, p, e.Value.(*cached).data, off)
}

// buf returns a buffer of n bytes for a chunk.
func (c *cache) buf(n int) []byte {
	if n < ChunkSize/2 {
		return make([]byte, n) // the cache counts what it holds
	}
	return (*c.bufs.Get().(*[]byte))[:n]
}

// free takes back a buffer that nobody looks at any more.
func (c *cache) free(data []byte) {
	if cap(data) == ChunkSize {
		data = data[:ChunkSize]
		c.bufs.Put(&data)
	}
}

// add takes ownership of data, which came from buf.
func (c *cache) add(h Hash, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[h] != nil {
		c.free(data)
		return
	}
	c.byKey[h] = c.order.PushFront(&cached{h, data})
	c.bytes += cap(data)
	for c.bytes > cacheBytes {
		old := c.order.Remove(c.order.Back()).(*cached)
		delete(c.byKey, old.h)
		c.bytes -= cap(old.data)
		c.free(old.data)
	}
}

// recent remembers where the latest chunks went, for as long as kv may not know.
type recent struct {
	at   map[Hash]place
	ring []Hash // in the order of remembering
	next int
}

const recentChunks = 4096

func newRecent() *recent { return &recent{at: map[Hash]place{}} }

func (r *recent) add(h Hash, p place) {
	if _, ok := r.at[h]; ok {
		r.at[h] = p
		return
	}
	if len(r.ring) < recentChunks {
		r.ring = append(r.ring, h)
	} else {
		delete(r.at, r.ring[r.next])
		r.ring[r.next] = h
		r.next = (r.next + 1) % recentChunks
	}
	r.at[h] = p
}
