package session

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// The states of a branch in a list of them.
const (
	branchMounted   = "mounted"
	branchUnmounted = "unmounted"
)

// addFork mounts a fork whose branch is open, and serves it from now on. Preconditions: s.forking is held.
func (s *Session) addFork(f *Session) error {
	var err error
	if f.mount, err = f.o.Mount(f); err != nil {
		return mountError(err)
	}
	err = s.changeRecord(func(r *Record) {
		r.setFork(ForkRecord{Branch: f.o.Branch, Mountpoint: f.o.Mountpoint, MadeMountpoint: f.made, Mounted: true})
	})
	if err != nil {
		s.log.Warn("the record does not know of the fork: a later mount will not bring it back by itself", "branch", f.o.Branch, "error", err)
	}
	all := append(slices.Clone(s.sessions()), f)
	slices.SortFunc(all[1:], func(a, b *Session) int { return strings.Compare(a.o.Branch, b.o.Branch) })
	s.served.Store(&all)
	f.watch()
	return nil
}

// setLeaving has calls about the branch refused.
func (s *Session) setLeaving() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
}

// forkEnded is called when the mount of a fork has ended. At the end of the daemon, that is all there
// is to do; else it was meant to go alone, and does not come back by itself.
func (s *Session) forkEnded() {
	s.forking.Lock()
	defer s.forking.Unlock()
	s.mu.Lock()
	stopping := s.stopping
	s.mu.Unlock()
	if !stopping {
		s.retire()
	}
}

// retire takes a fork whose mount has ended out of those that are served. Its branch stays. Preconditions: s.forking is held.
func (s *Session) retire() {
	all := s.sessions()
	at := slices.Index(all, s)
	if at < 0 {
		return // it was done already
	}
	s.setLeaving()
	s.heads.Lock() // what is under way comes to its end
	defer s.heads.Unlock()
	all = slices.Delete(slices.Clone(all), at, at+1)
	s.served.Store(&all)
	s.branch.Close()
	s.audit(s.event(ledger.KindUnmount))
	s.unready()
	err := s.changeRecord(func(r *Record) {
		if f := r.fork(s.o.Branch); f != nil {
			g := *f
			g.Mounted, g.MadeMountpoint, g.Problem = false, false, ""
			r.setFork(g)
		}
	})
	if err != nil {
		s.log.Warn("the record still says that the branch is mounted", "branch", s.o.Branch, "error", err)
	}
	s.log.Info("branch unmounted", "branch", s.o.Branch, "mountpoint", s.o.Mountpoint)
}

// bringBack mounts the forks that were mounted when the session was unmounted, or its daemon died.
func (s *Session) bringBack() {
	s.forking.Lock()
	defer s.forking.Unlock()
	for _, r := range s.Record().Forks {
		if !r.Mounted {
			continue
		}
		_, err := s.mountBranch(r.Branch, r)
		if err == nil {
			continue
		}
		s.log.Warn("a fork could not be mounted again", "branch", r.Branch, "mountpoint", r.Mountpoint, "error", err)
		r.Problem, r.MadeMountpoint = err.Error(), false
		if err := s.changeRecord(func(rec *Record) { rec.setFork(r) }); err != nil {
			s.log.Warn("note that a fork is not mounted", "branch", r.Branch, "error", err)
		}
	}
}

// mountBranch mounts a branch that is not mounted. Preconditions: s.forking is held.
func (s *Session) mountBranch(name string, place ForkRecord) (*Session, error) {
	has, err := s.hasBranch(name)
	if err != nil {
		return nil, apiError(err)
	}
	if !has {
		_, err := s.branchNamed(name)
		return nil, err
	}
	f := newSession(s.store, s.forkOptions(name, place.Mountpoint))
	if f.made, err = s.readyFork(&f.o); err != nil {
		return nil, err
	}
	f.made = f.made || place.MadeMountpoint && place.Mountpoint == f.o.Mountpoint
	if f.branch, err = s.tree.Branch(name); err == nil {
		err = f.loadBranchSide()
	}
	if err != nil {
		f.unready()
		return nil, apiError(fmt.Errorf("open branch %s: %w", name, err))
	}
	if op, ok := s.journal.LastFork(name); ok {
		f.born = op.Open
	}
	if err := s.addFork(f); err != nil {
		f.branch.Close()
		f.unready()
		return nil, err
	}
	event := f.event(ledger.KindMount)
	event.Details = map[string]any{"base": f.o.Base, "mountpoint": f.o.Mountpoint, "generation": s.record.Generation, "version": f.o.Version}
	s.audit(event)
	f.heads.Lock()
	defer f.heads.Unlock()
	f.lookAtRuns(context.Background())
	return f, nil
}

// MountBranch mounts a branch that is not mounted.
func (s *Session) MountBranch(_ context.Context, r *control.BranchMountRequest) (*control.Branch, error) {
	at, err := control.PathName{Path: r.Mountpoint, PathB64: r.MountpointB64}.Bytes()
	if err != nil {
		return nil, badRequest("the mount point is not base64: %v", err)
	}
	s.forking.Lock()
	defer s.forking.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	if r.Branch == "" {
		return nil, badRequest("the name of the branch is missing")
	}
	if b, err := s.branchNamed(r.Branch); err == nil {
		if b.alive() != nil {
			return nil, conflict("branch %s was detached from %s and still serves what is open there: end that, or cut it off with: rewindfs unmount --force --branch %s", r.Branch, b.o.Mountpoint, r.Branch)
		}
		return nil, conflict("branch %s is mounted already, at %s", r.Branch, b.o.Mountpoint)
	}
	var place ForkRecord
	rec := s.Record()
	if old := rec.fork(r.Branch); old != nil {
		place = *old
	}
	if at != "" && at != place.Mountpoint {
		place = ForkRecord{Mountpoint: at}
	}
	f, err := s.mountBranch(r.Branch, place)
	if err != nil {
		return nil, err
	}
	out := s.describeBranch(layers.Head{Branch: r.Branch, Layer: f.branch.HeadLayer(), Parent: f.branch.Parent()}, &rec)
	return &out, nil
}

// Branches lists the branches.
func (s *Session) Branches(context.Context, *control.None) (*control.Branches, error) {
	heads, err := s.tree.Heads()
	if err != nil {
		return nil, apiError(err)
	}
	rec := s.Record()
	out := &control.Branches{Branches: []control.Branch{}}
	for _, h := range heads {
		if isStaged(h.Branch) {
			continue
		}
		out.Branches = append(out.Branches, s.describeBranch(h, &rec))
	}
	slices.SortStableFunc(out.Branches, func(a, b control.Branch) int { // main first
		return boolCompare(a.Branch != MainBranch, b.Branch != MainBranch)
	})
	return out, nil
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func (s *Session) describeBranch(h layers.Head, rec *Record) control.Branch {
	out := control.Branch{Branch: h.Branch, State: branchUnmounted, Head: control.Head{Layer: uint64(h.Layer)}}
	at := ""
	if f := rec.fork(h.Branch); f != nil {
		at, out.Problem = f.Mountpoint, f.Problem
	}
	for _, b := range s.sessions() {
		if b.o.Branch == h.Branch {
			out.State, at, out.Problem = branchMounted, b.o.Mountpoint, ""
			out.ChangedPaths = b.branch.Changed()
		}
	}
	out.Mountpoint, out.MountpointB64 = at, control.NameOf(at).PathB64
	below := s.tree.Line(h.Parent)
	line := func(l uint64) bool { return below(layers.Layer(l)) }
	if e, ok := s.journal.Latest(line); ok {
		out.Head.ID, out.Head.Label = e.ID, e.Label
	}
	out.Checkpoints = s.journal.Count(line)
	if op, ok := s.journal.LastFork(h.Branch); ok {
		out.From, out.ForkedAt = op.Label, op.At.UTC()
	}
	return out
}

// DropBranch unmounts a branch and deletes it. What was changed in it since its newest layer was sealed is kept
// as an automatic checkpoint, for as long as no collection takes that.
func (s *Session) DropBranch(ctx context.Context, r *control.BranchDropRequest) (*control.BranchDropped, error) {
	if r.Branch == "" || r.Branch == MainBranch {
		return nil, badRequest("%q is no branch that can be deleted: name another one (rewindfs branch list); destroy deletes the whole session", r.Branch)
	}
	s.forking.Lock()
	defer s.forking.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	has, err := s.hasBranch(r.Branch)
	if err != nil {
		return nil, apiError(err)
	}
	f, err := s.branchNamed(r.Branch)
	if !has {
		return nil, err
	}
	out := &control.BranchDropped{Branch: r.Branch}
	if err == nil {
		out.Mountpoint = f.o.Mountpoint
		if err := f.takeAway(ctx, r.Force); err != nil {
			return nil, err
		}
	}
	branch, err := s.tree.Branch(r.Branch)
	if err != nil {
		return nil, apiError(fmt.Errorf("open branch %s: %w", r.Branch, err))
	}
	if out.Checkpoint, err = s.dropBranch(branch, true); err != nil {
		return nil, err
	}
	if err := s.changeRecord(func(rec *Record) { rec.dropFork(r.Branch) }); err != nil {
		s.log.Warn("the record still knows of the branch", "branch", r.Branch, "error", err)
	}
	return out, nil
}

// takeAway unmounts a fork that is to be deleted. Preconditions: s.forking is held.
func (s *Session) takeAway(ctx context.Context, force bool) error {
	s.heads.Lock()
	err := control.StillWaits(ctx)
	if err == nil && !force {
		err = s.barrier(ctx)
	}
	if err == nil {
		err = s.unmount(ctx, &control.UnmountRequest{Force: force})
	}
	s.heads.Unlock()
	if err != nil {
		return apiError(err)
	}
	s.awaitEnd()
	s.retire()
	return nil
}

// dropBranch removes an open branch from the store and, with keep, makes a checkpoint of what was changed in it
// since its newest layer was sealed; it returns that. Preconditions: s.forking is held.
func (s *Session) dropBranch(branch *layers.Branch, keep bool) (*control.Checkpoint, error) {
	name := branch.Name()
	s.layering.Lock()
	defer s.layering.Unlock()
	var entry *journal.Entry
	var op journal.Op
	var live func()
	talk, runs := s.memory.Live(name), s.openRuns(name)
	keep = keep && (!branch.Clean() || len(talk) > 0)
	sealed, err := branch.Drop(func(b *kv.Batch, at layers.Sealed) (err error) {
		b.UseReserve()
		if keep {
			e, err := s.journal.StageEntry(b, journal.Entry{
				Branch: name, Layer: uint64(at.Layer), Parent: uint64(at.Parent), ChangedPaths: at.Changed, CreatedAt: at.At, Auto: true,
				Message: "branch " + name + " when it was deleted", Conversation: snapshotOf(talk),
			})
			if err != nil {
				return err
			}
			entry = &e
		}
		op, err = s.journal.StageOp(b, journal.Op{
			Kind: journal.OpDropBranch, Branch: name, From: uint64(at.Layer), To: uint64(at.Parent), Open: uint64(at.Layer), At: at.At,
		})
		if err != nil {
			return err
		}
		for _, r := range runs {
			b.Delete(runKey(r.Layer))
		}
		b.Delete(kv.Meta(owedTargets + name))
		for _, state := range []string{statePolicy, stateLastAuto, stateLifecycle} {
			b.Delete(stateKey(name, state))
		}
		live, err = s.memory.StageLive(b, name, memory.Threads{})
		return err
	})
	if err != nil {
		return nil, apiError(fmt.Errorf("delete branch %s: %w", name, err))
	}
	s.journal.Commit(entry, &op)
	live()
	s.forgetRuns(runs)
	event := s.event(ledger.KindDropBranch)
	event.Branch, event.Op, event.Layer = name, op.N, uint64(sealed.Layer)
	var out *control.Checkpoint
	if entry != nil {
		c := wireCheckpoint(entry)
		out, event.Checkpoint = &c, entry.ID
	}
	event.Details = map[string]any{"changed_paths": sealed.Changed}
	s.audit(event)
	s.log.Info("branch deleted", "branch", name, "layer", sealed.Layer, "changed_paths", sealed.Changed)
	return out, nil
}
