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
}

type cached struct {
	h    Hash
	data []byte // never changed
}

func newCache() *cache {
	return &cache{byKey: map[Hash]*list.Element{}, order: list.New()}
}

func (c *cache) get(h Hash) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[h]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached).data
}

// add takes ownership of data.
func (c *cache) add(h Hash, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[h] != nil {
		return
	}
	c.byKey[h] = c.order.PushFront(&cached{h, data})
	c.bytes += cap(data)
	for c.bytes > cacheBytes {
		e := c.order.Back()
		old := c.order.Remove(e).(*cached)
		delete(c.byKey, old.h)
		c.bytes -= cap(old.data)
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
