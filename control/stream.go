package control

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Bounds of a stream: a line waits at most flushEvery, and a client that reads
// nothing for stallLimit is dropped, so that it cannot hold the daemon up.
const (
	flushEvery = 100 * time.Millisecond
	stallLimit = 30 * time.Second
)

// Stream takes the items of an NDJSON answer. It is used by one goroutine.
type Stream[Item any] struct{ lines *lineWriter }

// Emit sends one item. After an error nobody listens any more: stop.
func (s *Stream[Item]) Emit(item Item) error {
	return s.lines.put(struct {
		Item Item `json:"item"`
	}{item})
}

// Progress sends how far the call is.
func (s *Stream[Item]) Progress(p Progress) error {
	return s.lines.put(struct {
		Progress Progress `json:"progress"`
	}{p})
}

type lineWriter struct {
	w       http.ResponseWriter
	buf     *bufio.Writer
	enc     *json.Encoder
	rc      *http.ResponseController
	started bool
	flushed time.Time
}

func newLineWriter(w http.ResponseWriter) *lineWriter {
	buf := bufio.NewWriterSize(w, 32<<10)
	return &lineWriter{w: w, buf: buf, enc: json.NewEncoder(buf), rc: http.NewResponseController(w)}
}

func (l *lineWriter) put(v any) error {
	if !l.started {
		l.started = true
		l.flushed = time.Now()
		l.w.Header().Set("Content-Type", "application/x-ndjson")
		l.deadline()
	}
	if err := l.enc.Encode(v); err != nil {
		return fmt.Errorf("write a line of the answer: %w", err)
	}
	if time.Since(l.flushed) < flushEvery {
		return nil
	}
	return l.flush()
}

func (l *lineWriter) flush() error {
	l.deadline()
	if err := l.buf.Flush(); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	l.flushed = time.Now()
	if err := l.rc.Flush(); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// close sends what is left and lifts the deadline: the connection may be used again.
func (l *lineWriter) close() error {
	err := l.flush()
	_ = l.rc.SetWriteDeadline(time.Time{})
	return err
}

func (l *lineWriter) deadline() {
	// A connection without deadlines (a test's) just has none.
	_ = l.rc.SetWriteDeadline(time.Now().Add(stallLimit))
}
