package layers

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Collection of garbage. Which layers can be looked at is the caller's choice; the heads
// of all branches, and the layers right under them, always can. All others are given up:
//
//	mark    one batch: their l/ records say so. From here on View, Diff and MoveHead
//	        know them no more, and views of them that are open answer ESTALE
//	sift    key by key, by the change indexes of those layers and of the ones right
//	        above, the versions that nobody sees are deleted. Without a lock: what is
//	        seen from a layer that can be looked at is not touched, and no other layer
//	        can ever be looked at again
//	bury    of a layer in nobody's line all is gone, so its record goes. One in a line stays as
//	        a link: its record, because what is above asks whose ancestor it is, and
//	        of its change index what no layer above has, because Diff and MoveHead unite them
//
// A crash loses nothing in between: the marks say what is to do, and Open sees to it. Chunks
// lose their names here, and Reclaim frees them.
//
// What is seen. A version, if no newer one of its key lies between it and a layer that can be
// looked at. But the last unlink of an inode leaves no version of it: what it consists of would be
// seen for ever. So what belongs to an inode counts only where a name leads to it, or where it is
// in use without one. Of an object of the base the newest n/ record is kept even so: it says
// which object the names below it, now removed, were about.

// CollectOptions say how Collect works.
type CollectOptions struct {
	// DryRun counts what would go, and changes nothing.
	DryRun bool
	// Extra, if set, adds to the batches that mark layers: what else has to go with
	// gone. Its error stops the collection; what was marked before remains so.
	Extra func(b *kv.Batch, gone []Layer) error
	// Marked, if set, is called once it is settled what goes.
	Marked func()
	// ByLayer, if set, gets how much of CollectStats.Bytes each layer had.
	ByLayer map[Layer]int64
	// Progress, if set, is told now and then how much of about how much is done.
	Progress func(s CollectStats, done, total int64)
}

// CollectStats is what a collection did or, in a dry run, would do.
type CollectStats struct {
	GivenUp int   // layers that can be looked at no more, from now on
	Removed int   // layers of which nothing is left; the rest are links in the lines of others
	Records int64 // deleted from kv
	Bytes   int64 // of file content that lost its name, about: Reclaim gives them back
}

// Collect gives up every sealed layer that is not in keep, nor right under a head, and
// removes what nobody sees any more. What is seen from a kept layer, from a head or from
// the base reads as before, also while programs write.
//
// keep must hold every layer that may be asked for again, as a checkpoint or by
// undo and redo: from the making of the list until Marked is called nobody may seal or move a head.
// ErrNoLayer when one of keep is not there: then nothing was changed.
//
// When ctx ends, or after an error, what is left to remove is removed by the next
// Collect, or after the next Open.
func (t *Tree) Collect(ctx context.Context, keep []Layer, o CollectOptions) (CollectStats, error) {
	c := &collector{t: t, o: &o}
	var err error
	if c.s, err = t.giveUp(keep, &o, &c.stats); err != nil {
		return c.stats, fmt.Errorf("collect garbage: %w", err)
	}
	if o.Marked != nil {
		o.Marked()
	}
	if err = c.run(ctx); err != nil {
		err = fmt.Errorf("collect garbage: %w", err)
	}
	return c.stats, err
}

// unfinished reports whether some of what was given up may still be there. The caller holds t.mu.
func (t *Tree) unfinished() bool {
	for _, rec := range t.layers {
		if rec.given == givenNew {
			return true
		}
	}
	return len(t.doomed) > 0
}

// resumeCollect finishes what the last daemon left undone.
func (t *Tree) resumeCollect() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-t.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	c := &collector{t: t, o: &CollectOptions{}}
	if err := c.run(ctx); err != nil && ctx.Err() == nil {
		t.log.Error("cannot finish the collection of garbage that was interrupted; the next one goes on with it", "error", err)
	}
}

// collector is one collection at work.
type collector struct {
	t       *Tree
	o       *CollectOptions
	s       *shape
	stats   CollectStats
	batch   kv.Batch
	loose   int64 // bytes that lose their name with batch
	done    int64
	thinned map[Layer]bool // layers whose digests go with batch
	hold    map[Layer]bool // links in which something has to stay for now
	asked   map[Ino]bool   // inodes that were looked at because they lost a name
	dir     Ino            // a directory that was asked about,
	inb     bool           // and whether it is in the base
	err     error          // of a question that sift asked
}

func (c *collector) run(ctx context.Context) error {
	c.hold, c.thinned = map[Layer]bool{}, map[Layer]bool{}
	if !c.o.DryRun {
		select {
		case c.t.collecting <- struct{}{}:
			defer func() { <-c.t.collecting }()
		case <-ctx.Done():
			return ctx.Err()
		}
		c.t.mu.RLock()
		c.s = c.t.shape(nil)
		c.t.mu.RUnlock()
		if err := c.cutSealed(); err != nil {
			return err
		}
	}
	for _, l := range c.s.work {
		if err := c.layer(ctx, l); err != nil {
			return fmt.Errorf("remove what nobody sees of layer %d: %w", l, err)
		}
	}
	if !c.o.DryRun {
		if err := c.t.unmark(c.s, c.hold); err != nil {
			return err
		}
	}
	if err := c.old(ctx); err != nil {
		return err
	}
	return c.originals(ctx)
}

// cutSealed stores what is pending in sealed layers: bytes that are not cut yet lie over
// versions that are to go, or will make versions unseen when nobody looks for such. What a
// full disk has no room for stays, and the versions with it.
func (c *collector) cutSealed() error {
	c.t.mu.RLock()
	var todo []*pending
	for _, list := range c.t.pend {
		for _, p := range list {
			if c.t.layers[p.layer].sealed {
				todo = append(todo, p)
			}
		}
	}
	c.t.mu.RUnlock()
	for _, p := range todo {
		if err := c.t.cut(p); err != nil && !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("store written bytes: %w", err)
		}
	}
	return nil
}

const (
	// indexPart is how many entries of a change index are gone through at a time.
	indexPart = 256
	// spillAt is how many deletions one batch has at least when it is applied before its time.
	spillAt = 4096
)

// entry is one of a change index: an inode or, with dir set, a name.
type entry struct {
	ino Ino
	dir bool
	NameKey
}

// layer goes through the change index of l, and buries l if it goes as a whole.
func (c *collector) layer(ctx context.Context, l Layer) error {
	total := c.done + c.s.sizes[l]
	for from := kv.ChangePrefix(uint64(l)); from != nil; {
		var part []entry
		var err error
		if part, from, err = c.part(l, from); err != nil {
			return err
		}
		for _, e := range part {
			if e.dir {
				err = c.name(e.NameKey, l)
			} else {
				err = c.inode(e.ino, l)
			}
			if err = errors.Join(err, c.err); err != nil {
				return err
			}
		}
		if err := c.spill(0); err != nil {
			return err
		}
		if !c.o.DryRun {
			clear(c.asked)
		}
		c.done = min(c.done+int64(len(part)), total-1)
		c.progress()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	c.done = total
	if c.s.gone[l] == nil {
		return nil
	}
	return c.bury(l)
}

func (c *collector) progress() {
	if c.o.Progress != nil {
		c.o.Progress(c.stats, c.done, c.s.weight)
	}
}

// part reads some entries of the change index of l, and where to go on: nil at the end.
func (c *collector) part(l Layer, from []byte) (part []entry, next []byte, err error) {
	var bad error
	err = c.t.db.Scan(kv.ChangePrefix(uint64(l)), from, func(k, _ []byte) bool {
		if len(part) == indexPart {
			next = append([]byte(nil), k...)
			return false
		}
		_, isName, ino, name, ok := kv.ParseChange(k)
		if !ok {
			bad = fmt.Errorf("change record %x: %w", k, ErrCorrupt)
			return false
		}
		if isName {
			part = append(part, entry{dir: true, NameKey: NameKey{Ino(ino), name}})
		} else {
			part = append(part, entry{ino: Ino(ino)})
		}
		return true
	})
	return part, next, errors.Join(err, bad)
}

// remove adds the removal of a record to the batch. It takes the key.
func (c *collector) remove(key []byte) {
	c.stats.Records++
	c.batch.Delete(key)
	if l, ok := digestedIn(key); ok {
		c.thin(l)
	}
}

// thin takes the digest of a layer away, because the batch changes what it has.
func (c *collector) thin(l Layer) {
	if !c.thinned[l] {
		c.thinned[l] = true
		c.batch.Delete(kv.Digest(uint64(l)))
	}
}

// spill applies the batch if it has more than n deletions.
func (c *collector) spill(n int) error {
	if c.batch.Len() <= n {
		return nil
	}
	defer c.batch.Reset()
	loose := c.loose
	c.loose = 0
	c.stats.Bytes += loose
	if c.o.DryRun {
		return nil
	}
	c.batch.UseReserve()
	if err := c.t.db.Apply(&c.batch); err != nil {
		return err
	}
	c.t.mu.Lock()
	c.t.loosen(loose)
	for l := range c.thinned {
		delete(c.t.digested, l)
	}
	c.t.mu.Unlock()
	clear(c.thinned)
	return nil
}

// bury removes the last of a layer of which nothing is left but marks.
func (c *collector) bury(l Layer) error {
	c.stats.Removed++
	if c.o.DryRun {
		c.stats.Records++
		return nil
	}
	for _, of := range []struct {
		prefix, from []byte
		mine         func(k []byte) bool
	}{
		{kv.ChangePrefix(uint64(l)), nil, func([]byte) bool { return true }},
		{kv.OrphanPrefix(), kv.Orphan(uint64(l), 0), func(k []byte) bool { at, _, ok := kv.ParseOrphan(k); return ok && Layer(at) == l }},
	} {
		err := c.t.db.Scan(of.prefix, of.from, func(k, _ []byte) bool {
			if !of.mine(k) {
				return false
			}
			c.remove(append([]byte(nil), k...))
			return true
		})
		if err != nil {
			return err
		}
	}
	c.remove(kv.LayerKey(uint64(l)))
	c.thin(l)
	if err := c.spill(0); err != nil {
		return err
	}
	c.t.mu.Lock()
	delete(c.t.doomed, l)
	c.t.mu.Unlock()
	return nil
}
