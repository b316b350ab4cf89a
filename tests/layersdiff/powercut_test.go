package layersdiff

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/twin"
	"github.com/rewindfs/rewindfs/layers"
)

// powered is what a power cut is to hit: more commits than anything else.
var powered = twin.Plan{Ops: fsops.GenOptions{}, Lo: 20, Hi: 50, Chance: map[twin.Ctl]int{twin.Move: 20, twin.Commit: 150}}

// cutsPerRun is at how many moments the power is cut, in thought, of one sequence.
const cutsPerRun = 25

// TestPowerCut cuts the power at random moments of commits and undos, and of the starts that bring to an end those which were
// killed. The disks then hold what they were told to keep, and of what was written since all, nothing, or some pages.
// After the file system's own recovery each path is old or new; after the next start the commit as a whole is, the new one
// if its end had been told; the checkpoints show what they showed, and nothing is left in the host.
// REWINDFS_TEST_CUTS says how many cuts for each kind of disk.
func TestPowerCut(t *testing.T) {
	if needDisks(t, "ext4"); !apart(t) {
		return
	}
	for _, kinds := range [][]string{{"ext4"}, {"ext4", "ext4"}, {"xfs"}, {"btrfs"}, {"xfs", "ext4"}} { // the base's disk, and the store's if it has its own
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			for _, kind := range kinds {
				needDisks(t, kind)
			}
			seq := twin.FromEnv(t, twin.Sequences{Seed: 1, Count: cutsPerRun}, "REWINDFS_TEST_CUTS")
			seq.Count = (seq.Count + cutsPerRun - 1) / cutsPerRun
			top, n := fstree.FastTemp(t), 0
			twin.Check(t, seq, twin.Steps(powered), func(tb twin.TB, steps []twin.Step) {
				n++
				at := filepath.Join(top, fmt.Sprint(n))
				defer os.RemoveAll(at)
				runPowerCut(tb, at, kinds, steps)
			})
		})
	}
}

// stretch is a commit, or the undo of one, in the log of the disks.
type stretch struct {
	from, to     int64   // the log when it began, and when its end had been told
	calls        []int64 // and at each of its calls
	before, want *fstree.Tree
	undo, made   bool
	befores      []*fstree.Tree
	layers       map[layers.Layer]*fstree.Tree // what checkpoints show
}

// cutter makes commits on disks, and then cuts the power.
type cutter struct {
	*applied
	d         *disks
	rng       *rand.Rand
	mu        sync.Mutex // guards rng while a commit is under way
	stretches []*stretch
}

func runPowerCut(tb twin.TB, top string, kinds []string, steps []twin.Step) {
	d, err := newDisks(top, kinds...)
	if err != nil {
		tb.Fatalf("make disks: %v", err)
	}
	defer d.close()
	last := len(kinds) - 1
	c := &cutter{d: d, rng: rand.New(rand.NewPCG(uint64(len(steps)), 1))}
	c.applied = newApplied(tb, filepath.Join(d.at(last), "top"), filepath.Join(d.at(0), "base"))
	open := true
	defer func() {
		if open {
			_ = c.w.close()
		}
	}()
	for i := range kinds {
		c.must(d.sync(i))
	}
	for i, step := range append(steps, twin.Step{Ctl: twin.Commit, Pick: len(steps)}) {
		if step.Ctl == twin.Commit {
			c.commit(step.Pick, i%4 == 0)
		} else {
			c.step(step)
		}
	}
	open = false
	c.close()
	all, places, err := d.end()
	c.must(err)
	c.cutAll(all, places)
}

func (c *cutter) place() int64 {
	n, err := c.d.place()
	c.must(err)
	return n
}

// commit commits the head, or takes the last commit back. Every other one is killed on the way, and brought to its end by a start.
func (c *cutter) commit(pick int, undo bool) {
	undo = undo && len(c.befores) > 0
	sealed, err := c.target.b.Seal(nil)
	c.must(err)
	c.seals = append(c.seals, sealed.Layer)
	c.must(c.d.sync(0)) // what programs have not synced is not ours to save
	st := &stretch{from: c.place(), before: c.scan(), undo: undo, befores: slices.Clone(c.befores), layers: map[layers.Layer]*fstree.Tree{}}
	for _, l := range c.seals {
		st.layers[l] = c.treeAt(c.w, l)
	}
	st.want = st.layers[sealed.Layer]
	if undo {
		st.want = c.befores[len(c.befores)-1]
	}
	calls := 1 << 30
	if pick%2 == 0 {
		calls = pick % 200
	}
	a := c.applier()
	a.StopAt(func(string, string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if calls--; calls < 0 {
			return errKilled
		}
		c.nudge()
		st.calls = append(st.calls, c.place())
		return nil
	})
	p, err := c.planKilled(a, sealed.Layer, undo)
	c.must(err)
	if p.Conflicts() {
		c.tb.Fatalf("conflicts: %+v", p.Left)
	}
	err = p.Do(context.Background(), nil, nil)
	noop := p.Noop()
	p.Close()
	if errors.Is(err, errKilled) {
		c.must(c.w.reopen())
		_, err = c.applier().Recover(nil)
	}
	c.must(err)
	st.to = c.place()
	c.branch()
	was := len(c.befores)
	c.checkEnd(copyOf(st.before), copyOf(st.want), undo, noop, false)
	st.made = len(c.befores) != was
	if !noop {
		c.stretches = append(c.stretches, st)
	}
}

// nudge has a file system write something by itself, as it does in its own time: above all names before contents.
func (c *cutter) nudge() {
	switch n := c.rng.IntN(60); {
	case n < 20: // ends the transaction that the file system has open
		f, err := os.OpenFile(filepath.Join(c.d.at(n%len(c.d.kinds)), "nudge"), os.O_CREATE|os.O_WRONLY, 0o600)
		c.must(err)
		_, err = f.WriteAt([]byte{byte(n)}, 0)
		c.must(errors.Join(err, f.Sync(), f.Close()))
	case n == 20:
		c.must(c.d.sync(c.rng.IntN(len(c.d.kinds))))
	}
}

func (s *applied) treeAt(w *world, l layers.Layer) *fstree.Tree {
	v, err := w.tree.View(l)
	s.must(err)
	defer v.Close()
	return treeOf(v)
}

// cutAll cuts the power at moments of the commits, in the order of time.
func (c *cutter) cutAll(all []recorded, places []int64) {
	type cut struct {
		n    int // of all, and this one is lost
		st   *stretch
		kind int // what is kept of what was not flushed: all, nothing, pages
	}
	var cuts []cut
	for range cutsPerRun {
		if len(c.stretches) == 0 {
			return
		}
		st := c.stretches[c.rng.IntN(len(c.stretches))]
		lo, _ := slices.BinarySearch(places, st.from+1)
		hi, _ := slices.BinarySearch(places, st.to+1)
		n := hi // when the end has been told
		switch k := c.rng.IntN(8); {
		case k > 0 && k < 5 && len(st.calls) > 0: // about a call: most writes are of few of them
			n, _ = slices.BinarySearch(places, st.calls[c.rng.IntN(len(st.calls))]+1)
			n = min(hi, n+c.rng.IntN(4))
		case k >= 5:
			n = lo + c.rng.IntN(hi-lo+1)
		}
		cuts = append(cuts, cut{n, st, c.rng.IntN(3)})
	}
	slices.SortFunc(cuts, func(a, b cut) int { return a.n - b.n })
	b := newBlackout(all, len(c.d.kinds))
	image := func(i int) string { return filepath.Join(c.d.top, "images", fmt.Sprint(i)) }
	for _, cut := range cuts {
		told := cut.n == len(places) || places[cut.n] > cut.st.to
		c.must(b.cut(cut.n, image, func() bool { return cut.kind == 0 || cut.kind == 2 && c.rng.IntN(2) == 0 }))
		for i := range c.d.kinds {
			if err := c.d.mount(i, image(i)); err != nil {
				c.tb.Fatalf("after a power cut behind record %d of %d, kind %d: %v", cut.n, len(all), cut.kind, err)
			}
		}
		func() {
			s := &applied{tb: c.tb, w: &world{store: c.w.store, base: c.w.base}, befores: slices.Clone(cut.st.befores)}
			defer func() {
				if p := recover(); p != nil {
					if s.w.tree != nil {
						_ = s.w.close()
					}
					_ = c.d.unmount()
					c.tb.Fatalf("power cut behind record %d of %d, of a commit that ended behind %d bytes (told: %v), kind %d: %v", cut.n, len(all), cut.st.to, told, cut.kind, p)
				}
			}()
			s.afterCut(cut.st, told)
		}()
		c.must(c.d.unmount())
	}
}

// afterCut holds what is there after a power cut and the next start against what may be.
func (s *applied) afterCut(st *stretch, told bool) {
	s.oldOrNew(st.before, st.want)
	s.must(s.w.open())
	_, err := s.applier().Recover(nil)
	s.must(err)
	s.branch()
	was := len(s.befores)
	s.checkEnd(copyOf(st.before), copyOf(st.want), st.undo, false, told && st.made)
	if made := len(s.befores) != was; told && made != st.made {
		s.tb.Fatalf("what had been told of the commit (made: %v) is not so", st.made)
	}
	for _, l := range slices.Sorted(maps.Keys(st.layers)) {
		if l >= s.target.b.HeadLayer() {
			break // it was not sealed when it became durable
		}
		want, got := copyOf(st.layers[l]), s.treeAt(s.w, l)
		for p, e := range want.Entries {
			if g := got.Entries[p]; g != nil && e.IsDir() {
				e.Ctime = g.Ctime // what is made in a directory and goes again moves it
			}
		}
		s.exact(want, got, fmt.Sprintf("checkpoint %d before the power cut", l), "after it")
	}
	s.must(s.w.close())
}

// copyOf is for who changes what a tree says.
func copyOf(t *fstree.Tree) *fstree.Tree {
	out := fstree.New()
	for _, e := range t.Entries {
		one := *e
		out.Add(&one)
	}
	return out
}
