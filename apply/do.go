package apply

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
)

// Do carries a plan out. Until the first rename on the host, an end of ctx takes everything back; afterwards it is
// too late. It calls end once if it got so far as to begin. A *ConflictError when the host was changed meanwhile.
func (c *Commit) Do(ctx context.Context, progress Progress, end End) error {
	if c.unready {
		return errors.New("the plan has conflicts")
	}
	if len(c.Merges) > 0 {
		return errors.New("the plan has merges, which are to be taken into the tree first")
	}
	if c.Noop() {
		return nil
	}
	c.p.ctx = ctx
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	j := &journal{Record: c.Record, State: stateStaging, Stage: layers.StagePrefix + newID(), Key: []byte(c.p.target), Root: timesOf(c.p.root.haveAttr())}
	if err := c.a.save(j, nil); err != nil {
		return fmt.Errorf("begin the commit: %w", err)
	}
	err := c.makeStage(j)
	var kept *layers.Kept
	if err == nil {
		kept, err = c.readyAndKeep(progress)
		err = c.asRace(err)
	}
	if err == nil {
		err = c.begin(j, kept, progress)
	}
	if err != nil {
		return errors.Join(asConflict(err), c.a.abandon(c.host, j))
	}
	return c.swap(j, progress, end)
}

// save writes the journal, with what is in b.
func (a *Applier) save(j *journal, b *kv.Batch) error {
	if b == nil {
		b = &kv.Batch{}
	}
	if err := j.put(b); err != nil {
		return err
	}
	if err := applyBatch(a.db, a.hook, b); err != nil {
		return err
	}
	return a.db.Sync()
}

// makeStage makes the directory for the stage.
func (c *Commit) makeStage(j *journal) error {
	if err := c.host.at("mkdir", j.Stage); err != nil {
		return err
	}
	if err := unix.Mkdirat(c.host.fd, j.Stage, 0o700); err != nil {
		return fmt.Errorf("make a directory in the target: %w", err)
	}
	for _, acl := range []string{"system.posix_acl_default", "system.posix_acl_access"} { // not for what is made in it
		_ = unix.Lremovexattr(c.host.link(j.Stage), acl)
	}
	stage, err := openStage(c.host, j.Stage)
	if err == nil && stage == nil {
		err = unix.ENOENT
	}
	if err != nil {
		return err
	}
	c.stage = &stager{p: c.p, dir: stage}
	// That has moved the times of the target's root, which are about to be kept.
	return c.host.setTimes(".", j.Root.Atime, j.Root.Mtime)
}

// readyAndKeep gets the stage ready and, at the same time, records what the base has: one waits for the other's disk. The target that
// is no base is not recorded: nil.
func (c *Commit) readyAndKeep(progress Progress) (kept *layers.Kept, err error) {
	g, ctx := errgroup.WithContext(c.p.ctx)
	if c.Record.Target == "" {
		g.Go(func() (err error) {
			if err = c.host.at("keep", ""); err == nil {
				kept, err = c.a.tree.Keep(ctx, c.p.keepPaths(c.steps))
			}
			return err
		})
	}
	g.Go(func() error { return c.ready(ctx, progress) })
	if err = g.Wait(); err != nil && kept != nil {
		err = errors.Join(err, kept.Drop())
		kept = nil
	}
	return kept, err
}

// ready puts all that the steps need into the stage, and on the disk.
func (c *Commit) ready(ctx context.Context, progress Progress) error {
	s := c.stage
	s.ctx, s.progress = ctx, func(done, total int64) { progress("stage", done, total) }
	if err := s.stage(c.steps); err != nil {
		return err
	}
	c.Notes = sortedNotes(s.notes)
	if err := c.p.checkView(); err != nil {
		return err
	}
	return s.dir.sync()
}

// begin puts the steps and what they bring into the store, and starts the next generation, for which kept has what the base had.
func (c *Commit) begin(j *journal, kept *layers.Kept, progress Progress) (err error) {
	started := kept == nil
	defer func() {
		if !started {
			err = errors.Join(err, kept.Drop())
		}
	}()
	w := &writer{db: c.a.db, hook: c.a.hook}
	if err := w.dropPrefix(kv.CommitStepsPrefix(), func([]byte) bool { return true }); err != nil {
		return err
	}
	if err := w.putSteps(j, c.steps); err != nil {
		return err
	}
	texts := 0 // bytes, since the last batch
	err = c.p.brought(c.steps, func(it *item) error {
		if isDir(it.want) && isDir(it.haveAttr()) {
			if err := c.p.putDir(it); err != nil {
				return err
			}
		}
		it.put.none = it.want == nil
		it.put.branch, it.put.layer = c.Record.Branch, c.Record.Layer
		it.put.putBack, it.put.gen, it.put.merged = j.Undo != 0, c.p.gen, it.merged
		it.put.direct, it.put.over = it.direct, it.over
		if it.brought != nil && j.Target == "" {
			c.a.tree.PutOriginal(&w.b, it.path, it.put.host.built(), it.put.host.mode, it.brought)
			if texts += len(it.brought); texts >= keptBatch {
				texts = 0
				if err := w.flushAt(1); err != nil {
					return err
				}
			}
		}
		return w.put(kv.Placed(string(j.Key), it.path, j.N), it.put.encode(it.path))
	})
	if err == nil {
		err = w.flushAt(1)
	}
	if err != nil {
		return fmt.Errorf("put the commit into the store: %w", err)
	}
	progress("keep", 0, 0)
	j.State = stateSwapping
	for _, it := range c.stage.late {
		j.Linked = append(j.Linked, it.link.have.Ino)
	}
	if kept == nil {
		return c.a.save(j, nil)
	}
	if err := c.host.at("start", ""); err != nil {
		return err
	}
	started = true
	_, err = kept.Start(func(b *kv.Batch, gen uint64) error {
		if gen != j.N {
			return fmt.Errorf("generation %d of the base was begun by somebody else", gen)
		}
		b.UseReserve()
		return j.put(b)
	})
	return err
}

// swap makes the steps. From here on the commit comes to its end, or is taken back.
func (c *Commit) swap(j *journal, progress Progress, end End) error {
	if err := c.stage.linkLate(); err != nil {
		return c.back(j, err, end)
	}
	if err := c.swapAll(j, progress); err != nil {
		return c.back(j, err, end)
	}
	if err := c.host.sync(); err != nil {
		return c.back(j, err, end)
	}
	if err := c.lookAgain(j); err != nil {
		return c.back(j, err, end)
	}
	j.State = stateSwapped
	if err := c.a.save(j, nil); err != nil {
		j.State = stateSwapping
		return c.back(j, err, end)
	}
	if err := c.a.finish(c.host, j, c.steps, end); err != nil {
		return fmt.Errorf("the commit is on the host, but its end is not noted; that is done at the next start: %w", err)
	}
	return nil
}

// swapAll makes the steps, several at a time: they do not depend on each other.
func (c *Commit) swapAll(j *journal, progress Progress) error {
	opener := c.swapper(j)
	defer opener.close()
	if err := opener.open(c.steps); err != nil {
		return err
	}
	var done atomic.Int64
	return inParts(context.Background(), c.steps, func() (func(*step) error, func()) {
		s := c.swapper(j)
		return func(st *step) error {
			if st.Op == opDir {
				return nil
			}
			err := s.swap(st)
			progress("swap", done.Add(1), int64(len(c.steps)))
			return err
		}, s.close
	})
}

func (c *Commit) swapper(j *journal) *swapper {
	s := newSwapper(c.host, c.stage.dir, j)
	s.mayHold = c.p.r.OnConflict == Ours
	return s
}

// lookAgain looks once more at what the steps took from the host, for as long as they can be taken back: who was in a directory may have
// changed what is in it, and not everywhere it can be told who has a file open.
func (c *Commit) lookAgain(j *journal) error {
	err := inParts(context.Background(), c.steps, func() (func(*step) error, func()) {
		s := c.swapper(j)
		return s.look, s.close
	})
	for _, st := range c.steps {
		if err == nil && st.held {
			c.Notes = append(c.Notes, fmt.Sprintf("%q: a program on the host has it open for writing: what it writes from now on is lost, as it goes to the file that was replaced", st.Path))
		}
	}
	return err
}

// inParts has workers do something with each of all, in no order, until one fails. worker makes one, and says what to do at its end.
func inParts[T any](ctx context.Context, all []T, worker func() (do func(T) error, done func())) error {
	const part = 64
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range max(2, runtime.NumCPU()) {
		g.Go(func() error {
			do, done := worker()
			defer done()
			for {
				lo := int(next.Add(part)) - part
				if lo >= len(all) {
					return nil
				}
				for _, one := range all[lo:min(lo+part, len(all))] {
					if err := ctx.Err(); err != nil {
						return err
					}
					if err := do(one); err != nil {
						return err
					}
				}
			}
		})
	}
	return g.Wait()
}

// back takes a commit back that cannot go on because of err.
func (c *Commit) back(j *journal, err error, end End) error {
	left, backErr := c.a.takeBack(c.host, j, c.steps, end)
	if backErr != nil {
		return fmt.Errorf("the commit failed, and what it had done on the host could not all be put back; that is tried again at the next start: %w", errors.Join(err, backErr))
	}
	if race := new(ConflictError); errors.As(asConflict(err), &race) {
		race.Left = left
		return race
	}
	if len(left) > 0 {
		return fmt.Errorf("the commit was taken back, but for what was changed on the host meanwhile (%v): %w", left, err)
	}
	return fmt.Errorf("the commit was taken back: %w", err)
}

// asRace is err of getting ready, or a raceError if that is because the host has changed.
func (c *Commit) asRace(err error) error {
	if !slices.ContainsFunc([]error{unix.EBUSY, unix.ENOENT, unix.ENOTDIR, unix.ESTALE}, func(e error) bool { return errors.Is(err, e) }) {
		return err
	}
	for _, st := range c.steps {
		if race := c.p.asRace(st.it, err); errors.As(race, new(*raceError)) {
			return race
		}
	}
	return err
}

// asConflict makes a ConflictError of a raceError.
func asConflict(err error) error {
	var race *raceError
	if errors.As(err, &race) {
		return &ConflictError{Path: race.path, Reason: race.reason}
	}
	return err
}
