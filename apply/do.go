package apply

import (
	"context"
	"errors"
	"fmt"

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
	err := c.ready(j, progress)
	if err == nil {
		err = c.begin(j, progress)
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

// ready makes the stage with all that the steps need in it, on the disk.
func (c *Commit) ready(j *journal, progress Progress) error {
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
	s := &stager{p: c.p, dir: stage, progress: func(done, total int64) { progress("stage", done, total) }}
	c.stage = s
	if err := s.stage(c.steps); err != nil {
		return err
	}
	c.Notes = sortedNotes(s.notes)
	if err := c.p.checkView(); err != nil {
		return err
	}
	// The stage has moved the times of the target's root, which are about to be kept.
	if err := c.host.setTimes(".", j.Root.Atime, j.Root.Mtime); err != nil {
		return err
	}
	return stage.sync()
}

// begin puts the steps and what they bring into the store, keeps what the base has, and starts the next generation.
func (c *Commit) begin(j *journal, progress Progress) error {
	w := &writer{db: c.a.db, hook: c.a.hook}
	if err := w.dropPrefix(kv.CommitStepsPrefix(), func([]byte) bool { return true }); err != nil {
		return err
	}
	if err := w.putSteps(j, c.steps); err != nil {
		return err
	}
	texts := 0 // bytes, since the last batch
	err := c.p.brought(c.steps, func(it *item) error {
		if isDir(it.want) && isDir(it.haveAttr()) {
			if err := c.p.putDir(it); err != nil {
				return err
			}
		}
		it.put.none = it.want == nil
		it.put.branch, it.put.layer = c.Record.Branch, c.Record.Layer
		it.put.putBack, it.put.gen, it.put.merged = j.Undo != 0, c.p.gen, it.merged
		it.put.direct = it.direct
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
	if j.Target != "" {
		return c.a.save(j, nil)
	}
	if err := c.host.at("keep", ""); err != nil {
		return err
	}
	_, err = c.a.tree.KeepBase(c.p.ctx, c.p.keepPaths(c.steps), func(b *kv.Batch, gen uint64) error {
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
	s := newSwapper(c.host, c.stage.dir)
	defer s.at.close()
	if err := s.open(c.steps); err != nil {
		return c.back(j, err, end)
	}
	total := int64(len(c.steps))
	for i, st := range c.steps {
		if st.Op == opDir {
			continue
		}
		if err := s.swap(st); err != nil {
			return c.back(j, err, end)
		}
		progress("swap", int64(i+1), total)
	}
	if err := c.host.sync(); err != nil {
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

// back takes a commit back that cannot go on because of err.
func (c *Commit) back(j *journal, err error, end End) error {
	left, backErr := c.a.takeBack(c.host, j, c.steps, end)
	if backErr != nil {
		return fmt.Errorf("the commit failed, and what it had done on the host could not all be put back; that is tried again at the next start: %w", errors.Join(err, backErr))
	}
	if len(left) > 0 {
		return fmt.Errorf("the commit was taken back, but for what was changed on the host meanwhile (%q): %w", left, err)
	}
	if err = asConflict(err); errors.As(err, new(*ConflictError)) {
		return err
	}
	return fmt.Errorf("the commit was taken back: %w", err)
}

// asConflict makes a ConflictError of a raceError.
func asConflict(err error) error {
	var race *raceError
	if errors.As(err, &race) {
		return &ConflictError{race.path, race.reason}
	}
	return err
}
