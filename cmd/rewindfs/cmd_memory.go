package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/memory/convo"
)

func (a *app) newMemory() *cobra.Command {
	return newGroup("memory", "The agent's conversation: keep it, see it, make it valid",
		`The agent's conversation. Every checkpoint keeps it together with the files, and a rollback brings both back.

`+formatHelp, a.newMemorySync(), a.newMemoryGet(), a.newMemoryRepair())
}

func (a *app) newMemorySync() *cobra.Command {
	format, thread := "", ""
	cmd := &cobra.Command{
		Use:   "sync FILE|-",
		Short: "Replace the live conversation",
		Long: `Replace the session's live conversation by the one in FILE, or on standard input (-). Checkpoints keep it from now on; only
what is new of it costs space. What is no conversation is refused, and changes nothing.

` + formatHelp + "\n" + exitHelp,
		Args: exactly(1, "one file, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runMemorySync(cmd.Context(), args[0], format, thread)
		},
	}
	a.addFormat(cmd, &format)
	cmd.Flags().StringVar(&thread, "thread", "", "name of the conversation, such as a subagent's (default main)")
	return cmd
}

// addFormat gives cmd the flag --format.
func (a *app) addFormat(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVar(format, "format", "", "format of the conversation (default: told by its shape)")
	completeFlag(cmd, "format", formats)
}

// completeFlag offers words for the value of a flag.
func completeFlag(cmd *cobra.Command, flag string, words []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag is defined right before
	}
}

func (a *app) runMemorySync(ctx context.Context, file, format, thread string) error {
	b, err := a.readInput(ctx, file)
	if err != nil {
		return inputError(err)
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := c.PutMemory(ctx, thread, format, false, bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("%s: %w", inputName(file), err)
	}
	if t.Warning != "" {
		a.warn("%s", t.Warning)
	}
	return a.result(t, func(w io.Writer) {
		fmt.Fprintf(w, "The live conversation%s: %s of the format %s. Checkpoints keep it from now on.\n",
			ofThread(t.Thread), count(int64(t.Messages), "message"), t.Format)
		fmt.Fprintln(w, "Keep it with the files now: rewindfs checkpoint NAME")
	})
}

// ofThread names a thread that is not the main one.
func ofThread(name string) string {
	if name == "" || name == "main" {
		return ""
	}
	return " of thread " + show(name)
}

func (a *app) newMemoryGet() *cobra.Command {
	thread, repair := "", false
	cmd := &cobra.Command{
		Use:   "get [REF]",
		Short: "Print the conversation: the live one, or that of a checkpoint",
		Long: `Print the live conversation, or that of checkpoint REF, message by message in the bytes they came in: a JSON array, or JSON
lines for transcripts that are kept so. With --repair it is made valid, as a rollback would hand it out, but without a notice; what was done is said
on standard error.

` + exitHelp,
		Args:              between(0, 1, "at most one checkpoint"),
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			ref := ""
			if len(args) == 1 {
				if ref = args[0]; ref == "" {
					return failf(exitCheckpoint, "the name of a checkpoint is empty")
				}
			}
			return a.runMemoryGet(cmd.Context(), ref, thread, repair)
		},
	}
	cmd.Flags().StringVar(&thread, "thread", "", "name of the conversation (default main)")
	cmd.Flags().BoolVar(&repair, "repair", false, "make it valid for its provider")
	return cmd
}

func (a *app) runMemoryGet(ctx context.Context, ref, thread string, repair bool) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := c.GetMemory(ctx, ref, thread, repair)
	if err != nil {
		return err
	}
	if repair {
		a.noteRepairs(m.Changes)
	}
	return a.result(m, func(w io.Writer) {
		_, _ = w.Write(encodeMessages(m.Format, m.Messages, m.Lines)) // result sees the error of w
	})
}

// encodeMessages is messages that a daemon sent, in the shape that they came in.
func encodeMessages(format string, messages []json.RawMessage, lines bool) []byte {
	return convo.History{Format: convo.Format(format), Items: messages, Lines: lines}.Encode()
}

// noteRepairs says on stderr what was done to a conversation.
func (a *app) noteRepairs(changes []control.Repair) {
	if len(changes) == 0 {
		a.note("The conversation is valid as it is.")
		return
	}
	a.note("%s to the conversation:", count(int64(len(changes)), "change"))
	for _, r := range changes {
		a.note("  %s", describeRepair(r))
	}
}

// describeRepair is a repair for people.
func describeRepair(r control.Repair) string {
	out := fmt.Sprintf("%s at %d", r.Action, r.At)
	if r.ID != "" {
		out += ": " + show(r.ID)
	}
	for i, id := range r.IDs {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		out += sep + show(id)
	}
	if r.Results != nil && *r.Results > 0 {
		out += fmt.Sprintf(" (%s went with it)", count(int64(*r.Results), "result"))
	}
	return out
}
