package control

import (
	"context"
	"net/http"
)

// RunBegin says that a command is about to run.
func (c *Client) RunBegin(ctx context.Context, r RunBegin) (*RunBegun, error) {
	return call[RunBegun](ctx, c, http.MethodPost, PathRuns, r)
}

// RunEnd says that it has ended.
func (c *Client) RunEnd(ctx context.Context, r RunEnd) (*RunEnded, error) {
	return call[RunEnded](ctx, c, http.MethodPost, PathRunsEnd, r)
}
