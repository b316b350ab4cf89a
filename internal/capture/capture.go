// Package capture keeps what a command writes in bounded memory: its head and its tail.
package capture

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// Output is what a command wrote to one of its streams: all of it, or its head
// and its tail. The strings hold the bytes as they came; where these are not
// UTF-8, the JSON form replaces what it cannot hold. Escape them before they go to a terminal.
type Output struct {
	Head    string `json:"head"`
	Tail    string `json:"tail,omitempty"`
	Dropped int64  `json:"dropped,omitempty"` // bytes between head and tail that were not kept
}

// String is the output with a remark where bytes were dropped.
func (o Output) String() string {
	if o.Dropped == 0 {
		return o.Head + o.Tail
	}
	return o.Head + fmt.Sprintf("\n… %d bytes left out …\n", o.Dropped) + o.Tail
}

// Capture keeps the head and the tail of a stream. It belongs
// to the goroutine that calls Read until that has returned.
type Capture struct {
	half  int // bytes kept at each end
	head  []byte
	tail  []byte // a ring once it is full; next is then its oldest byte
	next  int
	total int64
}

// New makes a capture that keeps so many bytes.
func New(keep int) *Capture {
	return &Capture{half: keep / 2}
}

// Read takes everything from r until its end or an error, for instance a deadline.
func (c *Capture) Read(r *os.File) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		c.write(buf[:n])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Total is the number of bytes that came.
func (c *Capture) Total() int64 { return c.total }

func (c *Capture) write(p []byte) {
	c.total += int64(len(p))
	n := min(len(p), c.half-len(c.head))
	c.head = append(c.head, p[:n]...)
	p = p[n:]
	// Only the last bytes of a large piece can stay.
	if len(p) > c.half {
		p = p[len(p)-c.half:]
	}
	n = min(len(p), c.half-len(c.tail))
	c.tail = append(c.tail, p[:n]...)
	for p = p[n:]; len(p) > 0; p = p[n:] {
		n = copy(c.tail[c.next:], p)
		c.next = (c.next + n) % len(c.tail)
	}
}

// Output is what was kept.
func (c *Capture) Output() Output {
	var tail strings.Builder
	tail.Grow(len(c.tail))
	tail.Write(c.tail[c.next:])
	tail.Write(c.tail[:c.next])
	return Output{
		Head:    string(c.head),
		Tail:    tail.String(),
		Dropped: c.total - int64(len(c.head)) - int64(len(c.tail)),
	}
}
