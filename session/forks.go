package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// A fork is a branch beside main: a session of its own on the same store, in the same daemon, with a
// mount of its own. What belongs to the branch is in Session, what they share in store.

// maxBranch is the longest name of a branch, in bytes: it becomes part of a mount point's name.
const maxBranch = 100

func checkBranch(name string) error {
	if checkName(name) != nil || len(name) > maxBranch {
		return badRequest("%q cannot name a branch: use letters and digits, at most %d bytes", name, maxBranch)
	}
	return nil
}

// isFork tells the sessions of other branches from that of Open.
func (s *Session) isFork() bool { return s != s.sessions()[0] }

// branchNamed returns the session of a mounted branch; "" is that of Open.
func (s *Session) branchNamed(name string) (*Session, error) {
	all := s.sessions()
	if name == "" {
		return all[0], nil
	}
	if i := slices.IndexFunc(all, func(b *Session) bool { return b.o.Branch == name }); i >= 0 {
		return all[i], nil
	}
	if has, err := s.hasBranch(name); err != nil {
		return nil, apiError(err)
	} else if has && !isStaged(name) {
		return nil, unknownBranch("branch %q is not mounted: bring it back with: rewindfs branch mount %s", name, name)
	}
	return nil, s.noBranch(name)
}

// noBranch says which branches there are.
func (s *Session) noBranch(name string) error {
	lines, err := s.lines()
	if err != nil {
		return apiError(err)
	}
	var names []string
	for _, b := range lines {
		names = append(names, b.branch)
	}
	return unknownBranch("there is no branch %q; there are: %s", name, strings.Join(names, ", "))
}

func unknownBranch(format string, args ...any) error {
	return &control.Error{Code: control.CodeUnknownBranch, Message: fmt.Sprintf(format, args...)}
}

// hasBranch reports whether the store has a branch, mounted or not.
func (s *Session) hasBranch(name string) (bool, error) {
	heads, err := s.tree.Heads()
	return slices.ContainsFunc(heads, func(h layers.Head) bool { return h.Branch == name }), err
}

// Fork makes a branch that begins at a checkpoint, or at the present state, and mounts it. No byte
// is copied.
func (s *Session) Fork(ctx context.Context, r *control.ForkRequest) (*control.Forked, error) {
	if err := checkBranch(r.Branch); err != nil {
		return nil, err
	}
	at, err := control.PathName{Path: r.Mountpoint, PathB64: r.MountpointB64}.Bytes()
	if err != nil {
		return nil, badRequest("the mount point is not base64: %v", err)
	}
	s.forking.Lock()
	defer s.forking.Unlock()
	if err := firstOf(s.alive(), control.StillWaits(ctx)); err != nil {
		return nil, err
	}
	if has, err := s.hasBranch(r.Branch); err != nil {
		return nil, apiError(err)
	} else if has {
		return nil, conflict("there is a branch %q already: choose another name, mount it with: rewindfs branch mount %s, or delete it with: rewindfs branch delete %s", r.Branch, r.Branch, r.Branch)
	}
	f := newSession(s.store, s.forkOptions(r.Branch, at))
	if f.made, err = s.readyFork(&f.o); err != nil {
		return nil, err
	}
	start := time.Now()
	from, err := s.forkAt(ctx, f, r)
	if err != nil {
		f.unready()
		return nil, err
	}
	made := time.Now()
	if err := s.addFork(f); err != nil {
		_, dropErr := s.dropBranch(f.branch, false)
		f.unready()
		return nil, errors.Join(err, dropErr)
	}
	out := &control.Forked{
		Branch: r.Branch, Mountpoint: f.o.Mountpoint, MountpointB64: control.NameOf(f.o.Mountpoint).PathB64,
		Checkpoint: from.to.Name(), Layer: from.to.Layer, EngineUS: made.Sub(start).Microseconds(), MountUS: time.Since(made).Microseconds(),
		Conversation: wireConversation(snapshotOf(from.conv.live)), Repairs: wireRepairs(from.conv.main.Changes), Notice: from.conv.main.Notice,
	}
	event := f.event(ledger.KindFork)
	if e := from.to.Entry; e != nil {
		out.CheckpointID, event.Checkpoint = e.ID, e.ID
	}
	event.Op, event.Label, event.Layer = from.op.N, from.to.Name(), from.to.Layer
	event.Details = map[string]any{"mountpoint": f.o.Mountpoint, "in": s.o.Branch, "repairs": len(out.Repairs)}
	s.audit(event)
	s.log.Info("fork", "branch", r.Branch, "at", out.Checkpoint, "layer", out.Layer, "mountpoint", f.o.Mountpoint, "took", made.Sub(start))
	return out, nil
}

func conflict(format string, args ...any) error {
	return &control.Error{Code: control.CodeConflict, Message: fmt.Sprintf(format, args...)}
}

// forkOptions are the options of a branch mounted at place or, when that is "", beside the session's own mount.
func (s *Session) forkOptions(branch, place string) Options {
	o := s.sessions()[0].o
	if place == "" {
		if place = o.Mountpoint; o.Over {
			place = o.Base + ".rewind"
		}
		place += "-" + branch
	}
	o.Branch, o.Mountpoint, o.Over = branch, place, false
	return o
}

// readyFork checks the mount point of a branch and makes it when it is missing.
func (s *Session) readyFork(o *Options) (made bool, err error) {
	if !filepath.IsAbs(o.Mountpoint) || filepath.Clean(o.Mountpoint) != o.Mountpoint {
		return false, badRequest("the mount point %q is no absolute path", o.Mountpoint)
	}
	for _, b := range s.sessions() {
		// By name first: the daemon must not look for files in its own mounts.
		if below(o.Mountpoint, b.o.Mountpoint) || below(b.o.Mountpoint, o.Mountpoint) || inside(o.Mountpoint, b.o.Mountpoint) {
			return false, badPath("the mount point %s and that of branch %s, %s, lie in each other: give another one", o.Mountpoint, b.o.Branch, b.o.Mountpoint)
		}
	}
	if err := o.checkPlaces(); err != nil {
		return false, err
	}
	return o.readyMountpoint()
}

// unready takes back what readyFork made.
func (s *Session) unready() {
	if s.made {
		s.removeMountpoint(s.o.Mountpoint)
		s.made = false
	}
}

// forkPoint is where a fork begins.
type forkPoint struct {
	to   journal.Target
	conv *restored
	op   journal.Op
}

// forkAt makes the branch of f: the head, its conversations, its policy and the journal's note of it, in one
// batch. Preconditions: s.forking is held.
func (s *Session) forkAt(ctx context.Context, f *Session, r *control.ForkRequest) (*forkPoint, error) {
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	present := r.Ref == "" || r.Ref == control.RefHead
	p := &forkPoint{conv: &restored{live: memory.Threads{}}}
	var err error
	if present {
		p.to, err = s.sealPresent(ctx, "fork")
	} else {
		p.to, err = s.resolveAnywhere(r.Ref)
	}
	if err != nil {
		return nil, apiError(err)
	}
	if e := p.to.Entry; e != nil && !r.FilesOnly {
		if p.conv, err = s.restoreConversations(e, e.Conversation, wanted{as: spoken(p.to), noNotice: r.NoNotice || present}); err != nil {
			return nil, err
		}
	}
	f.policy, f.life, f.arrived = s.policy, lifeCreated, p.conv.live
	f.policy.GC = nil // that of main is about the whole store
	s.layering.Lock()
	defer s.layering.Unlock()
	var live func()
	f.branch, err = s.tree.Fork(r.Branch, layers.Layer(p.to.Layer), func(b *kv.Batch, made layers.Forked) (err error) {
		b.UseReserve()
		p.op, err = s.journal.StageOp(b, journal.Op{
			Kind: journal.OpFork, Branch: r.Branch, From: p.to.Layer, To: p.to.Layer, Open: uint64(made.Open), Label: p.to.Name(), At: made.At,
		})
		if err == nil {
			live, err = s.memory.StageLive(b, r.Branch, p.conv.live)
		}
		for name, v := range map[string]any{statePolicy: f.policy, stateLifecycle: f.life} {
			if err == nil {
				err = f.stageState(b, name, v)
			}
		}
		return err
	})
	if err != nil {
		return nil, apiError(fmt.Errorf("make branch %s: %w", r.Branch, err))
	}
	s.journal.Commit(nil, &p.op)
	live()
	f.born = p.op.Open
	return p, nil
}

// sealPresent makes an automatic checkpoint of what there is now, for a purpose. Preconditions: s.heads is held.
func (s *Session) sealPresent(ctx context.Context, purpose string) (journal.Target, error) {
	e := journal.Entry{Branch: s.o.Branch, Phase: purpose, Auto: true}
	if calls := s.calls.inflight(); len(calls) > 0 {
		e.Tool = &journal.Tool{Inflight: calls}
	}
	made, err := s.sealLocked(ctx, sealing{entry: e, talk: s.memory.Live(s.o.Branch), shareLayer: true})
	if err != nil {
		return journal.Target{}, err
	}
	return journal.Target{Layer: made.entry.Layer, Entry: &made.entry}, nil
}

// branchLine is the line of a branch, mounted or not.
type branchLine struct {
	branch string
	has    func(layers.Layer) bool
}

// lines lists the lines of all branches.
func (s *Session) lines() ([]branchLine, error) {
	heads, err := s.tree.Heads()
	if err != nil {
		return nil, err
	}
	var out []branchLine
	for _, h := range heads {
		if !isStaged(h.Branch) {
			out = append(out, branchLine{h.Branch, s.tree.Line(h.Layer)})
		}
	}
	return out, nil
}

// resolveAnywhere is resolve that also knows the labels of other branches, where they mean one thing.
func (s *Session) resolveAnywhere(ref string) (journal.Target, error) {
	to, err := s.resolve(ref)
	if control.CodeOf(err) != control.CodeUnknownCheckpoint {
		return to, err
	}
	lines, lerr := s.lines()
	if lerr != nil {
		return to, apiError(lerr)
	}
	var found []journal.Target
	var in []string
	for _, b := range lines {
		t, berr := s.journal.Resolve(ref, func(l uint64) bool { return b.has(layers.Layer(l)) })
		if b.branch != s.o.Branch && berr == nil && s.tree.Has(layers.Layer(t.Layer)) {
			in = append(in, b.branch)
			if !slices.ContainsFunc(found, func(f journal.Target) bool { return f.Layer == t.Layer }) {
				found = append(found, t)
			}
		}
	}
	switch len(found) {
	case 0:
		return to, err
	case 1:
		return found[0], nil
	}
	return to, &control.Error{
		Code:    control.CodeAmbiguousCheckpoint,
		Message: fmt.Sprintf("the checkpoint %q of branches %s is not the same one: name it by its id (rewindfs log --all)", ref, strings.Join(in, ", ")),
	}
}
