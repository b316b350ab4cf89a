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
	wide  int // columns that were written
}

func (a *app) newBar(title string) *bar {
	return &bar{a: a, title: title, on: !a.quiet && !a.json && isTerminal(a.err)}
}

const (
	barEvery = 100 * time.Millisecond
	barWidth = 30
)

// set shows p, unless it has just shown something.
func (b *bar) set(p control.Progress) {
	if !b.on || time.Since(b.shown) < barEvery {
		return
	}
	b.shown = time.Now()
	line := fmt.Sprintf("%s: %d %s", b.title, p.Done, p.Unit)
	if p.Total > 0 {
		n := int(min(p.Done, p.Total) * barWidth / p.Total)
		line = fmt.Sprintf("%s [%s%s] %d/%d %s", b.title, strings.Repeat("#", n), strings.Repeat(".", barWidth-n), p.Done, p.Total, p.Unit)
	}
	fmt.Fprintf(b.a.err, "\r%s%s", line, strings.Repeat(" ", max(0, b.wide-len(line))))
	b.wide = max(b.wide, len(line))
}

// end takes the bar away.
func (b *bar) end() {
	if b.wide > 0 {
		fmt.Fprintf(b.a.err, "\r%s\r", strings.Repeat(" ", b.wide))
		b.wide = 0
	}
}
