package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tick is how long every worker may be busy with what it has before another is called in.
	tick = 500 * time.Microsecond
	// quietTicks with somebody reading send the supervisor to sleep.
	quietTicks = 40
)

// start begins serving.
func (c *Conn) start() error {
	cpus := make([]int, c.tune.base)
	for i := range cpus {
		cpus[i] = -1
	}
	if c.tune.pin {
		spread(cpus)
	}
	ws := make([]*worker, len(cpus))
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
	for _, w := range ws {
		c.workers[w] = struct{}{}
	}
	for i, w := range ws {
		go w.serveBase(cpus[i])
	}
	go c.supervise()
	return nil
}

// spread fills in the processors that this process may use, in turn.
func spread(cpus []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil || set.Count() == 0 {
		return
	}
	cpu := -1
	for i := range cpus {
		for cpu++; !set.IsSet(cpu % (len(set) * 64)); cpu++ {
		}
		cpus[i] = cpu % (len(set) * 64)
	}
}

// nobodyReads is called by the worker that took a request as the last reader. On
// a busy mount that happens all the time, so a base worker only rouses the supervisor,
// if that sleeps. An extra one, which is there because others block, hands over at once.
func (c *Conn) nobodyReads(extra bool) {
	if extra {
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
			c.callExtra()
		}
	}
}

// callExtra gets one more worker to read: a parked one, or a new one.
func (c *Conn) callExtra() {
	select {
	case c.call <- struct{}{}:
		return
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || len(c.workers) >= c.tune.max {
		return
	}
	w, err := newWorker(c)
	if err != nil {
		c.log.Error("cannot add a worker", "err", err)
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
	c.mu.Lock()
	delete(c.workers, w)
	last := len(c.workers) == 0
	c.mu.Unlock()
	if last {
		c.fdMu.Lock()
		unix.Close(c.fd)
		c.fd = -1
		c.fdMu.Unlock()
		close(c.done)
	}
}

// quiesceTimeout bounds how long Quiesce waits for a handler that hangs.
const quiesceTimeout = 10 * time.Second

// Quiesce returns when every request that was being answered at the call has been
// answered. Requests go on; the caller holds no lock that a handler may want.
func (c *Conn) Quiesce() {
	late := false
	timer := time.AfterFunc(quiesceTimeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.quiesce.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	busy := map[*worker]uint64{}
	for w := range c.workers {
		if s := w.seq.Load(); s%2 == 1 {
			busy[w] = s
		}
	}
	for w, s := range busy {
		for w.seq.Load() == s && !late {
			c.quiesce.Wait()
		}
	}
	if late {
		c.log.Warn("a request has not been answered for long; going on without", "seconds", quiesceTimeout.Seconds())
	}
}

// answered is called by a worker when it is done with a request.
func (c *Conn) answered(w *worker) {
	w.seq.Add(1)
	if c.waiting.Load() > 0 {
		c.mu.Lock()
		c.quiesce.Broadcast()
		c.mu.Unlock()
	}
}
