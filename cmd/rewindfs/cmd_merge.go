package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

func (a *app) newMerge() *cobra.Command {
	r := control.MergeRequest{}
	cmd := &cobra.Command{
		Use:   "merge BRANCH",
		Short: "Bring in what another branch changed",
		Long: `Bring what BRANCH changed since it and this branch parted, or were last merged, into this branch. Both are sealed first, and undo takes the
merge back. BRANCH stays as it is; so does the conversation of this branch.

What one side changed is taken, what both changed alike needs nothing. A file that was moved on one side and changed on the other is both. A text file that both
changed in different places is merged line by line; the answer names those files: look at them. All else that both changed is a conflict. With any conflict
nothing is changed, all of them are listed, and the exit code is 6: make one side like the other, or take its file over, and merge again.

` + exitHelp,
		Args: exactly(1, "one branch"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Branch = args[0]
			return a.runMerge(cmd.Context(), r)
		},
	}
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "only tell what would change, and what is in conflict")
	return cmd
}

func (a *app) runMerge(ctx context.Context, r control.MergeRequest) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	m, err := c.Merge(ctx, r)
	if err != nil {
		return err
	}
	if n := len(m.Conflicts); n > 0 {
		bad := &foundError{failf(exitConflict, "branches %s and %s have %s: nothing was changed", show(m.Into), show(m.Branch), count(int64(n), "conflict")), m}
		if a.json {
			return bad
		}
		if err := a.result(m, func(w io.Writer) { printConflicts(w, m) }); err != nil {
			return err
		}
		return bad
	}
	return a.result(m, func(w io.Writer) { printMerged(w, m) })
}

func printConflicts(w io.Writer, m *control.Merged) {
	rows := [][]string{{"CONFLICT", "PATH", ""}}
	for _, c := range m.Conflicts {
		rows = append(rows, []string{c.Kind, showName(c.PathName), show(c.Detail)})
	}
	table(w, rows)
}

func printMerged(w io.Writer, m *control.Merged) {
	if m.Noop {
		fmt.Fprintf(w, "Branch %s has nothing that is not in %s already. Nothing was done.\n", show(m.Branch), show(m.Into))
		return
	}
	for _, c := range m.Changes {
		fmt.Fprintf(w, "%s  %s\n", c.Status, describeChange(&c))
	}
	if m.Truncated {
		fmt.Fprintf(w, "… and %d more\n", m.ChangedPaths-int64(len(m.Changes)))
	}
	if len(m.Merged) > 0 {
		fmt.Fprintln(w, "Changed on both sides, and merged line by line:")
		for _, p := range m.Merged {
			fmt.Fprintf(w, "  %s\n", showName(p))
		}
	}
	if m.DryRun {
		fmt.Fprintf(w, "Merging %s into %s would change %s. Nothing was done.\n", show(m.Branch), show(m.Into), count(m.ChangedPaths, "path"))
		return
	}
	fmt.Fprintf(w, "Merged %s into %s: %s changed in %s.\n", show(m.Branch), show(m.Into), count(m.ChangedPaths, "path"), micros(m.EngineUS))
	printBusy(w, &control.Rollback{Busy: m.Busy})
	fmt.Fprintln(w, "Undo with: rewindfs undo")
}
