package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

func (a *app) newBudget() *cobra.Command {
	return newGroup("budget", "Ceilings on what a session may use",
		`Ceilings on what a session may use: money, tokens, time, bytes written, checkpoints. Once one is reached, tool begin is refused (exit 8).
Tokens and cost are what tool end --usage and synced conversations say. What has been used stays used: a rollback gives nothing back.`,
		a.newBudgetSet(), a.newBudgetShow())
}

type budgetOptions struct {
	limits control.Limits
	wall   time.Duration
	bytes  string
	reset  bool
}

func (a *app) newBudgetSet() *cobra.Command {
	o := &budgetOptions{}
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Set ceilings",
		Long: `Set the ceilings that are named; the others stay as they are. 0 takes one away.

The cost of a model without a known price is unknown, never guessed: with a ceiling on cost that stops the session, unless --unknown-cost note
only notes it. Prices can be added in $XDG_CONFIG_HOME/rewindfs/prices.json.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runBudgetSet(cmd.Context(), cmd, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.limits.USD, "usd", "", "cost in US dollars, such as 2.50")
	f.Int64Var(&o.limits.InputTokens, "input-tokens", 0, "tokens given to models")
	f.Int64Var(&o.limits.OutputTokens, "output-tokens", 0, "tokens that models made")
	f.DurationVar(&o.wall, "wall", 0, "time since the first mount, or since --reset, such as 2h")
	f.StringVar(&o.bytes, "bytes", "", "bytes written to the mount, such as 10MB (powers of 1024)")
	f.Int64Var(&o.limits.Checkpoints, "checkpoints", 0, "checkpoints, automatic ones included")
	f.StringVar(&o.limits.OnUnknownCost, "unknown-cost", "", "when the price of a model is not known: refuse or note (default refuse)")
	completeFlag(cmd, "unknown-cost", []string{"refuse", "note"})
	f.BoolVar(&o.reset, "reset", false, "forget what was used, and count from now on")
	return cmd
}

// apply puts the ceilings that were named over those that are there.
func (o *budgetOptions) apply(changed func(string) bool, to *control.Limits) error {
	n := &o.limits
	if changed("usd") {
		if n.USD == "" {
			return usagef("--usd is empty: give a number, or 0 for no ceiling")
		}
		to.USD = n.USD
	}
	for flag, v := range map[string][2]*int64{
		"input-tokens": {&n.InputTokens, &to.InputTokens}, "output-tokens": {&n.OutputTokens, &to.OutputTokens}, "checkpoints": {&n.Checkpoints, &to.Checkpoints},
	} {
		if changed(flag) {
			*v[1] = *v[0]
		}
	}
	if changed("wall") {
		if o.wall != 0 && o.wall < time.Millisecond {
			return usagef("--wall %s: it must be a millisecond or more, or 0 for no ceiling", o.wall)
		}
		to.WallMS = o.wall.Milliseconds()
	}
	if changed("bytes") {
		var err error
		if to.BytesWritten, err = parseSize(o.bytes); err != nil {
			return usagef("--bytes: %w", err)
		}
	}
	if changed("unknown-cost") {
		switch n.OnUnknownCost {
		case "refuse", "note":
			to.OnUnknownCost = n.OnUnknownCost
		default:
			return usagef("--unknown-cost %s: use refuse or note", show(n.OnUnknownCost))
		}
	}
	return nil
}

func (a *app) runBudgetSet(ctx context.Context, cmd *cobra.Command, o *budgetOptions) error {
	ceilings := false
	for _, flag := range []string{"usd", "input-tokens", "output-tokens", "wall", "bytes", "checkpoints", "unknown-cost"} {
		ceilings = ceilings || cmd.Flags().Changed(flag)
	}
	if !ceilings && !o.reset {
		return usagef("name a ceiling, or --reset; see: %s --help", cmd.CommandPath())
	}
	if err := o.apply(cmd.Flags().Changed, &control.Limits{}); err != nil {
		return err // before a session is looked for
	}
	return withSession(ctx, a, func(c *control.Client) (*control.Budget, error) {
		r := control.BudgetRequest{Reset: o.reset}
		if ceilings {
			now, err := c.Budget(ctx)
			if err != nil {
				return nil, err
			}
			r.Limits = &now.Limits
			if err := o.apply(cmd.Flags().Changed, r.Limits); err != nil {
				return nil, err
			}
		}
		return c.SetBudget(ctx, r)
	}, printBudget)
}

func (a *app) newBudgetShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the ceilings and what was used",
		Long:  "Show the ceilings and what was used of them.\n\n" + exitHelp,
		Args:  exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Budget, error) { return c.Budget(ctx) }, printBudget)
		},
	}
}

func printBudget(w io.Writer, b *control.Budget) {
	rows := [][]string{{"WHAT", "USED", "CEILING"}}
	row := func(what, used, ceiling string, none bool) {
		if none {
			ceiling = "-"
		}
		rows = append(rows, []string{what, used, ceiling})
	}
	number := func(what string, used, ceiling int64, text func(int64) string) {
		row(what, text(used), text(ceiling), ceiling == 0)
	}
	plain := func(n int64) string { return strconv.FormatInt(n, 10) }
	length := func(ms int64) string {
		return (time.Duration(ms) * time.Millisecond).Round(time.Second / 10).String()
	}
	u, l := &b.Used, &b.Limits
	row("cost", u.USD, l.USD, l.USD == "")
	number("input tokens", u.InputTokens, l.InputTokens, plain)
	number("output tokens", u.OutputTokens, l.OutputTokens, plain)
	number("wall time", u.WallMS, l.WallMS, length)
	number("bytes written", u.BytesWritten, l.BytesWritten, size)
	number("checkpoints", u.Checkpoints, l.Checkpoints, plain)
	table(w, rows)
	for i, why := range b.Unpriced {
		if i == maxShown {
			fmt.Fprintf(w, "… and %d more\n", len(b.Unpriced)-i)
			break
		}
		fmt.Fprintf(w, "Not in the cost: %s\n", show(why))
	}
	if l.OnUnknownCost != "" {
		fmt.Fprintf(w, "Costs that are not known: %s\n", l.OnUnknownCost)
	}
	if b.Exceeded != "" {
		fmt.Fprintf(w, "Reached: %s. The next tool begin is refused; raise it with: rewindfs budget set\n", show(b.Exceeded))
	}
}
