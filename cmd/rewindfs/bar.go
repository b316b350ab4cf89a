package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// bar shows how far something is, on a terminal alone.
type bar struct {
	a     *app
	title string
	on    bool
	shown time.Time
}

func (a *app) newBar(title string) *bar {
	return &bar{a: a, title: title, on: !a.quiet && !a.json && isTerminal(a.err)}
}

const (
	barEvery  = 100 * time.Millisecond
	barWidth  = 30
	clearLine = "\r\x1b[K"
	unitBytes = "bytes" // shown as sizes
)

// set shows p, unless it has just shown something; the end is always shown.
func (b *bar) set(p control.Progress) {
	whole := p.Total > 0 && p.Done >= p.Total
	if !b.on || time.Since(b.shown) < barEvery && !whole {
		return
	}
	b.shown = time.Now()
	done, total := fmt.Sprint(p.Done), fmt.Sprintf("%d %s", p.Total, p.Unit)
	if p.Unit == unitBytes {
		done, total = size(p.Done), size(p.Total)
	}
	switch {
	case p.Total <= 0 && p.Unit == unitBytes:
		fmt.Fprintf(b.a.err, "%s%s: %s", clearLine, b.title, done)
	case p.Total <= 0:
		fmt.Fprintf(b.a.err, "%s%s: %s %s", clearLine, b.title, done, p.Unit)
	default:
		n := int(float64(min(p.Done, p.Total)) / float64(p.Total) * barWidth)
		fmt.Fprintf(b.a.err, "%s%s [%s%s] %s/%s", clearLine, b.title, strings.Repeat("#", n), strings.Repeat(".", barWidth-n), done, total)
	}
}

// end takes the bar away.
func (b *bar) end() {
	if !b.shown.IsZero() {
		fmt.Fprint(b.a.err, clearLine)
	}
}

// counted counts the bytes that are written to it, and shows them. Of what goes to a daemon, it is not done when all are sent.
type counted struct {
	*bar
	n, total int64  // total is 0 when nobody knows
	then     string // what the title is once all are there, if that is not the end
}

func (c *counted) Write(b []byte) (int, error) {
	if c.n += int64(len(b)); c.then != "" && c.total > 0 && c.n >= c.total {
		c.title = c.then
	}
	c.set(control.Progress{Done: c.n, Total: c.total, Unit: unitBytes})
	return len(b), nil
}
