package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

// gcOptions are the flags of a collection's rules.
type gcOptions struct {
	rules   control.GCRules
	keep    int
	older   string
	maxSize string
	dryRun  bool
}

func (o *gcOptions) addRules(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&o.keep, "keep", 0, "drop all but the newest N checkpoints of each branch, and its newest N automatic ones")
	f.StringVar(&o.older, "older-than", "", "drop only what is older, such as 36h or 7d")
	f.BoolVar(&o.rules.KeepLabeled, "keep-labeled", false, "drop nothing that has a label")
	f.BoolVar(&o.rules.ForgetUndo, "forget-undo", false, "give up what undo and redo lead to, too")
	f.StringVar(&o.maxSize, "max-size", "", "drop the oldest, those without a label first, until the store is this small, such as 500M or 2G")
}

// complete checks the flags.
func (o *gcOptions) complete(cmd *cobra.Command) error {
	f := cmd.Flags()
	var err error
	if f.Changed("keep") {
		if o.keep < 1 {
			return usagef("--keep %d: it must be 1 or more", o.keep)
		}
		o.rules.Keep = &o.keep
	}
	if f.Changed("older-than") {
		age, err := parseAge(o.older)
		if err != nil || age < time.Millisecond {
			return usagef("--older-than %s: say how old, such as 90m, 36h or 7d", show(o.older))
		}
		o.rules.OlderThanMS = age.Milliseconds()
	}
	if f.Changed("max-size") {
		if o.rules.MaxSize, err = parseSize(o.maxSize); err != nil {
			return usagef("--max-size: %w", err)
		}
		if o.rules.MaxSize == 0 {
			return usagef("--max-size 0: it must be 1 or more")
		}
	}
	if o.rules.KeepLabeled && o.rules.Keep == nil && o.rules.OlderThanMS == 0 && o.rules.MaxSize == 0 {
		return usagef("--keep-labeled spares something of what --keep, --older-than or --max-size drops: give one of them")
	}
	return nil
}

// parseAge is time.ParseDuration that knows days.
func parseAge(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || n < 0 || n > 100_000 {
			return 0, errors.New("no number of days")
		}
		return time.Duration(n * float64(24*time.Hour)), nil
	}
	return time.ParseDuration(s)
}

const gcHelp = `What is in the line of no branch any more, and on no way that undo and redo go, is always dropped. Never dropped are the latest and the current
checkpoint of a branch, what is only recorded, and what tool calls under way or an automatic rollback may go back to.`

func (a *app) newGC() *cobra.Command {
	o := &gcOptions{}
	cmd := &cobra.Command{
		Use:   "gc [--keep N] [--keep-labeled] [--older-than D] [--max-size BYTES] [--forget-undo] [--dry-run]",
		Short: "Give the disk back what nobody needs any more",
		Long: `Drop checkpoints by rules, and give the disk back what only they needed. Of several rules, a checkpoint goes when all of --keep, --older-than
and --keep-labeled let it; --max-size then drops more, as long as they let it. Without a rule no checkpoint goes that rollback, undo or redo by the names in
log could lead to.

` + gcHelp + `

Agents may go on working. Interrupted, it loses nothing, and the next gc goes on. It needs no room to speak of, also on a full disk, and no daemon.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return a.runGC(cmd.Context(), control.GCRequest{GCRules: o.rules, DryRun: o.dryRun})
		},
	}
	o.addRules(cmd)
	cmd.Flags().BoolVarP(&o.dryRun, "dry-run", "n", false, "only say what would go")
	return cmd
}

func (a *app) runGC(ctx context.Context, r control.GCRequest) error {
	res, err := care(ctx, a, "gc", func(c *control.Client, tell func(control.Progress)) (*control.GC, error) {
		return c.GC(ctx, r, tell)
	}, func(l *session.Listed, tell func(control.Progress)) (res *control.GC, err error) {
		err = offline(l, func(s *session.Session) error {
			res, err = s.CollectGarbage(ctx, &r, tell)
			return err
		})
		return res, err
	})
	if err != nil {
		return err
	}
	var bad error
	if res.TooLarge && !r.DryRun {
		bad = failf(exitFailure, "the store takes %s, and cannot be made as small as %s: all that is left is needed, or undo leads to it (--forget-undo)", size(res.StoreBytes), size(res.MaxSize))
		if a.json {
			return &foundError{bad, res}
		}
	}
	return errors.Join(bad, a.result(res, func(w io.Writer) { printGC(w, res) }))
}

// namedDrops is how many of the dropped checkpoints are named to a person, unless that was what was asked for.
const namedDrops = 20

func printGC(w io.Writer, g *control.GC) {
	drops, frees := "Dropped", "Freed"
	if g.DryRun {
		drops, frees = "Would drop", "Would free about"
	}
	for i, d := range g.Dropped {
		if i == namedDrops && !g.DryRun {
			fmt.Fprintf(w, "… and %d more\n", len(g.Dropped)-i)
			break
		}
		fmt.Fprintf(w, "%s %s of %s (%s of its own)\n", drops, checkpointName(&d.Checkpoint), when(d.CreatedAt), size(d.Bytes))
	}
	fmt.Fprintf(w, "%s %s and %s.\n", drops, count(int64(len(g.Dropped)), "checkpoint"), count(int64(g.Layers), "layer"))
	fmt.Fprintf(w, "%s %s; the store then takes %s.\n", frees, size(g.FreedBytes), size(g.StoreBytes))
	if g.DryRun && g.TooLarge {
		fmt.Fprintf(w, "It cannot be made as small as %s: all that is left is needed.\n", size(g.MaxSize))
	}
}

// care does something to the store of the chosen session: through its daemon or, when none runs, itself.
func care[Res any](ctx context.Context, a *app, title string, online func(*control.Client, func(control.Progress)) (*Res, error), offline func(*session.Listed, func(control.Progress)) (*Res, error)) (*Res, error) {
	b := a.newBar(title)
	defer b.end()
	if a.client == nil {
		l, err := a.choose(ctx)
		if err != nil {
			return nil, err
		}
		if st := l.State(ctx); st == session.StateUnmounted || st == session.StateDead {
			return offline(l, b.set)
		}
	}
	c, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.Branch = "" // it is about all of them
	return online(c, b.set)
}

// offline opens the store of a session that no daemon serves.
func offline(l *session.Listed, do func(*session.Session) error) error {
	s, err := session.OpenOffline(offlineOptions(l))
	if err != nil {
		return err
	}
	err = do(s)
	return errors.Join(err, s.Close())
}

func offlineOptions(l *session.Listed) session.Options {
	return session.Options{Base: l.Base, Store: l.Store, Name: l.Name, Mountpoint: l.Mountpoint, Over: l.Over, Version: version}
}

func (a *app) newPolicyGC() *cobra.Command {
	o := &gcOptions{}
	off, plain := false, false
	cmd := &cobra.Command{
		Use:   partGC + " [--keep N] [--keep-labeled] [--older-than D] [--max-size BYTES] [--forget-undo] | --left-behind | --off",
		Short: "Collect garbage by itself when nobody works",
		Long: `Collect garbage by rules, as gc does, whenever nothing has been asked of the mounts for a minute and something was done since the last
time. --left-behind drops only what gc drops without a rule.

` + gcHelp + "\n\n" + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := onOrOff(cmd, off, "keep", "keep-labeled", "older-than", "max-size", "forget-undo", "left-behind"); err != nil {
				return err
			}
			if err := o.complete(cmd); err != nil {
				return err
			}
			r := control.PolicyRequest{GC: &o.rules}
			if off {
				r = control.PolicyRequest{Off: []string{partGC}}
			}
			ctx := cmd.Context()
			return a.policy(ctx, func(c *control.Client) (*control.Policy, error) {
				c.Branch = "" // it is about all of them
				return c.SetPolicy(ctx, r)
			})
		},
	}
	o.addRules(cmd)
	cmd.Flags().BoolVar(&plain, "left-behind", false, "by no other rule")
	cmd.Flags().BoolVar(&off, "off", false, "no longer")
	return cmd
}

// describeRules says what a collection by r drops.
func describeRules(r *control.GCRules) string {
	var out []string
	if r.Keep != nil {
		out = append(out, fmt.Sprintf("the newest %d of each branch are kept", *r.Keep))
	}
	if r.OlderThanMS > 0 {
		out = append(out, fmt.Sprintf("what is younger than %s is kept", time.Duration(r.OlderThanMS)*time.Millisecond))
	}
	if r.KeepLabeled {
		out = append(out, "what has a label is kept")
	}
	if r.ForgetUndo {
		out = append(out, "what undo leads to goes")
	}
	if r.MaxSize > 0 {
		out = append(out, "the store is kept below "+size(r.MaxSize))
	}
	if len(out) == 0 {
		return "what no branch and no undo needs goes"
	}
	return strings.Join(out, ", ")
}
