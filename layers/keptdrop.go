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
	if err := t.dropKept(context.Background(), func(at uint64) bool { return at >= gen }, &CollectStats{}); err != nil {
		return fmt.Errorf("remove what was kept of the base for a commit that did not come: %w", err)
	}
	t.leftover = false
	return nil
}

// dropOld removes the pre-images that nobody will ask for.
func (t *Tree) dropOld(ctx context.Context, stats *CollectStats) error {
	t.keeping.Lock()
	defer t.keeping.Unlock()
	if err := t.dropLeftover(); err != nil {
		return err
	}
	t.mu.Lock()
	oldest := t.oldestGen()
	old := t.kept.Load()
	needless := func(gen uint64) bool { return gen < oldest }
	if old == nil || !slices.ContainsFunc(old.at, func(a keptAt) bool { return needless(uint64(a.gen)) }) {
		t.mu.Unlock()
		return nil
	}
	// From here on nobody finds them. The numbers stay taken until the next start.
	x := *old
	x.at = slices.DeleteFunc(slices.Clone(old.at), func(a keptAt) bool { return needless(uint64(a.gen)) })
	x.links = slices.ContainsFunc(x.at, func(a keptAt) bool { return a.kind == keptLink })
	t.kept.Store(&x)
	t.mu.Unlock()
	if err := t.dropKept(ctx, needless, stats); err != nil {
		return fmt.Errorf("remove what was kept of old states of the base: %w", err)
	}
	return nil
}

// dropKept removes the pre-images of some generations. What belongs to one goes before
// its record, so that whatever a crash leaves is found again.
func (t *Tree) dropKept(ctx context.Context, which func(gen uint64) bool, stats *CollectStats) error {
	for from := kv.PreImagePrefix(); from != nil; {
		var keys [][]byte
		var bodies []Ino
		var next []byte
		var bad error
		err := t.db.Scan(kv.PreImagePrefix(), from, func(key, v []byte) bool {
			if len(keys) == indexPart {
				next = slices.Clone(key)
				return false
			}
			_, _, gen, ok := kv.ParsePreImage(key)
			if !ok {
				_, _, gen, ok = kv.ParsePreImageLink(key)
			}
			if !ok || !which(gen) {
				return true
			}
			var k *preimage
			if k, bad = decodePreimage(v); bad != nil {
				return false
			}
			keys = append(keys, slices.Clone(key))
			if k.body != 0 {
				bodies = append(bodies, k.body)
			}
			return true
		})
		if err = errors.Join(err, bad, ctx.Err()); err != nil {
			return err
		}
		var b kv.Batch
		for _, body := range bodies {
			if err := t.dropBody(&b, body, true); err != nil {
				return err
			}
		}
		for _, key := range keys {
			b.Delete(key)
		}
		stats.Records += int64(b.Len())
		b.UseReserve()
		if err := t.db.Apply(&b); err != nil {
			return err
		}
		from = next
	}
	return nil
}

// dropBody adds the removal of what belongs to a pre-image to b: its content and, with all set,
// extended attributes. Of a large file it applies b in between.
func (t *Tree) dropBody(b *kv.Batch, body Ino, all bool) error {
	prefixes := [][]byte{kv.ExtentInoPrefix(uint64(body))}
	if all {
		prefixes = append(prefixes, kv.XattrInoPrefix(uint64(body)))
	}
	for i, prefix := range prefixes {
		for from := prefix; from != nil; {
			var next []byte
			loose := int64(0)
			err := t.db.Scan(prefix, from, func(key, v []byte) bool {
				if b.Len() >= spillAt {
					next = slices.Clone(key)
					return false
				}
				b.Delete(slices.Clone(key))
				if i == 0 {
					if xs, err := decodeExtents(0, v); err == nil {
						loose += chunkBytes(xs)
					}
				}
				return true
			})
			if err != nil {
				return err
			}
			t.mu.Lock()
			t.loosen(loose)
			t.mu.Unlock()
			if from = next; from != nil {
				b.UseReserve()
				if err := t.db.Apply(b); err != nil {
					return err
				}
				*b = kv.Batch{}
			}
		}
	}
	return nil
}
