package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tick is how long every worker may be busy with what it has before another is called in.
	tick = time.Millisecond
	// quietTicks with somebody reading send the supervisor to sleep.
	quietTicks = 20
)

// start begins serving.
func (c *Conn) start() error {
	ws := make([]*worker, c.tune.base)
	for i := range ws {
		w, err := newWorker(c)
		if err != nil {
			for _, w := range ws[:i] {
				w.free()
			}
			return err
		}
		ws[i] = w
	}
	c.workers = map[*worker]struct{}{}
	for _, w := range ws { // all of them before the first can leave
		c.workers[w] = struct{}{}
	}
	for _, w := range ws {
		go w.serveBase()
	}
	go c.supervise()
	return nil
}

// longStreak is how many requests in a row that were there before it looked tell a
// worker that it cannot keep up.
const longStreak = 16

// nobodyReads is called by worker w when it took a request as the last reader. That
// is the rule, so a worker that keeps up only rouses the supervisor, if that
// sleeps. One that does not keep up, or is there because others block, calls for help at once.
func (c *Conn) nobodyReads(w *worker) {
	if w.streak >= longStreak {
		w.streak = 0
		c.callExtra(c.tune.active)
	} else if w.extra {
		select {
		case c.call <- struct{}{}:
			return
		default:
		}
	}
	if !c.awake.Load() && c.awake.CompareAndSwap(false, true) {
		c.wake <- struct{}{}
	}
}

// supervise calls in an extra worker when nobody has read for a tick and no
// request was finished in it either.
func (c *Conn) supervise() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		if c.awake.Store(false); c.reading.Load() > 0 || !c.awake.CompareAndSwap(false, true) {
			ticker.Stop()
			select {
			case <-c.wake:
			case <-c.ended:
				return
			}
			ticker.Reset(tick)
		}
		begun := c.begun.Load()
		for quiet := 0; quiet < quietTicks; {
			select {
			case <-ticker.C:
			case <-c.ended:
				return
			}
			if c.reading.Load() > 0 {
				quiet++
				continue
			}
			quiet = 0
			if now := c.begun.Load(); now != begun {
				begun = now
				continue
			}
			c.callExtra(c.tune.max)
		}
	}
}

// callExtra gets one more worker to read: a parked one, or a new one if there are
// fewer than limit.
func (c *Conn) callExtra(limit int) {
	select {
	case c.call <- struct{}{}:
		return
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || len(c.workers) >= limit {
		return
	}
	w, err := newWorker(c)
	if err != nil {
		c.log.Error("cannot add a worker", "error", err)
		return
	}
	c.workers[w] = struct{}{}
	w.extra = true
	go w.serveExtra()
}

// end notes that the kernel has ended the connection.
func (c *Conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over = true
		close(c.ended)
	}
}

// left is the last thing a worker does.
func (c *Conn) left(w *worker) {
	w.free()
	w.enter(parked)
	c.mu.Lock()
	delete(c.workers, w)
	last := len(c.workers) == 0
	c.answers.Broadcast()
	c.mu.Unlock()
	if last {
		c.fdMu.Lock()
		unix.Close(c.fd)
		c.fd = -1
		c.fdMu.Unlock()
		close(c.done)
	}
}
