package control

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Metrics collects values in Prometheus' text format.
type Metrics struct {
	buf  bytes.Buffer
	last string // the name that was described last
}

// Add writes one value. kind is "counter" or "gauge"; labels are name, value pairs.
// Values of one name are added one after the other.
func (m *Metrics) Add(name, kind, help string, v float64, labels ...string) {
	if m.last != name {
		m.last = name
		fmt.Fprintf(&m.buf, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	m.buf.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(&m.buf, "%s%s=\"%s\"", sep, labels[i], labelEscaper.Replace(labels[i+1]))
	}
	if len(labels) > 1 {
		m.buf.WriteByte('}')
	}
	m.buf.WriteByte(' ')
	m.buf.WriteString(strconv.FormatFloat(v, 'g', -1, 64))
	m.buf.WriteByte('\n')
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// HandleMetrics serves /metrics: what collect adds, and the server's own calls.
func (s *Server) HandleMetrics(collect func(*Metrics)) {
	s.mux.HandleFunc("GET "+PathMetrics, func(w http.ResponseWriter, r *http.Request) {
		m := &Metrics{}
		collect(m)
		s.calls.collect(m)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		if _, err := w.Write(m.buf.Bytes()); err != nil {
			s.logger.Debug("control client went away", "call", r.URL.Path, "error", err)
		}
	})
}

type callKey struct {
	path   string
	status int
}

// callCounter counts calls by path and status.
type callCounter struct {
	mu sync.Mutex
	n  map[callKey]uint64 // guarded by mu
}

// maxCallKeys bounds the paths remembered, since a client can make them up.
const maxCallKeys = 200

func (c *callCounter) add(path string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[callKey]uint64{}
	}
	k := callKey{path, status}
	if _, ok := c.n[k]; !ok && (len(c.n) >= maxCallKeys || status == http.StatusNotFound) {
		k.path = "other"
	}
	c.n[k]++
}

func (c *callCounter) collect(m *Metrics) {
	c.mu.Lock()
	n := maps.Clone(c.n)
	c.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(n), func(a, b callKey) int {
		if d := strings.Compare(a.path, b.path); d != 0 {
			return d
		}
		return a.status - b.status
	})
	for _, k := range keys {
		m.Add("rewindfs_control_calls_total", "counter", "Calls of the control API.", float64(n[k]), "path", k.path, "status", strconv.Itoa(k.status))
	}
}
