package transport

import "time"

// answered is called by worker w when it is done with a request. In one step it
// has answered one more and does nothing: were it still handling one for a moment,
// who looks in that moment would wait for an answer that never comes.
func (c *Conn) answered(w *worker) {
	w.state.Store((w.state.Load()>>stateBits+1)<<stateBits | parked)
	if c.waiting.Load() > 0 {
		c.mu.Lock()
		c.answers.Broadcast()
		c.mu.Unlock()
	}
}

// quiesceTimeout bounds how long Quiesce and Drain wait for a handler that hangs.
const quiesceTimeout = 10 * time.Second

// Quiesce returns when every request that was being answered at the call has been
// answered. Requests go on; the caller holds no lock that a handler may want.
func (c *Conn) Quiesce() {
	c.await(func(state uint64) bool { return state&stateMask == handling }, nil)
}

// Drain returns when every request that the kernel had queued before the call has been
// answered. kick has to send one request and to wait for its answer.
func (c *Conn) Drain(kick func() error) error {
	// The queue is first in, first out: with the answer to this one, all those before
	// it have been taken by some worker.
	if err := kick(); err != nil {
		return err
	}
	// Who has taken one may not have got to say so: whoever reads counts as having one,
	// until it has answered another.
	return c.await(func(state uint64) bool { return state&stateMask != parked }, kick)
}

// await returns when each worker whose state is such that counts holds has answered
// a request since. Workers that only read are made to by kick.
func (c *Conn) await(counts func(state uint64) bool, kick func() error) error {
	late := false
	timer := time.AfterFunc(quiesceTimeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.answers.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	then := map[*worker]uint64{}
	for w := range c.workers {
		if s := w.state.Load(); counts(s) {
			then[w] = s
		}
	}
	for w, s := range then {
		for !late {
			now := w.state.Load()
			if now>>stateBits != s>>stateBits || now&stateMask == parked {
				break
			}
			if kick == nil || now&stateMask == handling {
				c.answers.Wait()
				continue
			}
			c.mu.Unlock()
			err := kick()
			c.mu.Lock()
			if err != nil {
				return err
			}
		}
	}
	if late {
		c.log.Warn("a request has not been answered for long; going on without", "seconds", quiesceTimeout.Seconds())
	}
	return nil
}
