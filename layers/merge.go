package layers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rewindfs/rewindfs/kv"
)

// Merging. What another branch changed since its line and that of the head parted is brought into the
// head. Three views are compared: the common ancestor (base), the sealed layer under the head (ours) and a
// sealed layer of the other branch (theirs).
//
//	find    (mergefind.go) by the change indexes of both lines: which names lead where in each view, and which
//	        objects are the same: those of one inode number, or of one name that one side gave to a new object
//	decide  (mergedecide.go) name by name and object by object: changed on one side, on both alike, or a conflict.
//	        Contents are read, without the lock, only where both sides changed them
//	apply   (mergeapply.go) one operation on the head, so one batch. What is taken whole keeps its inode number, and
//	        its records are those of theirs under the head's layer: extents are shared, no byte is copied
//
// The layer that takes a merge records what was merged (layerRec.merged), so the next merge of the same branches
// compares with that, and not again with where they once parted.

// ErrConflict is returned for a merge that has conflicts. Nothing was changed.
var ErrConflict = errors.New("both sides changed the same")

// ErrMoved is returned when the head has changed since the merge was planned. Nothing was changed.
var ErrMoved = errors.New("the head has changed since")

// ConflictKind says what two sides did to one path that does not go together.
type ConflictKind string

// The kinds of conflict.
const (
	ConflictContent   ConflictKind = "content"        // both changed it, and the changes overlap or are no text
	ConflictType      ConflictKind = "type"           // both changed it, to objects of different types
	ConflictDeleted   ConflictKind = "modify/delete"  // one deleted it or a directory above, the other changed or added it
	ConflictAdded     ConflictKind = "add/add"        // both added it, and not the same
	ConflictMode      ConflictKind = "mode"           // both changed its mode or owner
	ConflictXattr     ConflictKind = "xattr"          // both changed an extended attribute
	ConflictDirectory ConflictKind = "directory/file" // a directory for one, none for the other
	ConflictName      ConflictKind = "name"           // both moved it, or something else to its name
)

// Conflict is one path that cannot be merged.
type Conflict struct {
	Path   string
	Kind   ConflictKind
	Detail string
}

// Merge is a planned merge into a branch. Changes are what it will change there, and
// Merged the files among them whose two versions are brought together line by line. With Conflicts there is
// nothing to apply. Paths are in order.
type Merge struct {
	Ours, Base, Theirs Layer
	Changes            []Change
	Merged             []string
	Conflicts          []Conflict

	names   []*mergeName
	objects []*mergeObject
	views   [3]*View
}

// Noop reports whether there is nothing in theirs that ours does not have, so that there is nothing to apply.
func (m *Merge) Noop() bool { return m.Base == m.Theirs }

// Close gives up what the plan holds on to.
func (m *Merge) Close() {
	for _, v := range m.views {
		if v != nil {
			v.Close()
		}
	}
}

// The sides of a merge.
const (
	atBase = iota
	atOurs
	atTheirs
)

// PlanMerge compares what is under the head, whose open layer does not count, with a sealed layer theirs of another
// line of the same generation (else ErrGeneration). Work: the changes in both lines since they parted.
// When ctx ends, so does the comparing of contents. Close the plan when done.
func (b *Branch) PlanMerge(ctx context.Context, theirs Layer) (*Merge, error) {
	return b.planMerge(ctx, theirs, false)
}

// ForeseeMerge is PlanMerge of the head as it is, with a theirs that may be open, too. The result cannot be applied; if
// programs change files meanwhile, it is of some moment of each file.
func (b *Branch) ForeseeMerge(ctx context.Context, theirs Layer) (*Merge, error) {
	return b.planMerge(ctx, theirs, true)
}

func (b *Branch) planMerge(ctx context.Context, theirs Layer, open bool) (*Merge, error) {
	t := b.t
	t.mu.Lock()
	m := &Merge{Ours: t.layers[b.layer].parent, Theirs: theirs}
	if open {
		m.Ours = b.layer
	}
	rec := t.held(theirs)
	gen, ours := t.gen, b.base.gen
	if rec != nil {
		gen = t.genOf(t.ancestry(theirs))
	}
	t.mu.Unlock()
	switch {
	case theirs != BaseLayer && (rec == nil || !rec.sealed && !open):
		return nil, fmt.Errorf("merge layer %d: %w", theirs, ErrNoLayer)
	case theirs != BaseLayer && gen != ours:
		return nil, fmt.Errorf("merge layer %d, which is built on generation %d of the base and the head on %d: %w", theirs, gen, ours, ErrGeneration)
	}
	m.Base = t.MergeBase(m.Ours, theirs)
	if m.Noop() {
		return m, nil
	}
	if err := m.plan(ctx, b); err != nil {
		m.Close()
		return nil, fmt.Errorf("compare layers %d and %d, which parted at %d: %w", m.Ours, theirs, m.Base, err)
	}
	return m, nil
}

func (m *Merge) plan(ctx context.Context, b *Branch) (err error) {
	for i, l := range []Layer{m.Base, m.Ours, m.Theirs} {
		if m.views[i], err = b.At(l); err != nil {
			return err
		}
		m.views[i].keep = true
	}
	f := newMergeFind(b.t, m.views)
	if err := f.run(m); err != nil {
		return err
	}
	d := &mergeDecide{mergeFind: f, ctx: ctx, m: m}
	return d.run()
}

// MergeBase returns the newest layer that both a and b have below them or have merged, and that can be
// looked at: what a merge of the two compares with. BaseLayer if there is none.
func (t *Tree) MergeBase(a, b Layer) Layer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	inA, common := t.history(a), t.history(b)
	maps.DeleteFunc(common, func(l Layer, _ bool) bool { return !inA[l] })
	for len(common) > 0 {
		// What is below one that is common, or merged by it, is so, too, so the newest ones are those that no other one
		// leads to. Numbers do not tell: a layer may have a smaller one than what it has merged.
		tops := maps.Clone(common)
		for l := range common {
			delete(tops, t.layers[l].parent)
			delete(tops, t.layers[l].merged)
		}
		newest := BaseLayer
		for l := range tops {
			if delete(common, l); t.held(l) != nil {
				newest = max(newest, l)
			}
		}
		if newest != BaseLayer {
			return newest
		}
	}
	return BaseLayer
}

// history lists l and all layers below it, those that it has merged, and those below them. The caller holds t.mu.
func (t *Tree) history(l Layer) map[Layer]bool {
	seen := map[Layer]bool{}
	todo := []Layer{l}
	for len(todo) > 0 {
		l, todo = todo[len(todo)-1], todo[:len(todo)-1]
		for rec := t.layers[l]; rec != nil && !seen[l]; rec = t.layers[l] {
			seen[l] = true
			if rec.merged != BaseLayer {
				todo = append(todo, rec.merged)
			}
			l = rec.parent
		}
	}
	return seen
}

// merges lists layers of other branches that branches have merged and, if they merge again, compare
// with: of each two branches the newest. The caller holds t.mu.
func (t *Tree) merges(heads []Head) []Layer {
	var out []Layer
	for _, into := range heads {
		found := map[string]bool{}
		for l := into.Layer; l != BaseLayer && t.layers[l] != nil; l = t.layers[l].parent {
			m := t.layers[l].merged
			if m == BaseLayer || t.held(m) == nil {
				continue
			}
			for _, from := range heads {
				if from.Branch != into.Branch && !found[from.Branch] && t.lineOf(from.Layer).has(m) {
					found[from.Branch] = true
					out = append(out, m)
				}
			}
		}
	}
	return out
}

// changed collects the inodes and names that the layers between base and both others changed.
func (m *Merge) changed(t *Tree) (map[Ino]struct{}, map[NameKey]struct{}, error) {
	inos, names, err := t.changes(t.between(m.Base, m.Ours), nil)
	if err != nil {
		return nil, nil, err
	}
	inos2, names2, err := t.changes(t.between(m.Base, m.Theirs), nil)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(inos, inos2)
	maps.Copy(names, names2)
	return inos, names, nil
}

// settleAll cuts what is pending of inos in any of the views, so that extents alone say what is in a
// file. It gives up t.mu, which the caller holds. All layers are sealed: nothing is added meanwhile.
func (m *Merge) settleAll(inos map[Ino]struct{}) error {
	for ino := range inos {
		for _, v := range m.views {
			if err := v.settle(ino, nil); err != nil {
				return fmt.Errorf("store pending bytes of inode %d: %w", ino, err)
			}
		}
	}
	return nil
}

// stale reports whether a view was given up by a collection.
func (m *Merge) stale() bool {
	return slices.ContainsFunc(m.views[:], func(v *View) bool { return v.stale })
}

// Merge applies a plan without conflicts (ErrConflict). The head must still stand on the layer that the plan was made for
// and hold nothing else (ErrMoved). extra and swapped are as for MoveHead; the result tells what
// the kernel must be told. Errors leave all as it was.
func (b *Branch) Merge(m *Merge, extra func(*kv.Batch, Moved) error, swapped func(Moved)) (Moved, error) {
	if len(m.Conflicts) > 0 {
		return Moved{}, ErrConflict
	}
	if m.Noop() {
		return Moved{From: m.Ours, Target: m.Ours, Open: b.HeadLayer(), Noop: true}, nil
	}
	for {
		texts, err := m.storeTexts(b.t)
		if err != nil {
			return Moved{}, err
		}
		mv, err := b.applyMerge(m, texts, extra, swapped)
		if !errors.Is(err, errVoid) {
			return mv, err
		}
	}
}

// storeTexts puts merged contents into the chunk store.
func (m *Merge) storeTexts(t *Tree) (map[*mergeObject]*stored, error) {
	out := map[*mergeObject]*stored{}
	for _, x := range m.objects {
		if x.do.content != mergeText {
			continue
		}
		runs, _ := carve(x.do.text, 0, 0)
		st, err := t.store(runs)
		if err != nil {
			return nil, fmt.Errorf("store what was merged: %w", err)
		}
		out[x] = st
	}
	return out, nil
}
