package apply

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Recover brings a commit that the last daemon did not get to its end to one: it is finished, or taken back. It calls end if there was
// one whose steps had begun, and reports what became of it: nil if there was none.
func (a *Applier) Recover(end End) (*Record, error) {
	j, err := readJournal(a.db)
	if err != nil || j == nil {
		return nil, err
	}
	host, err := a.target(j)
	if j.Target != "" && notThere(err) { // with the directory all went that could be finished
		a.log.Warn("the target of a commit that was cut off is gone", "target", j.Target)
		return nil, a.forget(j, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("a commit to %s was not finished: %w", j.Target, err)
	}
	defer host.close()
	if j.State == stateStaging {
		if err := a.abandon(host, j); err != nil {
			return nil, fmt.Errorf("clear away a commit that was not finished: %w", err)
		}
		return nil, nil
	}
	steps, err := readSteps(a.db, j)
	if err != nil {
		return nil, err
	}
	if j.State == stateSwapped {
		err = a.finish(host, j, steps, end)
	} else {
		var left []Left
		if left, err = a.takeBack(host, j, steps, end); len(left) > 0 {
			a.log.Warn("a commit was taken back, but for what was changed since", "paths", fmt.Sprint(left))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bring a commit to its end: %w", err)
	}
	return &j.Record, nil
}

// target opens what a commit is about.
func (a *Applier) target(j *journal) (*dir, error) {
	if j.Target == "" {
		fd, err := a.base.Dup()
		return &dir{fd, a.hook}, err
	}
	fd, err := unix.Open(j.Target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d := &dir{fd, a.hook}
	st, err := d.stat(".")
	if err == nil && string(j.Key) != targetKey(j.Target, st) {
		err = errors.New("another directory is there now: bring back, or mount, the one that it was, or move this one away to give the commit up")
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// abandon removes all traces of a commit that made no step.
func (a *Applier) abandon(host *dir, j *journal) error {
	if err := host.remove(j.Stage); err != nil {
		return fmt.Errorf("remove the stage: %w", err)
	}
	if err := host.setTimes(".", j.Root.Atime, j.Root.Mtime); err != nil {
		a.log.Warn("the times of the target were moved", "error", err)
	}
	if err := host.sync(); err != nil { // before the journal forgets that there was a stage
		return err
	}
	if a.tree.Generation() == j.N && j.Target == "" { // the generation has begun, but perhaps not on the disk
		a.tree.BaseChanged()
	}
	return a.forget(j, nil)
}

// forget drops the records of a commit that is not on the host, and then its journal with what b has.
func (a *Applier) forget(j *journal, b *kv.Batch) error {
	w := &writer{db: a.db, hook: a.hook}
	if err := w.dropPlaced(string(j.Key), j.N); err != nil {
		return err
	}
	return a.close(j, b)
}

// close ends the journal, with what b has, which may be nil.
func (a *Applier) close(j *journal, b *kv.Batch) error {
	if b == nil {
		b = &kv.Batch{}
	}
	b.Delete(slices.Clone(journalKey))
	for part := range j.Parts {
		b.Delete(kv.CommitSteps(part))
	}
	if err := applyBatch(a.db, a.hook, b); err != nil {
		return err
	}
	return a.db.Sync()
}

// takeBack makes the host what it was before the steps. What somebody has changed since is left.
func (a *Applier) takeBack(host *dir, j *journal, steps []*step, end End) (left []Left, err error) {
	stage, err := openStage(host, j.Stage)
	if err != nil {
		return nil, err
	}
	s := newSwapper(host, stage, j)
	defer s.close()
	if stage != nil {
		defer stage.close()
		s.recs = map[string]*placed{}
		err := eachPlaced(a.db, string(j.Key), func(path string, r *placed) error {
			if r.n == j.N {
				s.recs[path] = r
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if left, err = s.takeBack(steps); err != nil {
			return nil, err
		}
		if err := host.sync(); err != nil {
			return nil, err
		}
	}
	if err := host.remove(j.Stage); err != nil {
		return nil, fmt.Errorf("remove the stage: %w", err)
	}
	if err := s.finishDirs(steps, true); err != nil {
		a.log.Warn("the times of a directory were moved", "error", err)
	}
	if err := host.sync(); err != nil {
		return nil, err
	}
	a.tree.BaseChanged()
	var b kv.Batch
	if end != nil {
		if err := end(&b, j.Record, true); err != nil {
			return nil, err
		}
	}
	return left, a.forget(j, &b)
}

// finish ends a commit all of whose renames are made.
func (a *Applier) finish(host *dir, j *journal, steps []*step, end End) error {
	if err := host.remove(j.Stage); err != nil {
		return fmt.Errorf("remove the stage: %w", err)
	}
	s := newSwapper(host, nil, j)
	defer s.close()
	if err := s.finishDirs(steps, false); err != nil {
		a.log.Warn("not all directories got what they were to have", "error", err)
	}
	if err := host.sync(); err != nil { // before the journal forgets what is left to do
		return err
	}
	a.tree.BaseChanged()
	if err := a.settle(&s.at, j); err != nil {
		return err
	}
	var b kv.Batch
	switch {
	case j.Undo != 0:
		b.Delete(kv.Commit(j.Undo))
	case j.Target == "":
		v, err := encodeRecord(&j.Record)
		if err != nil {
			return err
		}
		b.Put(kv.Commit(j.N), v)
	}
	if end != nil {
		if err := end(&b, j.Record, false); err != nil {
			return err
		}
	}
	return a.close(j, &b)
}

// settle notes what the host says of what the commit left there, now that all renames are made. After an undo, what earlier commits left counts again.
func (a *Applier) settle(at *cursor, j *journal) error {
	type one struct {
		path string
		r    *placed
	}
	var ours []one
	err := eachPlaced(a.db, string(j.Key), func(path string, r *placed) error {
		if r.n == j.N {
			ours = append(ours, one{path, r})
		}
		return nil
	})
	if err != nil {
		return err
	}
	w := &writer{db: a.db, hook: a.hook}
	for _, o := range ours {
		if err := at.settle(o.path, o.r); err != nil {
			return fmt.Errorf("look at %q: %w", o.path, err)
		}
		if j.Undo != 0 {
			err = a.uncover(w, j, o.path, o.r)
		} else {
			err = w.put(kv.Placed(string(j.Key), o.path, o.r.n), o.r.encode(o.path))
		}
		if err == nil && j.Target != "" {
			err = a.dropOlder(w, j, o.path)
		}
		if err != nil {
			return err
		}
	}
	if err := w.flushAt(1); err != nil || j.Undo == 0 {
		return err
	}
	// Also what the undone commit noted where there was nothing to put back.
	return w.dropPlaced(string(j.Key), j.Undo)
}

// settle brings r in line with what the host says of the object, if it still is what was put there.
func (c *cursor) settle(path string, r *placed) error {
	if r.none {
		return nil
	}
	up, name := split(path)
	if path == "" {
		name = "."
	}
	d, err := c.dir(up)
	if notThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := d.stat(name)
	if err != nil || now == nil {
		return err
	}
	m := markOf(&now.Attr)
	if m.ino == r.host.ino && m.size == r.host.size && (isDir(&now.Attr) || m.mtime == r.host.mtime) {
		r.host = m
	}
	return nil
}

// dropOlder removes what earlier commits noted at a path of a target of which no commit can be undone.
func (a *Applier) dropOlder(w *writer, j *journal, path string) error {
	all, err := placedAt(a.db, string(j.Key), path)
	for _, o := range all {
		if o.n < j.N {
			w.b.Delete(kv.Placed(string(j.Key), path, o.n))
		}
	}
	return err
}

// uncover makes what was before a commit count again at a path that an undo put back. What the user had there, and was merged before the
// commit, is no commit's: the record of the undo stays, for who has it merged.
func (a *Applier) uncover(w *writer, j *journal, path string, r *placed) error {
	all, err := placedAt(a.db, string(j.Key), path)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(o *placed) bool { return o.n == j.Undo && o.over }) {
		return w.delete(kv.Placed(string(j.Key), path, r.n)) // a conflict, as it was
	}
	if r.direct {
		return w.put(kv.Placed(string(j.Key), path, r.n), r.encode(path))
	}
	var before *placed
	for _, o := range all {
		if o.n < j.Undo && before == nil {
			before = o
		}
	}
	w.b.Delete(kv.Placed(string(j.Key), path, r.n))
	if before == nil {
		before = &placed{putBack: true, gen: r.gen, branch: r.branch, layer: r.layer, want: r.want}
	}
	before.none, before.host, before.sum, before.xattrs = r.none, r.host, r.sum, r.xattrs
	return w.put(kv.Placed(string(j.Key), path, before.n), before.encode(path))
}
