package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

func (a *app) newLog() *cobra.Command {
	r := control.LogRequest{}
	cmd := &cobra.Command{
		Use:   "log",
		Short: "List checkpoints, newest first",
		Long: `List checkpoints, newest first. --graph shows how all branches hang together, with what rollbacks left; --ops what moved the
heads, and how to get back to what was there before.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.Graph && r.Ops {
				return usagef("--graph and --ops exclude each other")
			}
			return a.runLog(cmd.Context(), r)
		},
	}
	cmd.Flags().BoolVar(&r.All, "all", false, "also those that a rollback dropped, those of other branches, and automatic ones")
	cmd.Flags().BoolVar(&r.Graph, "graph", false, "as a graph of all branches, and of the lines that rollbacks left")
	cmd.Flags().BoolVar(&r.Ops, "ops", false, "the operations instead: checkpoints, rollbacks, restores, undos")
	cmd.Flags().IntVarP(&r.Limit, "limit", "n", 0, "at most so many (0: all)")
	return cmd
}

func (a *app) newOplog() *cobra.Command {
	r := control.LogRequest{Ops: true}
	cmd := &cobra.Command{
		Use:   "oplog",
		Short: "List what moved the heads, newest first (log --ops)",
		Args:  exactly(0, "no argument"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.runLog(cmd.Context(), r) },
	}
	cmd.Flags().BoolVar(&r.All, "all", false, "also those of other branches")
	cmd.Flags().IntVarP(&r.Limit, "limit", "n", 0, "at most so many (0: all)")
	return cmd
}

func (a *app) runLog(ctx context.Context, r control.LogRequest) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	log, err := c.Log(ctx, r)
	if err != nil {
		return err
	}
	return a.result(log, func(w io.Writer) {
		switch {
		case r.Ops:
			printOps(w, log)
		case r.Graph:
			printGraph(w, log.Graph)
		default:
			printLog(w, log)
		}
	})
}

func printLog(w io.Writer, log *control.Log) {
	if len(log.Checkpoints) == 0 {
		fmt.Fprintln(w, "No checkpoint yet. Make one with: rewindfs checkpoint NAME")
		return
	}
	rows := [][]string{{"LABEL", "ID", "TIME", "CHANGED", "MESSAGE"}}
	for i := range log.Checkpoints {
		c := &log.Checkpoints[i]
		label := c.Label
		switch {
		case label == "":
			label = "-"
		case c.Dropped:
			label += " (dropped)"
		}
		message, _, _ := strings.Cut(c.Message, "\n")
		if message != "" {
			message = show(message)
		}
		rows = append(rows, []string{label, c.ID, when(c.CreatedAt), fmt.Sprint(c.ChangedPaths), message})
	}
	table(w, rows)
}

func printOps(w io.Writer, log *control.Log) {
	rows := [][]string{{"OP", "TIME", "BRANCH", "WHAT", "BACK TO BEFORE IT", "CHECKPOINT"}}
	for i := range log.Ops {
		op := &log.Ops[i]
		rows = append(rows, []string{fmt.Sprint(op.N), when(op.At), show(op.Branch), describeOp(op), wayBack(op), op.Checkpoint})
	}
	table(w, rows)
}

// describeOp says what an operation did.
func describeOp(op *control.Op) string {
	about := ""
	if op.Label != "" {
		about = fmt.Sprintf(" '%s'", show(op.Label))
	}
	switch op.Kind {
	case "checkpoint":
		return fmt.Sprintf("checkpoint%s of %s", about, count(op.ChangedPaths, "changed path"))
	case "rollback":
		return "rollback to" + about
	case "restore":
		return "restore of paths from" + about
	case "merge":
		return "merge of branch" + about
	case "run":
		return "run of" + about
	case "fork":
		return "fork from" + about
	case "drop_branch":
		return "branch deleted"
	}
	return op.Kind + about
}

// wayBack says how to get to what a movement left.
func wayBack(op *control.Op) string {
	switch {
	case op.Steps > 0:
		return fmt.Sprintf("undo %d", op.Steps)
	case op.Steps < 0:
		return fmt.Sprintf("redo %d", -op.Steps)
	case op.Left != "":
		return "rollback " + op.Left
	}
	return "-"
}
