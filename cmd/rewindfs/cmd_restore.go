package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

func (a *app) newRestore() *cobra.Command {
	r := control.RestoreRequest{}
	cmd := &cobra.Command{
		Use:   "restore REF -- PATH...",
		Short: "Bring single files or directories of a checkpoint back",
		Long: `Make each PATH, relative to the root of the session, what it is at checkpoint REF, of whatever branch: content, mode, owner, times,
attributes, links, and all that is below a directory ('.' is everything). What REF does not have is removed; directories above that are gone
are made again. Everything else stays, and so does the conversation. No byte is copied.

The state before is kept under an automatic checkpoint: undo brings it back. A program that has a replaced file open keeps
what it has open; the name leads to the restored file.

` + exitHelp,
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || cmd.ArgsLenAtDash() > 1 {
				return usagef("restore takes a checkpoint and the paths to bring back: rewindfs restore REF -- PATH...")
			}
			r.Ref = args[0]
			for _, p := range args[1:] {
				r.Paths = append(r.Paths, []byte(p))
			}
			return a.runRestore(cmd.Context(), r)
		},
	}
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "only tell what would change")
	return cmd
}

func (a *app) runRestore(ctx context.Context, r control.RestoreRequest) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	res, err := c.Restore(ctx, r)
	if err != nil {
		return err
	}
	return a.result(res, func(w io.Writer) { printRestored(w, res) })
}

// printRestored says what a restore has done, or would do.
func printRestored(w io.Writer, res *control.Restored) {
	if res.Noop {
		fmt.Fprintf(w, "Already as at '%s'. Nothing was done.\n", res.Checkpoint)
		return
	}
	for i, c := range res.Changes {
		if i == maxShown && !res.DryRun {
			break
		}
		fmt.Fprintf(w, "%s  %s\n", c.Status, describeChange(&c))
	}
	switch {
	case res.DryRun && res.Truncated, !res.DryRun && res.ChangedPaths > maxShown:
		shown := int64(len(res.Changes))
		if !res.DryRun {
			shown = maxShown
		}
		fmt.Fprintf(w, "… and %d more\n", res.ChangedPaths-shown)
	}
	if res.DryRun {
		fmt.Fprintf(w, "Restoring from '%s' would change %s. Nothing was done.\n", res.Checkpoint, count(res.ChangedPaths, "path"))
		return
	}
	fmt.Fprintf(w, "%s as at '%s', in %s.\nUndo with: rewindfs undo\n", count(res.ChangedPaths, "path"), res.Checkpoint, micros(res.EngineUS))
}
