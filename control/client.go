package control

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// Default deadlines. A daemon that answers at all connects within dialTimeout.
const (
	dialTimeout = 5 * time.Second
	callTimeout = 60 * time.Second
)

// Client calls the daemon behind Socket. The zero value with a Socket or a Dial is
// ready to use; it is safe for concurrent use.
type Client struct {
	Socket string
	// Dial replaces connecting to Socket, for tests.
	Dial func(context.Context) (net.Conn, error)
	// Generation, when set, goes with every call.
	Generation *uint64
	// Branch is the branch that every call is about; "" is that of the session's own mount.
	Branch string
	// Timeout bounds each call that is not a stream; 0 means 60 s.
	Timeout time.Duration

	once sync.Once
	http *http.Client
}

func (c *Client) client() *http.Client {
	c.once.Do(func() {
		c.http = &http.Client{Transport: &http.Transport{
			DisableCompression: true,
			MaxIdleConns:       1,
			IdleConnTimeout:    10 * time.Second,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, dialTimeout)
				defer cancel()
				if c.Dial != nil {
					return c.Dial(ctx)
				}
				return Dial(ctx, c.Socket)
			},
		}}
	})
	return c.http
}

// Close drops idle connections.
func (c *Client) Close() { c.client().CloseIdleConnections() }

// Ping returns nil when a daemon answers at all, be it only that it refuses to.
func (c *Client) Ping(ctx context.Context) error {
	_, err := call[Pong](ctx, c, http.MethodGet, PathPing, nil)
	var e *Error
	if errors.As(err, &e) {
		return nil
	}
	return err
}

// Status asks for the state of the session.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return call[Status](ctx, c, http.MethodGet, PathStatus, nil)
}

// Log lists checkpoints.
func (c *Client) Log(ctx context.Context, r LogRequest) (*Log, error) {
	return call[Log](ctx, c, http.MethodPost, PathLog, r)
}

// Checkpoint makes a checkpoint.
func (c *Client) Checkpoint(ctx context.Context, r CheckpointRequest) (*Checkpoint, error) {
	return call[Checkpoint](ctx, c, http.MethodPost, PathCheckpoint, r)
}

// Rollback goes back to a checkpoint, or tells what that would do.
func (c *Client) Rollback(ctx context.Context, r RollbackRequest) (*Rollback, error) {
	return call[Rollback](ctx, c, http.MethodPost, PathRollback, r)
}

// Undo takes head movements back.
func (c *Client) Undo(ctx context.Context, r UndoRequest) (*Rollback, error) {
	return call[Rollback](ctx, c, http.MethodPost, PathUndo, r)
}

// Redo makes undone head movements again.
func (c *Client) Redo(ctx context.Context, r UndoRequest) (*Rollback, error) {
	return call[Rollback](ctx, c, http.MethodPost, PathRedo, r)
}

// Unmount ends the session.
func (c *Client) Unmount(ctx context.Context, r UnmountRequest) (*Unmounted, error) {
	return call[Unmounted](ctx, c, http.MethodPost, PathUnmount, r)
}

// Diff calls each for every path that differs, in path order.
func (c *Client) Diff(ctx context.Context, r DiffRequest, each func(Change) error) (*DiffSummary, error) {
	return stream[DiffSummary](ctx, c, PathDiff, r, each, nil)
}

// ReadFile opens the file at path as it was at checkpoint ref; an empty ref is
// the head. The size is known before the first byte; a short body is an error.
func (c *Client) ReadFile(ctx context.Context, ref, path string) (io.ReadCloser, int64, error) {
	q := fileQuery(path)
	if ref != "" {
		q.Set("ref", ref)
	}
	resp, err := c.do(ctx, http.MethodGet, PathFile, q, "", nil)
	if err != nil {
		return nil, 0, err
	}
	return resp.Body, resp.ContentLength, nil
}

// WriteFile makes the file at path hold what r gives and returns its size.
func (c *Client) WriteFile(ctx context.Context, path string, r io.Reader) (int64, error) {
	resp, err := c.do(ctx, http.MethodPut, PathFile, fileQuery(path), "application/octet-stream", r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var out FileWritten
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return 0, fmt.Errorf("read the answer to a file write: %w", err)
	}
	return out.Size, nil
}

// FileWritten is the answer to a file write.
type FileWritten struct {
	Size int64 `json:"size"`
}

func fileQuery(path string) url.Values {
	if utf8.ValidString(path) {
		return url.Values{"path": {path}}
	}
	return url.Values{"path_b64": {base64.StdEncoding.EncodeToString([]byte(path))}}
}

// call sends req, when not nil, as JSON and decodes the answer.
func call[Res any](ctx context.Context, c *Client, method, path string, req any) (*Res, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = callTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := c.send(ctx, method, path, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := new(Res)
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, ended(path, noEOF(err))
	}
	// Reading to the end lets the connection be used again.
	_, _ = io.Copy(io.Discard, resp.Body)
	return out, nil
}

// line is one line of an NDJSON answer.
type line struct {
	Item     json.RawMessage `json:"item,omitempty"`
	Progress *Progress       `json:"progress,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *Error          `json:"error,omitempty"`
}

// Progress says how far a long call is. Total is 0 when unknown.
type Progress struct {
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	Unit  string `json:"unit"`
}

// stream posts req and reads an NDJSON answer. progress may be nil.
func stream[Res, Item any](ctx context.Context, c *Client, path string, req any, each func(Item) error, progress func(Progress)) (*Res, error) {
	resp, err := c.send(ctx, http.MethodPost, path, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var l line
		if err := dec.Decode(&l); err != nil {
			return nil, ended(path, noEOF(err))
		}
		switch {
		case l.Error != nil:
			return nil, l.Error
		case l.Item != nil:
			var item Item
			if err := json.Unmarshal(l.Item, &item); err != nil {
				return nil, fmt.Errorf("read the answer to %s: %w", path, err)
			}
			if err := each(item); err != nil {
				return nil, err
			}
		case l.Progress != nil:
			if progress != nil {
				progress(*l.Progress)
			}
		case l.Result != nil:
			out := new(Res)
			if err := json.Unmarshal(l.Result, out); err != nil {
				return nil, fmt.Errorf("read the answer to %s: %w", path, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			return out, nil
		}
	}
}

// ended says what to do when the answer to path ended early, as it does when the daemon is killed.
func ended(path string, err error) error {
	for _, cut := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, cut) {
			return fmt.Errorf("the daemon ended before it had answered %s: it was done wholly or not at all; mount the session again (rewindfs list shows it), and look: %w", path, err)
		}
	}
	return fmt.Errorf("call %s: %w", path, err)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (c *Client) send(ctx context.Context, method, path string, req any) (*http.Response, error) {
	if req == nil {
		return c.do(ctx, method, path, url.Values{}, "", nil)
	}
	body, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode the request for %s: %w", path, err)
	}
	return c.do(ctx, method, path, url.Values{}, "application/json", bytes.NewReader(body))
}

// do sends a request and turns a failure answer into an *Error.
func (c *Client) do(ctx context.Context, method, path string, q url.Values, contentType string, body io.Reader) (*http.Response, error) {
	if c.Generation != nil {
		q.Set("generation", strconv.FormatUint(*c.Generation, 10))
	}
	if c.Branch != "" {
		q.Set(branchQuery, c.Branch)
	}
	u := url.URL{Scheme: "http", Host: "rewindfs", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make a request for %s: %w", path, err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.client().Do(req)
	if err != nil {
		var e *Error
		switch {
		case errors.Is(err, ErrNoDaemon):
			return nil, fmt.Errorf("%w at %s", ErrNoDaemon, c.Socket)
		case errors.As(err, &e):
			return nil, e
		case errors.Is(err, context.DeadlineExceeded):
			return nil, fmt.Errorf("the daemon behind %s did not answer %s in time (if it hangs: rewindfs unmount --force): %w", c.Socket, path, context.DeadlineExceeded)
		}
		return nil, ended(path, err)
	}
	if resp.StatusCode < 400 {
		return resp, nil
	}
	defer resp.Body.Close()
	var r reply
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	if json.Unmarshal(b, &r) != nil || r.Error == nil {
		return nil, fmt.Errorf("call %s: the daemon answered %s", path, resp.Status)
	}
	return nil, r.Error
}
