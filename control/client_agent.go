package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// PutMemory sends a conversation: it becomes the live one of its thread ("" is the main
// one) or, with stage, only gets into the store, for the Threads of a request that
// follows. format "" lets the daemon tell it by its shape.
func (c *Client) PutMemory(ctx context.Context, thread, format string, stage bool, messages io.Reader) (*Thread, error) {
	q := url.Values{}
	if thread != "" {
		q.Set("thread", thread)
	}
	if format != "" {
		q.Set("format", format)
	}
	if stage {
		q.Set("stage", "1")
	}
	resp, err := c.do(ctx, http.MethodPut, PathMemory, q, "application/octet-stream", messages)
	if err != nil {
		return nil, err
	}
	return answerOf[Thread](resp)
}

// GetMemory asks for a conversation: of the checkpoint ref, or the live one when it is
// "". With repair it comes as a rollback would hand it out, without a notice.
func (c *Client) GetMemory(ctx context.Context, ref, thread string, repair bool) (*Messages, error) {
	resp, err := c.getMemory(ctx, ref, thread, repair, false)
	if err != nil {
		return nil, err
	}
	return answerOf[Messages](resp)
}

// GetMemoryRaw is GetMemory for the bytes of the messages: an array, or lines.
func (c *Client) GetMemoryRaw(ctx context.Context, ref, thread string, repair bool) (io.ReadCloser, error) {
	resp, err := c.getMemory(ctx, ref, thread, repair, true)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Client) getMemory(ctx context.Context, ref, thread string, repair, raw bool) (*http.Response, error) {
	q := url.Values{}
	if ref != "" {
		q.Set("ref", ref)
	}
	if thread != "" {
		q.Set("thread", thread)
	}
	if repair {
		q.Set("repair", "1")
	}
	if raw {
		q.Set("raw", "1")
	}
	return c.do(ctx, http.MethodGet, PathMemory, q, "", nil)
}

func answerOf[Res any](resp *http.Response) (*Res, error) {
	defer resp.Body.Close()
	out := new(Res)
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return out, nil
}

// ToolBegin says that a tool call is about to start.
func (c *Client) ToolBegin(ctx context.Context, r ToolBegin) (*ToolBegun, error) {
	return call[ToolBegun](ctx, c, http.MethodPost, PathToolBegin, r)
}

// ToolEnd says that a tool call has ended.
func (c *Client) ToolEnd(ctx context.Context, r ToolEnd) (*ToolEnded, error) {
	return call[ToolEnded](ctx, c, http.MethodPost, PathToolEnd, r)
}

// ToolReset says that no tool call is in flight.
func (c *Client) ToolReset(ctx context.Context, r None) (*ToolBegun, error) {
	return call[ToolBegun](ctx, c, http.MethodPost, PathToolReset, r)
}

// Verification tells what a verifier said.
func (c *Client) Verification(ctx context.Context, r Verification) (*Verified, error) {
	return call[Verified](ctx, c, http.MethodPost, PathVerification, r)
}

// Policy asks what the session does by itself.
func (c *Client) Policy(ctx context.Context) (*Policy, error) {
	return call[Policy](ctx, c, http.MethodGet, PathPolicy, nil)
}

// SetPolicy changes it.
func (c *Client) SetPolicy(ctx context.Context, r PolicyRequest) (*Policy, error) {
	return call[Policy](ctx, c, http.MethodPost, PathPolicy, r)
}

// Budget asks what may be used and what was.
func (c *Client) Budget(ctx context.Context) (*Budget, error) {
	return call[Budget](ctx, c, http.MethodGet, PathBudget, nil)
}

// SetBudget sets the ceilings.
func (c *Client) SetBudget(ctx context.Context, r BudgetRequest) (*Budget, error) {
	return call[Budget](ctx, c, http.MethodPost, PathBudget, r)
}

// Attach makes a recorded checkpoint count.
func (c *Client) Attach(ctx context.Context, r CheckpointRef) (*Checkpoint, error) {
	return call[Checkpoint](ctx, c, http.MethodPost, PathAttach, r)
}

// Reject takes back that a checkpoint is the current one.
func (c *Client) Reject(ctx context.Context, r CheckpointRef) (*Rejected, error) {
	return call[Rejected](ctx, c, http.MethodPost, PathReject, r)
}

// Current asks for the checkpoint attached last.
func (c *Client) Current(ctx context.Context) (*Checkpoint, error) {
	return call[Checkpoint](ctx, c, http.MethodGet, PathCurrent, nil)
}

// Collect drops recorded checkpoints that were never attached.
func (c *Client) Collect(ctx context.Context, r CollectRequest) (*Collected, error) {
	return call[Collected](ctx, c, http.MethodPost, PathCollect, r)
}

// Delete drops a checkpoint.
func (c *Client) Delete(ctx context.Context, r CheckpointRef) (*Checkpoint, error) {
	return call[Checkpoint](ctx, c, http.MethodPost, PathDelete, r)
}
