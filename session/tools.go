package session

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/ledger"
)

// maxName is the longest name of a tool, a call, a step or an agent, in bytes.
const maxName = 1 << 10

func checkNames(names map[string]string) error {
	for what, name := range names {
		if len(name) > maxName || !utf8.ValidString(name) {
			return badRequest("the %s is longer than %d bytes, or no UTF-8", what, maxName)
		}
	}
	return nil
}

// ToolBegin notes that a tool call is about to start and, unless another mutating call
// is in flight, keeps the state in front of it. Where nothing was changed since the
// newest layer was sealed, that costs a journal record and no layer.
func (s *Session) ToolBegin(ctx context.Context, r *control.ToolBegin) (*control.ToolBegun, error) {
	if r.Name == "" {
		return nil, badRequest("a tool call needs the name of its tool")
	}
	if err := checkNames(map[string]string{"tool name": r.Name, "call id": r.Call, "step id": r.Step, "agent id": r.Agent, "turn id": r.Turn}); err != nil {
		return nil, err
	}
	took := &copied{release: func() {}}
	if !r.ReadOnly {
		var err error
		if took, err = s.copyRulesTargets(ctx); err != nil {
			return nil, apiError(err)
		}
	}
	defer took.release()
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	if err := s.withinBudget("tool " + r.Name); err != nil {
		return nil, err
	}
	if r.Call == "" {
		s.madeUp++
		r.Call = fmt.Sprintf("call-%d-%d", s.record.Generation, s.madeUp)
	} else if s.calls.has(r.Call) {
		return nil, &control.Error{Code: control.CodeConflict, Message: fmt.Sprintf("the tool call %s is under way already: end it first", r.Call)}
	}
	now, err := s.merged(r.Threads, r.Missing)
	if err != nil {
		return nil, err
	}
	b := s.calls.begin(r.Call, r.Name, r.Agent, r.Step, r.ReadOnly, s.branch.Ops())
	out := &control.ToolBegun{Call: r.Call, Sealed: b.seal, Inflight: s.calls.inflight()}
	event := s.event(ledger.KindToolBegin)
	event.Details = map[string]any{"tool": r.Name, "call": r.Call, "step": r.Step, "readonly": r.ReadOnly, "sealed": b.seal}
	switch {
	case b.seal:
		e := journal.Entry{Branch: s.o.Branch, Phase: "pre_execute", Turn: r.Turn, ToolCall: r.Call, Auto: true, Tool: &b.tool, Targets: took.copies}
		made, err := s.sealLocked(ctx, sealing{entry: e, talk: now, shareLayer: true})
		if err != nil {
			s.calls.end(r.Call) // it does not start
			return nil, apiError(err)
		}
		s.before.Store(&made.entry)
	case len(r.Threads)+len(r.Missing) > 0:
		if err := s.applyLive(s.heard(now)); err != nil {
			return nil, apiError(err)
		}
	}
	if at := s.before.Load(); at != nil && !r.ReadOnly {
		c := wireCheckpoint(at)
		out.Checkpoint = &c
		event.Checkpoint, event.Layer = at.ID, at.Layer
	}
	s.audit(event)
	s.thinOut()
	return out, nil
}

// ToolEnd notes that a tool call has ended, and does what the policy says about it.
func (s *Session) ToolEnd(ctx context.Context, r *control.ToolEnd) (*control.ToolEnded, error) {
	if err := checkNames(map[string]string{"call id": r.Call}); err != nil {
		return nil, err
	}
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	if err := s.budget.keep(false); err != nil {
		s.log.Warn("note how many bytes were written", "error", err)
	}
	ended := s.calls.end(r.Call)
	out := &control.ToolEnded{Call: r.Call, Known: ended != nil, Verify: []control.Verifier{}, Warnings: []string{}, Inflight: s.calls.inflight()}
	tool, mutating := "", true
	if ended != nil {
		out.Call, tool, mutating = ended.id, ended.name, !ended.readOnly
	}
	event := s.event(ledger.KindToolEnd)
	event.Details = map[string]any{"tool": tool, "call": out.Call, "known": out.Known}
	if ended != nil && ended.lied(s.branch.Ops()) {
		mutating = true
		event.Details["changed_though_readonly"] = true
		out.Warnings = append(out.Warnings, fmt.Sprintf("%s began with --readonly and has changed files: there is no checkpoint in front of it; begin it without --readonly", tool))
	}
	if len(r.Usage) > 0 {
		// The call has ended whatever its usage is: it must not stay in flight.
		if err := s.budget.readUsage(r.Usage, out.Call); err != nil {
			out.Warnings = append(out.Warnings, fmt.Sprintf("the usage is not counted: %v", err))
			event.Details["usage_error"] = err.Error()
		}
	}
	if r.Error != "" {
		event.Details["error"] = r.Error
		s.lifecycle(lifeErrored)
	}
	s.audit(event)
	if reason, over := s.overBudget(); over {
		out.Budget = reason
	}
	p := s.policy.AutoRollback
	if p == nil || r.NoRollback || slices.Contains(s.policy.NoRollback, tool) || !mutating {
		return out, nil
	}
	failed := r.Error != "" && slices.Contains(p.On, triggerException)
	switch {
	case failed && ended != nil && ended.readOnly:
		// There is no state in front of it; what changed meanwhile may be the work of others.
		out.Warnings = append(out.Warnings, fmt.Sprintf("nothing was rolled back, because the call began with --readonly. To go back all the same: rewindfs rollback %s", p.To))
	case failed && ended == nil:
		// It may have been begun in a state that is gone, or have ended before: what stands now is
		// the work of others. Nor can it be told whether its tool is one that rolls nothing back.
		out.Warnings = append(out.Warnings, fmt.Sprintf("nothing was rolled back, because no such call was in flight: it had ended, or a rollback or a restart came since. To go back all the same: rewindfs rollback %s", p.To))
	case failed:
		res, err := s.autoRollback(ctx, autoMove{trigger: triggerException, to: p.To, call: out.Call, tool: tool, reason: r.Error})
		if err != nil {
			return nil, err
		}
		out.RolledBack, out.Skipped = res, res == nil
		out.Inflight = s.calls.inflight()
	case r.Error == "" && ended != nil && slices.Contains(p.On, triggerTestFailure):
		out.Verify = p.Verifiers
	}
	return out, nil
}

// ToolReset forgets which calls are in flight: the caller knows that none is, as at the
// next prompt.
func (s *Session) ToolReset(_ context.Context, _ *control.None) (*control.ToolBegun, error) {
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	s.calls.reset()
	return &control.ToolBegun{Inflight: []string{}}, nil
}

// autoMove is a rollback that a policy or a verifier asks for.
type autoMove struct {
	trigger, to, call, tool, reason string
	noNotice                        bool
}

// autoRollback goes back because a policy says so. Where that would change no file it is
// only recorded, and the conversation goes on: nil then. Preconditions: s.heads is held.
func (s *Session) autoRollback(ctx context.Context, m autoMove) (*control.Rollback, error) {
	to, err := s.resolve(m.to)
	var res *control.Rollback
	if err == nil {
		res, err = s.backUnlessThere(ctx, to, going{reason: m.reason, noNotice: m.noNotice, trigger: m.trigger})
	}
	if err != nil {
		s.lifecycle(lifeErrored)
		event := s.event(ledger.KindEscalation)
		event.Details = map[string]any{"action": "auto_rollback", "trigger": m.trigger, "tool": m.tool, "call": m.call, "to": m.to, "reason": clip(m.reason, 2000), "error": err.Error()}
		s.audit(event)
		return nil, err
	}
	last := control.AutoRolledBack{
		At: s.o.Now().UTC(), Trigger: m.trigger, Call: m.call, Tool: m.tool, To: m.to,
		Reason: clip(m.reason, 2000), Noop: res == nil,
	}
	if to.Entry != nil {
		last.Checkpoint = to.Entry.ID
	}
	if err := s.saveState(stateLastAuto, last); err != nil {
		s.log.Warn("status will not show this automatic rollback after a restart", "error", err)
	}
	s.lastAuto = &last
	event := s.event(ledger.KindPolicy)
	event.Checkpoint, event.Label, event.Layer = last.Checkpoint, to.Name(), to.Layer
	event.Details = map[string]any{"action": "auto_rollback", "trigger": m.trigger, "tool": m.tool, "call": m.call, "to": m.to, "reason": clip(m.reason, 2000), "noop": res == nil}
	s.audit(event)
	return res, nil
}

// backUnlessThere is rollbackTo, unless the head stands there with nothing changed: that
// is recorded, and nil. Preconditions: s.heads is held.
func (s *Session) backUnlessThere(ctx context.Context, to journal.Target, g going) (*control.Rollback, error) {
	if !s.standsAt(ctx, to.Layer) {
		return s.rollbackTo(ctx, to, g)
	}
	event := s.event(ledger.KindSkippedNoop)
	event.Label, event.Layer = to.Name(), to.Layer
	if to.Entry != nil {
		event.Checkpoint = to.Entry.ID
	}
	event.Details = map[string]any{"asked": string(journal.OpRollback), "trigger": g.trigger, "reason": clip(g.reason, 2000)}
	s.audit(event)
	return nil, nil
}

// clip bounds a text from outside, in bytes, without cutting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// event is the start of a ledger record of this session.
func (s *Session) event(kind ledger.Kind) ledger.Event {
	return ledger.Event{Kind: kind, At: time.Time{}, Session: s.o.Name, Branch: s.o.Branch}
}
