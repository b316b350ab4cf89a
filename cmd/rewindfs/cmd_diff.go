package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

type diffOptions struct {
	req              control.DiffRequest
	nameStatus, stat bool
	patch, binary    bool
	null             bool
}

func (a *app) newDiff() *cobra.Command {
	o := &diffOptions{}
	cmd := &cobra.Command{
		Use:   "diff [FROM [TO]] [-- PATH...]",
		Short: "Show which paths differ between two states",
		Long: `Show which paths differ between FROM (default: the latest checkpoint, or the base when there is none) and TO
(default: the present state): A added, M modified, D deleted, R renamed, T of another type. Both may be checkpoints of any branch.

--patch prints what git apply takes, in the root of a copy of FROM: text by lines, renames, modes as git knows them, symbolic links.
Lines that begin with # say what git has no words for, and what changed in .git, which git apply would refuse. Files that are binary, or larger than 4 MiB, are only said to differ; --binary
gives their bytes, up to 16 MiB.

` + exitHelp,
		ValidArgsFunction: a.completeRefs,
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, paths := args, []string(nil)
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				refs, paths = args[:n], args[n:]
			}
			if len(refs) > 2 {
				return usagef("diff takes at most two states; paths go behind --")
			}
			for i, dst := range []*string{&o.req.From, &o.req.To} {
				if i < len(refs) {
					if refs[i] == "" {
						return failf(exitCheckpoint, "the name of a checkpoint is empty")
					}
					*dst = refs[i]
				}
			}
			for _, p := range paths {
				o.req.Paths = append(o.req.Paths, []byte(p))
			}
			return a.runDiff(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.nameStatus, "name-status", false, "letter, tab, path and nothing else")
	f.BoolVar(&o.stat, "stat", false, "how many lines of which file")
	f.BoolVarP(&o.patch, "patch", "p", false, "a patch that git apply takes")
	f.BoolVar(&o.binary, "binary", false, "with --patch: binary files, too")
	f.BoolVarP(&o.null, "null", "z", false, "with --name-status: end each field with NUL, names as they are")
	return cmd
}

// diffResult is what diff prints as JSON.
type diffResult struct {
	Changes []control.Change `json:"changes"`
	*control.DiffSummary
}

func listChanges(ctx context.Context, c *control.Client, r control.DiffRequest) (diffResult, error) {
	res := diffResult{Changes: []control.Change{}}
	var err error
	res.DiffSummary, err = c.Diff(ctx, r, func(ch control.Change) error {
		res.Changes = append(res.Changes, ch)
		return nil
	})
	return res, err
}

func (a *app) runDiff(ctx context.Context, o *diffOptions) error {
	if o.nameStatus && o.stat || o.nameStatus && o.patch || o.stat && o.patch {
		return usagef("--name-status, --stat and --patch exclude each other")
	}
	if o.binary && !o.patch {
		return usagef("--binary goes with --patch")
	}
	if o.null && !o.nameStatus {
		return usagef("-z goes with --name-status")
	}
	if o.patch || o.stat {
		return a.runPatch(ctx, o)
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if a.json {
		res, err := listChanges(ctx, c, o.req)
		if err != nil {
			return err
		}
		return a.result(res, nil)
	}
	w := bufio.NewWriter(a.out)
	sum, err := c.Diff(ctx, o.req, func(ch control.Change) error {
		if o.nameStatus {
			return printNameStatus(w, &ch, o.null)
		}
		_, err := fmt.Fprintf(w, "%s  %s\n", ch.Status, describeChange(&ch))
		return err
	})
	if err != nil {
		return err
	}
	if !o.nameStatus {
		printDiffSummary(w, sum)
		for i := range sum.Targets {
			t := &sum.Targets[i]
			fmt.Fprintf(w, "%s  target: %s", t.Status, targetName(t))
			if t.Error != "" {
				fmt.Fprintf(w, "  (%s)", show(t.Error))
			}
			fmt.Fprintln(w)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// printNameStatus prints a change as git's --name-status does.
func printNameStatus(w io.Writer, c *control.Change, null bool) error {
	tab, end, name := "\t", "\n", show
	if null {
		tab, end, name = "\x00", "\x00", func(s string) string { return s }
	}
	path, err := c.Bytes()
	if err != nil {
		return fmt.Errorf("read a path: %w", err)
	}
	if c.OldPath != "" {
		old, err := control.PathName{Path: c.OldPath, PathB64: c.OldPathB64}.Bytes()
		if err != nil {
			return fmt.Errorf("read a path: %w", err)
		}
		_, err = fmt.Fprint(w, c.Status, tab, name(old), tab, name(path), end)
		return err
	}
	_, err = fmt.Fprint(w, c.Status, tab, name(path), end)
	return err
}

// describeChange is a change for people: its path and how its size changed.
func describeChange(c *control.Change) string {
	mark := ""
	switch {
	case c.Kept && c.Ignored:
		mark = "  [kept, ignored]"
	case c.Kept:
		mark = "  [kept]"
	case c.Ignored:
		mark = "  [ignored]"
	}
	if c.LeadsOut != nil {
		mark += "  -> " + showName(*c.LeadsOut) + "  [leads out of the project]"
	}
	return describeObject(c) + mark
}

func describeObject(c *control.Change) string {
	path := showName(c.PathName)
	if c.OldPath != "" {
		path = showName(control.PathName{Path: c.OldPath, PathB64: c.OldPathB64}) + " -> " + path
	}
	switch c.Type {
	case "dir":
		return path + "/"
	case "file":
	default:
		return path + "  (" + c.Type + ")"
	}
	switch {
	case c.OldSize == nil && c.NewSize == nil:
		return path
	case c.OldSize == nil:
		return fmt.Sprintf("%s  (%s)", path, size(*c.NewSize))
	case c.NewSize == nil:
		return fmt.Sprintf("%s  (was %s)", path, size(*c.OldSize))
	case !c.Content:
		return path + "  (only mode, owner, times or attributes)"
	case *c.OldSize == *c.NewSize:
		return fmt.Sprintf("%s  (%s)", path, size(*c.NewSize))
	}
	return fmt.Sprintf("%s  (%s -> %s)", path, size(*c.OldSize), size(*c.NewSize))
}

func printDiffSummary(w io.Writer, sum *control.DiffSummary) {
	if sum.Total == 0 {
		fmt.Fprintf(w, "No difference between %s and %s.\n", stateName(sum.From), stateName(sum.To))
		return
	}
	var parts []string
	for _, s := range []struct{ letter, word string }{{"A", "added"}, {"M", "modified"}, {"D", "deleted"}, {"R", "renamed"}, {"T", "of another type"}} {
		if n := sum.Counts[s.letter]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s.word))
		}
	}
	fmt.Fprintf(w, "%s between %s and %s: %s\n", count(int64(sum.Total), "path"), stateName(sum.From), stateName(sum.To), strings.Join(parts, ", "))
}

func stateName(s string) string {
	if s == "head" {
		return "now"
	}
	return "'" + s + "'"
}
