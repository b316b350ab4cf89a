package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

func (a *app) newUndo() *cobra.Command {
	return a.newWalk("undo", "Take back the last rollback, restore or run, or the last N",
		`Make everything as it was before the last rollback, restore, merge or run of a command that changed something, or go N such steps back (default 1), as an editor does. What was
left as it was found is no step of its own. Nothing is lost: redo goes forward again, also to what was written
in between; and after the next rollback, undo passes all that was undone before it. While a command of run still runs and has changed
something, undo does not go back to before it (exit 6): end the command, or take back what it has done so far with rewindfs rollback, as the message says.`)
}

func (a *app) newRedo() *cobra.Command {
	return a.newWalk("redo", "Take back the last undo, or the last N",
		"Make everything as it was before the last undo, or go N steps forward (default 1), until a rollback comes in between.")
}

func (a *app) newWalk(verb, short, long string) *cobra.Command {
	var r control.UndoRequest
	cmd := &cobra.Command{
		Use: verb + " [N]", Short: short, Long: long + "\n\n" + exitHelp,
		Args: between(0, 1, "at most one number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.N = 1
			if len(args) == 1 {
				var err error
				if r.N, err = strconv.Atoi(args[0]); err != nil || r.N < 1 {
					return usagef("%s %s: the number must be 1 or more", verb, show(args[0]))
				}
			}
			return a.runWalk(cmd.Context(), verb, r)
		},
	}
	cmd.Flags().BoolVar(&r.NoTargets, "no-targets", false, "leave databases and volumes outside of the mount as they are")
	cmd.Flags().BoolVar(&r.FilesOnly, "files-only", false, "leave the conversation as it is")
	addIfBusy(cmd, &r.WhenBusy)
	return cmd
}

func (a *app) runWalk(ctx context.Context, verb string, r control.UndoRequest) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	call, back := c.Undo, "redo"
	if verb == "redo" {
		call, back = c.Redo, "undo"
	}
	res, err := call(ctx, r)
	if err != nil {
		return err
	}
	return a.moved(res, walkAgain(verb), func(w io.Writer) {
		fmt.Fprintf(w, "Done: %s. %s changed in %s.\n", describeWalk(verb, r.N, res), count(res.ChangedPaths, "path"), micros(res.EngineUS))
		printTargets(w, res.Targets)
		printConversation(w, res, res.FilesOnly)
		printBusy(w, res)
		fmt.Fprintf(w, "Take this back with: rewindfs %s\n", back)
	})
}

// describeWalk says where an undo or redo of n steps has led.
func describeWalk(verb string, n int, res *control.Rollback) string {
	direction := "back"
	if verb == "redo" {
		direction = "forward"
	}
	out := count(int64(n), "step") + " " + direction
	if res.Checkpoint != "" {
		out += fmt.Sprintf(", at '%s'", res.Checkpoint)
	}
	if res.Before == nil {
		return out
	}
	if res.Before.Kind == "rollback" {
		return out + fmt.Sprintf(", as it was before the rollback to '%s'", res.Before.Label)
	}
	if res.Before.Kind == "restore" {
		return out + fmt.Sprintf(", as it was before paths of '%s' were restored", res.Before.Label)
	}
	if res.Before.Kind == "merge" {
		return out + fmt.Sprintf(", as it was before branch '%s' was merged", res.Before.Label)
	}
	if res.Before.Kind == "run" {
		return out + fmt.Sprintf(", as it was before the command '%s'", show(res.Before.Label))
	}
	return out + ", as it was before the " + res.Before.Kind
}
