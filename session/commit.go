package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/apply"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/paths"
)

// Commit brings a checkpoint to the host, tells what that would do, or takes the last one back.
func (s *Session) Commit(ctx context.Context, r *control.CommitRequest, out *control.Stream[control.CommitChange]) (*control.Committed, error) {
	if !s.committing.TryLock() {
		return nil, &control.Error{Code: control.CodeBusy, Message: "another commit of this session is under way: wait for its end"}
	}
	defer s.committing.Unlock()
	s.background.Add(1) // the store stays open until it has ended
	defer s.background.Done()
	if err := firstOf(s.alive(), control.StillWaits(ctx)); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := s.recoverCommit(); err != nil {
		return nil, apiError(fmt.Errorf("an earlier commit was cut off and cannot be brought to an end: %w", err))
	}
	defer s.committed.Store(0)
	c, res, err := s.planCommit(ctx, r)
	var merged map[string]*apply.Merge
	if err == nil && !r.DryRun {
		c, res, merged, err = s.mergeFirst(ctx, r, c, res)
	}
	if err != nil {
		return nil, commitError(err)
	}
	defer c.Close()
	if err := knowsPaths(c, r.Paths); err != nil {
		return nil, err
	}
	if len(c.Merges) > 0 && !r.DryRun && len(merged) > 0 { // they are in the mount, and some have markers
		res.EngineUS = time.Since(start).Microseconds()
		return res, describeMarkers(res, c, merged, out)
	}
	if err := describeCommit(ctx, res, c, r, merged, out); err != nil {
		return nil, err
	}
	if r.DryRun || res.Noop || res.Conflicts > 0 {
		res.EngineUS = time.Since(start).Microseconds()
		return res, nil
	}
	var line owed
	tell := teller{out: out}
	err = c.Do(ctx, tell.progress, func(b *kv.Batch, rec apply.Record, back bool) (err error) {
		line, err = s.owe(b, s.commitEvent(&rec, back, ""))
		return err
	})
	s.payApplied(line)
	if err != nil {
		return nil, commitError(err)
	}
	res.CanUndo = !r.Undo && r.To == ""
	res.Done, res.Notes = true, append(res.Notes, c.Notes...)
	res.EngineUS = time.Since(start).Microseconds()
	s.heads.Lock()
	s.lifecycle(lifeCommitted)
	s.heads.Unlock()
	s.log.Info("commit", "undo", r.Undo, "target", res.Target, "checkpoint", res.Checkpoint, "paths", res.Paths, "bytes", res.Bytes, "took", time.Since(start))
	return res, nil
}

// planCommit finds out what a request asks for, and plans it. Preconditions: s.committing is held.
func (s *Session) planCommit(ctx context.Context, r *control.CommitRequest) (*apply.Commit, *control.Committed, error) {
	res := &control.Committed{
		DryRun: r.DryRun, Undo: r.Undo, Target: s.o.Base, Counts: map[string]int{}, Notes: []string{}, HoldList: filepath.Join(s.o.Store, holdName),
	}
	req := apply.Request{Branch: s.o.Branch, OnConflict: apply.OnConflict(r.OnConflict), Special: r.Special, Merge: r.Merge, Markers: r.Markers}
	switch req.OnConflict {
	case "", apply.Abort, apply.Ours, apply.Theirs:
	default:
		return nil, nil, badRequest("on_conflict is %q: use abort, ours or theirs", r.OnConflict)
	}
	if err := checkMerge(r); err != nil {
		return nil, nil, err
	}
	a := apply.New(s.db, s.tree, s.base, s.log, s.o.Now)
	if r.Undo {
		if r.Ref != "" || r.To != "" || len(r.Paths)+len(r.Hunks) > 0 {
			return nil, nil, badRequest("an undo is of the last commit to the base, and of all of it: leave the checkpoint, the target and the paths out")
		}
		c, err := a.PlanUndo(ctx, req, apply.Record{})
		return c, res, err
	}
	var err error
	rec := apply.Record{}
	only := r.Paths
	if len(r.Hunks) > 0 {
		var more [][]byte
		if more, req.Edits, err = hunkEdits(r.Hunks); err != nil {
			return nil, nil, err
		}
		only = append(more, only...)
	}
	if len(only) > 0 {
		rec.Part = true
		if req.Paths, err = pathFilter(only); err != nil {
			return nil, nil, err
		}
	}
	if s.rules.Ignores() {
		req.Ignored = s.rules.Ignored
	}
	if !r.ExecutableConfig {
		req.Rules = paths.FileName
		if req.Hold, err = s.holdList(); err != nil {
			return nil, nil, err
		}
	}
	if err := s.commitPoint(ctx, r, &req, &rec); err != nil {
		return nil, nil, err
	}
	if r.To == "" {
		c, err := a.PlanBase(ctx, req, rec)
		return c, res, err
	}
	to, err := control.PathName{Path: r.To, PathB64: r.ToB64}.Bytes()
	if err != nil {
		return nil, nil, badRequest("the target is not base64: %v", err)
	}
	at, done, err := s.readyTarget(to, r.DryRun)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	res.Target = to
	c, err := a.PlanDir(ctx, at, req, rec)
	return c, res, err
}

// checkMerge refuses what does not go together.
func checkMerge(r *control.CommitRequest) error {
	switch {
	case r.Merge && (r.Undo || r.To != ""):
		return badRequest("a merge is with what the base has on the host: leave undo and the target out")
	case r.Merge && r.Ref != "" && r.Ref != control.RefHead:
		return badRequest("a merge is done in the mount, so it is of the present state: leave the checkpoint out, or roll back to it first")
	case r.Merge && len(r.Hunks) > 0:
		return badRequest("merge first, then choose hunks")
	case r.Markers && !r.Merge:
		return badRequest("conflict markers come with a merge: ask for that, too")
	case r.Patch && !r.DryRun:
		return badRequest("the patch comes with a dry run: ask for that, too")
	case len(r.Hunks) > 0 && r.To != "":
		return badRequest("hunks are of changes to the base: leave the target out")
	}
	return nil
}

// knowsPaths fails if one of the paths that are to be brought is nowhere: it was mistyped.
func knowsPaths(c *apply.Commit, paths [][]byte) error {
	want, err := filterPaths(paths)
	if err != nil {
		return err
	}
	for _, p := range want {
		if p == "." {
			continue
		}
		known, err := c.Knows(p)
		if err != nil {
			return apiError(err)
		}
		if !known {
			return badPath("%s: neither the checkpoint nor the host has anything of that name; paths are relative to the root of the project", quotePath(p))
		}
	}
	return nil
}

// commitPoint finds the checkpoint to bring, making one of the present state.
func (s *Session) commitPoint(ctx context.Context, r *control.CommitRequest, req *apply.Request, rec *apply.Record) error {
	present := r.Ref == "" || r.Ref == control.RefHead
	if present && r.DryRun {
		if err := s.barrier(ctx); err != nil {
			return err
		}
		req.Layer = s.branch.HeadLayer()
		return nil
	}
	var to journal.Target
	var err error
	if present {
		to, err = s.presentPoint(ctx)
	} else {
		to, err = s.resolve(r.Ref)
	}
	if err != nil {
		return err
	}
	req.Layer = layers.Layer(to.Layer)
	if req.Layer == layers.BaseLayer && r.To == "" {
		return badRequest("the base is what commits go to: take commits back with: rewindfs commit --undo")
	}
	s.committed.Store(to.Layer)
	if e := to.Entry; e != nil {
		rec.Checkpoint, rec.Label = e.ID, e.Label
	}
	return nil
}

// presentPoint is the checkpoint of the present state: the newest one, if nothing was changed since, else a new one.
func (s *Session) presentPoint(ctx context.Context) (journal.Target, error) {
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return journal.Target{}, err
	}
	at := s.branch.Parent()
	if err := s.barrier(ctx); err != nil || !s.branch.Clean() || at == layers.BaseLayer {
		if err != nil {
			return journal.Target{}, err
		}
		return s.sealPresent(ctx, "commit")
	}
	to := journal.Target{Layer: uint64(at)}
	if e, ok := s.journal.Newest(to.Layer); ok {
		to.Entry = &e
	}
	return to, nil
}

// readyTarget makes the directory to that a commit is to go to, if need be, and says where to look
// at it. done is to be called once the plan is made.
func (s *Session) readyTarget(to string, dry bool) (at string, done func(), err error) {
	done = func() {}
	if !filepath.IsAbs(to) || filepath.Clean(to) != to {
		return "", nil, badRequest("the target %q is no absolute path", to)
	}
	places := []string{s.o.Base, s.o.Store}
	for _, b := range s.sessions() {
		places = append(places, b.o.Mountpoint)
	}
	for _, p := range places {
		// By name first: the daemon must not look for files in its own mounts.
		if below(to, p) || below(p, to) || inside(to, p) {
			return "", nil, badPath("the target %s and %s lie in each other: give a directory of its own", to, p)
		}
	}
	fi, err := os.Lstat(to)
	switch {
	case err == nil && fi.IsDir():
		return to, done, nil
	case err == nil:
		return "", nil, badPath("the target %s is no directory", to)
	case !errors.Is(err, fs.ErrNotExist):
		return "", nil, badPath("look at the target: %v", err)
	case dry: // the plan is that of an empty one
		if at, err = os.MkdirTemp(s.o.Store, "dry-run-"); err != nil {
			return "", nil, apiError(err)
		}
		return at, func() { _ = os.Remove(at) }, nil
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return "", nil, badPath("make the target: %v", err)
	}
	return to, done, nil
}

// describeCommit fills in res and sends what the plan is.
func describeCommit(ctx context.Context, res *control.Committed, c *apply.Commit, r *control.CommitRequest, merged map[string]*apply.Merge, out *control.Stream[control.CommitChange]) error {
	res.Noop, res.Paths, res.Bytes, res.Overridden = c.Noop() && !c.Conflicts(), c.Record.Paths, c.Record.Bytes, c.Record.Over
	res.Layer, res.CheckpointID, res.Checkpoint = c.Record.Layer, c.Record.Checkpoint, c.Record.Label
	if res.Checkpoint == "" {
		res.Checkpoint = res.CheckpointID // of a layer that a movement sealed there is none
	}
	res.TargetB64 = control.NameOf(res.Target).PathB64
	var patches map[string][]byte
	if r.Patch {
		var err error
		if patches, err = commitPatch(ctx, c); err != nil {
			return apiError(err)
		}
	}
	res.Merged = len(merged)
	for _, ch := range c.Changes {
		res.Counts[ch.Status]++
		if merged[ch.Path] != nil {
			ch.Merge, ch.Reason = apply.MergeClean, mergedReason
		}
		if r.List || ch.Reason != "" {
			if err := out.Emit(wireCommitChange(&ch, "").WithText(patches[ch.Path])); err != nil {
				return err
			}
		}
		delete(merged, ch.Path)
	}
	for _, path := range slices.Sorted(maps.Keys(merged)) { // what is a conflict again, or as the host has it
		ch := apply.Change{Path: path, Status: "M", Type: unix.S_IFREG, OldSize: merged[path].Host.Size, NewSize: int64(len(merged[path].Text)), Merge: apply.MergeClean, Reason: mergedReason}
		if err := out.Emit(wireCommitChange(&ch, "")); err != nil {
			return err
		}
	}
	for _, ch := range c.Left {
		res.Counts[ch.Status]++
		if err := out.Emit(wireCommitChange(&ch, ch.Status)); err != nil {
			return err
		}
	}
	if c.Conflicts() {
		res.Conflicts = res.Counts["conflict"]
	}
	return nil
}

func wireCommitChange(c *apply.Change, left string) control.CommitChange {
	ch := layers.Change{Status: layers.ChangeStatus(c.Status), Path: c.Path, Type: c.Type, OldSize: c.OldSize, NewSize: c.NewSize, Content: c.Content}
	out := control.CommitChange{Change: wireChange(&ch), Left: left, Reason: c.Reason, Merge: c.Merge}
	if left != "" {
		out.Status = ""
	}
	return out
}

// teller sends progress, from whatever goroutine, and not too often.
type teller struct {
	out  *control.Stream[control.CommitChange]
	mu   sync.Mutex
	last time.Time
}

func (t *teller) progress(what string, done, total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.last) > 100*time.Millisecond || total == 0 {
		t.last = now
		_ = t.out.Progress(control.Progress{Done: done, Total: total, Unit: what}) // who went away does not hold it up
	}
}

// commitError gives an error of a commit the code that clients act on.
func commitError(err error) error {
	var race *apply.ConflictError
	var edit *apply.EditError
	switch {
	case errors.As(err, &edit):
		return &control.Error{Code: control.CodeConflict, Message: "nothing was written: " + edit.Error(), Details: map[string]any{"path": edit.Path}}
	case errors.As(err, &race):
		return &control.Error{Code: control.CodeConflict, Message: "conflict: " + race.Error(), Details: map[string]any{"path": race.Path}}
	case errors.Is(err, apply.ErrNoCommit):
		return &control.Error{Code: control.CodeNothing, Message: err.Error()}
	case errors.Is(err, context.Canceled):
		return &control.Error{Code: control.CodeGone, Message: "given up by who asked: the host is as it was"}
	}
	return apiError(err)
}

// lastCommit returns the layer of the line that was brought to the base last, BaseLayer for none.
func (s *Session) lastCommit() (layers.Layer, error) {
	all, err := apply.Records(s.db)
	if err != nil {
		return 0, apiError(err)
	}
	for _, r := range slices.Backward(all) {
		if !r.Part && s.line(r.Layer) && s.tree.Has(layers.Layer(r.Layer)) {
			return layers.Layer(r.Layer), nil
		}
	}
	return layers.BaseLayer, nil
}

// recoverCommit brings a commit that was cut off to an end. Nobody else commits.
func (s *Session) recoverCommit() error {
	var line owed
	rec, err := apply.New(s.db, s.tree, s.base, s.log, s.o.Now).Recover(func(b *kv.Batch, rec apply.Record, back bool) (err error) {
		how := "finished"
		if back {
			how = "taken_back"
		}
		line, err = s.owe(b, s.commitEvent(&rec, back, how))
		return err
	})
	s.payApplied(line)
	if rec != nil {
		s.log.Warn("a commit was cut off, and has been brought to an end", "branch", rec.Branch, "target", rec.Target, "checkpoint", rec.Checkpoint)
	}
	return err
}

// payApplied records a line that may be owed: if the batch with it was applied.
func (s *Session) payApplied(line owed) {
	if line.key == nil {
		return
	}
	if _, ok, err := s.db.Get(line.key); err == nil && ok {
		s.pay([]owed{line})
	}
}

// commitEvent is the ledger's line of a commit.
func (s *Session) commitEvent(r *apply.Record, back bool, recovered string) ledger.Event {
	e := s.event(ledger.KindCommit)
	e.Branch, e.Checkpoint, e.Label, e.Layer = r.Branch, r.Checkpoint, r.Label, r.Layer
	target := r.Target
	if target == "" {
		target = s.o.Base
	}
	e.Details = map[string]any{
		"commit": r.N, "target": target, "paths": r.Paths, "bytes": r.Bytes, "overridden": r.Over, "taken_back": back,
	}
	if r.Undo != 0 {
		e.Details["undo_of"] = r.Undo
	}
	if recovered != "" {
		e.Details["recovered"] = recovered
	}
	return e
}
