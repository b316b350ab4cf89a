package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/memory"
	"github.com/rewindfs/rewindfs/memory/convo"
	"github.com/rewindfs/rewindfs/memory/valid"
)

type repairOptions struct {
	convo.Options
	format   string
	mode     string
	noNotice bool
	noticeIs bool // --notice was given
}

func (a *app) newMemoryRepair() *cobra.Command {
	o := &repairOptions{}
	cmd := &cobra.Command{
		Use:   "repair FILE|-",
		Short: "Make a conversation that was cut valid for its provider",
		Long: `Print the conversation in FILE, or on standard input (-), made valid for its provider: no call without its result, no result
without its call, in the order that the format asks for. It needs no session and changes no file. Messages that need no change keep
their bytes, and a valid conversation comes out as it went in. What was done is said on standard error.

A step of which something ran is kept, and its other calls get a result that says so; one of which nothing ran is dropped: that is
--mode auto; drop always drops it, synthesize always keeps it. With --checkpoint or --notice a notice that it was rolled back is added for the model.

` + formatHelp + "\n" + exitHelp,
		Args: exactly(1, "one file, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.noticeIs = cmd.Flags().Changed("notice")
			return a.runMemoryRepair(cmd.Context(), o, args[0])
		},
	}
	f := cmd.Flags()
	a.addFormat(cmd, &o.format)
	f.StringVar(&o.mode, "mode", "auto", "what to do with a step that ran in part: auto, drop or synthesize")
	completeFlag(cmd, "mode", []string{"auto", "drop", "synthesize"})
	f.StringVar(&o.Checkpoint, "checkpoint", "", "name of the checkpoint gone back to, for the notice and for results that are made up")
	f.StringVar(&o.Notice, "notice", "", "text for the model, taken as it is (default: a notice that names --checkpoint)")
	f.BoolVar(&o.noNotice, "no-notice", false, "add no notice")
	f.BoolVar(&o.MidSystem, "mid-system", false, "the model takes role system inside of the conversation (Anthropic)")
	f.StringVar(&o.Pending, "pending-call", "", "id of the call in front of which the conversation was cut")
	f.StringVar(&o.NewID, "new-id", "", "session or thread id of the new transcript (claude-code-jsonl, codex-rollout)")
	return cmd
}

// complete makes options for the repair of what the flags say.
func (o *repairOptions) complete() error {
	o.Mode = convo.Mode(o.mode)
	switch o.Mode {
	case convo.Auto, convo.Drop, convo.Synthesize:
	default:
		return usagef("--mode %s: use auto, drop or synthesize", show(o.mode))
	}
	switch {
	case o.format != "" && !slices.Contains(formats, o.format):
		return usagef("--format %s: there is no such format; there are %s", show(o.format), strings.Join(formats, ", "))
	case o.noNotice && o.noticeIs:
		return usagef("--notice and --no-notice exclude each other")
	case o.noNotice:
		o.Notice = ""
	case !o.noticeIs && o.Checkpoint != "":
		o.Notice = convo.Notice(o.Checkpoint, "")
	}
	return nil
}

// repairResult is what memory repair prints as JSON.
type repairResult struct {
	Format   string            `json:"format"`
	Messages []json.RawMessage `json:"messages"`
	Changes  []convo.Change    `json:"changes"`
	Notice   string            `json:"notice"`
}

// RawMessages lets the messages keep their bytes.
func (r *repairResult) RawMessages() []*[]json.RawMessage { return []*[]json.RawMessage{&r.Messages} }

func (a *app) runMemoryRepair(ctx context.Context, o *repairOptions, file string) error {
	if err := o.complete(); err != nil {
		return err
	}
	data, err := a.readInput(ctx, file)
	if err != nil {
		return inputError(err)
	}
	h, err := convo.Parse(data, convo.Format(o.format))
	if err != nil {
		return usagef("%s: %w", inputName(file), err)
	}
	fixed, err := memory.Repair(h, o.Options)
	switch {
	case errors.Is(err, memory.ErrUnrepairable):
		return fmt.Errorf("%s: %w", inputName(file), unrepairable(err))
	case err != nil:
		return usagef("%s: %w", inputName(file), err)
	}
	res := &repairResult{string(h.Format), fixed.History.Items, fixed.Changes, fixed.Notice}
	if res.Messages == nil {
		res.Messages = []json.RawMessage{}
	}
	if !a.json {
		a.noteRepairs(wireChanges(fixed.Changes))
	}
	return a.result(res, func(w io.Writer) {
		out := fixed.History.Encode()
		if len(fixed.Changes) == 0 {
			out = data // as it came, to the byte
		}
		_, _ = w.Write(out) // result sees the error of w
	})
}

// unrepairable gives the reason why a conversation cannot be made valid to programs, too.
func unrepairable(err error) error {
	e := &control.Error{Code: control.CodeUnrepairable, Message: err.Error()}
	var why *valid.Error
	if errors.As(err, &why) {
		e.Details = map[string]any{"at": why.At, "rule": why.Rule}
	}
	return e
}

func wireChanges(cs []convo.Change) []control.Repair {
	out := make([]control.Repair, 0, len(cs))
	for _, c := range cs {
		out = append(out, control.Repair(c))
	}
	return out
}
