package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rewindfs/rewindfs/archive"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
	"github.com/rewindfs/rewindfs/memory/convo"
)

// metaImported is the key of a checkpoint's metadata under which an import puts the id that it had.
const metaImported = "imported_id"

// checkpoint seals what was built, and keeps the entry for later.
func (m *importing) checkpoint(c *archive.Checkpoint) error {
	e, err := entryOf(c)
	if err != nil {
		return err
	}
	if c.SameLayer {
		if len(m.entries) == 0 || !m.branch.Clean() {
			return fmt.Errorf("%w: a checkpoint shares a layer that is not there", archive.ErrBad)
		}
		last := m.entries[len(m.entries)-1]
		e.Layer, e.Parent, e.Seq = last.Layer, last.Parent, last.Seq+1
		m.entries = append(m.entries, e)
		return nil
	}
	m.s.layering.Lock()
	sealed, err := m.branch.Seal(nil)
	m.s.layering.Unlock()
	if err != nil {
		return fmt.Errorf("seal checkpoint %d of the archive: %w", len(m.entries)+1, err)
	}
	e.Layer, e.Parent, e.ChangedPaths = uint64(sealed.Layer), uint64(sealed.Parent), sealed.Changed
	m.entries = append(m.entries, e)
	return nil
}

// entryOf reads a checkpoint of an archive, which may say anything.
func entryOf(c *archive.Checkpoint) (journal.Entry, error) {
	no := func(format string, args ...any) (journal.Entry, error) {
		return journal.Entry{}, fmt.Errorf("%w: a checkpoint: %w", archive.ErrBad, fmt.Errorf(format, args...))
	}
	e := journal.Entry{
		Label: c.Label, Message: c.Message, Metadata: maps.Clone(c.Metadata), Phase: c.Phase, Turn: c.Turn, ToolCall: c.ToolCall,
		CreatedAt: c.CreatedAt, Auto: c.Auto, Pending: c.Pending,
	}
	if len(c.Threads) > maxThreads {
		return no("it has %d threads, more than %d", len(c.Threads), maxThreads)
	}
	threads := memory.Threads{}
	for name, t := range c.Threads {
		if err := checkThread(name); err != nil {
			return no("%w", err)
		}
		ref := memory.Ref{Format: convo.Format(t.Format), Lines: t.Lines, Messages: t.Messages, Digest: t.Digest, Missing: t.Missing}
		if ref.Messages < 0 || (ref.Digest == "") != (ref.Messages == 0) || len(t.Format) > maxName {
			return no("thread %q has %d messages and the digest %.80q", name, ref.Messages, ref.Digest)
		}
		threads[name] = ref
	}
	e.Conversation = snapshotOf(threads)
	if len(c.Tool) > 0 {
		dec := json.NewDecoder(bytes.NewReader(c.Tool))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e.Tool); err != nil {
			return no("%w", err)
		}
	}
	if e.Metadata == nil {
		e.Metadata = map[string]string{}
	}
	if len(c.ID) > maxName {
		return no("its id has %d bytes", len(c.ID))
	}
	e.Metadata[metaImported] = c.ID
	if err := e.Validate(); err != nil {
		return no("%w", err)
	}
	return e, nil
}

// labels gives each entry a label that is free in the line of the branch, and returns those that had to be changed.
func (m *importing) labels() map[string]string {
	renamed, taken := map[string]string{}, map[string]bool{}
	none := func(uint64) bool { return false } // nothing but these is in the line
	for i := range m.entries {
		e := &m.entries[i]
		label := e.Label
		for n := 2; e.Label != "" && (taken[e.Label] || m.s.journal.LabelFree(e.Label, none) != nil); n++ {
			end := "-" + strconv.Itoa(n)
			e.Label = strings.ToValidUTF8(label[:min(len(label), journal.MaxLabel-len(end))], "") + end
		}
		if taken[e.Label] = true; e.Label != label {
			renamed[label] = e.Label
		}
	}
	return renamed
}

// publish makes the staged branch one like others, and mounts it.
func (m *importing) publish(name, at string) (*control.Imported, error) {
	s := m.s
	s.forking.Lock()
	defer s.forking.Unlock()
	if err := firstOf(s.alive(), m.ctx.Err(), s.nameFree(name)); err != nil {
		return nil, err
	}
	last := &m.entries[len(m.entries)-1]
	talk := threadsOf(last.Conversation)
	var err error
	f := newSession(s.store, s.forkOptions(name, at))
	if f.made, err = s.readyFork(&f.o); err != nil {
		return nil, err
	}
	f.branch, f.policy, f.life, f.arrived = m.branch, s.policyNow(), lifeCreated, talk
	renamed := m.labels()
	op, err := m.apply(f)
	if err != nil {
		f.unready()
		return nil, err
	}
	f.born = op.Open
	out := &control.Imported{
		Branch: name, Mountpoint: f.o.Mountpoint, MountpointB64: control.NameOf(f.o.Mountpoint).PathB64, Checkpoints: []control.Checkpoint{}, Renamed: renamed,
		Conversation: wireConversation(last.Conversation),
	}
	for i := range m.entries {
		out.Checkpoints = append(out.Checkpoints, wireCheckpoint(&m.entries[i]))
	}
	event := f.event(ledger.KindImport)
	event.Op, event.Label, event.Layer, event.Checkpoint = op.N, op.Label, op.To, m.entries[len(m.entries)-1].ID
	event.Details = map[string]any{"checkpoints": len(m.entries), "mountpoint": f.o.Mountpoint, "renamed": len(renamed)}
	s.audit(event)
	s.log.Info("import", "branch", name, "checkpoints", len(m.entries), "mountpoint", f.o.Mountpoint)
	if err := s.addFork(f); err != nil {
		f.branch.Close()
		f.unready()
		out.Problem = err.Error()
	}
	return out, nil
}

// policyNow is the policy of the branch that a call is about.
func (s *Session) policyNow() control.Policy {
	s.heads.Lock()
	defer s.heads.Unlock()
	return s.policy
}

// apply makes everything known, in one batch. Preconditions: s.forking is held.
func (m *importing) apply(f *Session) (op journal.Op, err error) {
	s := m.s
	s.layering.Lock()
	defer s.layering.Unlock()
	made := slices.Clone(m.entries)
	var live func()
	err = m.branch.Publish(f.o.Branch, func(b *kv.Batch, at layers.Forked) (err error) {
		for i := range made {
			made[i].Branch = f.o.Branch
			if made[i], err = s.journal.StageEntry(b, made[i]); err != nil {
				return err
			}
		}
		op, err = s.journal.StageOp(b, journal.Op{
			Kind: journal.OpImport, Branch: f.o.Branch, From: uint64(at.Target), To: uint64(at.Target), Open: uint64(at.Open),
			Label: journal.Target{Entry: &made[len(made)-1]}.Name(), At: at.At,
		})
		if err == nil {
			live, err = s.memory.StageLive(b, f.o.Branch, f.arrived)
		}
		for name, v := range map[string]any{statePolicy: f.policy, stateLifecycle: f.life} {
			if err == nil {
				err = f.stageState(b, name, v)
			}
		}
		return err
	})
	if errors.Is(err, layers.ErrBranchExists) {
		return op, conflict("there is a branch %q already: import under another name, with --branch", f.o.Branch)
	}
	if err != nil {
		return op, fmt.Errorf("make branch %s: %w", f.o.Branch, err)
	}
	delete(s.staged, m.branch)
	m.entries = made
	for i := range made {
		s.journal.Commit(&made[i], nil)
	}
	s.journal.Commit(nil, &op)
	live()
	return op, nil
}
