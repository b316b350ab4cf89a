package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// maxPeak is how much memory the daemon may have in use, in bytes, whatever it is sent.
const maxPeak = 1 << 30

// repeated is head, unit as often as fits into size bytes, and tail, made while it is read.
func repeated(size int, head, unit, tail string) func() io.Reader {
	return func() io.Reader {
		n := (size - len(head) - len(tail)) / len(unit)
		block := bytes.Repeat([]byte(unit), max(1, (1<<20)/len(unit)))
		return io.MultiReader(strings.NewReader(head), io.LimitReader(&cycle{block: block}, int64(n*len(unit))), strings.NewReader(tail))
	}
}

// cycle gives block again and again.
type cycle struct {
	block []byte
	at    int
}

func (c *cycle) Read(p []byte) (int, error) {
	n := copy(p, c.block[c.at:])
	c.at = (c.at + n) % len(c.block)
	return n, nil
}

func text(s string) func() io.Reader { return func() io.Reader { return strings.NewReader(s) } }

const mib = 1 << 20

// exchange is two messages, of about 2,000 bytes.
func exchange() string {
	return `,{"role":"user","content":"` + strings.Repeat("y", 1900) + `"},{"role":"assistant","content":"` + strings.Repeat("z", 50) + `"}`
}

// input is something that is no conversation.
type input struct {
	name   string
	format string
	data   func() io.Reader
	says   string // part of the message
}

func noise(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return string(p)
}

func call(id string) string {
	return fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":"f","arguments":"{}"}}`, id)
}

func inputs() []input {
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	small := []input{
		{name: "nothing", data: text(""), says: "nothing in it"},
		{name: "white space", data: text(" \n\t "), says: "nothing in it"},
		{name: "binary", data: text(noise(mib))},
		{name: "NUL bytes", data: text(strings.Repeat("\x00", 100))},
		{name: "a number", data: text("42")},
		{name: "null", data: text("null")},
		{name: "a string", data: text(`"hello"`)},
		{name: "text", data: text("Hello, how are you?\n")},
		{name: "an empty object", data: text("{}")},
		{name: "a list of lists", data: text(`[[{"role":"user","content":"x"}]]`)},
		{name: "a list with a hole", data: text(`[{"role":"user","content":"x"},null]`)},
		{name: "a request around it", data: text(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)},
		{name: "cut short", data: text(chat(20)[:2000])},
		{name: "a comma too many", data: text(`[{"role":"user","content":"x"},]`)},
		{name: "something behind it", data: text(chat(3) + "x")},
		{name: "a line that is cut short", data: text(message(0) + "\n" + message(3)[:20]), says: "line 2"},
		{name: "a bad line", data: text(message(0) + "\n{bad}\n" + message(3) + "\n"), says: "line 2"},
		{name: "lists, 100,000 deep", data: text(deep), says: "nested"},
		{name: "objects, 100,000 deep", data: text(strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)), says: "nested"},
		{name: "a content, 100,000 deep", data: text(`[{"role":"user","content":` + deep + `}]`), says: "nested"},
		{name: "an open list, 100,000 deep", data: text(strings.Repeat("[", 100_000)), says: "nested"},
		{name: "a call id twice", data: text(`[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[` + call("a") + `,` + call("a") + `]}]`), says: `"a"`},
		{name: "a block id twice", format: "anthropic", data: text(`[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}},{"type":"tool_use","id":"t","name":"f","input":{}}]}]`), says: `"t"`},
		{name: "a role that is a number", data: text(`[{"role":5,"content":"x"}]`)},
		{name: "no role", data: text(`[{"content":"x"}]`)},
		{name: "calls that are text", data: text(`[{"role":"assistant","content":null,"tool_calls":"x"}]`)},
		{name: "calls that are an object", data: text(`[{"role":"assistant","content":null,"tool_calls":` + call("a") + `}]`)},
		{name: "a call that is a number", data: text(`[{"role":"assistant","content":null,"tool_calls":[5]}]`)},
		{name: "a call id that is a number", data: text(`[{"role":"assistant","content":null,"tool_calls":[{"id":5,"type":"function","function":{"name":"f","arguments":"{}"}}]}]`)},
		{name: "a content that is a number", data: text(`[{"role":"user","content":7}]`)},
		{name: "parts that are text", format: "gemini", data: text(`[{"role":"user","parts":"x"}]`)},
		{name: "a list of numbers, named", format: "gemini", data: text(`[1,2,3]`)},
		{name: "a format that there is not", format: "telegraph", data: text(chat(3)), says: "telegraph"},
	}
	return append(small, []input{
		{name: "200 MiB of numbers", data: repeated(200*mib, "[1", ",1", "]"), says: "larger than 128 MiB"},
		{name: "200 MiB of conversation", data: repeated(200*mib, `[{"role":"system","content":"s"}`, exchange(), "]"), says: "larger than 128 MiB"},
		{name: "300 MiB of conversation", data: repeated(300*mib, `[{"role":"system","content":"s"}`, exchange(), "]"), says: "larger than 128 MiB"},
		{name: "100 MiB of numbers", data: repeated(100*mib, "[1", ",1", "]")},
		{name: "100 MiB of empty objects", data: repeated(100*mib, "[{}", ",{}", "]")},
		{name: "100 MiB of lines", data: repeated(100*mib, "", "{}\n", "")},
		{name: "100 MiB of members", data: repeated(100*mib, `[{"role":"user","content":"x"`, `,"a":1`, "}]"), says: "values"},
		{name: "100 MiB of text", data: repeated(100*mib, `"`, "x", `"`)},
		{name: "100 MiB of open lists", data: repeated(100*mib, "", "[", ""), says: "nested"},
	}...)
}

// TestNoConversation sends what is none. Each is refused with a reason that can be read,
// nothing of it is stored, and the conversation stays as it was.
func TestNoConversation(t *testing.T) {
	r := newRig(t)
	live := chat(12)
	r.put("", false, strings.NewReader(live))
	r.m.Unmount()
	messages, links, size := r.records()
	r.m.Mount()
	r.connect()
	before := r.status()
	r.peak()
	most, ofWhich := int64(0), ""
	for _, in := range inputs() {
		for _, stage := range []bool{false, true} {
			start := time.Now()
			_, err := r.c.PutMemory(context.Background(), "", in.format, stage, in.data())
			var e *control.Error
			switch {
			case err == nil:
				t.Errorf("%s: was taken", in.name)
			case !errors.As(err, &e):
				t.Errorf("%s: no answer of the daemon: %v", in.name, err)
			case e.Code != control.CodeBadRequest || len(e.Message) < 20 || len(e.Message) > 1000 || !strings.Contains(e.Message, in.says):
				t.Errorf("%s: %s %.1500s", in.name, e.Code, e.Message)
			}
			peak := r.peak()
			if most < peak {
				most, ofWhich = peak, in.name
			}
			if peak > maxPeak {
				t.Errorf("%s: the daemon had %d MiB in use", in.name, peak/mib)
			}
			if peak > 300*mib || time.Since(start) > time.Second {
				t.Logf("%s: %d MiB in use, %v: %v", in.name, peak/mib, time.Since(start).Round(time.Millisecond), err)
			}
		}
		now := r.status()
		if got := r.raw("", ""); got != live || now.Conversation.Digest != before.Conversation.Digest {
			t.Fatalf("%s: the live conversation is another one now: %.200s", in.name, got)
		}
	}
	t.Logf("at most %d MiB in use, for %s", most/mib, ofWhich)
	r.m.Unmount()
	if m, l, n := r.records(); m != messages || l != links || n != size {
		t.Errorf("%d messages, %d links, %d bytes are stored, and were %d, %d, %d", m, l, n, messages, links, size)
	}
}

// TestLargeConversation brings 100 MiB, makes a checkpoint of it, loses it and goes back.
func TestLargeConversation(t *testing.T) {
	r := newRig(t)
	data := repeated(100*mib, `[{"role":"system","content":"s"}`, exchange(), "]")
	step := func(what string, do func() error) {
		t.Helper()
		start := time.Now()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		peak := r.peak()
		t.Logf("%s: %v, %d MiB in use", what, time.Since(start).Round(time.Millisecond), peak/mib)
		if peak > 2*maxPeak {
			t.Errorf("%s: the daemon had %d MiB in use", what, peak/mib)
		}
	}
	ctx := context.Background()
	var sent *control.Thread
	step("sync", func() (err error) {
		sent, err = r.c.PutMemory(ctx, "", "", false, data())
		return err
	})
	label := "large"
	step("checkpoint", func() error {
		_, err := r.c.Checkpoint(ctx, control.CheckpointRequest{Label: &label})
		return err
	})
	r.put("", false, strings.NewReader(chat(3)))
	want := sum(t, data())
	step("get", func() error {
		body, err := r.c.GetMemoryRaw(ctx, label, "", false)
		if err != nil {
			return err
		}
		defer body.Close()
		if got := sum(t, body); got != want {
			return errors.New("other bytes come back than were sent")
		}
		return nil
	})
	step("rollback", func() error {
		res, err := r.c.Rollback(ctx, control.RollbackRequest{Ref: label, NoNotice: true})
		if err == nil && (len(res.Messages) != sent.Messages || res.Conversation.Digest != sent.Digest) {
			err = fmt.Errorf("it gives back %d messages, %s, of %+v", len(res.Messages), res.Conversation.Digest, sent)
		}
		return err
	})
}

// sum is a digest of a list without the white space between its messages: none is in them.
func sum(t *testing.T, r io.Reader) [sha256.Size]byte {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(bytes.ReplaceAll(b, []byte("\n"), nil))
}
