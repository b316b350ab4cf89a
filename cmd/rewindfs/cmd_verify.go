package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/verify"
)

type verifyOptions struct {
	spec    verify.Spec
	to      string
	mode    string
	discard bool
	noDelay bool // --retry-delay 0
}

func (a *app) newVerify() *cobra.Command {
	o := &verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Run a verifier in the mount, and go back when it says fail",
		Long: `Run the command C in the mount, here and with this environment, and do what follows from its verdict. Its standard output must be
one JSON object {"status": "pass"|"fail"|"unknown", "summary": "...", "errors": [...]}; the exit code says nothing. Without --cmd the
verifiers of policy auto-rollback run, one after the other. They run with all your rights, and so does what they run of the project: hold
one to a sandbox with --cmd 'rewindfs exec -- CHECK'.

  pass      exit 0
  fail      exit 7; with --to, files and conversation are back at REF
  no verdict (unknown, a crash, no end in time, anything else on standard output): tried again --retries times, then
            --mode agent: stop: exit 8, nothing is touched, the mount is kept
            --mode interactive asks on the terminal: stop or continue (exit 8: it is never taken for pass), or rollback to --to (exit 7)

What the verifier wrote into the mount (or who else wrote meanwhile) is named; with --discard-writes it is taken back, whatever
the verdict. When the command ends, all processes that it started are ended.

` + exitHelp,
		Args: exactly(0, "no argument; the command is given with --cmd"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			if f.Changed("cmd") && o.spec.Command == "" {
				return usagef("--cmd is empty")
			}
			if f.Changed("timeout") && o.spec.Timeout <= 0 {
				return usagef("--timeout %s: it must be more than 0", o.spec.Timeout)
			}
			if f.Changed("to") && o.to == "" {
				return failf(exitCheckpoint, "--to: the name of a checkpoint is empty")
			}
			o.noDelay = f.Changed("retry-delay") && o.spec.RetryDelay == 0
			return a.runVerify(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.spec.Command, "cmd", "", "the verifier, for sh -c (default: those of the policy)")
	f.IntVar(&o.spec.Retries, "retries", 0, "try again so often without a verdict")
	f.DurationVar(&o.spec.RetryDelay, "retry-delay", verify.DefaultRetryDelay, "wait before each of these")
	f.DurationVar(&o.spec.Timeout, "timeout", verify.DefaultTimeout, "give up one attempt after this long")
	f.StringVar(&o.to, "to", "", "go back to this checkpoint when it says fail")
	f.StringVar(&o.mode, "mode", "", "without a verdict: interactive asks on the terminal, agent stops (default interactive on a terminal)")
	f.BoolVar(&o.discard, "discard-writes", false, "take back what the verifier writes into the mount")
	completeFlag(cmd, "mode", []string{modeAgent, modeInteractive})
	a.completeRefFlag(cmd, "to")
	return cmd
}

// completeRefFlag offers checkpoints for the value of a flag.
func (a *app) completeRefFlag(cmd *cobra.Command, flag string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, s string) ([]string, cobra.ShellCompDirective) {
		return a.completeRefs(cmd, nil, s)
	})
	if err != nil {
		panic(err) // the flag is defined right before
	}
}

func (a *app) runVerify(ctx context.Context, o *verifyOptions) error {
	if o.noDelay {
		o.spec.RetryDelay = time.Nanosecond // 0 is the default's
	}
	if check := o.spec; check.Command != "" {
		check.Dir = "/"
		if err := check.Check(); err != nil {
			return usagef("%w", err)
		}
	}
	asker, err := a.asker(o.mode)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	v := &verifying{client: c, asker: asker, to: o.to, watch: true, discard: o.discard}
	if v.specs, err = verifiersOf(ctx, c, o); err != nil {
		return err
	}
	if o.to != "" {
		// Not after a long run: a state always equals itself, if it is there.
		if _, err := c.Diff(ctx, control.DiffRequest{From: o.to, To: o.to}, func(control.Change) error { return nil }); err != nil {
			return err
		}
	}
	res, err := a.verify(ctx, v)
	if err != nil {
		if res != nil && a.json {
			return &foundError{err, res}
		}
		return err
	}
	return a.finishVerify(res)
}

// verifiersOf is what to run: the command given, else the policy's.
func verifiersOf(ctx context.Context, c *control.Client, o *verifyOptions) ([]verify.Spec, error) {
	if o.spec.Command != "" {
		return []verify.Spec{o.spec}, nil
	}
	p, err := c.Policy(ctx)
	if err != nil {
		return nil, err
	}
	var specs []verify.Spec
	if p.AutoRollback != nil {
		for _, v := range p.AutoRollback.Verifiers {
			specs = append(specs, specOf(v))
		}
	}
	if len(specs) == 0 {
		return nil, usagef("the policy has no verifier: give one with --cmd, or set it with: rewindfs policy auto-rollback")
	}
	return specs, nil
}

func (a *app) finishVerify(res *verified) error {
	for _, text := range res.Warnings {
		a.warn("%s", text)
	}
	bad := res.err()
	if a.json && bad != nil {
		return &foundError{bad, res}
	}
	err := a.result(res, func(w io.Writer) {
		printChecks(w, res.Checks)
		printWrote(w, res)
		if res.RolledBack != nil {
			printMoved(w, res.RolledBack.Rollback, false, false)
			if !res.RolledBack.Noop {
				fmt.Fprintln(w, "Undo with: rewindfs undo")
			}
		}
	})
	return errors.Join(bad, err)
}

// printWrote names what verifiers have written.
func printWrote(w io.Writer, res *verified) {
	if len(res.Wrote) == 0 {
		return
	}
	n := count(int64(len(res.Wrote)), "path")
	if res.WroteTruncated {
		n = "more than " + n
	}
	fate := "left there; --discard-writes takes such back"
	if res.Discarded {
		fate = "taken back"
	}
	fmt.Fprintf(w, "Meanwhile %s changed (%s):\n", n, fate)
	for i := range res.Wrote {
		if i == maxShown {
			fmt.Fprintf(w, "  … and %d more\n", len(res.Wrote)-i)
			break
		}
		fmt.Fprintf(w, "  %s  %s\n", res.Wrote[i].Status, describeChange(&res.Wrote[i]))
	}
}
