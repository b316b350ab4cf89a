package control

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A daemon that was stopped finds the calls of those who gave up when it goes on, and
// does none of them.
func TestCallGivenUpIsNotCarriedOut(t *testing.T) {
	s := testServer()
	Handle(s, "POST "+PathUnmount, func(context.Context, *UnmountRequest) (*Unmounted, error) {
		t.Error("the call was carried out")
		return &Unmounted{}, nil
	})
	HandleRaw(s, "PUT "+PathFile, func(http.ResponseWriter, *http.Request) error {
		t.Error("the write was carried out")
		return nil
	})
	path := filepath.Join(t.TempDir(), SocketName)
	l, err := Listen(path) // and nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{Socket: path, Timeout: time.Millisecond}
	if err := c.Ping(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ping: %v", err)
	}
	if _, err := c.Unmount(t.Context(), UnmountRequest{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("unmount: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.WriteFile(ctx, "x", strings.NewReader("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
	// Those may have been given up before they were sent; these are there in whole.
	for _, req := range []string{
		"POST " + PathUnmount + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"PUT " + PathFile + "?path=x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
		"PUT " + PathFile + "?path=x HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + strings.Repeat("x", 50000),
	} {
		conn, err := Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, req); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	refused := func(path string) uint64 {
		s.calls.mu.Lock()
		defer s.calls.mu.Unlock()
		return s.calls.n[callKey{path, http.StatusRequestTimeout}]
	}
	for end := time.Now().Add(20 * time.Second); refused(PathUnmount) == 0 || refused(PathFile) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the calls were not refused")
		}
	}
	// Who waits is served.
	if err := (&Client{Socket: path}).Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

// Who has said all there is to say still waits for the answer.
func TestHalfClosedIsNotGone(t *testing.T) {
	c := serve(t, testServer())
	conn, err := Dial(t.Context(), c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if hungUp(conn) {
		t.Error("the server is gone")
	}
	if _, err := io.WriteString(conn, "GET "+PathPing+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("answered %q, %v", b, err)
	}
	if !hungUp(conn) {
		t.Error("the server has closed the connection")
	}
}

// Whatever the daemon answers, it answers.
func TestPing(t *testing.T) {
	c := serve(t, testServer())
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	old := uint64(1)
	if err := (&Client{Socket: c.Socket, Generation: &old}).Ping(t.Context()); err != nil {
		t.Errorf("a refusal: %v", err)
	}
	if err := (&Client{Socket: c.Socket + "-none"}).Ping(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("nobody there: %v", err)
	}
}
