package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

func (a *app) newFsck() *cobra.Command {
	r := control.FsckRequest{}
	cmd := &cobra.Command{
		Use:   "fsck [--repair] [--quick]",
		Short: "Check that the store is what it should be",
		Long: `Check the whole store: every record, every byte of every checkpoint's files, conversations and the ledger. It tells what is wrong, where it
shows, and whether something is lost, and exits with 1 if there is anything. Programs may go on working.

--repair makes anew what follows from other records. It never makes up what a file or a directory holds: what is lost answers with an error (EIO), is
listed here by path and checkpoint each time, and everything else goes on working. Some repairs need the session unmounted; a store that cannot
be mounted can be repaired, too. What is lost for good can be removed with rewindfs purge.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runFsck(cmd.Context(), r) },
	}
	cmd.Flags().BoolVar(&r.Repair, "repair", false, "put right what can be put right without guessing")
	cmd.Flags().BoolVar(&r.Quick, "quick", false, "do not read the bytes of files")
	return cmd
}

// fsckResult is what fsck prints as JSON.
type fsckResult struct {
	*control.Fsck
	Found []control.Finding `json:"found"`
}

func (a *app) runFsck(ctx context.Context, r control.FsckRequest) error {
	res := fsckResult{Found: []control.Finding{}}
	found := func(f control.Finding) error {
		res.Found = append(res.Found, f)
		return nil
	}
	var err error
	res.Fsck, err = care(ctx, a, "fsck", func(c *control.Client, tell func(control.Progress)) (*control.Fsck, error) {
		return c.Fsck(ctx, r, found, tell)
	}, func(l *session.Listed, tell func(control.Progress)) (*control.Fsck, error) {
		return session.CheckStore(ctx, offlineOptions(l), &r, func(f control.Finding) { _ = found(f) }, tell)
	})
	if err != nil {
		return err
	}
	var bad error
	if !res.Clean {
		bad = failf(exitFailure, "the store is not as it should be: %s", count(res.Findings, "finding"))
		if a.json {
			return &foundError{bad, res}
		}
	}
	return errors.Join(bad, a.result(res, func(w io.Writer) { printFsck(w, &res, r.Repair) }))
}

func printFsck(w io.Writer, res *fsckResult, repair bool) {
	for _, f := range res.Found {
		where := ""
		if f.Path != "" {
			where = ": " + showName(f.PathName)
		}
		if len(f.Checkpoints) > 0 {
			where += " (" + show(strings.Join(f.Checkpoints, ", ")) + ")"
		}
		state := "found"
		switch {
		case f.Lost && f.Fixed:
			state = "lost, cleared away"
		case f.Lost:
			state = "lost"
		case f.Fixed:
			state = "repaired"
		}
		fmt.Fprintf(w, "%s%s: %s [%s]\n", f.Kind, where, show(f.What), state)
	}
	fmt.Fprintf(w, "Checked %s, %s and %s (%s).\n", count(res.Layers, "layer"), count(res.Records, "record"), count(res.Chunks, "chunk"), size(res.Bytes))
	switch {
	case res.Clean:
		fmt.Fprintln(w, "The store is clean.")
	case !repair:
		fmt.Fprintln(w, "Put right what can be with: rewindfs unmount, then rewindfs fsck --repair")
	case res.Fixed < res.Findings:
		fmt.Fprintf(w, "%s put right; what is left is lost, or needs the session unmounted.\n", count(res.Fixed, "finding"))
	}
}
