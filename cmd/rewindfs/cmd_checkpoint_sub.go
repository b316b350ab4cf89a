package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

// withSession connects, has fn call the daemon, and prints what it returns.
func withSession[Res any](ctx context.Context, a *app, fn func(*control.Client) (*Res, error), text func(io.Writer, *Res)) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	res, err := fn(c)
	if err != nil {
		return err
	}
	return a.result(res, func(w io.Writer) { text(w, res) })
}

func (a *app) newAttach() *cobra.Command {
	return &cobra.Command{
		Use:   "attach ID",
		Short: "Make a recorded checkpoint count, and the current one",
		Long: `Make a recorded checkpoint count, and the current one. Its id or its label names it. Attaching it twice is attaching it once.

` + exitHelp,
		Args:              exactly(1, "one checkpoint"),
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Checkpoint, error) {
				return c.Attach(ctx, control.CheckpointRef{Ref: args[0]})
			}, func(w io.Writer, c *control.Checkpoint) {
				fmt.Fprintf(w, "Checkpoint %s is attached, and the current one. Take that back with: rewindfs checkpoint reject %s\n",
					checkpointName(c), quoteArg(refOf(c)))
			})
		},
	}
}

func (a *app) newCurrent() *cobra.Command {
	return &cobra.Command{
		Use:   "current",
		Short: "Show the checkpoint that was attached last",
		Long:  "Show the checkpoint that was attached last, and not rejected since. It is an error when there is none.\n\n" + exitHelp,
		Args:  exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Checkpoint, error) {
				return c.Current(ctx)
			}, func(w io.Writer, c *control.Checkpoint) {
				fmt.Fprintf(w, "Checkpoint %s is the current one; conversation: %s.\n", checkpointName(c), describeConversation(c.Conversation))
				if c.Dropped {
					fmt.Fprintln(w, "A rollback went past it, so it is not under the head.")
				}
				fmt.Fprintf(w, "Go there with: rewindfs rollback %s\n", quoteArg(refOf(c)))
			})
		},
	}
}

func (a *app) newReject() *cobra.Command {
	return &cobra.Command{
		Use:   "reject ID",
		Short: "Take back that a checkpoint is the current one",
		Long: `Take back that a checkpoint counts: the one attached before it is the current one again. When something newer was
attached since, that has decided, and nothing changes. No file changes either: go back with rollback.

` + exitHelp,
		Args:              exactly(1, "one checkpoint"),
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Rejected, error) {
				return c.Reject(ctx, control.CheckpointRef{Ref: args[0]})
			}, printRejected)
		},
	}
}

func printRejected(w io.Writer, r *control.Rejected) {
	name := checkpointName(&r.Rejected)
	switch {
	case r.Rejected.State != stateRejected:
		fmt.Fprintf(w, "Something newer was attached since checkpoint %s, so nothing was changed.\n", name)
	case r.Moved:
		fmt.Fprintf(w, "Checkpoint %s is rejected.\n", name)
	default:
		fmt.Fprintf(w, "Checkpoint %s is rejected; it was not the current one.\n", name)
	}
	if r.Current == nil {
		fmt.Fprintln(w, "No checkpoint is the current one.")
		return
	}
	fmt.Fprintf(w, "The current one is %s; its files come back with: rewindfs rollback %s\n", checkpointName(r.Current), quoteArg(refOf(r.Current)))
}

func (a *app) newCollect() *cobra.Command {
	before, limit := time.Duration(0), 0
	cmd := &cobra.Command{
		Use:   "collect --before DURATION",
		Short: "Drop recorded checkpoints that nobody attached",
		Long: `Drop checkpoints that were recorded with --pending longer ago than DURATION (such as 24h or 30m) and never attached, the oldest
first, at most 1,000 at a time. Attached ones are never dropped. Their space is given back as far as nothing else needs it.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			switch {
			case !f.Changed("before"):
				return usagef("say with --before how long ago they were recorded at least, such as --before 24h")
			case f.Changed("limit") && limit < 1:
				return usagef("--limit %d: give 1 to 1,000", limit)
			}
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Collected, error) {
				c.Timeout = moveTime
				return c.Collect(ctx, control.CollectRequest{BeforeMS: before.Milliseconds(), Limit: limit})
			}, printCollected)
		},
	}
	cmd.Flags().DurationVar(&before, "before", 0, "how long ago they were recorded at least")
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many (default 1000)")
	return cmd
}

func printCollected(w io.Writer, r *control.Collected) {
	if len(r.Checkpoints) == 0 {
		fmt.Fprintln(w, "No recorded checkpoint is that old. Nothing was dropped.")
		return
	}
	fmt.Fprintf(w, "Dropped %s:\n", count(int64(len(r.Checkpoints)), "recorded checkpoint"))
	for i := range r.Checkpoints {
		if i == maxShown {
			fmt.Fprintf(w, "  … and %d more\n", len(r.Checkpoints)-i)
			break
		}
		fmt.Fprintf(w, "  %s\n", checkpointName(&r.Checkpoints[i]))
	}
	if r.More {
		fmt.Fprintln(w, "There are more: call it again.")
	}
}

func (a *app) newCheckpointList() *cobra.Command {
	r := control.LogRequest{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List checkpoints with their state and conversation, newest first",
		Long: `List checkpoints, newest first: what log shows, with the state of each (recorded, attached, rejected) and its
conversation.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Log, error) { return c.Log(ctx, r) }, printCheckpoints)
		},
	}
	cmd.Flags().BoolVar(&r.All, "all", false, "also those that a rollback dropped, and automatic ones")
	cmd.Flags().IntVarP(&r.Limit, "limit", "n", 0, "at most so many (0: all)")
	return cmd
}

func printCheckpoints(w io.Writer, log *control.Log) {
	if len(log.Checkpoints) == 0 {
		fmt.Fprintln(w, "No checkpoint yet. Make one with: rewindfs checkpoint NAME")
		return
	}
	rows := [][]string{{"LABEL", "ID", "TIME", "STATE", "CONVERSATION", "PHASE"}}
	for i := range log.Checkpoints {
		c := &log.Checkpoints[i]
		label, state, phase := c.Label, c.State, c.Phase
		if label == "" {
			label = "-"
		}
		if c.Auto {
			state = strings.TrimPrefix(state+", auto", ", ")
		}
		if c.Dropped {
			state = strings.TrimPrefix(state+", dropped", ", ")
		}
		if state == "" {
			state = "-"
		}
		if phase != "" {
			phase = show(phase)
		}
		rows = append(rows, []string{label, c.ID, when(c.CreatedAt), state, describeConversation(c.Conversation), phase})
	}
	table(w, rows)
}

func (a *app) newDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete REF",
		Short: "Drop a checkpoint",
		Long: `Drop checkpoint REF. The files stay as they are; its space is given back as far as no other checkpoint, undo or redo needs
it. This cannot be undone.

` + exitHelp,
		Args:              exactly(1, "one checkpoint"),
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Checkpoint, error) {
				c.Timeout = moveTime
				return c.Delete(ctx, control.CheckpointRef{Ref: args[0]})
			}, func(w io.Writer, c *control.Checkpoint) {
				fmt.Fprintf(w, "Dropped checkpoint %s.\n", checkpointName(c))
			})
		},
	}
}
