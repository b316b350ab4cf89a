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

// moveTime bounds rollback, undo and redo: their work grows with what changed.
const moveTime = 30 * time.Minute

func (a *app) newRollback() *cobra.Command {
	r := control.RollbackRequest{}
	cmd := &cobra.Command{
		Use:   "rollback REF",
		Short: "Make everything as it was at a checkpoint",
		Long: `Make every path, content, mode, time and link as it was at checkpoint REF. The state before it is kept: undo brings
it back. No byte is copied.

` + exitHelp,
		Args:              exactly(1, "one checkpoint"),
		ValidArgsFunction: a.completeRefs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Ref = args[0]
			return a.runRollback(cmd.Context(), r)
		},
	}
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "only tell what would change, and which checkpoints would leave the line")
	cmd.Flags().BoolVar(&r.Touch, "touch", false, "give what differs the present time, for build tools outside of the mount")
	return cmd
}

func (a *app) runRollback(ctx context.Context, r control.RollbackRequest) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	res, err := c.Rollback(ctx, r)
	if err != nil {
		return err
	}
	return a.result(res, func(w io.Writer) {
		if r.DryRun {
			printForeseen(w, r, res)
			return
		}
		if res.Noop {
			fmt.Fprintf(w, "Already at '%s', with nothing changed. Nothing was done.\n", res.Checkpoint)
			return
		}
		fmt.Fprintf(w, "Back at '%s'. %s restored in %s.\n", res.Checkpoint, count(res.ChangedPaths, "path"), micros(res.EngineUS))
		printDropped(w, res, "left the line; each can still be reached by its id")
		printBusy(w, res)
		fmt.Fprintln(w, "Undo with: rewindfs undo")
	})
}

// printForeseen prints a dry run.
func printForeseen(w io.Writer, r control.RollbackRequest, res *control.Rollback) {
	if res.Noop {
		fmt.Fprintf(w, "Already at '%s', with nothing changed.\n", res.Checkpoint)
		return
	}
	for _, c := range res.Changes {
		fmt.Fprintf(w, "%s  %s\n", c.Status, describeChange(&c))
	}
	if res.Truncated {
		fmt.Fprintf(w, "… and %d more\n", res.ChangedPaths-int64(len(res.Changes)))
	}
	fmt.Fprintf(w, "Rollback to '%s' would change %s.\n", res.Checkpoint, count(res.ChangedPaths, "path"))
	printDropped(w, res, "would leave the line")
	printBusy(w, res)
	fmt.Fprintf(w, "Nothing was done. Do it with: rewindfs rollback %s\n", quoteArg(r.Ref))
}

// maxShown bounds lists for people; --json has them whole.
const maxShown = 10

func printDropped(w io.Writer, res *control.Rollback, what string) {
	if len(res.Dropped) == 0 {
		return
	}
	fmt.Fprintf(w, "%s %s:\n", count(int64(len(res.Dropped)), "checkpoint"), what)
	for i := range res.Dropped {
		if i == maxShown {
			fmt.Fprintf(w, "  … and %d more\n", len(res.Dropped)-i)
			break
		}
		fmt.Fprintf(w, "  %s\n", checkpointName(&res.Dropped[i]))
	}
}

// printBusy warns of processes that may still have in memory what is gone.
func printBusy(w io.Writer, res *control.Rollback) {
	if len(res.Busy) == 0 {
		return
	}
	fmt.Fprintln(w, "In use by (what they have in memory may be of the other state):")
	for i, p := range res.Busy {
		if i == maxShown {
			fmt.Fprintf(w, "  … and %d more\n", len(res.Busy)-i)
			break
		}
		use := ""
		if len(p.Uses) > 0 {
			use = "  " + show(p.Uses[0])
		}
		fmt.Fprintf(w, "  %d  %s%s\n", p.PID, show(p.Command), use)
	}
}

func (a *app) newUndo() *cobra.Command {
	return a.newWalk("undo", "Take back the last rollback, or the last N",
		"Take back the last N rollbacks (default 1), as an editor does. Nothing is lost: redo makes them again, also with\nwhat was written in between.")
}

func (a *app) newRedo() *cobra.Command {
	return a.newWalk("redo", "Make an undone rollback again, or the last N", "Make the last N undone rollbacks again (default 1).")
}

func (a *app) newWalk(verb, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " [N]", Short: short, Long: long + "\n\n" + exitHelp,
		Args: between(0, 1, "at most one number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := 1
			if len(args) == 1 {
				var err error
				if n, err = strconv.Atoi(args[0]); err != nil || n < 1 {
					return usagef("%s %s: the number must be 1 or more", verb, show(args[0]))
				}
			}
			return a.runWalk(cmd.Context(), verb, n)
		},
	}
}

func (a *app) runWalk(ctx context.Context, verb string, n int) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	call, back := c.Undo, "redo"
	if verb == "redo" {
		call, back = c.Redo, "undo"
	}
	res, err := call(ctx, control.UndoRequest{N: n})
	if err != nil {
		return err
	}
	return a.result(res, func(w io.Writer) {
		what := "the last rollback is taken back"
		if verb == "redo" {
			what = "the rollback is made again"
		}
		if n > 1 {
			what = fmt.Sprintf("%d steps back", n)
			if verb == "redo" {
				what = fmt.Sprintf("%d steps forward", n)
			}
		}
		fmt.Fprintf(w, "Done: %s. %s changed in %s.\n", what, count(res.ChangedPaths, "path"), micros(res.EngineUS))
		printBusy(w, res)
		fmt.Fprintf(w, "Take this back with: rewindfs %s\n", back)
	})
}

// completeRefs offers checkpoints to a shell.
func (a *app) completeRefs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out := []string{"latest", "base"}
	c, err := a.connect(ctx)
	if err != nil {
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	log, err := c.Log(ctx, control.LogRequest{Limit: 50})
	if err != nil {
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	for i := range log.Checkpoints {
		out = append(out, refOf(&log.Checkpoints[i]))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
