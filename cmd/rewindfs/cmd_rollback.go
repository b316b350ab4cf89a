package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

// moveTime bounds rollback, undo and redo: their work grows with what changed.
const moveTime = 30 * time.Minute

type rollbackOptions struct {
	req      control.RollbackRequest
	messages string // file for the conversation
}

func (a *app) newRollback() *cobra.Command {
	o := &rollbackOptions{}
	cmd := &cobra.Command{
		Use:   "rollback REF",
		Short: "Make everything as it was at a checkpoint",
		Long: `Make every path, content, mode, time and link as it was at checkpoint REF. The state before it is kept: undo brings
it back. No byte is copied.

The conversation goes back, too, and is made valid for its provider: the messages are in the answer to --json, in --messages-out, and
in memory get. A notice in it tells the model that it was rolled back, with --notes as the reason. One that cannot be made valid is refused, with
the reason, and nothing changes.

Targets outside of the mount that the checkpoint has copies of are put back, too, after what they hold now was copied, for undo; --no-targets
leaves them as they are.

` + exitHelp,
		Args:              exactly(1, "one checkpoint"),
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.req.Ref = args[0]
			return a.runRollback(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.req.DryRun, "dry-run", false, "only tell what would change, and which checkpoints and messages would go")
	f.BoolVar(&o.req.Touch, "touch", false, "give what differs the present time, for build tools outside of the mount")
	f.StringVar(&o.req.Notes, "notes", "", "why, for the model and the ledger")
	f.BoolVar(&o.req.NoNotice, "no-notice", false, "do not tell the model")
	f.BoolVar(&o.req.FilesOnly, "files-only", false, "leave the conversation as it is")
	f.BoolVar(&o.req.MessagesOnly, "messages-only", false, "leave the files as they are")
	f.BoolVar(&o.req.NoTargets, "no-targets", false, "leave databases and volumes outside of the mount as they are")
	f.StringVar(&o.messages, "messages-out", "", "write the conversation to this file, whole or not at all")
	addIfBusy(cmd, &o.req.WhenBusy)
	return cmd
}

// addIfBusy adds the flags that say what to do about processes that hold files of the mount open.
func addIfBusy(cmd *cobra.Command, w *control.WhenBusy) {
	f := cmd.Flags()
	f.StringVar(&w.IfBusy, "if-busy", "", "when processes hold files of the mount open: fail, wait for them, or kill them (default: name them and go on)")
	wait := f.Duration("timeout", time.Minute, "how long --if-busy wait waits")
	completeFlag(cmd, "if-busy", []string{control.BusyFail, control.BusyWait, control.BusyKill})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.Changed("if-busy") && !slices.Contains([]string{control.BusyFail, control.BusyWait, control.BusyKill}, w.IfBusy):
			return usagef("--if-busy %s: use fail, wait or kill", show(w.IfBusy))
		case f.Changed("timeout") && w.IfBusy != control.BusyWait:
			return usagef("--timeout is for --if-busy wait")
		case *wait < time.Millisecond:
			return usagef("--timeout %s: it must be 1ms or more", *wait)
		}
		if w.IfBusy == control.BusyWait {
			w.WaitMS = wait.Milliseconds()
		}
		return run(cmd, args)
	}
}

// check finds options that make no sense together, before anything is done.
func (o *rollbackOptions) check() error {
	r := &o.req
	switch {
	case r.FilesOnly && r.MessagesOnly:
		return usagef("--files-only and --messages-only exclude each other")
	case r.Notes != "" && r.NoNotice:
		return usagef("--notes and --no-notice exclude each other")
	case o.messages != "" && (r.FilesOnly || r.DryRun):
		return usagef("--messages-out needs a conversation: leave out --files-only and --dry-run")
	case o.messages == "-":
		return usagef("--messages-out takes a file; for standard output use --json, or memory get")
	}
	if err := checkTexts(map[string]string{"notes": r.Notes}); err != nil || o.messages == "" {
		return err
	}
	return checkOutFile(o.messages)
}

// moved is what rollback, undo and redo print as JSON: of a real one, changes is what
// was done to the conversation, of a dry run the paths.
type moved struct {
	*control.Rollback
	Changes any              `json:"changes"`
	Repairs []control.Repair `json:"repairs"`
}

func movedOf(res *control.Rollback) *moved {
	m := &moved{Rollback: res, Changes: res.Changes, Repairs: res.Repairs}
	if m.Repairs == nil {
		m.Repairs = []control.Repair{}
	}
	if !res.DryRun {
		m.Changes = m.Repairs
	}
	return m
}

func (a *app) runRollback(ctx context.Context, o *rollbackOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	res, err := c.Rollback(ctx, o.req)
	if err != nil {
		return err
	}
	if o.messages != "" {
		if err := a.writeMessages(o.messages, res); err != nil {
			// It has happened; the answer is the only place that says so.
			return &foundError{fmt.Errorf("back at '%s', but %w (the messages are in: rewindfs memory get)", res.Checkpoint, err), movedOf(res)}
		}
	}
	return a.moved(res, "rollback "+quoteArg(o.req.Ref), func(w io.Writer) {
		if o.req.DryRun {
			printForeseen(w, o.req, res)
			return
		}
		printMoved(w, res, o.req.FilesOnly, o.req.MessagesOnly)
		if o.messages != "" && res.Messages != nil {
			fmt.Fprintf(w, "The messages are in %s.\n", show(o.messages))
		}
		if !res.Noop {
			fmt.Fprintln(w, "Undo with: rewindfs undo")
		}
	})
}

// moved prints the result of a movement, which is a failure where a target was not put back; again is the command that tries it again.
func (a *app) moved(res *control.Rollback, again string, text func(io.Writer)) error {
	bad := targetsFailed(res.Targets, again)
	if bad != nil && a.json {
		return &foundError{bad, movedOf(res)}
	}
	if err := a.result(movedOf(res), text); err != nil || bad == nil {
		return err
	}
	return bad
}

// printMoved says what a rollback has done to the files and to the conversation.
func printMoved(w io.Writer, res *control.Rollback, filesOnly, messagesOnly bool) {
	switch {
	case messagesOnly:
		fmt.Fprintf(w, "The conversation is back at '%s'; the files are as they were.\n", res.Checkpoint)
	case res.Noop && (filesOnly || res.Messages == nil):
		fmt.Fprintf(w, "Already at '%s', with nothing changed. Nothing was done.\n", res.Checkpoint)
	case res.Noop:
		fmt.Fprintf(w, "Already at '%s', with no file changed.\n", res.Checkpoint)
	case res.ChangedPaths == 0:
		fmt.Fprintf(w, "Back at '%s'. No file differed.\n", res.Checkpoint)
	default:
		fmt.Fprintf(w, "Back at '%s'. %s restored in %s.\n", res.Checkpoint, count(res.ChangedPaths, "path"), micros(res.EngineUS))
	}
	if res.KeptPaths > 0 && !messagesOnly {
		fmt.Fprintf(w, "Kept as before, as rewindfs.toml says: %s.\n", count(res.KeptPaths, "path"))
	}
	printTargets(w, res.Targets)
	printConversation(w, res, filesOnly)
	printDropped(w, res, "left the line; each can still be reached by its id")
	printBusy(w, res)
}

// printConversation says what has become of the conversation.
func printConversation(w io.Writer, res *control.Rollback, filesOnly bool) {
	switch state := res.Conversation.State; {
	case filesOnly:
		fmt.Fprintln(w, "The conversation was left as it is.")
		return
	case state == "missing":
		fmt.Fprintln(w, "conversation: missing. It could not be read at that time: begin a new one, or go on with one of your own.")
	case state == "present":
		fmt.Fprintf(w, "conversation: %s", describeConversation(res.Conversation))
		if len(res.Repairs) == 0 {
			fmt.Fprintln(w, ", valid as they were.")
			break
		}
		fmt.Fprintf(w, ", with %s:\n", count(int64(len(res.Repairs)), "change"))
		for i, r := range res.Repairs {
			if i == maxShown {
				fmt.Fprintf(w, "  … and %d more\n", len(res.Repairs)-i)
				break
			}
			fmt.Fprintf(w, "  %s\n", describeRepair(r))
		}
	case len(res.Threads) > 0:
		fmt.Fprintf(w, "conversation: %s\n", describeConversation(res.Conversation))
	}
	if res.Notice != "" {
		fmt.Fprintf(w, "The model is told: %s\n", show(res.Notice))
	}
}

// printForeseen prints a dry run.
func printForeseen(w io.Writer, r control.RollbackRequest, res *control.Rollback) {
	if res.Noop && len(res.GoneMessages) == 0 {
		fmt.Fprintf(w, "Already at '%s', with nothing changed.\n", res.Checkpoint)
		return
	}
	for _, c := range res.Changes {
		fmt.Fprintf(w, "%s  %s\n", c.Status, describeChange(&c))
	}
	if res.Truncated {
		fmt.Fprintf(w, "… and %d more\n", res.ChangedPaths-int64(len(res.Changes)))
	}
	fmt.Fprintf(w, "Rollback to '%s' would change %s.\n", res.Checkpoint, count(res.ChangedPaths, "path"))
	if res.KeptPaths > 0 {
		fmt.Fprintf(w, "Kept as now, as rewindfs.toml says: %s.\n", count(res.KeptPaths, "path"))
	}
	printTargets(w, res.Targets)
	printDropped(w, res, "would leave the line")
	for _, name := range slices.Sorted(maps.Keys(res.GoneMessages)) {
		fmt.Fprintf(w, "Of the conversation (%s), the last %s would go.\n", show(name), count(int64(res.GoneMessages[name]), "message"))
	}
	printBusy(w, res)
	fmt.Fprintf(w, "Nothing was done. Do it with: rewindfs rollback %s\n", quoteArg(r.Ref))
}

// maxShown bounds lists for people; --json has them whole.
const maxShown = 10

func printDropped(w io.Writer, res *control.Rollback, what string) {
	if len(res.Dropped) == 0 {
		return
	}
	fmt.Fprintf(w, "%s %s:\n", count(int64(len(res.Dropped)), "checkpoint"), what)
	for i := range res.Dropped {
		if i == maxShown {
			fmt.Fprintf(w, "  … and %d more\n", len(res.Dropped)-i)
			break
		}
		fmt.Fprintf(w, "  %s\n", checkpointName(&res.Dropped[i]))
	}
}

// printBusy warns of processes that may still have in memory what is gone.
func printBusy(w io.Writer, res *control.Rollback) {
	if len(res.Busy) == 0 {
		return
	}
	fmt.Fprintln(w, "In use by (what they have in memory may be of the other state):")
	for i, p := range res.Busy {
		if i == maxShown {
			fmt.Fprintf(w, "  … and %d more\n", len(res.Busy)-i)
			break
		}
		use := ""
		if len(p.Uses) > 0 {
			use = "  " + show(p.Uses[0])
		}
		fmt.Fprintf(w, "  %d  %s%s\n", p.PID, show(p.Command), use)
	}
}

// completeOneRef offers checkpoints for the first argument only.
func (a *app) completeOneRef(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeRefs(cmd, args, toComplete)
}

// completeRefs offers checkpoints to a shell.
func (a *app) completeRefs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out := []string{"latest", "base"}
	c, err := a.connect(ctx)
	if err != nil {
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	log, err := c.Log(ctx, control.LogRequest{Limit: 50})
	if err != nil {
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	for i := range log.Checkpoints {
		out = append(out, refOf(&log.Checkpoints[i]))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
