package twin

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
)

// state is a moment that can come back, and what it must show for ever.
type state struct {
	ref    string // "": only undo and redo lead here
	parent *state
	plain  string // copy of the plain directory
	tree   *fstree.Tree
	gone   bool // forgotten
}

// TB is what Run needs of a test. Fatalf does not return.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Options choose how Run works.
type Options struct {
	Base    string // what both start from
	BaseRef string // names the state that shows the base
	Scratch string // an empty directory for the plain directory and its copies
	Every   int    // compare after so many operations
	Maps    bool   // the sequences hold mappings
	// AnyLine lets Move lead to states that are not in the head's line.
	AnyLine bool
	// At is what must agree between a state as it was and History.At of it.
	At fstree.Fields
	// Exact is what must agree between the subject as it was and as it is again:
	// fstree.Exact, unless the subject is known to be less exact.
	Exact fstree.Fields
}

// Run is one sequence on a subject and its plain twin.
type Run struct {
	t       TB
	sub     Subject
	opt     Options
	plain   *fsops.Dir
	dir     string // of plain
	copies  int
	ops     int
	under   *state // the sealed state under the head
	states  []*state
	named   map[string]*state // by what the subject calls them
	start   fstree.Time
	watches [fsops.Slots]*watch
	log     []string

	lastTree, lastPlain *fstree.Tree
}

// New starts a sequence. Close it.
func New(t TB, sub Subject, opt Options) *Run {
	t.Helper()
	r := &Run{t: t, sub: sub, opt: opt, start: fstree.TimeOf(time.Now().Add(-time.Second))}
	r.setPlain(opt.Base)
	r.compare()
	r.under = &state{ref: opt.BaseRef, plain: opt.Base, tree: r.lastTree}
	r.states = []*state{r.under}
	_, at := sub.Moved()
	r.named = map[string]*state{at: r.under}
	return r
}

// Close lets go of everything held.
func (r *Run) Close() {
	r.dropQuietly()
	r.plain.Close()
}

// Do runs the steps and holds all states against what they were.
func (r *Run) Do(steps []Step) {
	r.t.Helper()
	for _, s := range steps {
		switch s.Ctl {
		case Seal:
			r.seal()
		case Move:
			r.move(s.Pick)
		case Undo:
			r.undoOrRedo("undo", r.sub.Undo)
		case Redo:
			r.undoOrRedo("redo", r.sub.Redo)
		case Reopen:
			r.reopen()
		case Collect:
			r.collect(s.Pick)
		case Commit:
			r.commit(s.Pick)
		case Restore:
			r.restore(s.Pick)
		default:
			r.op(s.Op)
		}
	}
	r.endWatches()
	r.compare()
	r.checkStates()
	r.checkDiffs()
	r.dropQuietly() // what was held is closed, and its last pages are on their way
	r.moveTo(r.states[0])
}

func (r *Run) fatalf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\nafter:\n\t%s", fmt.Sprintf(format, args...), strings.Join(r.log[max(0, len(r.log)-3):], "\n\t"))
}

func (r *Run) check(err error, what string) {
	r.t.Helper()
	if err != nil {
		r.fatalf("%s: %v", what, err)
	}
}

func (r *Run) note(format string, args ...any) { r.log = append(r.log, fmt.Sprintf(format, args...)) }

// copyOf makes a copy of a plain directory.
func (r *Run) copyOf(dir string) string {
	r.copies++
	dst := fmt.Sprintf("%s/%d", r.opt.Scratch, r.copies)
	r.check(os.Mkdir(dst, 0o755), "make a directory")
	r.check(fstree.Copy(dir, dst), "copy")
	return dst
}

// setPlain makes the plain directory a fresh copy of dir.
func (r *Run) setPlain(dir string) {
	if r.plain != nil {
		r.plain.Close()
	}
	r.dir = r.copyOf(dir)
	var err error
	r.plain, err = fsops.NewDir(r.dir)
	r.check(err, "open the plain directory")
	r.plain.Emulate = true
	r.lastTree, r.lastPlain = nil, nil
}

func (r *Run) op(o fsops.Op) {
	r.note("%v", o)
	if o.Kind == fsops.DOpen {
		r.endWatch(o.Slot)
		r.plain.Do(fsops.Op{Kind: fsops.DClose, Slot: o.Slot})
		r.sub.Do(fsops.Op{Kind: fsops.DClose, Slot: o.Slot})
	}
	want := r.plain.Do(o)
	got := r.sub.Do(o)
	if want != got {
		r.fatalf("%v\n  plain:   %v\n  subject: %v", o, want, got)
	}
	if o.Kind == fsops.DOpen && want.Errno == 0 {
		w, err := newWatch(r.dir, o.Path)
		r.check(err, "watch a directory")
		r.watches[o.Slot] = w
	}
	for _, w := range r.watches {
		if w != nil {
			r.check(w.sample(), "look at a watched directory")
		}
	}
	if r.ops++; r.ops%r.opt.Every == 0 {
		r.compare()
	}
}

// endWatch looks at what a held directory showed, if one is held.
func (r *Run) endWatch(slot int) {
	w := r.watches[slot]
	if w == nil {
		return
	}
	r.watches[slot] = nil
	w.close()
	seen, _ := r.sub.Seen(slot)
	if p := w.problem(seen); p != "" {
		r.fatalf("%s", p)
	}
}

func (r *Run) endWatches() {
	for slot := range r.watches {
		r.endWatch(slot)
	}
}

// dropQuietly lets go of what is held without a look at the directories: a
// listing that spans a rollback mixes two trees.
func (r *Run) dropQuietly() {
	for slot, w := range r.watches {
		if w != nil {
			w.close()
			r.watches[slot] = nil
		}
	}
	r.sub.DropSlots()
	r.plain.DropSlots()
}

func (r *Run) tree() *fstree.Tree {
	tree, err := r.sub.Tree()
	r.check(err, "describe the subject")
	return tree
}

// compare holds the subject against the plain directory.
func (r *Run) compare() {
	tree := r.tree()
	plain, err := fstree.Scan(r.dir)
	r.check(err, "scan the plain directory")
	f := fstree.Fields{Nlink: true, Mtime: true, Fresh: &r.start}
	diffs := fstree.Diff(plain, tree, f, "plain", "subject")
	diffs = append(diffs, tree.LinkProblems()...)
	if r.lastTree != nil && r.opt.Exact.Ctime {
		want, got := fstree.Moved(r.lastPlain, plain), fstree.Moved(r.lastTree, tree)
		for p, w := range want {
			if g, ok := got[p]; ok && g != w {
				diffs = append(diffs, fmt.Sprintf("%q: ctime moved: plain %v, subject %v", p, w, g))
			}
		}
	}
	r.lastTree, r.lastPlain = tree, plain
	tick()
	if len(diffs) > 0 {
		slices.Sort(diffs)
		r.fatalf("the trees differ:\n  %s", strings.Join(diffs, "\n  "))
	}
}

// tick waits until the kernel's coarse clock, which file systems stamp with, has
// moved on: what follows gets a time that can be told from what was.
func tick() {
	var start, now unix.Timespec
	for now == start {
		if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) != nil {
			return
		}
		if start == (unix.Timespec{}) {
			start = now
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (r *Run) same(want, got *fstree.Tree, f fstree.Fields, wantName, gotName string) {
	r.t.Helper()
	if d := fstree.Diff(want, got, f, wantName, gotName); len(d) > 0 {
		r.fatalf("%s is not %s:\n  %s", gotName, wantName, strings.Join(d, "\n  "))
	}
}
