package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/mounttest"
	"github.com/rewindfs/rewindfs/kv"
)

func TestMain(m *testing.M) { os.Exit(mounttest.Main(m)) }

// rig is a mount and a client of its daemon.
type rig struct {
	testing.TB
	m   *mounttest.Mount
	c   *control.Client
	pid int
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{TB: t, m: mounttest.New(t, mounttest.Options{Fill: mounttest.Empty})}
	r.connect()
	return r
}

// connect finds the daemon that now is there.
func (r *rig) connect() {
	r.Helper()
	if r.c != nil {
		r.c.Close()
	}
	r.c = &control.Client{Socket: filepath.Join(r.m.Store, control.SocketName)}
	r.pid = r.status().PID
}

func (r *rig) status() *control.Status {
	r.Helper()
	st, err := r.c.Status(context.Background())
	if err != nil {
		r.Fatal(err)
	}
	return st
}

func (r *rig) write(name, content string) {
	r.Helper()
	if err := os.WriteFile(r.m.Path(name), []byte(content), 0o644); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) put(thread string, stage bool, messages io.Reader) *control.Thread {
	r.Helper()
	th, err := r.c.PutMemory(context.Background(), thread, "", stage, messages)
	if err != nil {
		r.Fatal(err)
	}
	return th
}

// raw is a conversation in its bytes: of ref, or the live one.
func (r *rig) raw(ref, thread string) string {
	r.Helper()
	body, err := r.c.GetMemoryRaw(context.Background(), ref, thread, false)
	if control.CodeOf(err) == control.CodeNoConversation {
		return ""
	}
	if err != nil {
		r.Fatal(err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		r.Fatal(err)
	}
	return string(b)
}

// call sends a request as it is, and returns the HTTP status and the answer.
func (r *rig) call(method, path, body string) (int, string) {
	r.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return control.Dial(ctx, r.c.Socket)
	}}}
	defer c.CloseIdleConnections()
	req, err := http.NewRequest(method, "http://rewindfs"+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// records counts the messages and links in a store that nobody serves, and all their bytes.
func (r *rig) records() (messages, links, size int) {
	r.Helper()
	db, err := kv.Open(filepath.Join(r.m.Store, "kv"), kv.Options{})
	if err != nil {
		r.Fatal(err)
	}
	defer db.Close()
	count := func(prefix []byte, is func(k []byte) bool) (n int) {
		err := db.Scan(prefix, nil, func(k, v []byte) bool {
			if is(k) {
				n++
			}
			size += len(k) + len(v)
			return true
		})
		if err != nil {
			r.Fatal(err)
		}
		return n
	}
	first := kv.Message(nil, 0)
	all := func([]byte) bool { return true }
	messages = count(bytes.TrimSuffix(kv.MessagePrefix(nil), []byte("/")), func(k []byte) bool {
		return bytes.HasSuffix(k, first[len(first)-5:]) // a message has one first part
	})
	links = count(kv.Chain(nil), all)
	return messages, links, size
}

// peak returns how much memory the daemon has had in use at most since the last time, in bytes.
func (r *rig) peak() int64 {
	r.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		r.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "VmHWM:") })
	if i < 0 {
		r.Fatal("/proc does not say how much memory the daemon has had")
	}
	kb, err := strconv.ParseInt(strings.Fields(lines[i])[1], 10, 64)
	if err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.pid), []byte("5"), 0); err != nil {
		r.Fatal(err)
	}
	return kb << 10
}

// message is the n-th of a long chat: every third is a result of a few hundred bytes.
func message(n int) string {
	switch n % 4 {
	case 0:
		return fmt.Sprintf(`{"role":"user","content":"please look at number %d"}`, n)
	case 1:
		return fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"read","arguments":"{\"n\": %d}"}}]}`, n, n)
	case 2:
		return fmt.Sprintf(`{"role":"tool","tool_call_id":"call_%d","content":"%s %d"}`, n-1, strings.Repeat("line of output; ", 20), n)
	}
	return fmt.Sprintf(`{"role":"assistant","content":"it is number %d"}`, n)
}

// chat is the first n messages of one.
func chat(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n" + message(i))
	}
	return "[" + b.String() + "\n]\n"
}
