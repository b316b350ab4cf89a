package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

type checkpointOptions struct {
	req      control.CheckpointRequest
	meta     []string
	messages []string
	format   string
	sqlite   []string
}

func (a *app) newCheckpoint() *cobra.Command {
	o := &checkpointOptions{}
	cmd := &cobra.Command{
		Use:   "checkpoint [LABEL]",
		Short: "Keep the present state under a name",
		Long: `Keep the present state, in constant time whatever the size of the tree or of the change. LABEL may hold letters,
digits, . _ - / : and spaces inside; without one the checkpoint is named by its id. (One that is called like a command below goes behind --.)

The live conversation is kept with it; --messages brings a newer one along. If that cannot be read, the checkpoint is made all the
same and says conversation: missing, never an older one; what can be read and is no conversation is refused, and nothing changes.

With --pending it is only recorded: attach makes it count, reject takes that back.

--sqlite also copies a database outside of the mount, as the targets of rewindfs.toml are with every checkpoint: a rollback to it puts them back, and
undo takes that back. A database that is not there is noted as such; one that cannot be copied fails the checkpoint.

` + formatHelp + "\n" + exitHelp,
		Args: between(0, 1, "at most one label"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.req.Label = &args[0]
			}
			return a.runCheckpoint(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.req.Message, "message", "m", "", "what it is")
	f.StringArrayVar(&o.meta, "meta", nil, "key=value to keep with it (more than once)")
	f.StringVar(&o.req.Phase, "phase", "", "phase of the agent's work")
	f.StringVar(&o.req.Turn, "turn", "", "id of the agent's turn")
	f.StringVar(&o.req.ToolCall, "tool-call", "", "id of the tool call")
	f.BoolVar(&o.req.Durable, "durable", false, "wait until it survives a power cut")
	f.StringArrayVar(&o.messages, "messages", nil, "file with the conversation (-: standard input), or THREAD=FILE for a named one (more than once)")
	a.addFormat(cmd, &o.format)
	f.BoolVar(&o.req.Pending, "pending", false, "only record it: it counts once it is attached")
	f.StringArrayVar(&o.sqlite, "sqlite", nil, "SQLite database outside of the mount, to be copied with it (more than once)")
	f.BoolVar(&o.req.SkipFailedTargets, "skip-failed-targets", false, "do without the targets that cannot be copied")
	cmd.AddCommand(a.newAttach(), a.newCurrent(), a.newReject(), a.newCollect(), a.newCheckpointList(), a.newDelete())
	return cmd
}

// metadata reads key=value pairs.
func metadata(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usagef("--meta %s: write it as key=value", show(p))
		}
		if _, twice := m[k]; twice {
			return nil, usagef("--meta %s is given twice", show(k))
		}
		m[k] = v
	}
	return m, nil
}

// checkTexts refuses what JSON would change on the way.
func checkTexts(texts map[string]string) error {
	for flag, text := range texts {
		if !utf8.ValidString(text) {
			return usagef("--%s %s is not UTF-8 text", flag, show(text))
		}
	}
	return nil
}

// checkpointMade is what checkpoint prints as JSON.
type checkpointMade struct {
	*control.Checkpoint
	Warnings []string `json:"warnings"`
}

func (a *app) runCheckpoint(ctx context.Context, o *checkpointOptions) error {
	err := checkTexts(map[string]string{
		"message": o.req.Message, "phase": o.req.Phase, "turn": o.req.Turn, "tool-call": o.req.ToolCall, "meta": strings.Join(o.meta, ""),
	})
	if err != nil {
		return err
	}
	if o.req.Metadata, err = metadata(o.meta); err != nil {
		return err
	}
	if o.req.SQLite, err = sqlitePaths(o.sqlite); err != nil {
		return err
	}
	said, err := messagesArgs(o.messages)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	sent, err := a.stage(ctx, c, said, o.format)
	if err != nil {
		return err
	}
	o.req.Threads, o.req.Missing = sent.threads, sent.missing
	c.Timeout = moveTime // targets may be large
	res := checkpointMade{Warnings: sent.warnings}
	if res.Checkpoint, err = c.Checkpoint(ctx, o.req); err != nil {
		return err
	}
	return a.result(res, func(w io.Writer) { printMade(w, res.Checkpoint) })
}

func printMade(w io.Writer, c *control.Checkpoint) {
	if c.Existing {
		fmt.Fprintf(w, "Nothing is new since checkpoint %s, which was recorded before; conversation: %s.\n", checkpointName(c), describeConversation(c.Conversation))
	} else {
		fmt.Fprintf(w, "Checkpoint %s: %s changed since the one before, kept in %s; conversation: %s.\n",
			checkpointName(c), count(c.ChangedPaths, "path"), micros(c.EngineUS), describeConversation(c.Conversation))
	}
	printTargets(w, c.Targets)
	if c.State == stateRecorded {
		fmt.Fprintf(w, "It is recorded, and counts once it is attached: rewindfs checkpoint attach %s\n", quoteArg(refOf(c)))
		return
	}
	fmt.Fprintf(w, "Come back with: rewindfs rollback %s\n", quoteArg(refOf(c)))
}

// What Checkpoint.State says of one that does not count.
const (
	stateRecorded = "recorded"
	stateAttached = "attached"
	stateRejected = "rejected"
)

// describeConversation is a conversation for people: "12 messages", "none", "missing".
func describeConversation(c control.Conversation) string {
	out := c.State
	switch c.State {
	case "":
		out = "none"
	case "present":
		out = count(int64(c.Messages), "message")
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.Threads)) {
		names = append(names, fmt.Sprintf("%s %s", show(name), describeConversation(c.Threads[name])))
	}
	if len(names) > maxShown {
		names = append(names[:maxShown], fmt.Sprintf("… and %d more", len(names)-maxShown))
	}
	if len(names) > 0 {
		out += " (" + strings.Join(names, ", ") + ")"
	}
	return out
}

// refOf is the reference that finds c.
func refOf(c *control.Checkpoint) string {
	if c.Label != "" && !c.Dropped { // else the label may be another's by now
		return c.Label
	}
	return c.ID
}

func checkpointName(c *control.Checkpoint) string {
	if c.Label != "" {
		return fmt.Sprintf("'%s' (%s)", c.Label, c.ID)
	}
	return c.ID
}

// plainArg is what a shell takes as it stands.
var plainArg = regexp.MustCompile(`^[\pL\pN_./,:+@%][\pL\pN_./,:+@%=^~-]*$`)

// quoteArg makes an argument of s for a shell: names are what somebody else has chosen, and a command that we propose must not run them.
func quoteArg(s string) string {
	if plainArg.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
