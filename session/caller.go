package session

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/internal/proctree"
)

// caller is the process that asked for something, so that another daemon, after the next boot, too, can tell whether it still runs.
type caller struct {
	PID   int    `json:"pid"`             // as this daemon saw it; 0: it was in a pid namespace that cannot be seen from here
	Start string `json:"start,omitempty"` // in clock ticks since boot, "" where /proc does not say it
	Boot  string `json:"boot,omitempty"`  // id of the boot
	Space string `json:"space,omitempty"` // pid namespace of the daemon
}

// callerState is what is known of a caller.
type callerState int

const (
	callerUnknown callerState = iota // it may run, or not
	callerRuns
	callerGone
)

// here is a caller without a process: where the daemon itself is.
func here() caller {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // "": start times are all there is
	space, _ := os.Readlink("/proc/self/ns/pid")              // likewise
	return caller{Boot: strings.TrimSpace(string(boot)), Space: space}
}

// callerOf is who sent the request of ctx to the daemon at c.
func callerOf(ctx context.Context, c caller) caller {
	if peer, err := control.PeerOf(ctx); err == nil {
		c.PID = peer.PID
	}
	if c.PID > 0 {
		c.Start, _, _ = proctree.Born(c.PID) // "": not known
	}
	return c
}

// state tells a daemon at now whether the caller still runs.
func (c *caller) state(now *caller) callerState {
	switch {
	case c.Boot != "" && now.Boot != "" && c.Boot != now.Boot:
		return callerGone
	case c.PID <= 0 || c.Space != now.Space:
		return callerUnknown
	}
	start, runs, err := proctree.Born(c.PID)
	switch {
	case errors.Is(unix.Kill(c.PID, 0), unix.ESRCH):
		return callerGone
	case err != nil || c.Start == "":
		return callerUnknown
	case start != c.Start || !runs:
		return callerGone
	}
	return callerRuns
}
