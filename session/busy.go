package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
)

// othersIn lists who uses the mount. The program whose call ctx belongs to is left
// out: that it was started in the mount is no news, and it is about to end.
func (s *Session) othersIn(ctx context.Context) []Process {
	peer, err := control.PeerOf(ctx)
	var out []Process
	for _, p := range s.mount.Busy() {
		if err != nil || p.PID != peer.PID {
			out = append(out, p)
		}
	}
	return out
}

// mayHold lists who may have something of the mount in memory. Of the shell and the
// wrappers that the call of ctx comes from only that counts: where they stand is no news.
func (s *Session) mayHold(ctx context.Context) []Process {
	all := s.othersIn(ctx)
	peer, err := control.PeerOf(ctx)
	if err != nil {
		return all
	}
	above := ancestors(peer.PID)
	var out []Process
	for _, p := range all {
		if above[p.PID] {
			p.Uses = slices.DeleteFunc(slices.Clone(p.Uses), func(use string) bool { return use == "cwd" || use == "root" })
			if len(p.Uses) == 0 {
				continue
			}
		}
		out = append(out, p)
	}
	return out
}

// holders lists those who hold files of the mount open or mapped, but for the ancestors of the program whose call ctx
// belongs to: they wait for it.
func (s *Session) holders(ctx context.Context) []Process {
	var above map[int]bool
	if peer, err := control.PeerOf(ctx); err == nil {
		above = ancestors(peer.PID)
	}
	var out []Process
	for _, p := range s.othersIn(ctx) {
		standsOnly := !slices.ContainsFunc(p.Uses, func(use string) bool { return use != "cwd" && use != "root" })
		if !above[p.PID] && !standsOnly {
			out = append(out, p)
		}
	}
	return out
}

// Bounds of waiting for holders.
const (
	defaultBusyWait = time.Minute
	maxBusyWait     = 24 * time.Hour
	lookAgain       = 200 * time.Millisecond // nothing tells that a file was closed
	holderGrace     = 5 * time.Second        // from SIGTERM to SIGKILL
)

// lockWhenIdle takes s.heads, once what w says about those who hold files of the mount is done. On an error it is not held.
func (s *Session) lockWhenIdle(ctx context.Context, w control.WhenBusy) error {
	wait := min(time.Duration(w.WaitMS)*time.Millisecond, maxBusyWait)
	switch {
	case w.WaitMS < 0:
		return badRequest("wait_ms is %d: it must not be below 0", w.WaitMS)
	case w.WaitMS == 0:
		wait = defaultBusyWait
	case w.WaitMS > maxBusyWait.Milliseconds():
		wait = maxBusyWait
	}
	switch w.IfBusy {
	case control.BusyGoOn:
		s.heads.Lock()
		return nil
	case control.BusyFail, control.BusyWait:
	case control.BusyKill:
		if control.FromAgent(ctx) {
			return &control.Error{Code: control.CodeForbidden, Message: "a command in a sandbox cannot have other processes ended: ask for it outside, or wait for them"}
		}
	default:
		return badRequest("if_busy is %q: use fail, wait or kill", w.IfBusy)
	}
	deadline := time.Now().Add(wait)
	for {
		if err := control.StillWaits(ctx); err != nil {
			return err
		}
		s.heads.Lock()
		holders := s.holders(ctx)
		if len(holders) == 0 {
			return nil
		}
		s.heads.Unlock()
		if w.IfBusy == control.BusyFail || !time.Now().Before(deadline) {
			return held(s.o.Mountpoint, holders, "end that, or say --if-busy wait or kill, or leave it out to go on all the same")
		}
		if w.IfBusy == control.BusyKill {
			if err := s.endHolders(ctx, holders); err != nil {
				return err
			}
			continue
		}
		select {
		case <-time.After(min(lookAgain, time.Until(deadline))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func held(mountpoint string, holders []Process, todo string) error {
	return &control.Error{
		Code:    control.CodeBusy,
		Message: fmt.Sprintf("files of %s are held open by %s; nothing was changed: %s", mountpoint, describeAll(holders), todo),
		Details: map[string]any{"busy": wireProcesses(holders)},
	}
}

// endHolders ends processes that hold files of the mount: first they are asked to go.
func (s *Session) endHolders(ctx context.Context, holders []Process) error {
	fds := map[int]int{} // by pid; a descriptor stands for the process that has the pid now, and for no later one
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, p := range holders {
		fd, err := unix.PidfdOpen(p.PID, 0)
		switch {
		case err == nil:
			fds[p.PID] = fd
		case !errors.Is(err, unix.ESRCH):
			return fmt.Errorf("end process %d: %w", p.PID, err)
		}
	}
	deadline := time.Now().Add(holderGrace)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		// Looked for again: whose descriptor is from before and who still is a holder is meant.
		var left []Process
		for _, p := range s.holders(ctx) {
			fd, known := fds[p.PID]
			if !known {
				continue // came meanwhile: its turn comes
			}
			err := unix.PidfdSendSignal(fd, sig, nil, 0)
			if errors.Is(err, unix.EPERM) {
				return held(s.o.Mountpoint, []Process{p}, "it is another user's: end it yourself")
			}
			left = append(left, p)
		}
		for _, p := range left {
			if err := waitExit(fds[p.PID], p.PID, max(time.Until(deadline), 0)); err != nil && !errors.Is(err, ErrStillRunning) {
				return err
			}
		}
		deadline = time.Now().Add(deathTime)
		s.log.Info("ended those who held files", "signal", unix.SignalName(sig), "processes", describeAll(left))
		if len(left) == 0 {
			return nil
		}
	}
	if left := s.holders(ctx); len(left) > 0 && slices.ContainsFunc(left, func(p Process) bool { _, known := fds[p.PID]; return known }) {
		return held(s.o.Mountpoint, left, "they could not be ended")
	}
	return nil
}
