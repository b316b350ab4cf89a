package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

func (a *app) newFork() *cobra.Command {
	r := control.ForkRequest{}
	cmd := &cobra.Command{
		Use:   "fork [REF [MOUNTPOINT]] --branch NAME",
		Short: "Show a checkpoint, writable, at a place of its own, beside what is mounted",
		Long: `Make a branch that begins at checkpoint REF, of whatever branch, and mount it at MOUNTPOINT (default: beside the mount of the
session, with -NAME behind it). Without REF, or with REF @head, it begins at the present state. Nothing is copied, and it takes the same time
whatever the size.

A branch has its files, its checkpoints, its undo, its policy and its conversation to itself; it begins with the conversation of REF, made valid
as by a rollback. Commands called in its mount are about it. The budget is one for all branches.

` + exitHelp,
		Args:              between(0, 2, "a checkpoint and, if you like, a mount point"),
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runFork(cmd.Context(), r, args)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&r.Branch, "branch", "b", "", "name of the new branch")
	f.BoolVar(&r.FilesOnly, "files-only", false, "begin without a conversation")
	f.BoolVar(&r.NoNotice, "no-notice", false, "do not tell the model")
	return cmd
}

func (a *app) runFork(ctx context.Context, r control.ForkRequest, args []string) error {
	if r.Branch == "" {
		return usagef("say what the new branch is called: rewindfs fork REF --branch NAME")
	}
	if len(args) > 0 {
		if r.Ref = args[0]; r.Ref == "" {
			return failf(exitCheckpoint, "the name of the checkpoint is empty (for the present state: %s)", control.RefHead)
		}
	}
	if len(args) > 1 {
		at, err := placeArg(args[1])
		if err != nil {
			return err
		}
		r.Mountpoint, r.MountpointB64 = at.Path, at.PathB64
	}
	return withSession(ctx, a, func(c *control.Client) (*control.Forked, error) {
		c.Timeout = moveTime
		return c.Fork(ctx, r)
	}, func(w io.Writer, f *control.Forked) {
		from := "'" + f.Checkpoint + "'"
		if r.Ref == "" || r.Ref == control.RefHead {
			from = "the present state"
		}
		fmt.Fprintf(w, "Branch %s begins at %s, and is at %s, writable. Made in %s.\n", show(f.Branch), from, show(f.Mountpoint), micros(f.EngineUS))
		if f.Conversation.State == "present" {
			fmt.Fprintf(w, "conversation: %s, with %s\n", describeConversation(f.Conversation), count(int64(len(f.Repairs)), "change"))
		}
		if f.Notice != "" {
			fmt.Fprintf(w, "The model is told: %s\n", show(f.Notice))
		}
		fmt.Fprintf(w, "Next:  cd %s\nDelete it with: rewindfs branch delete %s\n", quoteArg(show(f.Mountpoint)), quoteArg(show(f.Branch)))
	})
}

// placeArg makes an argument that names a mount point absolute: the daemon stands elsewhere.
func placeArg(arg string) (control.PathName, error) {
	if arg == "" {
		return control.PathName{}, failf(exitPath, "the mount point is empty: name a directory")
	}
	path, err := session.Canonical(arg)
	if err != nil {
		return control.PathName{}, failf(exitPath, "%w", err)
	}
	return control.NameOf(path), nil
}

func (a *app) newBranch() *cobra.Command {
	return newGroup("branch", "List, mount and delete branches",
		"Branches of a session stand side by side: see rewindfs fork, which makes them.",
		a.newBranchList(), a.newBranchMount(), a.newBranchDelete())
}

func (a *app) newBranchList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the branches of a session",
		Long:  "List the branches of a session, main first.\n\n" + exitHelp,
		Args:  exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.Branches, error) {
				c.Branch = "" // of all of them: also when the one that was said is not mounted
				return c.Branches(ctx)
			}, printBranches)
		},
	}
}

func printBranches(w io.Writer, all *control.Branches) {
	rows := [][]string{{"BRANCH", "STATE", "FROM", "CHECKPOINTS", "CHANGED", "MOUNTPOINT"}}
	for _, b := range all.Branches {
		from, changed, at := "-", "-", "-"
		if b.From != "" {
			from = b.From
		}
		if b.State == "mounted" {
			changed, at = fmt.Sprint(b.ChangedPaths), show(b.Mountpoint)
		}
		rows = append(rows, []string{show(b.Branch), b.State, from, fmt.Sprint(b.Checkpoints), changed, at})
	}
	table(w, rows)
	printProblems(w, all.Branches)
}

// printProblems says which branches could not be brought back, and why.
func printProblems(w io.Writer, all []control.Branch) {
	for _, b := range all {
		if b.Problem != "" {
			fmt.Fprintf(w, "Branch %s is not mounted: %s. Then: rewindfs branch mount %s [MOUNTPOINT]\n", show(b.Branch), show(b.Problem), quoteArg(show(b.Branch)))
		}
	}
}

// printForks says which branches came back with a session.
func printForks(w io.Writer, all []control.Branch) {
	for _, b := range all {
		if b.Branch != session.MainBranch && b.State == "mounted" {
			fmt.Fprintf(w, "Branch %s is at %s.\n", show(b.Branch), show(b.Mountpoint))
		}
	}
	printProblems(w, all)
}

func (a *app) newBranchMount() *cobra.Command {
	return &cobra.Command{
		Use:   "mount NAME [MOUNTPOINT]",
		Short: "Mount a branch that is not mounted",
		Long: `Mount a branch that was unmounted: at MOUNTPOINT or, without one, where it was. The session itself must be mounted.

` + exitHelp,
		Args: between(1, 2, "a branch and, if you like, a mount point"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			r := control.BranchMountRequest{Branch: args[0]}
			if len(args) > 1 {
				at, err := placeArg(args[1])
				if err != nil {
					return err
				}
				r.Mountpoint, r.MountpointB64 = at.Path, at.PathB64
			}
			return withSession(ctx, a, func(c *control.Client) (*control.Branch, error) {
				c.Branch = ""
				return c.MountBranch(ctx, r)
			}, func(w io.Writer, b *control.Branch) {
				fmt.Fprintf(w, "Branch %s is at %s.\n", show(b.Branch), show(b.Mountpoint))
			})
		},
	}
}

func (a *app) newBranchDelete() *cobra.Command {
	r := control.BranchDropRequest{}
	cmd := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"},
		Short: "Unmount a branch and delete it",
		Long: `Unmount a branch and delete it. One in use is refused, with the names of who uses it. Its last state is kept as a checkpoint
without a label, and its other checkpoints by their ids, until gc takes them; fork makes a branch of one.

` + exitHelp,
		Args: exactly(1, "one branch"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			r.Branch = args[0]
			return withSession(ctx, a, func(c *control.Client) (*control.BranchDropped, error) {
				c.Branch, c.Timeout = "", moveTime
				return c.DropBranch(ctx, r)
			}, func(w io.Writer, d *control.BranchDropped) {
				fmt.Fprintf(w, "Deleted branch %s.\n", show(d.Branch))
				if d.Checkpoint != nil {
					fmt.Fprintf(w, "Its last state can be had, until gc: rewindfs fork %s --branch %s\n", d.Checkpoint.ID, quoteArg(show(d.Branch)))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&r.Force, "force", false, "cut off whoever uses its mount")
	return cmd
}
