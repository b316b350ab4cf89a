package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"time"
	"unicode/utf8"

	"github.com/rewindfs/rewindfs/internal/capture"
)

// keepOutput is how much of each stream of a command --json keeps, in bytes.
const keepOutput = 256 << 10

// drainTime bounds waiting for the end of the output after that of the command: what it left running may hold it open.
const drainTime = time.Second

// captured is a stream of a command that is kept for --json.
type captured struct {
	read, write *os.File
	kept        *capture.Capture
	done        chan struct{}
}

func newCaptured() (*captured, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("keep the command's output: %w", err)
	}
	c := &captured{read: r, write: w, kept: capture.New(keepOutput), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_ = c.kept.Read(c.read) // its end, or a deadline: what came has come
	}()
	return c, nil
}

// stream is a kept stream in JSON.
type stream struct {
	text    string
	b64     string // when it is not UTF-8
	dropped int64
}

// finish returns what the command has written. It is called once, after its end.
func (c *captured) finish() stream {
	c.write.Close()
	_ = c.read.SetReadDeadline(time.Now().Add(drainTime)) // a pipe takes one
	<-c.done
	c.read.Close()
	o := c.kept.Output()
	s := stream{text: o.String(), dropped: o.Dropped}
	if !utf8.ValidString(s.text) {
		s.b64 = base64.StdEncoding.EncodeToString([]byte(s.text))
	}
	return s
}
