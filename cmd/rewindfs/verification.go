package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/verify"
)

// What to do when a verification ends without a verdict.
const (
	modeAgent       = "agent"
	modeInteractive = "interactive"
)

// Bounds of what is sent to the daemon about a verification or a failed call.
const (
	maxErrorText = 16 << 10 // bytes of one text
	maxErrors    = 100
)

// verifying is a verification to be made: verifiers that run one after the other in the
// mount, with this program's environment, until one does not say pass.
type verifying struct {
	client *control.Client
	asker  verify.Asker
	specs  []verify.Spec
	to     string // where a fail goes back to; "" for nowhere
	call   string
	auto   bool // a policy asked for it

	watch   bool // name what the verifiers wrote
	discard bool // and take it back

	before string // the state in front of the verifiers, "" without watch
	made   bool   // it was made for them
}

// checked is what one verifier said.
type checked struct {
	Command string `json:"command"`
	verify.Result
}

// verified is a verification that was made. Status, Summary and Errors are those of the
// last verifier that ran.
type verified struct {
	Status         string           `json:"status"`
	Summary        string           `json:"summary"`
	Errors         []verify.Problem `json:"errors"`
	Checks         []checked        `json:"verifications"`
	Decision       string           `json:"decision,omitempty"`
	RolledBack     *moved           `json:"rolled_back"`
	Skipped        bool             `json:"skipped_noop"`
	Wrote          []control.Change `json:"wrote"` // by the verifiers, or whoever else wrote meanwhile
	WroteTruncated bool             `json:"wrote_truncated,omitempty"`
	Discarded      bool             `json:"discarded"`
	Warnings       []string         `json:"warnings"`
}

// RawMessages lets the messages keep their bytes.
func (v *verified) RawMessages() []*[]json.RawMessage {
	if v.RolledBack == nil {
		return nil
	}
	return v.RolledBack.RawMessages()
}

// settleTime bounds what is done after a verification although it was interrupted.
const settleTime = 2 * time.Minute

// verify runs the verifiers, tells the daemon what they said, and has it go back if that
// follows. An error says that something else went wrong; the result is then not whole.
func (a *app) verify(ctx context.Context, v *verifying) (*verified, error) {
	st, err := v.client.Status(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := control.PathName{Path: st.Mountpoint, PathB64: st.MountpointB64}.Bytes()
	if err != nil {
		return nil, fmt.Errorf("read where the session is: %w", err)
	}
	if v.watch {
		if err := v.keep(ctx, st.Head); err != nil {
			return nil, fmt.Errorf("keep the state in front of the verification: %w", err)
		}
	}
	out := &verified{Errors: []verify.Problem{}, Checks: []checked{}, Wrote: []control.Change{}, Warnings: []string{}}
	for i := range v.specs {
		// The umask is this process's, so it needs no word.
		s := v.specs[i]
		s.Dir, s.Session, s.OnAttempt = dir, st.Session, a.attempts(s)
		s.Checkpoint = v.before
		r := checked{s.Command, verify.Run(ctx, s)}
		out.Checks = append(out.Checks, r)
		for _, at := range r.Attempts {
			if len(at.Survivors) > 0 {
				out.Warnings = append(out.Warnings, fmt.Sprintf("processes of the verifier could not be ended and may go on to write: %v", at.Survivors))
			}
		}
		if r.Status != verify.Pass {
			break
		}
	}
	last := &out.Checks[len(out.Checks)-1]
	out.Status, out.Summary = string(last.Status), last.Verdict.Summary
	if last.Verdict.Errors != nil {
		out.Errors = last.Verdict.Errors
	}
	if last.Status == verify.Unknown && out.Summary == "" {
		out.Summary = last.Reason
	}
	return out, a.conclude(ctx, v, out, last)
}

// conclude does what follows from a verification. It does so as well after an interruption.
func (a *app) conclude(ctx context.Context, v *verifying, out *verified, last *checked) error {
	safe, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	err := v.settle(safe, out)
	decision := verify.Decision("")
	if last.Status == verify.Unknown {
		decision = verify.Stop
		if !last.Cancelled {
			asked, askErr := verify.Escalate(ctx, v.asker, verify.Question{Result: last.Result, Target: v.to})
			if decision = asked; askErr != nil {
				out.Warnings = append(out.Warnings, askErr.Error())
			}
		}
		out.Decision = string(decision)
	}
	// Asking may have taken its time.
	safe, cancel = context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	for i := range out.Checks {
		if tellErr := v.tell(safe, out, &out.Checks[i], decision); tellErr != nil {
			return errors.Join(err, tellErr)
		}
	}
	return err
}

// keep sees to it that the state in front of the verifiers can be named. Where nothing was
// changed since a checkpoint, that is it: another one on top would hide that a rollback to it has nothing to do.
func (v *verifying) keep(ctx context.Context, head control.Head) error {
	last := head.ID
	if last == "" {
		last = "base"
	}
	dirty := errors.New("something was changed")
	_, err := v.client.Diff(ctx, control.DiffRequest{From: last}, func(control.Change) error { return dirty })
	if !errors.Is(err, dirty) {
		v.before = last
		return err
	}
	c, err := v.client.Checkpoint(ctx, control.CheckpointRequest{Pending: true, Message: "before a verification"})
	if err != nil {
		return err
	}
	v.before, v.made = c.ID, !c.Existing
	return nil
}

// settle finds out what the verifiers wrote, takes it back if that was asked for, and lets
// go of the state in front of them.
func (v *verifying) settle(ctx context.Context, out *verified) error {
	if v.before == "" {
		return nil
	}
	_, err := v.client.Diff(ctx, control.DiffRequest{From: v.before}, func(c control.Change) error {
		if len(out.Wrote) < maxWrote {
			out.Wrote = append(out.Wrote, c)
		} else {
			out.WroteTruncated = true
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("find out what the verifier wrote: %w", err)
	}
	if v.discard && (err != nil || len(out.Wrote) > 0) {
		others, othersErr := v.others(ctx)
		switch {
		case othersErr != nil:
			return errors.Join(err, fmt.Errorf("take back what the verifier wrote: %w (the state before it is kept: rewindfs rollback --files-only %s)", othersErr, v.before))
		case others != "":
			out.Warnings = append(out.Warnings, "what the verifier wrote was not taken back, because that would take "+others+" along")
		default:
			if _, backErr := v.client.Rollback(ctx, control.RollbackRequest{Ref: v.before, FilesOnly: true}); backErr != nil {
				return errors.Join(err, fmt.Errorf("take back what the verifier wrote: %w (the state before it is kept: rewindfs rollback --files-only %s)", backErr, v.before))
			}
			out.Discarded = true
		}
	}
	if v.made {
		if _, dropErr := v.client.Delete(ctx, control.CheckpointRef{Ref: v.before}); dropErr != nil {
			out.Warnings = append(out.Warnings, fmt.Sprintf("checkpoint %s, made for the verification, is still there: %v", v.before, dropErr))
		}
	}
	return err
}

// others says what else has begun since the state in front of the verifiers, and would go with their writes.
func (v *verifying) others(ctx context.Context) (string, error) {
	would, err := v.client.Rollback(ctx, control.RollbackRequest{Ref: v.before, FilesOnly: true, DryRun: true})
	if err != nil {
		return "", err
	}
	if len(would.Dropped) > 0 {
		return fmt.Sprintf("%s made meanwhile", count(int64(len(would.Dropped)), "checkpoint")), nil
	}
	st, err := v.client.Status(ctx)
	if err != nil {
		return "", err
	}
	if len(st.Inflight) > 0 {
		return "the work of calls in flight (" + shownList(st.Inflight) + ")", nil
	}
	return "", nil
}

// maxWrote bounds the list of paths that verifiers wrote.
const maxWrote = 10_000

// tell tells the daemon what a verifier said, and with which consequence.
func (v *verifying) tell(ctx context.Context, out *verified, r *checked, decision verify.Decision) error {
	req := control.Verification{
		Command: clipText(r.Command, maxErrorText), Status: string(r.Status), Summary: clipText(r.Verdict.Summary, maxErrorText),
		Attempts: len(r.Attempts), To: v.to, Auto: v.auto, Call: v.call,
	}
	if r.Status == verify.Unknown {
		req.Summary, req.Decision = clipText(r.Reason, maxErrorText), string(decision)
	}
	for i, p := range r.Verdict.Errors {
		if i == maxErrors {
			break
		}
		p.Message = clipText(p.Message, maxErrorText/8)
		b, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("encode what the verifier said: %w", err)
		}
		req.Errors = append(req.Errors, b)
	}
	res, err := v.client.Verification(ctx, req)
	if err != nil {
		// Not the code of err: a hook would take it for its own mistake, while the state is bad.
		return failf(exitHalted, "the verifier says %s, but that could not be acted on, and the files are as they were: %w (go back with: rewindfs rollback REF)", r.Status, err)
	}
	if res.RolledBack != nil {
		out.RolledBack = movedOf(res.RolledBack)
	}
	out.Skipped = out.Skipped || res.Skipped
	out.Warnings = append(out.Warnings, res.Warnings...)
	return nil
}

// err is what a command ends with.
func (v *verified) err() error {
	at := ""
	switch {
	case v.Skipped:
		at = "the state to go back to is this one, so nothing was done"
	case v.RolledBack != nil:
		at = fmt.Sprintf("files and conversation are back at '%s'", v.RolledBack.Checkpoint)
	}
	summary := ""
	if said := strings.TrimPrefix(v.Summary, "no verdict: "); said != "" {
		summary = ": " + show(clipText(said, 500))
	}
	switch {
	case v.Status == string(verify.Pass):
		return nil
	case v.Status == string(verify.Fail) && at == "":
		return failf(exitFailed, "verification failed%s; nothing was taken back (with --to REF it would be)", summary)
	case v.Status == string(verify.Fail):
		return failf(exitFailed, "verification failed%s; %s", summary, at)
	case at != "":
		return failf(exitFailed, "no verdict%s; %s, as was decided", summary, at)
	case v.Decision == string(verify.Continue):
		return failf(exitHalted, "no verdict%s; the work may go on, as was decided, but nothing is verified", summary)
	}
	return failf(exitHalted, "halted: no verdict%s; nothing was touched, and the mount is kept", summary)
}

// asker is who decides when there is no verdict.
func (a *app) asker(mode string) (verify.Asker, error) {
	switch mode {
	case modeAgent:
		return verify.Agent{}, nil
	case modeInteractive, "":
		if isTerminal(a.in) {
			return verify.NewTerminal(a.in, a.err), nil
		}
		if mode == modeInteractive {
			a.note("There is no terminal to ask on: without a verdict, the work is to stop.")
		}
		return verify.Agent{}, nil
	}
	return nil, usagef("--mode %s: use interactive or agent", show(mode))
}

// attempts says on stderr that a verifier is tried again.
func (a *app) attempts(s verify.Spec) func(verify.Attempt) {
	return func(at verify.Attempt) {
		if at.Status == verify.Unknown && at.Number <= s.Retries {
			a.note("Attempt %d of %d: %s", at.Number, s.Retries+1, show(at.Reason))
		}
	}
}

// specOf is a policy's verifier.
func specOf(v control.Verifier) verify.Spec {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return verify.Spec{Command: v.Command, Timeout: ms(v.TimeoutMS), Retries: v.Retries, RetryDelay: ms(v.RetryDelayMS)}
}

// printChecks prints what verifiers said.
func printChecks(w io.Writer, checks []checked) {
	for i := range checks {
		c := &checks[i]
		text := c.Verdict.Summary
		if c.Status == verify.Unknown {
			text = c.Reason
		}
		if text != "" {
			text = ": " + show(text)
		}
		fmt.Fprintf(w, "%s  %s%s\n", strings.ToUpper(string(c.Status)), show(clipText(c.Command, 200)), text)
		for n, p := range c.Verdict.Errors {
			if n == maxShown {
				fmt.Fprintf(w, "  … and %d more\n", len(c.Verdict.Errors)-n)
				break
			}
			fmt.Fprintf(w, "  %s\n", show(p.String()))
		}
		if c.Status == verify.Unknown && len(c.Attempts) > 0 {
			last := c.Attempts[len(c.Attempts)-1]
			printTail(w, "stdout", last.Stdout.String())
			printTail(w, "stderr", last.Stderr.String())
		}
	}
}

// printTail prints the last lines of what a command wrote.
func printTail(w io.Writer, name, text string) {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return
	}
	lines := strings.Split(text, "\n")
	if n := len(lines) - maxShown; n > 0 {
		lines = append([]string{fmt.Sprintf("… %d lines before", n)}, lines[n:]...)
	}
	for _, l := range lines {
		fmt.Fprintf(w, "  %s: %s\n", name, show(clipText(strings.ReplaceAll(l, "\t", "    "), 500)))
	}
}
