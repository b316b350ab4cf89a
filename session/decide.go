package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/ledger"
)

// Verification takes what a verifier said, which its caller ran, and goes back if that
// is what follows from it. A verifier never passes by anything but "pass".
func (s *Session) Verification(ctx context.Context, r *control.Verification) (*control.Verified, error) {
	switch r.Status {
	case "pass", "fail", "unknown":
	default:
		return nil, badRequest("a verifier says pass, fail or unknown, not %q", r.Status)
	}
	switch r.Decision {
	case "", "continue", "rollback", "stop":
	default:
		return nil, badRequest("a decision is continue, rollback or stop, not %q", r.Decision)
	}
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	event := s.event(ledger.KindVerification)
	event.Details = map[string]any{
		"command": clip(r.Command, 4000), "status": r.Status, "summary": clip(r.Summary, 4000),
		"errors": firstErrors(r.Errors), "attempts": r.Attempts, "call": r.Call, "auto": r.Auto,
	}
	s.audit(event)
	if r.Status == "unknown" && r.Decision != "" {
		event := s.event(ledger.KindEscalation)
		event.Details = map[string]any{"command": clip(r.Command, 4000), "decision": r.Decision, "reason": clip(r.Summary, 4000)}
		s.audit(event)
	}
	out := &control.Verified{Warnings: []string{}}
	back := r.To != "" && (r.Status == "fail" || r.Status == "unknown" && r.Decision == "rollback")
	if !back {
		if r.Status != "pass" {
			s.lifecycle(lifeErrored)
		}
		return out, nil
	}
	trigger := triggerTestFailure
	if r.Status == "unknown" {
		trigger = "escalation"
	}
	var res *control.Rollback
	var err error
	if r.Auto {
		res, err = s.autoRollback(ctx, autoMove{trigger: trigger, to: r.To, call: r.Call, tool: s.calls.toolOf(r.Call), reason: reasonOf(r), noNotice: r.NoNotice})
	} else if to, rerr := s.resolve(r.To); rerr != nil {
		err = rerr
	} else {
		res, err = s.backUnlessThere(ctx, to, going{reason: reasonOf(r), noNotice: r.NoNotice, trigger: trigger})
	}
	if err != nil {
		return nil, err
	}
	out.RolledBack, out.Skipped = res, res == nil
	if out.Skipped {
		name := r.To
		if to, err := s.resolve(r.To); err == nil {
			name = to.Name()
		}
		out.Warnings = append(out.Warnings, fmt.Sprintf("the state that failed is %s itself: going back to it changes nothing, so nothing was done. Choose an older checkpoint", name))
	}
	return out, nil
}

// shownErrors is how many of a verifier's errors the model and the ledger are told.
const shownErrors = 10

// reasonOf puts into words why a state is given up.
func reasonOf(r *control.Verification) string {
	var b strings.Builder
	b.WriteString(r.Summary)
	if r.Summary == "" {
		b.WriteString("the verifier says " + r.Status)
	}
	for i, e := range r.Errors {
		if i == shownErrors {
			fmt.Fprintf(&b, "; and %d more", len(r.Errors)-i)
			break
		}
		var text string
		if json.Unmarshal(e, &text) != nil {
			text = string(e)
		}
		b.WriteString("; " + clip(text, 500))
	}
	return b.String()
}

// firstErrors is what the ledger keeps of errors.
func firstErrors(errs []json.RawMessage) []string {
	out := []string{}
	for _, e := range errs[:min(len(errs), shownErrors)] {
		out = append(out, clip(string(e), 500))
	}
	return out
}
