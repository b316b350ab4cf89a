package layers

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// cutting is a cut under way: what one pending held when it began.
type cutting struct {
	p       *pending
	segs    map[*seg]bool
	runs    []run
	crowded map[int64]*layout
	done    chan struct{} // closed at the end
}

// cut turns what p holds now into chunks and extents. Called without t.mu. On an
// error the bytes stay pending, readable and logged.
func (t *Tree) cut(p *pending) error {
	for {
		c, before, wait, err := t.beginCut(p)
		switch {
		case err != nil:
			return err
		case before != nil:
			if err := t.cut(before); err != nil {
				return err
			}
		case wait != nil:
			<-wait
		case c == nil:
			return nil
		default:
			return t.finishCuts([]*cutting{c})
		}
	}
}

// beginCut freezes what p holds. When another pending must be cut before, or a cut
// of p is under way, it returns that instead, and all nil when p holds nothing.
func (t *Tree) beginCut(p *pending) (c *cutting, before *pending, wait chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.dead {
		return nil, nil, nil, nil
	}
	if older := t.olderPending(p); older != nil {
		return nil, older, nil, nil
	}
	if p.cutting != nil {
		return nil, nil, p.cutting, nil
	}
	if len(p.segs) == 0 {
		t.dropPending(p)
		return nil, nil, nil, nil
	}
	c = &cutting{p: p, runs: flatten(p.segs), segs: make(map[*seg]bool, len(p.segs)), done: make(chan struct{})}
	if c.crowded, err = t.crowded(p, c.runs); err != nil {
		p.whole = nil
		return nil, nil, nil, err
	}
	for _, s := range p.segs {
		c.segs[s], s.frozen = true, true
	}
	p.cutting, p.limit = c.done, maxSize
	return c, nil, nil, nil
}

// finishCuts stores what was frozen. Many files share one batch.
func (t *Tree) finishCuts(cs []*cutting) error {
	var b kv.Batch
	b.UseReserve()
	var runs []run
	for _, c := range cs {
		c.runs = t.fillUp(c.crowded, c.runs)
		runs = append(runs, c.runs...)
	}
	st, err := t.store(runs)
	t.mu.Lock()
	defer t.mu.Unlock()
	for err == nil && t.void(st) {
		t.mu.Unlock()
		st, err = t.store(runs)
		t.mu.Lock()
	}
	if err == nil {
		b.Append(&st.index)
		err = t.install(&b, cs, st.exts)
	}
	for _, c := range cs {
		c.p.cutting, c.p.whole = nil, nil
		close(c.done)
	}
	return err
}

// stored are runs that the chunk store has taken. They exist, as extents, once the
// index records and the names are applied together.
type stored struct {
	exts  []extent
	index kv.Batch
	sweep uint64 // cas.Store.Sweeps when they were stored
}

// store puts each run into the chunk store. Called without t.mu.
func (t *Tree) store(runs []run) (*stored, error) {
	st := &stored{sweep: t.chunks.Sweeps()}
	if len(runs) == 0 {
		return st, nil
	}
	chunks := make([][]byte, len(runs))
	for i, r := range runs {
		chunks[i] = r.data
	}
	hashes, err := t.chunks.PutAll(&st.index, chunks)
	if err != nil {
		return nil, fmt.Errorf("store %d chunks: %w", len(runs), err)
	}
	st.exts = make([]extent, len(runs))
	for i, r := range runs {
		st.exts[i] = extent{off: r.off, n: int64(len(r.data)), kind: kindChunk, hash: hashes[i]}
	}
	return st, nil
}

// void reports whether what was stored may have been swept away before it got a name,
// so that it must be stored again. The caller holds t.mu, and until the names are applied.
func (t *Tree) void(st *stored) bool { return len(st.exts) > 0 && st.sweep != t.chunks.Sweeps() }

// install names the stored bytes, exts for the runs of each of cs in turn, by
// extents, and drops the w/ records of what was frozen, in one batch. The caller holds t.mu.
func (t *Tree) install(b *kv.Batch, cs []*cutting, exts []extent) error {
	for _, c := range cs {
		p, mine := c.p, exts[:len(c.runs)]
		exts = exts[len(c.runs):]
		if p.dead { // what was just stored for it has no name
			t.loosen(chunkBytes(mine))
			continue
		}
		v := t.bare(p.layer)
		if err := v.putExtents(b, p.ino, p.layer, trim(mine, p.limit)); err != nil {
			return err
		}
		for _, s := range p.segs {
			if !c.segs[s] {
				continue // written since
			}
			for _, q := range s.seqs {
				b.Delete(kv.Pending(uint64(p.ino), uint64(p.layer), q))
			}
		}
	}
	if err := t.db.Apply(b); err != nil {
		return fmt.Errorf("record the extents of %d files: %w", len(cs), err)
	}
	for _, c := range cs {
		if !c.p.dead {
			t.dropSegs(c.p, c.segs)
		}
	}
	return nil
}

// dropSegs takes segs, as far as they are still there, out of p. The caller holds t.mu.
func (t *Tree) dropSegs(p *pending, segs map[*seg]bool) {
	keep := make([]*seg, 0, len(p.segs))
	for _, s := range p.segs {
		if segs[s] {
			p.bytes -= int64(len(s.data))
			t.pendBytes -= int64(len(s.data))
			t.loosen(int64(len(s.data)))
		} else {
			keep = append(keep, s)
		}
	}
	p.segs = keep
	if len(keep) == 0 {
		t.dropPending(p)
	}
}

// cutLoop cuts files at rest, and the oldest ones when much is pending.
func (t *Tree) cutLoop() {
	tick := time.NewTicker(pendRest / 2)
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-t.cutWake:
		case <-tick.C:
		}
		if err := t.cutSome(); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.log.Error("cannot store written bytes as chunks; they stay in the log", "error", err)
		}
	}
}

// Files that rest are cut together, so many at a time: a batch holds up readers
// while it is installed, and writers of its files while it is stored.
const (
	cutFiles = 32
	cutBytes = 2 << 20
)

func (t *Tree) cutSome() error {
	t.mu.RLock()
	var todo []*pending
	rest := t.now().Add(-pendRest)
	crowded := t.pendBytes > pendHigh
	for _, list := range t.pend {
		for _, p := range list {
			if crowded || p.touched.Before(rest) {
				todo = append(todo, p)
			}
		}
	}
	slices.SortFunc(todo, func(a, b *pending) int { return a.touched.Compare(b.touched) })
	t.mu.RUnlock()
	for len(todo) > 0 {
		n, bytes := 0, int64(0)
		t.mu.RLock()
		for n < len(todo) && n < cutFiles && bytes < cutBytes && (todo[n].touched.Before(rest) || t.pendBytes-bytes > pendLow) {
			bytes += todo[n].bytes
			n++
		}
		t.mu.RUnlock()
		if n == 0 {
			break
		}
		if err := t.cutTogether(todo[:n]); err != nil {
			return err
		}
		todo = todo[n:]
	}
	return nil
}

// cutTogether cuts several pendings. Those that have to wait come one by one, after
// the others: what they wait for may be among these.
func (t *Tree) cutTogether(ps []*pending) error {
	var cs []*cutting
	var later []*pending
	var bad error
	for _, p := range ps {
		c, before, wait, err := t.beginCut(p)
		switch {
		case c != nil:
			cs = append(cs, c)
		case before != nil || wait != nil:
			later = append(later, p)
		}
		bad = errors.Join(bad, err)
	}
	if len(cs) > 0 {
		bad = errors.Join(bad, t.finishCuts(cs))
	}
	for _, p := range later {
		bad = errors.Join(bad, t.cut(p))
	}
	return bad
}

func (t *Tree) cutAll() error {
	for {
		t.mu.RLock()
		var p *pending
		for _, list := range t.pend {
			p = list[0]
			break
		}
		t.mu.RUnlock()
		if p == nil {
			return nil
		}
		if err := t.cut(p); err != nil {
			return err
		}
	}
}

// pressure wakes the cutter when much is pending. The caller holds t.mu.
func (t *Tree) pressure() {
	if t.pendBytes > pendHigh {
		select {
		case t.cutWake <- struct{}{}:
		default:
		}
	}
}
