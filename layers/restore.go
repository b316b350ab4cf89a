package layers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Restoring brings single paths of another state into the head: new inodes with the records of
// old ones, so no byte is copied, and whoever has a replaced file open keeps what he has. The
// state before is sealed in the same batch, so that a move of the head takes everything back.

// ErrNoPath is returned for a path that neither state has.
var ErrNoPath = errors.New("no such path in either state")

// ErrInTheWay is returned when a directory above a path is something else in the head by now.
var ErrInTheWay = errors.New("is no directory now")

// Restored is the result of Branch.Restore. Moved is as if the head had moved: From is sealed,
// Open the new head on top of it, with the restored paths; Target is where they come from.
type Restored struct {
	Moved
	Changes []Change // of paths, in order: what Restore made of the head
	Left    int64    // paths changed in the layer that it sealed, as in Sealed
}

// Restore makes paths (relative to the root, "" for everything), with all that is below
// them, as they are in target: any sealed layer built on the same generation of the base
// (else ErrGeneration), or BaseLayer. A path that target does not have is removed. Directories
// above that are gone are made again; one that is something else by now is ErrInTheWay.
// Work: that of the objects that come and go; for a directory that both states have, also that of the changes between the two.
//
// With dry, nothing is done but telling. extra is as for Seal, swapped as for MoveHead. With
// nothing to do, the result is a Noop and neither is called.
func (b *Branch) Restore(target Layer, paths []string, dry bool, extra func(*kv.Batch, Restored) error, swapped func(Moved)) (Restored, error) {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		r, err := b.planRestore(target, paths)
		if err != nil {
			return Restored{}, fmt.Errorf("restore from layer %d: %w", target, err)
		}
		res := Restored{Moved: Moved{From: b.layer, Target: target, Open: t.nextLayer, At: t.now(), Changed: int64(len(r.changes)), Untouched: b.untouched()}, Changes: r.changes, Left: b.changed}
		res.Noop = len(r.roots) == 0 && len(r.inPlace) == 0
		var wait []*pending
		switch {
		case res.Noop:
			res.Open = b.layer
		case dry:
		default:
			if wait = r.pending(); len(wait) == 0 {
				err = r.apply(&res, extra)
			}
		}
		r.close()
		switch {
		case len(wait) > 0: // bytes that are not in chunks yet cannot be shared
			t.mu.Unlock()
			for _, p := range wait {
				err = errors.Join(err, t.cut(p))
			}
			t.mu.Lock()
			if err == nil {
				continue // the head may have changed meanwhile
			}
			fallthrough
		case err != nil:
			return Restored{}, fmt.Errorf("restore from layer %d: %w", target, err)
		case !dry && !res.Noop && swapped != nil:
			swapped(res.Moved)
		}
		return res, nil
	}
}

// restoring is what is to be done for a Restore.
type restoring struct {
	b         *Branch
	t         *Tree
	d         *differ // from the head to the target
	head, ref *View   // of its own: nothing is forgotten in them
	paths     map[string]bool
	roots     []root
	inPlace   map[string]bool // directories of both states, as the same inode, that differ
	whole     map[string]bool // the paths of roots
	plants    map[string]*plant
	apart     map[Ino]bool // files of the target with several names, which are not one file in the head
	changes   []Change
}

// root is a name in a directory of the head that gets another object, or loses what it has.
type root struct {
	dir, name string
	plant     *plant // nil: nothing
}

// plant is an object to be made after one of the target.
type plant struct {
	name string
	n    *node // in the target
	kids []*plant
	part bool   // only some of the kids are made
	link string // where the head has the same inode, which gets one more name; "": it is made anew
}

func (b *Branch) planRestore(target Layer, paths []string) (*restoring, error) {
	t := b.t
	if b.stale {
		return nil, unix.ESTALE
	}
	if rec := t.held(target); target != BaseLayer && (rec == nil || !rec.sealed) {
		return nil, ErrNoLayer
	}
	if gen := t.genOf(t.ancestry(target)); target != BaseLayer && gen != b.base.gen {
		return nil, fmt.Errorf("it is built on generation %d of the base and the head on %d: %w", gen, b.base.gen, ErrGeneration)
	}
	r := &restoring{b: b, t: t, paths: map[string]bool{}, inPlace: map[string]bool{}, whole: map[string]bool{}, plants: map[string]*plant{}, apart: map[Ino]bool{}}
	for _, p := range paths {
		r.paths[p] = true
	}
	for _, side := range []struct {
		v **View
		l Layer
	}{{&r.head, b.layer}, {&r.ref, target}} {
		v := t.newView(side.l)
		v.base.gen, v.keep = b.base.gen, true
		if _, err := t.openView(v); err != nil {
			r.close()
			return nil, err
		}
		*side.v = v
	}
	r.d = newDiffer(t, r.head, r.ref)
	if err := r.plan(b.layer, target); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *restoring) close() {
	for _, v := range []*View{r.head, r.ref} {
		if v != nil {
			v.close()
		}
	}
}

func (r *restoring) plan(head, target Layer) error {
	within := false
	for w := range r.paths {
		h, err := r.head.at(w)
		x, err2 := r.ref.at(w)
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		if h == nil && x == nil {
			return fmt.Errorf("%q: %w", w, ErrNoPath)
		}
		within = within || h != nil && x != nil && h.ino == x.ino && r.head.typeOf(h) == unix.S_IFDIR
	}
	candidates := slices.Sorted(maps.Keys(r.paths))
	if within { // what differs below: only the diff tells that at the cost of the change
		var err error
		if candidates, err = r.candidates(head, target); err != nil {
			return err
		}
	}
	if err := r.findApart(candidates); err != nil {
		return err
	}
	for _, q := range candidates {
		if !r.covered(q) {
			if err := r.compare(q); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(r.changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return r.findLinks()
}

// candidates lists the paths to compare, those above others first.
func (r *restoring) candidates(head, target Layer) ([]string, error) {
	if err := r.d.run(head, target); err != nil {
		return nil, err
	}
	touched := map[string]bool{}
	for _, c := range r.d.byPath {
		touched[c.Path] = true
		if c.OldPath != "" {
			touched[c.OldPath] = true
		}
	}
	for p, is := range r.d.twins {
		if is { // its names may be of one file in the target alone
			touched[p] = true
		}
	}
	if err := r.directories(head, target, touched); err != nil {
		return nil, err
	}
	sorted := slices.Sorted(maps.Keys(touched))
	out := map[string]bool{}
	for w := range r.paths {
		if w == "" {
			return sorted, nil
		}
		for p := w; ; p, _ = split(p) {
			if touched[p] {
				out[w] = true // it, or a directory above, came, went or moved
			}
			if p == "" {
				break
			}
		}
		below := w + "/"
		at, _ := slices.BinarySearch(sorted, below)
		for _, q := range sorted[at:] {
			if !strings.HasPrefix(q, below) {
				break
			}
			out[q] = true
		}
	}
	return slices.Sorted(maps.Keys(out)), nil
}

// directories adds those that changed, in their times alone, too: to a diff that is no change.
func (r *restoring) directories(head, target Layer, touched map[string]bool) error {
	for _, l := range r.t.between(head, target) {
		var inos []Ino
		err := r.t.db.Scan(kv.ChangePrefix(uint64(l)), nil, func(k, _ []byte) bool {
			if _, isName, ino, _, ok := kv.ParseChange(k); ok && !isName {
				inos = append(inos, Ino(ino))
			}
			return true
		})
		if err != nil {
			return fmt.Errorf("read changes of layer %d: %w", l, err)
		}
		for _, ino := range inos {
			n, err := r.head.find(ino)
			if err == nil && !n.gone && r.head.typeOf(n) == unix.S_IFDIR {
				var p string
				if p, err = r.head.pathOf(n); err == nil {
					touched[p] = true
				}
			}
			if notThere(err) != nil {
				return err
			}
		}
	}
	return nil
}

// covered reports whether p or a directory above it is replaced as a whole.
func (r *restoring) covered(p string) bool {
	for ; !r.whole[p]; p, _ = split(p) {
		if p == "" {
			return false
		}
	}
	return true
}

// pending lists what must be cut before its bytes can be shared.
func (r *restoring) pending() []*pending {
	var out []*pending
	for _, k := range r.plants {
		if k.n.rec != nil && k.link == "" {
			out = append(out, r.ref.visiblePending(k.n.ino)...)
		}
	}
	return out
}

// at returns the node that v shows at p, nil for nothing.
func (v *View) at(p string) (*node, error) {
	n := v.root
	for name := ""; p != ""; {
		name, p, _ = strings.Cut(p, "/")
		c, _, err := v.child(n, name)
		if err != nil {
			return nil, notThere(err)
		}
		n = c
	}
	return n, nil
}
