package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/secret"
	"github.com/rewindfs/rewindfs/sandbox"
)

// exitStatus is the end of a command: nothing is left to be said but its exit code.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ran is what run and exec print as JSON.
type ran struct {
	ExitCode       int                 `json:"exit_code"`
	Signal         string              `json:"signal,omitempty"`
	TimedOut       bool                `json:"timed_out"`
	Stdout         string              `json:"stdout"`
	StdoutB64      string              `json:"stdout_b64,omitempty"`
	StdoutDropped  int64               `json:"stdout_dropped,omitempty"` // bytes left out of its middle
	Stderr         string              `json:"stderr"`
	StderrB64      string              `json:"stderr_b64,omitempty"`
	StderrDropped  int64               `json:"stderr_dropped,omitempty"`
	DurationMS     int64               `json:"duration_ms"`
	ChangedPaths   *int64              `json:"changed_paths"`
	Changes        []control.Change    `json:"changes"`
	ChangesCut     bool                `json:"changes_truncated,omitempty"`
	Refused        []refused           `json:"refused"`
	Left           []int               `json:"left"` // processes that still run
	Checkpoint     *control.Checkpoint `json:"checkpoint"`
	RolledBack     *moved              `json:"rolled_back"`
	SessionStarted bool                `json:"session_started,omitempty"`
	Notes          []string            `json:"notes"`
	Warnings       []string            `json:"warnings"`
}

// refused is a write that the sandbox did not allow, and what would.
type refused struct {
	control.PathName
	Flag string `json:"flag"`
}

// RawMessages lets the messages keep their bytes.
func (r *ran) RawMessages() []*[]json.RawMessage {
	if r.RolledBack == nil {
		return nil
	}
	return r.RolledBack.RawMessages()
}

// runCommand runs a command in the project of a session, with the state in front of it kept.
func (a *app) runCommand(ctx context.Context, o *runOptions, argv []string) error {
	rules, err := o.rules()
	if err != nil {
		return err
	}
	if o.showRules {
		return a.showRules(sandbox.Kind(o.kind), rules)
	}
	sqlite, err := sqlitePaths(o.sqlite)
	if err != nil {
		return err
	}
	p, err := a.placeFor(ctx, o)
	if err != nil {
		return err
	}
	defer p.client.Close()
	rules.Docker.Register = announces(ctx, p.client)
	p.client.Timeout = moveTime
	spec := p.spec(argv, rules.Env)
	spec.Kind, spec.Rules, spec.Timeout = sandbox.Kind(o.kind), rules, o.timeout
	what := control.Run{Argv: maskArgv(argv, spec.Env), Cwd: control.NameOf(p.dir), Sandbox: o.kind}
	begun, err := p.client.RunBegin(ctx, control.RunBegin{
		Run: what, Auto: o.verb == "exec", Label: o.label, Message: clipText(o.verb+": "+strings.Join(what.Argv, " "), 200),
		SQLite: sqlite, SkipFailedTargets: o.skip,
	})
	if control.CodeOf(err) == control.CodeForbidden {
		return fmt.Errorf("%w, or run the command itself: all in here is in the sandbox already (rewindfs checkpoint keeps the state)", err)
	}
	if err != nil {
		return err
	}
	res := &ran{
		Checkpoint: &begun.Checkpoint, SessionStarted: p.started,
		Changes: []control.Change{}, Refused: []refused{}, Left: []int{}, Notes: []string{}, Warnings: []string{},
	}
	out, runErr := sandbox.Outcome{}, ctx.Err()
	if runErr == nil { // from here on the signals that end other commands are this one's
		out, runErr = a.inSandbox(context.WithoutCancel(ctx), spec, res)
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	a.tellEnd(after, p.client, control.RunEnd{ID: begun.ID, Checkpoint: begun.Checkpoint.ID, Run: what}, out, runErr, res)
	if runErr != nil {
		return runErr
	}
	if o.rollback && out.ExitCode != 0 {
		a.takeBack(after, p.client, what, out, res)
	}
	return a.finishRun(res)
}

// showRules prints the rules that apply.
func (a *app) showRules(kind sandbox.Kind, r sandbox.Rules) error {
	var text bytes.Buffer
	sandbox.ShowRules(&text, kind, r, os.Environ())
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	return a.result(map[string]any{"sandbox": kind, "rules": lines}, func(w io.Writer) {
		for _, l := range lines {
			fmt.Fprintln(w, show(l))
		}
	})
}

// maskArgv is argv as it may be written down.
func maskArgv(argv, env []string) []string {
	_, secrets := sandbox.Scrub(env, nil)
	masked := secret.Mask(argv, secret.Values(secrets))
	for i := range masked {
		masked[i] = strings.ToValidUTF8(masked[i], "\uFFFD")
	}
	return masked
}

// inSandbox runs the command, and keeps what it writes when the result is to be JSON.
func (a *app) inSandbox(ctx context.Context, spec sandbox.Spec, res *ran) (sandbox.Outcome, error) {
	spec.Stdin, _ = a.in.(*os.File)
	if !a.json {
		spec.Stdout, _ = a.out.(*os.File)
		spec.Stderr, _ = a.err.(*os.File)
		return sandbox.Run(ctx, spec)
	}
	stdout, err := newCaptured()
	if err != nil {
		return sandbox.Outcome{}, err
	}
	stderr, err := newCaptured()
	if err != nil {
		stdout.finish()
		return sandbox.Outcome{}, err
	}
	spec.Stdout, spec.Stderr = stdout.write, stderr.write
	out, err := sandbox.Run(ctx, spec)
	s := stdout.finish()
	res.Stdout, res.StdoutB64, res.StdoutDropped = s.text, s.b64, s.dropped
	s = stderr.finish()
	res.Stderr, res.StderrB64, res.StderrDropped = s.text, s.b64, s.dropped
	return out, err
}

// tellEnd tells the daemon how the command ended, and takes down what it says. A daemon that cannot be told is a
// warning: the command has run.
func (a *app) tellEnd(ctx context.Context, c *control.Client, end control.RunEnd, out sandbox.Outcome, runErr error, res *ran) {
	end.ExitCode, end.Signal, end.TimedOut, end.DurationMS = out.ExitCode, out.Signal, out.TimedOut, out.Duration.Milliseconds()
	end.Left = len(out.Left)
	for _, r := range out.Refused {
		end.Refused = append(end.Refused, control.NameOf(r.Path))
		res.Refused = append(res.Refused, refused{control.NameOf(r.Path), r.Flag})
	}
	res.ExitCode, res.Signal, res.TimedOut, res.DurationMS = end.ExitCode, end.Signal, end.TimedOut, end.DurationMS
	res.Left = append(res.Left, out.Left...)
	res.Notes = append(res.Notes, out.Notes...)
	if runErr != nil {
		end.Error = clipText(strings.ToValidUTF8(runErr.Error(), "\uFFFD"), maxErrorText)
		end.ExitCode = exitCode(runErr)
	}
	told, err := c.RunEnd(ctx, end)
	if err != nil {
		res.Warnings = append(res.Warnings, fmt.Sprintf("the end of the command is not recorded (rewindfs rollback %s takes it back): %v", show(end.Checkpoint), err))
		return
	}
	res.ChangedPaths, res.Changes, res.ChangesCut = told.ChangedPaths, told.Changes, told.Truncated
	res.Warnings = append(res.Warnings, told.Warnings...)
}

// takeBack goes back to the state in front of a command that failed.
func (a *app) takeBack(ctx context.Context, c *control.Client, what control.Run, out sandbox.Outcome, res *ran) {
	back, err := c.Rollback(ctx, control.RollbackRequest{
		Ref:   res.Checkpoint.ID,
		Notes: clipText(fmt.Sprintf("the command %s ended with exit code %d", strings.Join(what.Argv, " "), out.ExitCode), maxErrorText/8),
	})
	if err != nil {
		res.Warnings = append(res.Warnings, fmt.Sprintf("what the command changed was not taken back: %v (try: rewindfs rollback %s)", err, res.Checkpoint.ID))
		return
	}
	res.RolledBack = movedOf(back)
}

// finishRun says what is to be said about a command that has run, and ends with its exit code.
func (a *app) finishRun(res *ran) error {
	if a.json {
		if err := a.printJSON(&success{true, res}); err != nil {
			return err
		}
		return statusOf(res.ExitCode)
	}
	for _, n := range res.Notes {
		a.note("rewindfs: note: %s", show(n))
	}
	for _, w := range res.Warnings {
		a.warn("%s", show(w))
	}
	if res.TimedOut {
		a.note("rewindfs: the time was up after %s: the command and all that it started were ended", time.Duration(res.DurationMS)*time.Millisecond)
	}
	for i, r := range res.Refused {
		if i == maxShown {
			a.note("rewindfs: refused: … and %d more", len(res.Refused)-i)
			break
		}
		flag, path, _ := strings.Cut(r.Flag, " ")
		a.note("rewindfs: refused: write to %s (allow it with %s %s)", showName(r.PathName), flag, quoteArg(show(path)))
	}
	a.noteLeft(res.Left)
	a.noteLinks(res.Changes)
	if b := res.RolledBack; b != nil && b.Noop {
		a.note("rewindfs: exit code %d; it had changed nothing, so nothing was taken back", res.ExitCode)
	} else if b != nil {
		a.note("rewindfs: exit code %d: what it changed was taken back (%s); have it again with: rewindfs undo", res.ExitCode, count(b.ChangedPaths, "path"))
	}
	return statusOf(res.ExitCode)
}

// noteLeft names processes that a command left running.
func (a *app) noteLeft(pids []int) {
	for i, pid := range pids {
		if i == maxShown {
			a.note("rewindfs: … and %d more", len(pids)-i)
			return
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has ended
		}
		name := strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
		a.note("rewindfs: still running: %d  %s", pid, show(clipText(name, 200)))
	}
}

// noteLinks names symlinks among changes that lead out of the project.
func (a *app) noteLinks(changes []control.Change) {
	n := 0
	for i := range changes {
		if changes[i].LeadsOut == nil {
			continue
		}
		if n++; n > maxShown {
			a.note("rewindfs: … and more")
			return
		}
		a.note("rewindfs: leads out of the project: %s -> %s (what is written through it cannot be taken back)", showName(changes[i].PathName), showName(*changes[i].LeadsOut))
	}
}

// statusOf is what a command line ends with whose command ended with this exit code.
func statusOf(code int) error {
	if code == 0 {
		return nil
	}
	return exitStatus(code)
}
