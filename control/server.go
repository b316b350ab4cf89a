package control

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// Server serves the control API of one session. Register calls with Handle,
// HandleStream and HandleRaw before Serve.
type Server struct {
	identity   Identity
	logger     *slog.Logger
	uid        uint32
	mux        *http.ServeMux
	http       *http.Server
	agents     *http.Server // see ServeAgents
	agentCalls []string     // patterns
	calls      callCounter
}

// NewServer makes a server for the session id. Connections of other users than
// the process's own and root are refused.
func NewServer(id Identity, logger *slog.Logger) *Server {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{identity: id, logger: logger, uid: uint32(os.Getuid()), mux: http.NewServeMux()}
	s.http, s.agents = s.newHTTP(false), s.newHTTP(true)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &Error{Code: CodeNoSuchCall, Message: fmt.Sprintf("no such call: %s %s", r.Method, r.URL.Path)})
	})
	Handle(s, "GET "+PathPing, func(context.Context, *None) (*Pong, error) {
		return &Pong{Session: id.Session, Generation: id.Generation}, nil
	})
	s.mux.HandleFunc("GET "+PathPprof, pprof.Index)
	s.mux.HandleFunc("GET "+PathPprof+"cmdline", pprof.Cmdline)
	s.mux.HandleFunc("GET "+PathPprof+"profile", pprof.Profile)
	s.mux.HandleFunc("GET "+PathPprof+"symbol", pprof.Symbol)
	s.mux.HandleFunc("GET "+PathPprof+"trace", pprof.Trace)
	return s
}

func (s *Server) newHTTP(forAgents bool) *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			p := asPeer(c)
			p.agent = forAgents
			return context.WithValue(ctx, peerKey{}, p)
		},
	}
}

// Serve answers on l until Shutdown or Close. It returns nil after either.
func (s *Server) Serve(l net.Listener) error {
	return served(s.http.Serve(l))
}

// AllowAgents sets which calls ServeAgents takes, by the patterns that they are served under. Call it before ServeAgents.
func (s *Server) AllowAgents(patterns []string) { s.agentCalls = patterns }

// ServeAgents is Serve for callers in a sandbox: others than the allowed calls are refused.
func (s *Server) ServeAgents(l net.Listener) error { return served(s.agents.Serve(l)) }

func served(err error) error {
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the control API: %w", err)
	}
	return nil
}

// Shutdown stops accepting and waits for running calls.
func (s *Server) Shutdown(ctx context.Context) error {
	return errors.Join(s.http.Shutdown(ctx), s.agents.Shutdown(ctx))
}

// Close drops all connections.
func (s *Server) Close() error { return errors.Join(s.http.Close(), s.agents.Close()) }

// Handle serves pattern, such as "POST /v1/checkpoint", with fn: the body decoded
// into a Req, what fn returns as the answer.
func Handle[Req, Res any](s *Server, pattern string, fn func(context.Context, *Req) (Res, error)) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		req := new(Req)
		if err := s.decode(w, r, req); err != nil {
			s.fail(w, r, err)
			return
		}
		res, err := fn(r.Context(), req)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.answer(w, r, http.StatusOK, res)
	})
}

// HandleStream serves pattern with an NDJSON answer: a line for each emitted item
// or progress, then the result.
func HandleStream[Req, Item, Res any](s *Server, pattern string, fn func(ctx context.Context, req *Req, out *Stream[Item]) (Res, error)) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		req := new(Req)
		if err := s.decode(w, r, req); err != nil {
			s.fail(w, r, err)
			return
		}
		out := &Stream[Item]{lines: newLineWriter(w)}
		res, err := fn(r.Context(), req, out)
		switch {
		case err != nil && !out.lines.started:
			s.fail(w, r, err)
			return
		case err != nil:
			s.logger.Warn("control call failed", "call", r.URL.Path, "error", err)
			err = out.lines.put(reply{asError(err)})
		default:
			err = out.lines.put(map[string]any{"result": res})
		}
		if err := errors.Join(err, out.lines.close()); err != nil {
			s.logger.Debug("control client went away", "call", r.URL.Path, "error", err)
		}
	})
}

// HandleRaw serves pattern with fn, which writes the answer itself; an error
// before its first byte is answered as a failure, one after it cuts the connection.
func HandleRaw(s *Server, pattern string, fn func(w http.ResponseWriter, r *http.Request) error) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		err := StillWaits(r.Context())
		if err == nil {
			err = s.checkGeneration(r, nil)
		}
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		counted := &countingWriter{ResponseWriter: w}
		err = fn(counted, r)
		switch {
		case err != nil && counted.started:
			s.logger.Warn("control call cut off", "call", r.URL.Path, "error", err)
			panic(http.ErrAbortHandler)
		case err != nil:
			s.refuse(w, r, err)
		}
	})
}

// maxDrained is how much of a refused body is read for nothing, in bytes.
const maxDrained = 1 << 30

// refuse answers a call whose body may not have been read. It is read to its end: a client
// that still writes when the connection closes would see that, and not why.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxDrained))
	s.fail(w, r, err)
}

type countingWriter struct {
	http.ResponseWriter
	started bool
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.started = true
	return w.ResponseWriter.Write(p)
}

func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// PathQuery returns the path that a raw call is about, byte for byte.
func PathQuery(r *http.Request) (string, error) {
	q := r.URL.Query()
	if b64 := q.Get("path_b64"); b64 != "" {
		b, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			return "", &Error{Code: CodeBadRequest, Message: "path_b64 is not base64: " + err.Error()}
		}
		return string(b), nil
	}
	return q.Get("path"), nil
}

type peerKey struct{}

// peerInfo is what is known about the peer of a connection; err says why nothing is.
type peerInfo struct {
	Peer
	conn  net.Conn
	err   error
	agent bool // it came through the socket for agents
}

func asPeer(c net.Conn) peerInfo {
	p, err := peerOf(c)
	return peerInfo{Peer: p, conn: c, err: err}
}

// FromAgent reports whether the request of ctx came through the socket for agents.
func FromAgent(ctx context.Context) bool {
	p, ok := ctx.Value(peerKey{}).(peerInfo)
	return ok && p.agent
}

// PeerOf returns who sent the request that ctx belongs to.
func PeerOf(ctx context.Context) (Peer, error) {
	p, ok := ctx.Value(peerKey{}).(peerInfo)
	if !ok {
		return Peer{}, errors.New("the request has no peer")
	}
	return p.Peer, p.err
}

// allowed reports whether the peer may call: the daemon's own user or root.
func (s *Server) allowed(ctx context.Context) error {
	p, err := PeerOf(ctx)
	if err != nil {
		return &Error{Code: CodeForbidden, Message: "cannot tell who is calling: " + err.Error()}
	}
	if p.UID != s.uid && p.UID != 0 {
		return &Error{Code: CodeForbidden, Message: fmt.Sprintf("uid %d may not control a session of uid %d", p.UID, s.uid)}
	}
	return nil
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		p := recover()
		if p == nil || p == http.ErrAbortHandler {
			s.calls.add(r.URL.Path, rec.status)
			s.logger.Debug("control call", "method", r.Method, "path", r.URL.Path, "status", rec.status, "took", time.Since(start))
			if p != nil {
				panic(p)
			}
			return
		}
		s.calls.add(r.URL.Path, http.StatusInternalServerError)
		s.logger.Error("panic in a control call", "call", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
		s.fail(rec, r, &Error{Code: CodeInternal, Message: fmt.Sprintf("the daemon failed in %s; its log has the details", r.URL.Path)})
	}()
	if err := s.allowed(r.Context()); err != nil {
		s.fail(rec, r, err)
		return
	}
	if FromAgent(r.Context()) && !s.forAgents(r) {
		s.fail(rec, r, &Error{Code: CodeForbidden, Message: fmt.Sprintf("%s is not for commands in a sandbox: ask for it outside", r.URL.Path)})
		return
	}
	s.mux.ServeHTTP(rec, r.WithContext(context.WithValue(r.Context(), branchKey{}, r.URL.Query().Get(branchQuery))))
}

// forAgents says whether the call that r makes is among the allowed ones.
func (s *Server) forAgents(r *http.Request) bool {
	_, pattern := s.mux.Handler(r)
	return slices.Contains(s.agentCalls, pattern)
}

type branchKey struct{}

// branchQuery is the part of a query that names the branch.
const branchQuery = "branch"

// BranchOf returns the branch that the request of ctx names, "" when it names none.
func BranchOf(ctx context.Context) string {
	name, _ := ctx.Value(branchKey{}).(string)
	return name
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(code int) {
	w.status = code
	w.ResponseWriter.WriteHeader(code)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// decode reads the body of r into req and checks the generation it carries.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, req any) error {
	if r.Method != http.MethodGet {
		limit := int64(MaxBody)
		if l, ok := req.(interface{ maxBody() int64 }); ok {
			limit = l.maxBody()
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
		if err != nil {
			var big *http.MaxBytesError
			if errors.As(err, &big) {
				return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("the request is larger than %d bytes", big.Limit)}
			}
			return &Error{Code: CodeBadRequest, Message: "cannot read the request: " + err.Error()}
		}
		// The decoder would replace bytes that are not UTF-8 without a word.
		if !utf8.Valid(body) {
			return &Error{Code: CodeBadRequest, Message: "the request is not UTF-8; paths that are not come as base64"}
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.DisallowUnknownFields()
		if err := dec.Decode(req); err != nil && (err != io.EOF || len(bytes.TrimSpace(body)) > 0) {
			return &Error{Code: CodeBadRequest, Message: "the request is not the JSON object expected: " + err.Error()}
		}
		if dec.More() {
			return &Error{Code: CodeBadRequest, Message: "the request has something after its JSON object"}
		}
	}
	var carried *uint64
	if c, ok := req.(interface{ carried() *uint64 }); ok {
		carried = c.carried()
	}
	if err := StillWaits(r.Context()); err != nil {
		return err
	}
	return s.checkGeneration(r, carried)
}

// StillWaits returns an error when whoever sent the request that ctx belongs to has
// closed the connection: a call that was given up must not be carried out later, when
// a daemon that was stopped goes on, or a lock is free.
func StillWaits(ctx context.Context) error {
	if p, ok := ctx.Value(peerKey{}).(peerInfo); ok && hungUp(p.conn) {
		return &Error{Code: CodeGone, Message: "given up by who asked, so it was not done"}
	}
	return nil
}

// checkGeneration compares the generation in the body or the query with ours.
func (s *Server) checkGeneration(r *http.Request, carried *uint64) error {
	if q := r.URL.Query().Get("generation"); carried == nil && q != "" {
		n, err := strconv.ParseUint(q, 10, 64)
		if err != nil {
			return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("generation %q is not a number", q)}
		}
		carried = &n
	}
	if carried == nil || *carried == s.identity.Generation {
		return nil
	}
	return &Error{
		Code:    CodeStaleGeneration,
		Message: fmt.Sprintf("the call is for generation %d of session %s, which is at %d; nothing was changed (ask status for the present one)", *carried, s.identity.Session, s.identity.Generation),
		Details: map[string]any{"sandbox": s.identity.Session, "current": s.identity.Generation, "carried": *carried},
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, status int, v any) {
	b, err := EncodeRaw(v)
	if err != nil {
		s.logger.Error("encode an answer", "call", r.URL.Path, "error", err)
		status, b = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the answer cannot be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	if _, err := w.Write(append(b, '\n')); err != nil {
		s.logger.Debug("control client went away", "call", r.URL.Path, "error", err)
	}
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := asError(err)
	if e.Code == CodeInternal {
		s.logger.Error("control call failed", "call", r.URL.Path, "error", err)
	}
	s.answer(w, r, e.Code.status(), reply{e})
}
