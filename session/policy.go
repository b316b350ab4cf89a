package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/ledger"
)

// When a policy acts.
const (
	triggerBeforeCall  = "before_tool_call"
	triggerException   = "exception"
	triggerTestFailure = "test_failure"
)

// What is kept in the store besides the tree and the journal, by the name of its kv.Meta key.
const (
	statePolicy    = "policy"
	stateLastAuto  = "last_auto_rollback"
	stateLifecycle = "lifecycle"
	stateBudget    = "budget"
)

// stateVersion is the version of these records. Higher ones are refused.
const stateVersion = 1

// stateKey is where the state of a branch that is called name is kept: that of main, and what is for all, under the name alone.
func stateKey(branch, name string) []byte {
	if branch != MainBranch && name != stateBudget {
		name += "/" + branch
	}
	return kv.Meta(name)
}

// saveState keeps v under name, and records events of the change.
func (s *Session) saveState(name string, v any, events ...ledger.Event) error {
	var batch kv.Batch
	batch.UseReserve()
	if err := s.stageState(&batch, name, v); err != nil {
		return err
	}
	if err := s.applyOwing(&batch, events...); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return nil
}

// stageState adds to batch that v is kept under name.
func (s *Session) stageState(batch *kv.Batch, name string, v any) error {
	b, err := json.Marshal(map[string]any{"v": stateVersion, "value": v})
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	batch.Put(stateKey(s.o.Branch, name), b)
	return nil
}

// loadState reads what saveState kept into v, which stays as it is when there is nothing.
func (s *Session) loadState(name string, v any) error { return s.loadStateOf(s.o.Branch, name, v) }

// loadStateOf is loadState for a branch, mounted or not.
func (s *Session) loadStateOf(branch, name string, v any) error {
	b, ok, err := s.db.Get(stateKey(branch, name))
	if err != nil || !ok {
		return err
	}
	var rec struct {
		V     int             `json:"v"`
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return fmt.Errorf("decode %s: %w", name, err)
	}
	if rec.V > stateVersion {
		return fmt.Errorf("%s of version %d: %w", name, rec.V, kv.ErrNewerFormat)
	}
	if err := json.Unmarshal(rec.Value, v); err != nil {
		return fmt.Errorf("decode %s: %w", name, err)
	}
	return nil
}

// Policy says what the session does by itself.
func (s *Session) Policy(context.Context, *control.None) (*control.Policy, error) {
	s.heads.Lock()
	defer s.heads.Unlock()
	return s.describePolicy(), nil
}

func (s *Session) describePolicy() *control.Policy {
	p := s.policy
	p.Warnings = s.policyWarnings()
	if p.NoRollback == nil {
		p.NoRollback = []string{}
	}
	return &p
}

// policyWarnings says what of the policy may not do what its author means.
func (s *Session) policyWarnings() []string {
	out := []string{}
	r := s.policy.AutoRollback
	if r == nil {
		return out
	}
	if r.To == journal.RefLatest || strings.HasPrefix(r.To, "@{") {
		out = append(out, fmt.Sprintf("%q moves with every checkpoint: one that is made after the damage is what an automatic rollback returns to. Name a checkpoint that is known to be good", r.To))
	} else if _, err := s.resolve(r.To); err != nil && r.To != refCall {
		out = append(out, fmt.Sprintf("automatic rollbacks go to %q, which does not exist yet", r.To))
	}
	if slices.Contains(r.On, triggerTestFailure) && len(r.Verifiers) == 0 {
		out = append(out, "test_failure has no --verifier: nothing will be tested")
	}
	return out
}

// SetPolicy changes parts of the policy. It is kept in the store.
func (s *Session) SetPolicy(_ context.Context, r *control.PolicyRequest) (*control.Policy, error) {
	if err := checkPolicy(r); err != nil {
		return nil, err
	}
	if s.isFork() && (r.GC != nil || slices.Contains(r.Off, "gc")) {
		return nil, badRequest("gc is about the whole store: its policy is that of branch %s", MainBranch)
	}
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	p := s.policy
	for _, off := range r.Off {
		switch off {
		case "auto-checkpoint":
			p.AutoCheckpoint = nil
		case "auto-rollback":
			p.AutoRollback = nil
		case "no-rollback":
			p.NoRollback = nil
		case "gc":
			p.GC = nil
		}
	}
	if r.GC != nil {
		p.GC = r.GC
	}
	if r.AutoCheckpoint != nil {
		p.AutoCheckpoint = r.AutoCheckpoint
	}
	if r.AutoRollback != nil {
		p.AutoRollback = r.AutoRollback
	}
	for _, tool := range r.NoRollback {
		if !slices.Contains(p.NoRollback, tool) {
			p.NoRollback = append(slices.Clone(p.NoRollback), tool)
		}
	}
	p.Warnings = nil
	event := s.event(ledger.KindPolicy)
	event.Details = map[string]any{"action": "set", "policy": p}
	if err := s.saveState(statePolicy, p, event); err != nil {
		return nil, apiError(err)
	}
	s.policy = p
	s.thinOut()
	return s.describePolicy(), nil
}

func checkPolicy(r *control.PolicyRequest) error {
	if r.GC != nil {
		if err := checkRules(r.GC); err != nil {
			return err
		}
	}
	if c := r.AutoCheckpoint; c != nil {
		if len(c.Triggers) == 0 {
			c.Triggers = []string{triggerBeforeCall}
		}
		for _, t := range c.Triggers {
			if t != triggerBeforeCall {
				return badRequest("auto-checkpoint: unknown trigger %q; there is %s", t, triggerBeforeCall)
			}
		}
		if c.KeepLast < 0 {
			return badRequest("keep the last %d: the number must be 1 or more, 0 keeps all", c.KeepLast)
		}
	}
	if c := r.AutoRollback; c != nil {
		if c.To == "" {
			return badRequest("auto-rollback: say with --to which checkpoint to go back to")
		}
		if len(c.On) == 0 {
			return badRequest("auto-rollback: say with --on when: %s, %s", triggerException, triggerTestFailure)
		}
		for _, t := range c.On {
			if t != triggerException && t != triggerTestFailure {
				return badRequest("auto-rollback: unknown trigger %q; there are %s and %s", t, triggerException, triggerTestFailure)
			}
		}
		for _, v := range c.Verifiers {
			if strings.TrimSpace(v.Command) == "" || v.TimeoutMS < 0 || v.Retries < 0 || v.RetryDelayMS < 0 {
				return badRequest("auto-rollback: a verifier needs a command, and no negative numbers")
			}
		}
		if c.Verifiers == nil {
			c.Verifiers = []control.Verifier{}
		}
	}
	for _, off := range r.Off {
		if !slices.Contains([]string{"auto-checkpoint", "auto-rollback", "no-rollback", "gc"}, off) {
			return badRequest("unknown policy %q; there are auto-checkpoint, auto-rollback, no-rollback and gc", off)
		}
	}
	return checkNames(map[string]string{"names of tools": strings.Join(r.NoRollback, "")})
}
