package transport

import (
	"bytes"
	"log/slog"
	"testing"
)

// Right after an answer, before it reads again, a worker has nothing that anybody
// could wait for. (It once still counted as handling a request for a moment: now and then a
// checkpoint took ten seconds.)
func TestNothingToWaitForBetweenRequests(t *testing.T) {
	var log bytes.Buffer
	c := &Conn{log: slog.New(slog.NewTextHandler(&log, nil)), workers: map[*worker]struct{}{}}
	c.answers.L = &c.mu
	w := &worker{c: c}
	c.workers[w] = struct{}{}
	w.enter(reading)
	w.enter(handling)
	c.answered(w)
	c.Quiesce()
	kicks := 0
	if err := c.Drain(func() error { kicks++; return nil }); err != nil {
		t.Fatal(err)
	}
	if kicks != 1 || log.Len() > 0 {
		t.Errorf("%d kicks, want 1; log: %s", kicks, &log)
	}
}
