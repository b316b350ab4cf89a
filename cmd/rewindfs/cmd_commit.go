package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

func (a *app) newCommit() *cobra.Command {
	r := control.CommitRequest{}
	o := commitOptions{}
	cmd := &cobra.Command{
		Use:   "commit [REF] [-- PATH...]",
		Short: "Write a checkpoint to the base on the host, or take that back",
		Long: `Bring what checkpoint REF (default: the present state) has changed to the base: all of it or, if the machine dies in
between, at the next mount either all or nothing. With PATHs, only what is there and below; --interactive asks for each, and for parts of text files. With
--hunks FILE, only what is left in a patch that --dry-run --patch printed (diff --patch, too, as long as nothing of these files was
committed). What is not brought stays in the mount, and a later commit brings it. With --to DIR, the whole tree to another directory.

Where the host is no longer what the mount was built on, that is a conflict: nothing is written, and the exit code is 6. --on-conflict ours
lets the checkpoint win, theirs leaves what the host has there and brings the rest. Files of others in a directory that goes are never removed.

--merge merges text files that were changed on both sides: what was changed on the host comes into the mount (undo takes it back), and the result to
the host. Where both changed the same lines it remains a conflict; with --markers both versions come into the mount, between
conflict markers, and nothing to the host: resolve them in the mount, then commit again.

What would run by itself on the host (git hooks and configuration, .envrc, editor tasks, CI files...) is held back and named. The list is in
the files commit-hold.defaults and, to be edited, commit-hold in the store; --include-executable-config brings it all. setuid and setgid bits, capabilities and devices need --allow-special.

A file that is replaced is a new file: other names that the old one has outside of the base keep the old content. Checkpoints go on
showing what they showed. commit --undo puts back what the host had before the last commit, with the same care.

` + exitHelp,
		ValidArgsFunction: a.completeRefs,
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, paths := args, []string(nil)
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				refs, paths = args[:n], args[n:]
			}
			if len(refs) > 1 {
				return usagef("commit takes at most one checkpoint; paths go behind --")
			}
			if len(refs) == 1 {
				if r.Ref = refs[0]; r.Ref == "" {
					return failf(exitCheckpoint, "the name of the checkpoint is empty")
				}
			}
			for _, p := range paths {
				r.Paths = append(r.Paths, []byte(p))
			}
			if cmd.Flags().Changed("to") {
				if o.to == "" {
					return usagef("--to is empty: name the directory to write to")
				}
				at, err := placeArg(o.to)
				if err != nil {
					return err
				}
				r.To, r.ToB64 = at.Path, at.PathB64
			}
			if err := o.check(a, &r); err != nil {
				return err
			}
			return a.runCommit(cmd.Context(), r, &o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&r.DryRun, "dry-run", "n", false, "only list what would be done")
	f.StringVar(&o.to, "to", "", "bring the whole tree to this directory instead; it is made if it is missing")
	f.StringVar(&r.OnConflict, "on-conflict", "abort", "abort, ours (the checkpoint wins) or theirs (the host keeps what it has)")
	f.BoolVar(&r.ExecutableConfig, "include-executable-config", false, "also bring what may run by itself on the host")
	f.BoolVar(&r.Special, "allow-special", false, "also bring setuid and setgid bits, capabilities and devices")
	f.BoolVarP(&o.choose, "interactive", "i", false, "ask for each path, and for hunks of text files")
	f.StringVar(&o.hunks, "hunks", "", "bring only what is in this patch (- is standard input)")
	f.BoolVar(&r.Patch, "patch", false, "with --dry-run: print the changes as a patch")
	f.BoolVar(&r.Merge, "merge", false, "merge texts that were changed on the host, too")
	f.BoolVar(&r.Markers, "markers", false, "with --merge: put what does not go together into the mount, with conflict markers")
	f.BoolVar(&r.Undo, "undo", false, "put back what the host had before the last commit")
	return cmd
}

// commitOptions is what commit does before it asks the daemon.
type commitOptions struct {
	to, hunks string
	choose    bool
}

// check refuses what does not go together.
func (o *commitOptions) check(a *app, r *control.CommitRequest) error {
	switch {
	case o.choose && (r.Undo || len(r.Paths) > 0 || a.json || r.Merge || o.hunks != "" || r.To != ""):
		return usagef("--interactive asks what to bring: leave --undo, --merge, --hunks, --to, --json and paths out")
	case r.Markers && !r.Merge:
		return usagef("--markers goes with --merge")
	case r.Merge && (r.Undo || r.To != "" || o.hunks != ""):
		return usagef("--merge is of the whole files, and with what the base has: leave --undo, --to and --hunks out")
	case r.Merge && r.Ref != "" && r.Ref != control.RefHead:
		return usagef("--merge is of the present state: leave the checkpoint out, or roll back to it first")
	case r.Patch && !r.DryRun:
		return usagef("--patch goes with --dry-run")
	case o.hunks != "" && (r.Undo || r.To != ""):
		return usagef("--hunks says what to bring to the base: leave --undo and --to out")
	}
	return nil
}

// commitResult is what commit prints as JSON.
type commitResult struct {
	Changes   []control.CommitChange `json:"changes"`
	Conflicts []control.CommitChange `json:"conflicts"`
	Left      []control.CommitChange `json:"left"`
	*control.Committed

	colour bool // a patch is for a terminal
}

func (a *app) runCommit(ctx context.Context, r control.CommitRequest, o *commitOptions) error {
	r.List = r.DryRun || a.json
	if o.hunks != "" {
		var err error
		if r.Hunks, err = a.readInput(ctx, o.hunks); err != nil {
			return inputError(err)
		}
		if len(r.Hunks) == 0 {
			return failf(exitFailure, "%s is empty: nothing was chosen, so nothing was written", inputName(o.hunks))
		}
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if o.choose {
		if err := a.chooseCommit(ctx, c, &r); err != nil {
			return err
		}
	}
	res := commitResult{colour: isTerminal(a.out), Changes: []control.CommitChange{}, Conflicts: []control.CommitChange{}, Left: []control.CommitChange{}}
	show := newProgressLine(a)
	res.Committed, err = c.Commit(ctx, r, func(ch control.CommitChange) error {
		switch ch.Left {
		case "":
			res.Changes = append(res.Changes, ch)
		case "conflict":
			res.Conflicts = append(res.Conflicts, ch)
		default:
			res.Left = append(res.Left, ch)
		}
		return nil
	}, show.set)
	show.clear()
	if err != nil {
		return err
	}
	if len(res.Conflicts) == 0 {
		return a.result(res, func(w io.Writer) { printCommit(w, &res, &r) })
	}
	err = commitConflict(&res)
	if a.json {
		return &foundError{err, res}
	}
	w := bufio.NewWriter(a.out)
	printCommit(w, &res, &r)
	if ferr := w.Flush(); ferr != nil {
		return fmt.Errorf("print the result: %w", ferr)
	}
	return err
}

// commitConflict says what to do about conflicts.
func commitConflict(res *commitResult) error {
	n := count(int64(len(res.Conflicts)), "conflict")
	if res.Merged > 0 {
		return failf(exitConflict, "%s: %s merged in the mount, and nothing was written to the host. Resolve them in the mount and commit again, or go back with: rewindfs undo", n, count(int64(res.Merged), "file"))
	}
	how := "--on-conflict ours or theirs"
	for _, ch := range res.Conflicts {
		if ch.Merge == control.MergeMarkers {
			how = "--merge --markers (both versions, in the mount, to be resolved there), or with --on-conflict ours or theirs"
		}
	}
	return failf(exitConflict, "%s: nothing was written. Look at them, then commit again with %s", n, how)
}

func printCommit(w io.Writer, res *commitResult, r *control.CommitRequest) {
	dry := r.DryRun
	if r.Patch && dry {
		if printCommitPatch(w, res); !res.Conflict() {
			return
		}
	}
	for _, ch := range res.Changes {
		if dry && !r.Patch {
			fmt.Fprintf(w, "%s  %s\n", ch.Status, describeChange(&ch.Change))
		}
		if ch.Reason != "" {
			fmt.Fprintf(w, "note: %s: %s\n", showName(ch.PathName), show(ch.Reason))
		}
	}
	for _, list := range [][]control.CommitChange{res.Conflicts, res.Left} {
		for _, ch := range list {
			fmt.Fprintf(w, "%s: %s: %s\n", ch.Left, showName(ch.PathName), show(ch.Reason))
		}
	}
	for _, n := range res.Notes {
		fmt.Fprintf(w, "note: %s\n", show(n))
	}
	if slices.ContainsFunc(res.Left, func(ch control.CommitChange) bool { return ch.Left == "held" }) {
		fmt.Fprintf(w, "What is held back is listed in %s.defaults; what else is to be, or what not, can be said in %s.\n", show(res.HoldList), show(res.HoldList))
	}
	where := show(res.Target)
	switch {
	case res.Conflict():
	case res.Noop && len(res.Left) > 0:
		fmt.Fprintf(w, "Nothing else to do: %s has the rest.\n", where)
	case res.Noop:
		fmt.Fprintf(w, "Nothing to do: %s has it all.\n", where)
	case dry:
		fmt.Fprintf(w, "Would change %s in %s, %s of content.\n", count(int64(res.Paths), "path"), where, size(res.Bytes))
	case res.Undo:
		fmt.Fprintf(w, "Put back what %s had before the last commit: %s.\n", where, count(int64(res.Paths), "path"))
	default:
		fmt.Fprintf(w, "Wrote %s to %s, %s of content, in %s.\n", count(int64(res.Paths), "path"), where, size(res.Bytes), micros(res.EngineUS))
		if res.CanUndo {
			fmt.Fprintln(w, "Take it back with: rewindfs commit --undo")
		}
	}
}

// printCommitPatch prints the changes as a patch, and in it, as what git apply passes over, what they are that have none.
func printCommitPatch(w io.Writer, res *commitResult) {
	for _, ch := range res.Left {
		fmt.Fprintf(w, "# %s: %s: %s\n", ch.Left, showName(ch.PathName), show(ch.Reason))
	}
	for _, ch := range res.Changes {
		text, err := ch.Text()
		if err != nil || len(text) == 0 {
			fmt.Fprintf(w, "# %s  %s\n", ch.Status, describeChange(&ch.Change))
			continue
		}
		if res.colour {
			text = coloured(text)
		}
		_, _ = w.Write(text)
	}
}

// Conflict reports whether conflicts stopped it.
func (r *commitResult) Conflict() bool { return len(r.Conflicts) > 0 }

// progressLine shows on a terminal how far something is.
type progressLine struct {
	w     io.Writer // nil: nobody looks
	shown bool
}

func newProgressLine(a *app) *progressLine {
	if a.quiet || a.json || !isTerminal(a.err) {
		return &progressLine{}
	}
	return &progressLine{w: a.err}
}

func (l *progressLine) set(p control.Progress) {
	if l.w == nil {
		return
	}
	l.shown = true
	if p.Total > 0 {
		fmt.Fprintf(l.w, "\r\x1b[K%s %d of %d", p.Unit, p.Done, p.Total)
	} else {
		fmt.Fprintf(l.w, "\r\x1b[K%s", p.Unit)
	}
}

func (l *progressLine) clear() {
	if l.shown {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}
