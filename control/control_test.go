package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve starts s on a socket in a fresh directory and returns a client for it.
func serve(t *testing.T, s *Server) *Client {
	t.Helper()
	return serveAt(t, s, filepath.Join(t.TempDir(), SocketName))
}

func serveAt(t *testing.T, s *Server, path string) *Client {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c := &Client{Socket: path}
	t.Cleanup(func() {
		c.Close()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func testServer() *Server { return NewServer(Identity{Session: "proj", Generation: 7}, nil) }

func TestCallAndFailure(t *testing.T) {
	s := testServer()
	Handle(s, "POST "+PathCheckpoint, func(_ context.Context, r *CheckpointRequest) (*Checkpoint, error) {
		if *r.Label == "taken" {
			return nil, fmt.Errorf("checkpoint: %w", &Error{Code: CodeDuplicateLabel, Message: "taken"})
		}
		return &Checkpoint{Label: *r.Label, Message: r.Message}, nil
	})
	c := serve(t, s)
	label := "stäble"
	got, err := c.Checkpoint(t.Context(), CheckpointRequest{Label: &label, Message: "m"})
	if err != nil || got.Label != label || got.Message != "m" {
		t.Fatalf("got %+v, %v", got, err)
	}
	label = "taken"
	if _, err = c.Checkpoint(t.Context(), CheckpointRequest{Label: &label}); CodeOf(err) != CodeDuplicateLabel || err.Error() != "checkpoint: taken" {
		t.Fatalf("got %v", err)
	}
	if _, err = c.Status(t.Context()); CodeOf(err) != CodeNoSuchCall {
		t.Fatalf("a call nobody serves: %v", err)
	}
}

func TestStaleGeneration(t *testing.T) {
	s := testServer()
	called := 0
	Handle(s, "POST "+PathRollback, func(context.Context, *RollbackRequest) (*Rollback, error) {
		called++
		return &Rollback{}, nil
	})
	HandleRaw(s, "GET "+PathFile, func(w http.ResponseWriter, _ *http.Request) error {
		called++
		_, err := w.Write([]byte("x"))
		return err
	})
	c := serve(t, s)
	old, now := uint64(6), uint64(7)
	check := func(err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeStaleGeneration {
			t.Fatalf("got %v", err)
		}
		for k, want := range map[string]any{"sandbox": "proj", "current": 7.0, "carried": 6.0} {
			if e.Details[k] != want {
				t.Errorf("details[%s] = %v, want %v", k, e.Details[k], want)
			}
		}
	}
	_, err := c.Rollback(t.Context(), RollbackRequest{Carried: Carried{&old}})
	check(err)
	c.Generation = &old
	_, err = c.Rollback(t.Context(), RollbackRequest{})
	check(err)
	_, _, err = c.ReadFile(t.Context(), "", "x")
	check(err)
	if called != 0 {
		t.Fatal("a stale call was carried out")
	}
	c.Generation = &now
	if _, err := c.Rollback(t.Context(), RollbackRequest{Carried: Carried{&now}}); err != nil || called != 1 {
		t.Fatalf("the present generation: %v, called %d", err, called)
	}
	// As curl sees it.
	rec := ask(s, 0, "POST", PathRollback+"?generation=6", "{}")
	if rec.Code != http.StatusConflict || !strings.Contains(rec.Body.String(), `"error":{"code":"stale_generation"`) {
		t.Fatalf("got %d %s", rec.Code, rec.Body)
	}
}

// ask sends a request as a peer of the given uid would.
func ask(s *Server, uid uint32, method, target, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://x/", strings.NewReader(body))
	if u, err := r.URL.Parse(target); err == nil {
		r.URL = u
	}
	r = r.WithContext(context.WithValue(r.Context(), peerKey{}, peerInfo{Peer: Peer{UID: uid}}))
	rec := httptest.NewRecorder()
	s.serve(rec, r)
	return rec
}

func TestOnlyTheUserAndRoot(t *testing.T) {
	s := testServer()
	s.uid = 1000
	Handle(s, "GET "+PathStatus, func(context.Context, *None) (*Status, error) { return &Status{}, nil })
	for uid, want := range map[uint32]int{0: 200, 1000: 200, 1001: 403, 65534: 403} {
		if got := ask(s, uid, "GET", PathStatus, "").Code; got != want {
			t.Errorf("uid %d got %d, want %d", uid, got, want)
		}
	}
	r := httptest.NewRequest("GET", PathStatus, nil)
	rec := httptest.NewRecorder()
	s.serve(rec, r)
	if rec.Code != 403 {
		t.Errorf("a request without a peer got %d", rec.Code)
	}
}

func TestPeerOfConnection(t *testing.T) {
	s := testServer()
	Handle(s, "GET "+PathStatus, func(ctx context.Context, _ *None) (*Status, error) {
		p, err := PeerOf(ctx)
		return &Status{PID: p.PID, Generation: uint64(p.UID)}, err
	})
	got, err := serve(t, s).Status(t.Context())
	if err != nil || got.PID != os.Getpid() || got.Generation != uint64(os.Getuid()) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestSocket(t *testing.T) {
	deep := filepath.Join(t.TempDir(), strings.Repeat("x", 100), strings.Repeat("y", 100))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(deep, SocketName)
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoDaemon) {
		t.Fatalf("dial nothing: %v", err)
	}
	if _, err := Dial(t.Context(), "/nowhere"+path); !errors.Is(err, ErrNoDaemon) {
		t.Fatalf("dial nowhere: %v", err)
	}
	// A socket left by a dead daemon.
	dead, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.(*listener).UnixListener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoDaemon) {
		t.Fatalf("dial a dead socket: %v", err)
	}
	s := testServer()
	Handle(s, "GET "+PathStatus, func(context.Context, *None) (*Status, error) { return &Status{Session: "deep"}, nil })
	c := serveAt(t, s, path)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", st.Mode())
	}
	if got, err := c.Status(t.Context()); err != nil || got.Session != "deep" {
		t.Fatalf("through a path of %d bytes: %+v, %v", len(path), got, err)
	}
}

func TestSocketIsRemovedAtClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), SocketName)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("after closing: %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	s := testServer()
	Handle(s, "POST "+PathRollback, func(context.Context, *RollbackRequest) (*Rollback, error) {
		t.Error("a bad request was carried out")
		return nil, nil
	})
	for name, body := range map[string]string{
		"unknown field": `{"ref":"x","dryrun":true}`,
		"not JSON":      `ref=x`,
		"wrong type":    `{"ref":7}`,
		"array":         `[]`,
		"two objects":   `{"ref":"x"}{"ref":"y"}`,
		"cut":           `{"ref":"x"`,
		"not UTF-8":     "{\"ref\":\"x\xff\"}",
		"huge":          `{"ref":"` + strings.Repeat("x", MaxBody) + `"}`,
	} {
		rec := ask(s, 0, "POST", PathRollback, body)
		var r reply
		if rec.Code != 400 || json.Unmarshal(rec.Body.Bytes(), &r) != nil || r.Error == nil || r.Error.Code != CodeBadRequest {
			t.Errorf("%s: %d %.200s", name, rec.Code, rec.Body)
		}
	}
	if rec := ask(s, 0, "GET", PathRollback, ""); rec.Code != 404 {
		t.Errorf("GET of a POST call: %d", rec.Code)
	}
}

func TestPanicIsAnAnswer(t *testing.T) {
	s := testServer()
	Handle(s, "GET "+PathStatus, func(context.Context, *None) (*Status, error) { panic("oops") })
	c := serve(t, s)
	for range 2 {
		if _, err := c.Status(t.Context()); CodeOf(err) != CodeInternal || !strings.Contains(err.Error(), "log") {
			t.Fatalf("got %v", err)
		}
	}
}

func diffServer(fail bool) *Server {
	s := testServer()
	HandleStream(s, "POST "+PathDiff, func(_ context.Context, r *DiffRequest, out *Stream[Change]) (*DiffSummary, error) {
		if r.From == "nope" {
			return nil, &Error{Code: CodeUnknownCheckpoint, Message: "no nope"}
		}
		for i := range 3000 {
			if err := out.Emit(Change{PathName: NameOf(fmt.Sprintf("f%d\xff", i)), Status: "A"}); err != nil {
				return nil, err
			}
			if err := out.Progress(Progress{Done: int64(i)}); err != nil {
				return nil, err
			}
		}
		if fail {
			return nil, &Error{Code: CodeDamaged, Message: "a chunk is damaged"}
		}
		return &DiffSummary{Total: 3000}, nil
	})
	return s
}

func TestStream(t *testing.T) {
	c := serve(t, diffServer(false))
	n := 0
	sum, err := c.Diff(t.Context(), DiffRequest{}, func(ch Change) error {
		name, err := ch.Bytes()
		if err != nil || name != fmt.Sprintf("f%d\xff", n) {
			t.Fatalf("item %d is %q, %v", n, name, err)
		}
		n++
		return nil
	})
	if err != nil || n != 3000 || sum.Total != 3000 {
		t.Fatalf("%d items, %+v, %v", n, sum, err)
	}
	if _, err := c.Diff(t.Context(), DiffRequest{From: "nope"}, nil); CodeOf(err) != CodeUnknownCheckpoint {
		t.Fatalf("failure before the first item: %v", err)
	}
	stop := errors.New("enough")
	if _, err := c.Diff(t.Context(), DiffRequest{}, func(Change) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("stopping early: %v", err)
	}
	// The connection and the server are still good.
	if _, err := c.Diff(t.Context(), DiffRequest{}, func(Change) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestStreamFailsLate(t *testing.T) {
	c := serve(t, diffServer(true))
	if _, err := c.Diff(t.Context(), DiffRequest{}, func(Change) error { return nil }); CodeOf(err) != CodeDamaged {
		t.Fatalf("got %v", err)
	}
}

// A stream that ends without its last line must not pass for a whole one.
func TestStreamCutOff(t *testing.T) {
	c := &Client{Dial: func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			_, _ = http.ReadRequest(bufio.NewReader(there))
			body := `{"item":{"path":"a","status":"A"}}` + "\n"
			fmt.Fprintf(there, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}()
		return here, nil
	}}
	if _, err := c.Diff(t.Context(), DiffRequest{}, func(Change) error { return nil }); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "mount the session again") {
		t.Fatalf("got %v", err)
	}
}

func TestFiles(t *testing.T) {
	s := testServer()
	held := map[string][]byte{}
	HandleRaw(s, "PUT "+PathFile, func(w http.ResponseWriter, r *http.Request) error {
		p, err := PathQuery(r)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		held[p] = b
		return json.NewEncoder(w).Encode(FileWritten{Size: int64(len(b))})
	})
	HandleRaw(s, "GET "+PathFile, func(w http.ResponseWriter, r *http.Request) error {
		p, err := PathQuery(r)
		if err != nil {
			return err
		}
		b, ok := held[p]
		if !ok {
			return &Error{Code: CodeBadPath, Message: "no such file"}
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		if strings.HasSuffix(p, "damaged") {
			b = b[:len(b)/2]
			if _, err := w.Write(b); err != nil {
				return err
			}
			return errors.New("damaged")
		}
		_, err = w.Write(b)
		return err
	})
	c := serve(t, s)
	data := bytes.Repeat([]byte{0, 1, 0xff}, 1<<20)
	for _, name := range []string{"a", "bad\xff\n?&name", "damaged"} {
		if n, err := c.WriteFile(t.Context(), name, bytes.NewReader(data)); err != nil || n != int64(len(data)) {
			t.Fatalf("write %q: %d, %v", name, n, err)
		}
		r, size, err := c.ReadFile(t.Context(), "", name)
		if err != nil || size != int64(len(data)) {
			t.Fatalf("read %q: size %d, %v", name, size, err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if name == "damaged" {
			if err == nil {
				t.Fatal("half a file passed for a whole one")
			}
			continue
		}
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("read %q: %d bytes, %v", name, len(got), err)
		}
	}
	if _, _, err := c.ReadFile(t.Context(), "", "none"); CodeOf(err) != CodeBadPath {
		t.Fatalf("got %v", err)
	}
}

func TestDeadline(t *testing.T) {
	s := testServer()
	release := make(chan struct{})
	Handle(s, "GET "+PathStatus, func(context.Context, *None) (*Status, error) {
		<-release
		return &Status{}, nil
	})
	c := serve(t, s)
	defer close(release)
	c.Timeout = 20 * time.Millisecond
	if _, err := c.Status(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

func TestMetricsAndPprof(t *testing.T) {
	s := testServer()
	s.HandleMetrics(func(m *Metrics) {
		m.Add("rewindfs_requests_total", "counter", "Requests.", 3, "op", "LOOKUP")
		m.Add("rewindfs_requests_total", "counter", "Requests.", 4, "op", "a\"b\\c\nd")
		m.Add("rewindfs_generation", "gauge", "Generation.", 7)
	})
	ask(s, 0, "GET", "/v1/nope", "")
	body := ask(s, 0, "GET", PathMetrics, "").Body.String()
	want := `# HELP rewindfs_requests_total Requests.
# TYPE rewindfs_requests_total counter
rewindfs_requests_total{op="LOOKUP"} 3
rewindfs_requests_total{op="a\"b\\c\nd"} 4
# HELP rewindfs_generation Generation.
# TYPE rewindfs_generation gauge
rewindfs_generation 7
# HELP rewindfs_control_calls_total Calls of the control API.
# TYPE rewindfs_control_calls_total counter
rewindfs_control_calls_total{path="other",status="404"} 1
`
	if body != want {
		t.Errorf("got %s", body)
	}
	if rec := ask(s, 0, "GET", PathPprof+"heap?debug=1", ""); rec.Code != 200 || !strings.Contains(rec.Body.String(), "heap profile") {
		t.Errorf("pprof: %d %.100s", rec.Code, rec.Body)
	}
}

func TestNames(t *testing.T) {
	for _, s := range []string{"a/b", "\xff\xfe", "", "é"} {
		b, err := json.Marshal(NameOf(s))
		if err != nil {
			t.Fatal(err)
		}
		var n PathName
		if err := json.Unmarshal(b, &n); err != nil {
			t.Fatal(err)
		}
		if got, err := n.Bytes(); err != nil || got != s {
			t.Errorf("%q came back as %q, %v", s, got, err)
		}
	}
}

// FuzzRequest sends whatever to a call: it must be answered with JSON, and only a
// request of the present generation may reach the handler.
func FuzzRequest(f *testing.F) {
	f.Add("POST", PathRollback, `{"ref":"x"}`)
	f.Add("POST", PathRollback+"?generation=7", `{"ref":"x","generation":6}`)
	f.Add("GET", PathFile+"?path_b64=!!", ``)
	f.Add("PUT", "/v1/../x", `{}`)
	f.Fuzz(func(t *testing.T, method, target, body string) {
		s := testServer()
		Handle(s, "POST "+PathRollback, func(_ context.Context, r *RollbackRequest) (*Rollback, error) {
			if r.Generation != nil && *r.Generation != 7 {
				t.Errorf("a stale request was carried out: %s", body)
			}
			return &Rollback{}, nil
		})
		HandleRaw(s, "GET "+PathFile, func(w http.ResponseWriter, r *http.Request) error {
			_, err := PathQuery(r)
			return err
		})
		if _, err := http.NewRequest(method, "http://x/", nil); err != nil || method == "" {
			t.Skip()
		}
		if strings.HasPrefix(target, PathPprof) {
			t.Skip() // profiles take their time
		}
		rec := ask(s, 0, method, target, body)
		if rec.Code >= 400 && !json.Valid(rec.Body.Bytes()) {
			t.Fatalf("%d with a body that is no JSON: %q", rec.Code, rec.Body)
		}
	})
}
