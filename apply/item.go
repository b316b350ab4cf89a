package apply

import (
	"maps"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/layers"
)

// verdict is what a commit does about a path.
type verdict uint8

const (
	vSame     verdict = iota // nothing: it is as it is to be, or not for us to change
	vApply                   // brings it
	vConflict                // nothing, and so nothing anywhere
	vTheirs                  // leaves what the host has, as was asked for in a conflict
	vHeld                    // leaves it, as it would run on the host by itself
	vSkipped                 // leaves it, as it cannot be brought
)

// item is one path of a plan: one that is to be compared, or the root, or on the way to others.
type item struct {
	path, name string
	up         *item
	kids       map[string]*item

	want   *layers.Attr  // what the checkpoint has, as far as it may reach the host; nil: nothing
	base   *layers.Attr  // what the base shows to the branch; nil: nothing
	viewed bool          // want and base have been looked up
	built  *layers.Built // what the layers are built on; nil: not asked yet
	have   *found        // what the host has; nil: nothing
	rec    *placed       // what an earlier commit of ours left there
	mount  bool          // on the host it is in another mount

	verdict verdict
	reason  string   // of a conflict or of what is left
	over    bool     // a conflict that was decided for us
	merge   *Merge   // apply: what both sides make of it
	how     string   // it was merged, or could be
	text    []byte   // what is to be brought instead of what the checkpoint has; nil: that
	merged  bool     // it has what the user did on the host, by a merge
	direct  bool     // what the host has is what was merged
	cut     bool     // want is without the setuid or setgid bit that the checkpoint has
	foreign []string // of a directory that is to go: what the host has in it beside what is ours

	link    *item  // apply: becomes a link of this one, which is staged or on the host
	outside bool   // only looked at because of its hard links
	touched bool   // directory: steps change its entries
	put     placed // what staging made
	brought []byte // the text of it, if it is one that is to be kept
}

func (it *item) kid(name string) *item {
	k := it.kids[name]
	if k == nil {
		k = &item{path: join(it.path, name), name: name, up: it}
		if it.kids == nil {
			it.kids = map[string]*item{}
		}
		it.kids[name] = k
	}
	return k
}

// each calls fn for it and all below, in path order.
func (it *item) each(fn func(*item) error) error {
	if err := fn(it); err != nil {
		return err
	}
	for _, k := range it.sorted() {
		if err := k.each(fn); err != nil {
			return err
		}
	}
	return nil
}

func (it *item) sorted() []*item {
	out := make([]*item, 0, len(it.kids))
	for _, name := range slices.Sorted(maps.Keys(it.kids)) {
		out = append(out, it.kids[name])
	}
	return out
}

// has reports whether the plan has something to say of the path below it.
func (it *item) has(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if it = it.kids[name]; it == nil {
			return false
		}
	}
	return it.want != nil || it.base != nil || it.have != nil || it.rec != nil || len(it.kids) > 0
}

// haveAttr is have without what only the host knows.
func (it *item) haveAttr() *layers.Attr {
	if it.have == nil {
		return nil
	}
	return &it.have.Attr
}

// leave sets it and all below to be left.
func (it *item) leave(v verdict, reason string) {
	it.verdict, it.reason = v, reason
	for _, k := range it.kids {
		if k.verdict == vApply || k.verdict == vConflict {
			k.leave(v, reason)
		} else {
			k.leave(k.verdict, k.reason)
		}
	}
}
