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
		Args:  exactly(0, "no argument"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.runLog(cmd.Context(), r) },
	}
	cmd.Flags().BoolVar(&r.All, "all", false, "also those that a rollback dropped, those of other branches, and automatic ones")
	cmd.Flags().BoolVar(&r.Ops, "ops", false, "the operations instead: checkpoints, rollbacks, undos")
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
		if r.Ops {
			printOps(w, log)
			return
		}
		printLog(w, log)
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
	rows := [][]string{{"OP", "TIME", "KIND", "BRANCH", "LAYERS", "LABEL"}}
	for _, op := range log.Ops {
		layers := fmt.Sprintf("%d -> %d", op.From, op.To)
		if op.Kind == "checkpoint" {
			layers = fmt.Sprint(op.From)
		}
		rows = append(rows, []string{fmt.Sprint(op.N), when(op.At), op.Kind, show(op.Branch), layers, op.Label})
	}
	table(w, rows)
}
