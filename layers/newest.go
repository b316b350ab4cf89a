package layers

import (
	"errors"
	"fmt"
	"math"

	"github.com/rewindfs/rewindfs/kv"
)

// unseenRun is how many versions that a view does not see are passed one by one, before those in between are left out.
const unseenRun = 8

// newest calls fn for the newest version that v sees of one object: of the keys that are prefix and a version each. fn is not called where there is
// none. The work does not grow with the number of versions, newer ones of the same line or others of other lines, that v does not see.
func (v *View) newest(prefix []byte, fn func(l Layer, val []byte) error) error {
	for at, more := v.anc.below(maxLayer), true; more; {
		var bad error
		start, passed := kv.FromVersion(prefix, uint64(at)), 0
		more = false
		err := v.t.db.Scan(prefix, start, func(k, val []byte) bool {
			n, ok := kv.VersionOf(prefix, k)
			if !ok {
				bad = fmt.Errorf("key %x: %w", k, ErrCorrupt)
				return false
			}
			l := Layer(n)
			if v.anc.has(l) {
				bad = fn(l, val)
				return false
			}
			if passed++; passed == unseenRun {
				at, more = v.anc.below(l), true
				return false
			}
			return true
		})
		if err = errors.Join(err, bad); err != nil {
			return err
		}
	}
	return nil
}

// maxLayer is above every layer.
const maxLayer = Layer(math.MaxUint64)

// below returns the newest layer of a that is older than l, which is not in a.
func (a ancestry) below(l Layer) Layer {
	for _, i := range a {
		if i.hi < l {
			return i.hi
		}
	}
	return BaseLayer
}
