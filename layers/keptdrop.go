package layers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// Pre-images go when no line of layers is built on their generation or an older one any
// more, or when the commit that they were made for did not come.

// dropLeftover removes what a KeepBase made that did not get to its end. The caller holds t.keeping.
func (t *Tree) dropLeftover() error {
	if !t.leftover {
		return nil
	}
	gen := t.Generation()
	d := keptDropper{t: t, which: func(at uint64) bool { return at >= gen }}
	if err := d.run(context.Background()); err != nil {
		return fmt.Errorf("remove what was kept of the base for a commit that did not come: %w", err)
	}
	t.leftover = false
	return nil
}

// old removes the pre-images that nobody will ask for.
func (c *collector) old(ctx context.Context) error {
	t := c.t
	t.keeping.Lock()
	defer t.keeping.Unlock()
	if !c.o.DryRun {
		if err := t.dropLeftover(); err != nil {
			return err
		}
	}
	t.mu.Lock()
	oldest := t.oldestGen(c.s)
	old := t.kept.Load()
	needless := func(gen uint64) bool { return gen < oldest }
	if old == nil || !slices.ContainsFunc(old.at, func(a keptAt) bool { return needless(uint64(a.gen)) }) {
		t.mu.Unlock()
		return nil
	}
	if !c.o.DryRun { // from here on nobody finds them. The numbers stay taken until the next start
		x := *old
		x.at = slices.DeleteFunc(slices.Clone(old.at), func(a keptAt) bool { return needless(uint64(a.gen)) })
		x.links = slices.ContainsFunc(x.at, func(a keptAt) bool { return a.kind == keptLink })
		t.kept.Store(&x)
	}
	t.mu.Unlock()
	d := keptDropper{t: t, which: needless, stats: &c.stats, dry: c.o.DryRun}
	if err := d.run(ctx); err != nil {
		return fmt.Errorf("remove what was kept of old states of the base: %w", err)
	}
	return nil
}

// keptDropper removes the pre-images of some generations.
type keptDropper struct {
	t     *Tree
	which func(gen uint64) bool
	stats *CollectStats // to count in, may be nil
	dry   bool          // only count
	batch kv.Batch
	loose int64 // bytes that lose their name with batch
}

// run removes them. What belongs to one goes no later than its record, so that whatever a
// crash leaves is found again.
func (d *keptDropper) run(ctx context.Context) error {
	done := map[Ino]bool{} // of objects with several names, which two records have
	for from := kv.PreImagePrefix(); from != nil; {
		keys, bodies, next, err := d.part(from)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		for _, k := range bodies {
			if done[k.body] {
				continue
			}
			if k.st.nlink > 1 {
				done[k.body] = true
			}
			if err := d.body(k.body, true); err != nil {
				return err
			}
		}
		for _, key := range keys {
			d.batch.Delete(key)
		}
		if err := d.apply(); err != nil {
			return err
		}
		from = next
	}
	return nil
}

// part finds some of the records that go, those of them that have a body, and where to go on: nil at the end.
func (d *keptDropper) part(from []byte) (keys [][]byte, bodies []*preimage, next []byte, err error) {
	var bad error
	err = d.t.db.Scan(kv.PreImagePrefix(), from, func(key, v []byte) bool {
		if len(keys) == indexPart {
			next = slices.Clone(key)
			return false
		}
		_, _, gen, ok := kv.ParsePreImage(key)
		if !ok {
			_, _, gen, ok = kv.ParsePreImageLink(key)
		}
		if !ok || !d.which(gen) {
			return true
		}
		var k *preimage
		if k, bad = decodePreimage(v); bad != nil {
			return false
		}
		keys = append(keys, slices.Clone(key))
		if k.body != 0 {
			bodies = append(bodies, k)
		}
		return true
	})
	return keys, bodies, next, errors.Join(err, bad)
}

// apply removes what has been gathered.
func (d *keptDropper) apply() error {
	if d.stats != nil {
		d.stats.Records += int64(d.batch.Len())
		d.stats.Bytes += d.loose
	}
	if !d.dry {
		d.batch.UseReserve()
		if err := d.t.db.Apply(&d.batch); err != nil {
			return err
		}
		d.t.mu.Lock()
		d.t.loosen(d.loose)
		d.t.mu.Unlock()
	}
	d.batch, d.loose = kv.Batch{}, 0
	return nil
}

// body gathers what belongs to a pre-image: its content and, with all set, extended attributes.
func (d *keptDropper) body(body Ino, all bool) error {
	content := kv.ExtentInoPrefix(uint64(body))
	prefixes := [][]byte{content}
	if all {
		prefixes = append(prefixes, kv.XattrInoPrefix(uint64(body)))
	}
	for _, prefix := range prefixes {
		for from := prefix; from != nil; {
			var next []byte
			err := d.t.db.Scan(prefix, from, func(key, v []byte) bool {
				if d.batch.Len() >= spillAt {
					next = slices.Clone(key)
					return false
				}
				d.batch.Delete(slices.Clone(key))
				if &prefix[0] == &content[0] {
					if xs, err := decodeExtents(0, v); err == nil {
						d.loose += chunkBytes(xs)
					}
				}
				return true
			})
			if err != nil {
				return err
			}
			if from = next; from != nil {
				if err := d.apply(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
