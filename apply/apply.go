package apply

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// Applier writes to the base of a tree, and to other directories. It makes one commit at a time: the
// caller sees to it.
type Applier struct {
	db   *kv.DB
	tree *layers.Tree
	base *layers.Base
	log  *slog.Logger
	now  func() time.Time
	hook func(call, name string) error
}

// StopAt is for tests: hook is called in front of each call that changes something on the host or in the store, which is not made if
// hook returns an error.
func (a *Applier) StopAt(hook func(call, name string) error) { a.hook = hook }

// New makes an Applier. What it is given stays the caller's to close.
func New(db *kv.DB, tree *layers.Tree, base *layers.Base, log *slog.Logger, now func() time.Time) *Applier {
	return &Applier{db: db, tree: tree, base: base, log: log, now: now}
}

// Commit is what is to be done, planned. Close it.
type Commit struct {
	Record  Record
	Changes []Change // in path order
	Left    []Change // what is left out, or stands against it, and why
	Merges  []*Merge // of Changes those that are first to be taken into the tree

	a       *Applier
	p       *planner
	host    *dir
	views   []*layers.View
	steps   []*step
	stage   *stager  // of Do
	Notes   []string // what could not be kept, after Do
	unready bool     // there are conflicts, and nobody said what to do
}

// Change is a path of a plan. Status is A, M, D or T, as in layers.Change; of what is left it is why, one of "conflict",
// "theirs", "held", "skipped". Sizes are bytes, -1 where there is nothing.
type Change struct {
	Path             string
	Status           string
	Type             uint32 // S_IFMT bits
	OldSize, NewSize int64
	Content          bool
	Reason           string
	Merge            string // MergeClean or MergeMarkers
}

// Conflicts reports whether Do would refuse.
func (c *Commit) Conflicts() bool { return c.unready }

// Noop reports whether there is nothing to do.
func (c *Commit) Noop() bool { return len(c.steps) == 0 }

// Knows reports whether there is, or was when the layers were built, something at path: in the checkpoint, in the
// base, or on the host.
func (c *Commit) Knows(path string) (bool, error) {
	if c.p.root.has(path) {
		return true, nil
	}
	for _, s := range []*side{c.p.want, c.p.base} {
		if s == nil {
			continue
		}
		if a, err := s.at(path); a != nil || err != nil {
			return err == nil, err
		}
	}
	up, name := split(path)
	d, err := c.host.sub(up)
	if notThere(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %q: %w", path, err)
	}
	defer d.close()
	st, err := d.stat(name)
	return st != nil, err
}

// Close gives back what a plan holds.
func (c *Commit) Close() {
	for _, v := range c.views {
		v.Close()
	}
	if c.stage != nil {
		c.stage.dir.close()
	}
	c.host.close()
}

// PlanBase plans to bring a layer to the base.
func (a *Applier) PlanBase(ctx context.Context, r Request, rec Record) (*Commit, error) {
	fd, err := a.base.Dup()
	if err != nil {
		return nil, err
	}
	c := a.commit(ctx, fd, r, rec)
	var base *layers.View
	err = a.openWant(c)
	if err == nil {
		base, err = a.tree.BaseView(c.p.want.v.Generation())
	}
	if err == nil {
		c.views = append(c.views, base)
		c.p.base, c.p.gen = newSide(base), base.Generation()
		c.Record.Gen, c.Record.N = a.tree.Generation(), a.tree.Generation()+1
	}
	return c.planned(err)
}

// PlanDir plans to bring the whole of a layer to another directory, which is there.
func (a *Applier) PlanDir(ctx context.Context, path string, r Request, rec Record) (*Commit, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	r.Whole = true
	c := a.commit(ctx, fd, r, rec)
	st, err := c.host.stat(".")
	if err == nil {
		c.p.target = targetKey(path, st)
	}
	c.Record.Target, c.Record.N = path, uint64(a.now().UnixNano())
	if err == nil {
		err = a.openWant(c)
	}
	return c.planned(err)
}

// targetKey names a target in the records: what is noted is about this directory, not about another one of its name.
func targetKey(path string, st *found) string {
	return fmt.Sprintf("%s//%d-%d.%d", path, st.Ino, st.Btime.Sec, st.Btime.Nsec)
}

// ErrNoCommit is returned when there is no commit that can be undone.
var ErrNoCommit = errors.New("there is no commit to undo")

// PlanUndo plans to put back what the host had before the last commit to the base that was not undone.
func (a *Applier) PlanUndo(ctx context.Context, r Request, rec Record) (*Commit, error) {
	all, err := Records(a.db)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, ErrNoCommit
	}
	last := all[len(all)-1]
	fd, err := a.base.Dup()
	if err != nil {
		return nil, err
	}
	r.Hold = nil
	rec.Undo, rec.Checkpoint, rec.Label, rec.Layer = last.N, last.Checkpoint, last.Label, last.Layer
	c := a.commit(ctx, fd, r, rec)
	c.p.undo = &last
	v, err := a.tree.BaseView(last.Gen)
	if err == nil {
		c.views = append(c.views, v)
		c.p.want, c.p.gen = newSide(v), last.Gen
		c.Record.Gen, c.Record.N = a.tree.Generation(), a.tree.Generation()+1
	}
	if errors.Is(err, layers.ErrNoLayer) {
		err = fmt.Errorf("what the host had before it was collected with the last layers built on that: %w", ErrNoCommit)
	}
	return c.planned(err)
}

func (a *Applier) commit(ctx context.Context, fd int, r Request, rec Record) *Commit {
	host := &dir{fd, a.hook}
	rec.Version, rec.At, rec.Branch, rec.Layer = recordVersion, a.now().UTC(), r.Branch, max(rec.Layer, uint64(r.Layer))
	return &Commit{a: a, host: host, Record: rec, p: &planner{now: a.now, ctx: ctx, db: a.db, tree: a.tree, host: host, r: r}}
}

func (a *Applier) openWant(c *Commit) error {
	v, err := a.tree.View(c.p.r.Layer)
	if err != nil {
		return err
	}
	c.views = append(c.views, v)
	c.p.want = newSide(v)
	return nil
}

// planned makes the plan, unless there was an error.
func (c *Commit) planned(err error) (*Commit, error) {
	if err == nil {
		err = c.p.plan()
	}
	if err == nil {
		err = c.p.checkView()
	}
	if err == nil {
		err = c.list()
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("plan the commit: %w", asConflict(err))
	}
	return c, nil
}

// list fills in what the plan is.
func (c *Commit) list() error {
	moved := map[layers.Ino]int{} // names that objects of the host lose
	_ = c.p.root.each(func(it *item) error {
		if it.have != nil && it.verdict == vApply {
			moved[it.have.Ino]++
		}
		return nil
	})
	err := c.p.root.each(func(it *item) error {
		if it.outside {
			return nil
		}
		ch := it.change()
		switch it.verdict {
		case vSame:
			return nil
		case vApply:
			c.Record.Paths++
			if ch.Content && typeOf(it.want) == unix.S_IFREG {
				c.Record.Bytes += it.want.Size
			}
			if it.over {
				c.Record.Over++
			}
			if it.merge != nil {
				c.Merges = append(c.Merges, it.merge)
			}
			if it.want != nil && it.have != nil && !isDir(it.haveAttr()) && moved[it.have.Ino] < int(it.have.Nlink) && ch.Reason == "" {
				ch.Reason = "it has other names on the host, which keep the old content"
			}
			if it.text != nil && ch.Reason == "" {
				ch.Reason = "a part of it: the rest stays in the mount, and a later commit brings it"
			}
			if it.cut && ch.Reason == "" {
				ch.Reason = "without its setuid or setgid bit: bring that with --allow-special"
			}
			c.Changes = append(c.Changes, ch)
			return nil
		case vConflict:
			c.unready = true
			ch.Status = "conflict"
		case vTheirs:
			ch.Status = "theirs"
		case vHeld:
			ch.Status = "held"
		case vSkipped:
			ch.Status = "skipped"
		}
		c.Left = append(c.Left, ch)
		return nil
	})
	if err != nil || c.unready {
		return err
	}
	if len(c.Changes) > 0 {
		c.steps, err = c.p.steps()
	}
	return err
}

func (it *item) change() Change {
	ch := Change{Path: it.path, Status: "M", OldSize: -1, NewSize: -1, Content: true, Reason: it.reason, Merge: it.how}
	if it.have != nil {
		ch.Type, ch.OldSize = typeOf(it.haveAttr()), it.have.Size
	}
	if it.want != nil {
		ch.Type, ch.NewSize = typeOf(it.want), it.want.Size
	}
	switch {
	case it.have == nil:
		ch.Status = "A"
	case it.want == nil:
		ch.Status = "D"
	case typeOf(it.want) != typeOf(it.haveAttr()):
		ch.Status = "T"
	default:
		ch.Content = !isDir(it.want) && (it.want.Size != it.have.Size || it.want.Mtime != it.have.Mtime)
	}
	if it.verdict == vApply && it.merge != nil {
		ch.NewSize = int64(len(it.merge.Text))
	}
	return ch
}

// Progress is told how far a commit is; it may be called from several goroutines.
type Progress func(what string, done, total int64)

// End adds to the last batch of a commit; with back set, one that was taken back.
type End func(b *kv.Batch, r Record, back bool) error

// ConflictError says that the host was changed while a commit was under way; nothing of it is left on the host, but for what was
// changed there since it was brought.
type ConflictError struct {
	Path, Reason string
	Left         []Left
}

func (e *ConflictError) Error() string {
	s := fmt.Sprintf("%q: %s; the host is as it was", e.Path, e.Reason)
	if len(e.Left) > 0 {
		s += fmt.Sprintf(", but for what was changed there meanwhile: %v", e.Left)
	}
	return s
}

func newID() string { return strings.ToLower(rand.Text()[:12]) }

// sortedNotes makes text of what could not be kept.
func sortedNotes(notes map[string]int) []string {
	var out []string
	for what, n := range notes {
		out = append(out, fmt.Sprintf("%s: not kept for %d", what, n))
	}
	slices.Sort(out)
	return out
}
