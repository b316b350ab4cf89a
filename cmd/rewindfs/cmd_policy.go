package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/verify"
)

// The parts of a policy, as PolicyRequest.Off names them.
const (
	partAutoCheckpoint = "auto-checkpoint"
	partAutoRollback   = "auto-rollback"
	partNoRollback     = "no-rollback"
	partGC             = "gc"
)

func (a *app) newPolicy() *cobra.Command {
	return newGroup("policy", "What a session does by itself",
		`What a session does by itself, at the begin and at the end of tool calls. It is kept in the store, over restarts.`,
		a.newAutoCheckpoint(), a.newAutoRollback(), a.newNoRollback(), a.newPolicyGC(), a.newPolicyShow())
}

func (a *app) newAutoCheckpoint() *cobra.Command {
	p := control.AutoCheckpoint{}
	off := false
	cmd := &cobra.Command{
		Use:   partAutoCheckpoint + " --trigger before_tool_call [--keep-last N] | --off",
		Short: "Keep checkpoints of tool calls, and how many",
		Long: `Keep the state in front of every tool call that tool begin announces. Of these checkpoints the newest N are kept; the others are
dropped and give their space back, without anyone asking. Checkpoints that you made are never dropped.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := onOrOff(cmd, off, "trigger", "keep-last"); err != nil {
				return err
			}
			if p.KeepLast < 0 || cmd.Flags().Changed("keep-last") && p.KeepLast == 0 {
				return usagef("--keep-last %d: it must be 1 or more (leave it out to keep all)", p.KeepLast)
			}
			r := control.PolicyRequest{AutoCheckpoint: &p}
			if off {
				r = control.PolicyRequest{Off: []string{partAutoCheckpoint}}
			}
			return a.setPolicy(cmd.Context(), r)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&p.Triggers, "trigger", nil, "when: before_tool_call")
	completeFlag(cmd, "trigger", []string{"before_tool_call"})
	f.IntVar(&p.KeepLast, "keep-last", 0, "keep so many of them (default all)")
	f.BoolVar(&off, "off", false, "no longer")
	return cmd
}

// onOrOff refuses --off together with what it takes away, and a policy of which nothing is said.
func onOrOff(cmd *cobra.Command, off bool, others ...string) error {
	said := 0
	for _, name := range others {
		if cmd.Flags().Changed(name) {
			said++
		}
	}
	switch {
	case off && said > 0:
		return usagef("--off goes alone; see: %s --help", cmd.CommandPath())
	case !off && said == 0:
		return usagef("say what to do, or --off; see: %s --help", cmd.CommandPath())
	}
	return nil
}

type autoRollbackOptions struct {
	p         control.AutoRollback
	verifiers []string
	spec      verify.Spec // Timeout, Retries, RetryDelay
	off       bool
}

func (a *app) newAutoRollback() *cobra.Command {
	o := &autoRollbackOptions{}
	cmd := &cobra.Command{
		Use:   partAutoRollback + " --on exception,test_failure --to REF [--verifier CMD]... | --off",
		Short: "Go back when a tool call fails, or breaks the tests",
		Long: `Go back to checkpoint REF at the end of a tool call:
  exception      when it ended with an error (tool end --error), unless it began with --readonly or is not known to be in flight
  test_failure   when a verifier says fail; they run one after the other at the end of each call that may have changed files,
                 by tool end. What a verifier has to print is said in: rewindfs verify --help

REF is looked up each time; @call is the state in front of the call that began last. A name that moves on, such as latest, may come to mean the damage itself: that is warned of. A rollback that
would change nothing is only recorded.

` + exitHelp,
		Args: exactly(0, "no argument (each verifier goes behind a --verifier of its own)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := onOrOff(cmd, o.off, "on", "to", "verifier", "timeout", "retries", "retry-delay"); err != nil {
				return err
			}
			r := control.PolicyRequest{Off: []string{partAutoRollback}}
			if !o.off {
				if err := o.complete(cmd); err != nil {
					return err
				}
				r = control.PolicyRequest{AutoRollback: &o.p}
			}
			return a.setPolicy(cmd.Context(), r)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.p.On, "on", nil, "when: exception, test_failure")
	completeFlag(cmd, "on", []string{"exception", "test_failure"})
	f.StringVar(&o.p.To, "to", "", "checkpoint to go back to")
	a.completeRefFlag(cmd, "to")
	f.StringArrayVar(&o.verifiers, "verifier", nil, "verifier for test_failure, for sh -c (more than once)")
	f.DurationVar(&o.spec.Timeout, "timeout", verify.DefaultTimeout, "give up one attempt of a verifier after this long")
	f.IntVar(&o.spec.Retries, "retries", 0, "try a verifier again so often without a verdict")
	f.DurationVar(&o.spec.RetryDelay, "retry-delay", verify.DefaultRetryDelay, "wait before each of these")
	f.BoolVar(&o.off, "off", false, "no longer")
	return cmd
}

// complete puts the verifiers together.
func (o *autoRollbackOptions) complete(cmd *cobra.Command) error {
	switch {
	case o.p.To == "":
		return usagef("say with --to which checkpoint to go back to")
	case len(o.p.On) == 0:
		return usagef("say with --on when: exception, test_failure, or both")
	case o.spec.Timeout < time.Millisecond:
		return usagef("--timeout %s: it must be a millisecond or more", o.spec.Timeout)
	case o.spec.RetryDelay > 0 && o.spec.RetryDelay < time.Millisecond:
		return usagef("--retry-delay %s: it must be a millisecond or more", o.spec.RetryDelay)
	}
	o.p.Verifiers = []control.Verifier{}
	for _, command := range o.verifiers {
		check := o.spec
		check.Command, check.Dir = command, "/"
		if err := check.Check(); err != nil {
			return usagef("--verifier %s: %w", show(command), err)
		}
		v := control.Verifier{Command: command, Retries: o.spec.Retries}
		if cmd.Flags().Changed("timeout") {
			v.TimeoutMS = o.spec.Timeout.Milliseconds()
		}
		if cmd.Flags().Changed("retry-delay") {
			v.RetryDelayMS = o.spec.RetryDelay.Milliseconds()
		}
		o.p.Verifiers = append(o.p.Verifiers, v)
	}
	return checkTexts(map[string]string{"to": o.p.To, "verifier": strings.Join(o.verifiers, "")})
}

func (a *app) newNoRollback() *cobra.Command {
	off := false
	cmd := &cobra.Command{
		Use:   partNoRollback + " TOOL... | --off",
		Short: "Tools whose calls roll nothing back",
		Long: `Calls of these tools roll nothing back, and no verifier runs at their end. Named ones are added to those that are there; --off takes
all away.

` + exitHelp,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case off && len(args) > 0:
				return usagef("--off goes alone: it takes all tools away")
			case !off && len(args) == 0:
				return usagef("name the tools, or --off")
			}
			for _, name := range args {
				if name == "" {
					return usagef("the name of a tool is empty")
				}
			}
			r := control.PolicyRequest{NoRollback: args}
			if off {
				r = control.PolicyRequest{Off: []string{partNoRollback}}
			}
			return a.setPolicy(cmd.Context(), r)
		},
	}
	cmd.Flags().BoolVar(&off, "off", false, "take all away")
	return cmd
}

func (a *app) setPolicy(ctx context.Context, r control.PolicyRequest) error {
	return a.policy(ctx, func(c *control.Client) (*control.Policy, error) { return c.SetPolicy(ctx, r) })
}

func (a *app) newPolicyShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the policy",
		Long:  "Show the policy, and what of it may not do what it is meant to.\n\n" + exitHelp,
		Args:  exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return a.policy(ctx, func(c *control.Client) (*control.Policy, error) { return c.Policy(ctx) })
		},
	}
}

// policy prints the policy that fn asks for, with its warnings.
func (a *app) policy(ctx context.Context, fn func(*control.Client) (*control.Policy, error)) error {
	return withSession(ctx, a, func(c *control.Client) (*control.Policy, error) {
		p, err := fn(c)
		if err != nil {
			return nil, err
		}
		for _, text := range p.Warnings {
			a.warn("%s", text)
		}
		return p, nil
	}, printPolicy)
}

func printPolicy(w io.Writer, p *control.Policy) {
	rows := [][]string{{partAutoCheckpoint, "off (tool begin makes one in front of each call that may write all the same, and all are kept)"}, {partAutoRollback, "off"}, {partNoRollback, "no tool"}, {partGC, "off"}}
	if c := p.AutoCheckpoint; c != nil {
		keep := "all are kept"
		if c.KeepLast > 0 {
			keep = fmt.Sprintf("the last %d are kept", c.KeepLast)
		}
		rows[0][1] = fmt.Sprintf("%s; %s", shownList(c.Triggers), keep)
	}
	if r := p.AutoRollback; r != nil {
		rows[1][1] = fmt.Sprintf("on %s, to '%s'", shownList(r.On), show(r.To))
	}
	if len(p.NoRollback) > 0 {
		rows[2][1] = shownList(p.NoRollback)
	}
	if p.GC != nil {
		rows[3][1] = "when idle; " + describeRules(p.GC)
	}
	table(w, rows)
	if p.AutoRollback == nil {
		return
	}
	for _, v := range p.AutoRollback.Verifiers {
		s := specOf(v)
		out := "verifier: " + show(v.Command)
		if s.Timeout > 0 {
			out += ", timeout " + s.Timeout.String()
		}
		if s.Retries > 0 {
			out += fmt.Sprintf(", %d retries", s.Retries)
			if s.RetryDelay > 0 {
				out += " after " + s.RetryDelay.String()
			}
		}
		fmt.Fprintln(w, out)
	}
}
