package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

func (a *app) newPurge() *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:   "purge PATH... [--yes]",
		Short: "Remove what files have held, such as secrets, from every checkpoint and branch",
		Long: `Remove what the files at PATH, relative to the mount, and below it have ever held, from every checkpoint and branch, and from the disk: no file of
the store has a byte of it any more. The files stay, and are empty. It follows files, not names: one that was at PATH once is emptied wherever it was
moved. It cannot be undone. First it lists what it found; without --yes it asks on a terminal, and elsewhere only lists. With --yes it also overwrites
what deleted files have left in the store's files, and nothing names any more, whether or not it finds something at PATH.

The session has to be unmounted. What the base has on the host stays: it was never written. Copies of the bytes in other files are
listed, and stay until they are purged, too. Conversations stay as they are: it says in how many messages the name of a PATH occurs, as what it
held may be there, too. What an SSD keeps of blocks that were given back is out of reach.

` + exitHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("purge takes one path or more; see: rewindfs purge --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runPurge(cmd.Context(), args, yes) },
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) runPurge(ctx context.Context, paths []string, yes bool) error {
	l, err := a.choose(ctx)
	if err != nil {
		return err
	}
	if st := l.State(ctx); st != session.StateUnmounted && st != session.StateDead {
		whole := l.Session()
		return &control.Error{Code: control.CodeBusy, Message: fmt.Sprintf("session %s is mounted, and the kernel has its files: first say: rewindfs unmount %s", show(l.Name), quoteArg(show(whole.Mountpoint)))}
	}
	var res *session.Purged
	err = offline(l, func(s *session.Session) (err error) {
		if res, err = s.Purge(paths, true); err != nil {
			return err
		}
		ask := !yes && isTerminal(a.in) && !a.json && len(res.Files) > 0
		if ask {
			printPurged(a.err, res)
			fmt.Fprintf(a.err, "This cannot be undone. Type yes to go on: ")
			answer, _ := bufio.NewReader(a.in).ReadString('\n')
			yes = strings.TrimSpace(answer) == "yes"
		}
		if yes {
			res, err = s.Purge(paths, false)
		} else if ask {
			err = errors.New("nothing was purged")
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.result(res, func(w io.Writer) { printPurged(w, res) })
}

func printPurged(w io.Writer, p *session.Purged) {
	for _, f := range p.Files {
		fmt.Fprintf(w, "%s (up to %s) in %s\n", showName(f.PathName), size(f.Bytes), shownList(f.Checkpoints))
	}
	for _, f := range p.Copies {
		fmt.Fprintf(w, "Copy: %s in %s has some of the same bytes, and keeps them.\n", showName(f.PathName), shownList(f.Checkpoints))
	}
	for _, m := range p.Mentions {
		fmt.Fprintf(w, "The name of %s occurs in %s of conversations, which keep what they say.\n", showName(m.PathName), count(int64(m.Messages), "message"))
	}
	switch {
	case len(p.Files) == 0 && p.DryRun:
		fmt.Fprintln(w, "The store has nothing of it in any checkpoint or branch. What was deleted before may still lie in free places of the store's files: overwrite these with --yes.")
	case len(p.Files) == 0:
		fmt.Fprintf(w, "No checkpoint and no branch has anything of it. The free places of the store's files were overwritten; it takes %s.\n", size(p.StoreBytes))
	case p.DryRun:
		fmt.Fprintf(w, "Would empty what is at %s, everywhere and for good. Do it with --yes.\n", count(int64(len(p.Files)), "path"))
	default:
		fmt.Fprintf(w, "Emptied what is at %s, everywhere and for good; the store takes %s.\n", count(int64(len(p.Files)), "path"), size(p.StoreBytes))
	}
}
