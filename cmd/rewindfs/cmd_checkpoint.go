package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

type checkpointOptions struct {
	req  control.CheckpointRequest
	meta []string
}

func (a *app) newCheckpoint() *cobra.Command {
	o := &checkpointOptions{}
	cmd := &cobra.Command{
		Use:   "checkpoint [LABEL]",
		Short: "Keep the present state under a name",
		Long: `Keep the present state, in constant time whatever the size of the tree or of the change. LABEL may hold letters,
digits, . _ - / : and spaces inside; without one the checkpoint is named by its id.

` + exitHelp,
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
func (o *checkpointOptions) checkTexts() error {
	texts := map[string]string{"message": o.req.Message, "phase": o.req.Phase, "turn": o.req.Turn, "tool-call": o.req.ToolCall, "meta": strings.Join(o.meta, "")}
	for flag, text := range texts {
		if !utf8.ValidString(text) {
			return usagef("--%s %s is not UTF-8 text", flag, show(text))
		}
	}
	return nil
}

func (a *app) runCheckpoint(ctx context.Context, o *checkpointOptions) error {
	err := o.checkTexts()
	if err != nil {
		return err
	}
	if o.req.Metadata, err = metadata(o.meta); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	made, err := c.Checkpoint(ctx, o.req)
	if err != nil {
		return err
	}
	return a.result(made, func(w io.Writer) {
		fmt.Fprintf(w, "Checkpoint %s: %s changed since the one before, kept in %s.\n",
			checkpointName(made), count(made.ChangedPaths, "path"), micros(made.EngineUS))
		fmt.Fprintf(w, "Come back with: rewindfs rollback %s\n", quoteArg(refOf(made)))
	})
}

// refOf is the reference that finds c.
func refOf(c *control.Checkpoint) string {
	if c.Label != "" {
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

// quoteArg makes s one word for a shell. Labels hold no quotes.
func quoteArg(s string) string {
	if strings.ContainsAny(s, " {}") {
		return "'" + s + "'"
	}
	return s
}
