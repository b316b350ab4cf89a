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
	"github.com/rewindfs/rewindfs/verify"
)

func (a *app) newTool() *cobra.Command {
	return newGroup("tool", "Say when a tool call of the agent begins and ends",
		`Say when a tool call of the agent begins and ends. In front of a call the state is kept, so that a rollback brings back the files and
the conversation from before it; what the policy says is done at its end.`,
		a.newToolBegin(), a.newToolEnd(), a.newToolReset())
}

type toolBeginOptions struct {
	req      control.ToolBegin
	messages []string
	format   string
}

func (a *app) newToolBegin() *cobra.Command {
	o := &toolBeginOptions{}
	cmd := &cobra.Command{
		Use:   "begin NAME",
		Short: "A call of tool NAME is about to start",
		Long: `Say that a call of tool NAME is about to start. When this returns, the call may start: the state in front of it is kept, unless
another call that changes files is in flight; then it joins that one, and a rollback goes to where that began. Where nothing was changed since
the last one, it costs no layer. Once a ceiling of the budget is reached, calls are refused.

` + exitHelp,
		Args: exactly(1, "the name of a tool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.req.Name = args[0]
			return a.runToolBegin(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.req.Call, "call", "", "id of the call (default: one is made up)")
	f.StringVar(&o.req.Step, "step", "", "id of the model's response that the call is in")
	f.StringVar(&o.req.Agent, "agent", "", "id of the agent, where there are several")
	f.StringVar(&o.req.Turn, "turn", "", "id of the agent's turn")
	f.BoolVar(&o.req.ReadOnly, "readonly", false, "the call changes no file")
	f.StringArrayVar(&o.messages, "messages", nil, "file with the conversation (-: standard input), or THREAD=FILE for a named one (more than once)")
	a.addFormat(cmd, &o.format)
	return cmd
}

func (a *app) runToolBegin(ctx context.Context, o *toolBeginOptions) error {
	r := &o.req
	err := checkTexts(map[string]string{"call": r.Call, "step": r.Step, "agent": r.Agent, "turn": r.Turn})
	if err != nil {
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
	r.Threads, r.Missing = sent.threads, sent.missing
	res, err := c.ToolBegin(ctx, *r)
	if err != nil {
		return err
	}
	return a.result(res, func(w io.Writer) {
		fmt.Fprintf(w, "Call %s of %s may start.\n", show(res.Call), show(r.Name))
		switch {
		case res.Checkpoint == nil:
			fmt.Fprintln(w, "It changes no file, so nothing was kept for it.")
		case res.Sealed:
			fmt.Fprintf(w, "What was before it is kept; conversation: %s. Come back with: rewindfs rollback %s\n",
				describeConversation(res.Checkpoint.Conversation), res.Checkpoint.ID)
		default:
			others := slices.DeleteFunc(slices.Clone(res.Inflight), func(id string) bool { return id == res.Call })
			fmt.Fprintf(w, "It joins the calls in flight (%s). Come back to before them with: rewindfs rollback %s\n", shownList(others), res.Checkpoint.ID)
		}
	})
}

// shownList is a list of names from outside for people.
func shownList(names []string) string {
	var out []string
	for i, n := range names {
		if i == maxShown {
			out = append(out, fmt.Sprintf("… and %d more", len(names)-i))
			break
		}
		out = append(out, show(n))
	}
	return strings.Join(out, ", ")
}

type toolEndOptions struct {
	req   control.ToolEnd
	usage string
	mode  string
}

func (a *app) newToolEnd() *cobra.Command {
	o := &toolEndOptions{}
	cmd := &cobra.Command{
		Use:   "end",
		Short: "A call has ended, with or without an error",
		Long: `Say that a tool call has ended, and do what the policy says about it: go back when it ended with --error (exit 7; 0 when there was
nothing to take back), or run the policy's verifiers in the mount, here and with this environment. When one says fail, files and conversation go back to
where the policy says (exit 7); when one gives no verdict, nothing is touched and the work is to stop (exit 8).

` + exitHelp,
		Args: exactly(0, "no argument (the call is named with --call)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("error") && strings.TrimSpace(o.req.Error) == "" {
				o.req.Error = "the call failed" // with nothing to say about it
			}
			return a.runToolEnd(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.req.Call, "call", "", "id of the call (default: the one that began last)")
	f.StringVar(&o.req.Error, "error", "", "the call ended with this error")
	f.StringVar(&o.usage, "usage", "", "what the provider said about tokens and cost, as JSON")
	f.BoolVar(&o.req.NoRollback, "no-rollback", false, "neither go back nor verify, whatever the policy says")
	f.StringVar(&o.mode, "mode", modeAgent, "without a verdict: agent stops; interactive asks on the terminal")
	completeFlag(cmd, "mode", []string{modeAgent, modeInteractive})
	return cmd
}

// toolEnded is what tool end prints as JSON. RolledBack is what the policy did, be it
// at once or after a verifier.
type toolEnded struct {
	*control.ToolEnded
	RolledBack *moved    `json:"rolled_back"`
	Checks     []checked `json:"verifications"`
	Status     string    `json:"status,omitempty"` // pass, fail or unknown, when verifiers ran
	Decision   string    `json:"decision,omitempty"`
	Warnings   []string  `json:"warnings"`
}

// RawMessages lets the messages keep their bytes.
func (t *toolEnded) RawMessages() []*[]json.RawMessage {
	if t.RolledBack == nil {
		return nil
	}
	return t.RolledBack.RawMessages()
}

func (a *app) runToolEnd(ctx context.Context, o *toolEndOptions) error {
	if o.usage != "" {
		if o.req.Usage = json.RawMessage(o.usage); !json.Valid(o.req.Usage) {
			return usagef("--usage is no JSON")
		}
	}
	o.req.Error = clipText(strings.ToValidUTF8(o.req.Error, "\uFFFD"), maxErrorText)
	if err := checkTexts(map[string]string{"call": o.req.Call, "usage": o.usage}); err != nil {
		return err
	}
	asker, err := a.asker(o.mode)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = moveTime
	ended, err := c.ToolEnd(ctx, o.req)
	if err != nil {
		return err
	}
	res := &toolEnded{ToolEnded: ended, Checks: []checked{}, Warnings: append([]string{}, ended.Warnings...)}
	if ended.Budget != "" {
		res.Warnings = append(res.Warnings, "the next call will be refused: "+ended.Budget)
	}
	if ended.RolledBack != nil {
		res.RolledBack = movedOf(ended.RolledBack)
		return a.finishToolEnd(res, failf(exitFailed, "the call ended with an error: the policy went back to '%s'", ended.RolledBack.Checkpoint))
	}
	if len(ended.Verify) == 0 {
		return a.finishToolEnd(res, nil)
	}
	return a.verifyToolEnd(ctx, c, asker, res)
}

// verifyToolEnd runs the verifiers that the policy asks for.
func (a *app) verifyToolEnd(ctx context.Context, c *control.Client, asker verify.Asker, res *toolEnded) error {
	policy, err := c.Policy(ctx)
	if err != nil {
		return err
	}
	if policy.AutoRollback == nil {
		return a.finishToolEnd(res, nil) // taken away just now
	}
	v := &verifying{client: c, asker: asker, to: policy.AutoRollback.To, call: res.Call, auto: true}
	for _, p := range res.Verify {
		v.specs = append(v.specs, specOf(p))
	}
	out, err := a.verify(ctx, v)
	if err != nil {
		return err
	}
	res.Checks, res.Status, res.Decision, res.RolledBack, res.Skipped = out.Checks, out.Status, out.Decision, out.RolledBack, out.Skipped
	res.Warnings = append(res.Warnings, out.Warnings...)
	return a.finishToolEnd(res, out.err())
}

// finishToolEnd prints res and returns what the call ends with.
func (a *app) finishToolEnd(res *toolEnded, bad error) error {
	for _, text := range res.Warnings {
		a.warn("%s", text)
	}
	if a.json && bad != nil {
		return &foundError{bad, res}
	}
	err := a.result(res, func(w io.Writer) {
		if res.Known {
			fmt.Fprintf(w, "Call %s has ended.\n", show(res.Call))
		} else {
			fmt.Fprintln(w, "No such call was in flight; noted all the same.")
		}
		if res.Skipped && len(res.Checks) == 0 {
			fmt.Fprintln(w, "The policy has nothing to take back: the files are those of its checkpoint.")
		}
		printChecks(w, res.Checks)
		if res.RolledBack != nil {
			printMoved(w, res.RolledBack.Rollback, false, false)
		}
		if len(res.Inflight) > 0 {
			fmt.Fprintf(w, "Still in flight: %s\n", shownList(res.Inflight))
		}
	})
	return errors.Join(bad, err)
}

func (a *app) newToolReset() *cobra.Command {
	return &cobra.Command{
		Use:   "reset",
		Short: "No call is in flight, as at the next prompt",
		Long: `Forget which calls are in flight: call it when you know that there is none, as at the next prompt, or after an agent was killed.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return withSession(ctx, a, func(c *control.Client) (*control.ToolBegun, error) {
				return c.ToolReset(ctx, control.None{})
			}, func(w io.Writer, _ *control.ToolBegun) {
				fmt.Fprintln(w, "No call is in flight.")
			})
		},
	}
}
