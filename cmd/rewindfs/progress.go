package main

import (
	"fmt"
	"io"
	"time"
)

// progress counts the bytes that are written to it and, on a terminal, shows them now and then.
type progress struct {
	to    io.Writer // nil: nobody looks
	what  string
	n     int64
	total int64 // 0: nobody knows
	shown time.Time
}

// progressEvery is how often a number on a terminal changes.
const progressEvery = 200 * time.Millisecond

// newProgress shows how many bytes were dealt with, of total; what says so in words behind the number.
func (a *app) newProgress(what string, total int64) *progress {
	p := &progress{what: what, total: total, shown: time.Now()}
	if !a.quiet && !a.json && isTerminal(a.err) {
		p.to = a.err
	}
	return p
}

func (p *progress) Write(b []byte) (int, error) {
	p.n += int64(len(b))
	if p.to == nil || time.Since(p.shown) < progressEvery && p.n != p.total {
		return len(b), nil
	}
	p.shown = time.Now()
	line := size(p.n) + " " + p.what
	switch {
	case p.total > 0 && p.n >= p.total:
		line += ": checking it, and building"
	case p.total > 0:
		line += fmt.Sprintf(": %d %%", p.n*100/p.total)
	}
	fmt.Fprintf(p.to, "\r\x1b[K%s", line)
	return len(b), nil
}

// done takes the number away.
func (p *progress) done() {
	if p.to != nil {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}
