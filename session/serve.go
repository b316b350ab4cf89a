package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/rewindfs/rewindfs/control"
)

// routes ties the calls of the control API to the session.
func (s *Session) routes() {
	v := s.server
	control.Handle(v, "GET "+control.PathStatus, s.Status)
	control.Handle(v, "POST "+control.PathLog, s.Log)
	control.Handle(v, "POST "+control.PathCheckpoint, s.Checkpoint)
	control.Handle(v, "POST "+control.PathRollback, s.Rollback)
	control.Handle(v, "POST "+control.PathUndo, s.Undo)
	control.Handle(v, "POST "+control.PathRedo, s.Redo)
	control.Handle(v, "POST "+control.PathUnmount, s.Unmount)
	control.HandleStream(v, "POST "+control.PathDiff, s.Diff)
	control.HandleRaw(v, "GET "+control.PathFile, s.readFile)
	control.HandleRaw(v, "PUT "+control.PathFile, s.writeFile)
	control.HandleRaw(v, "GET "+control.PathMemory, s.getMemory)
	control.HandleRaw(v, "PUT "+control.PathMemory, s.putMemory)
	control.Handle(v, "POST "+control.PathToolBegin, s.ToolBegin)
	control.Handle(v, "POST "+control.PathToolEnd, s.ToolEnd)
	control.Handle(v, "POST "+control.PathToolReset, s.ToolReset)
	control.Handle(v, "POST "+control.PathVerification, s.Verification)
	control.Handle(v, "GET "+control.PathPolicy, s.Policy)
	control.Handle(v, "POST "+control.PathPolicy, s.SetPolicy)
	control.Handle(v, "GET "+control.PathBudget, s.Budget)
	control.Handle(v, "POST "+control.PathBudget, s.SetBudget)
	control.Handle(v, "POST "+control.PathAttach, s.Attach)
	control.Handle(v, "POST "+control.PathReject, s.Reject)
	control.Handle(v, "GET "+control.PathCurrent, s.Current)
	control.Handle(v, "POST "+control.PathCollect, s.Collect)
	control.Handle(v, "POST "+control.PathDelete, s.Delete)
	v.HandleMetrics(s.collect)
}

// Unmount takes the mount away; Serve then ends the daemon. It refuses a mount that
// is in use, naming by whom, unless it is to be lazy or forced.
func (s *Session) Unmount(ctx context.Context, r *control.UnmountRequest) (*control.Unmounted, error) {
	// No checkpoint or rollback may be half way.
	s.heads.Lock()
	defer s.heads.Unlock()
	if err := control.StillWaits(ctx); err != nil {
		return nil, err
	}
	var err error
	if r.Force {
		err = s.cutOff()
	} else {
		err = s.detach(r.Lazy)
	}
	switch {
	case err == nil, s.gone():
	case errors.Is(err, syscall.EINVAL): // detached before, by us or with umount -l
	case errors.Is(err, syscall.EBUSY):
		busy := s.othersIn(ctx)
		if len(busy) == 0 {
			busy = s.mount.Busy() // the command itself: it was started in the mount
		}
		return nil, &control.Error{
			Code: control.CodeBusy,
			Message: fmt.Sprintf("%s is in use by %s: stop that and try again, or detach it with --lazy (open files go on working), or cut it off with --force",
				s.o.Mountpoint, describeAll(busy)),
			Details: map[string]any{"busy": wireProcesses(busy)},
		}
	default:
		return nil, fmt.Errorf("unmount: %w", err)
	}
	s.setStopping("asked to unmount")
	if r.Force {
		select {
		case s.cut <- struct{}{}:
		default: // told already
		}
	}
	return &control.Unmounted{Mountpoint: s.o.Mountpoint, Store: s.o.Store, PID: os.Getpid()}, nil
}

// detach unmounts. When the mount has ended, umount(2) may still take seconds to drop
// what the kernel remembers of a large tree; that is not waited for, as the daemon
// would be gone before the answer.
func (s *Session) detach(lazy bool) error {
	done := make(chan error, 1)
	go func() { done <- s.mount.Unmount(lazy) }()
	select {
	case err := <-done:
		return err
	case <-s.ended:
		return nil
	}
}

// Run is the daemon: it opens o, tells ready where it is, and serves until a signal or
// an unmount ends it. It changes the whole process (umask, directory, signals, the Go
// runtime), so nothing else runs in one.
func Run(o Options, ready func(*Session)) error {
	// Files get the modes that programs ask for; a directory of ours in the mount
	// would keep it busy.
	syscall.Umask(0)
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("leave the working directory: %w", err)
	}
	tuneRuntime()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	signal.Ignore(syscall.SIGPIPE) // a terminal that went away must not end the daemon

	s, err := Open(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	force := make(chan struct{})
	go func() {
		for n := 1; ; n++ {
			select {
			case sig := <-signals:
				s.log.Info("signal", "signal", sig.String())
				cancel()
				if n == 2 {
					close(force)
				}
			case <-s.done:
				return
			}
		}
	}()
	ready(s)
	return s.Serve(ctx, force)
}

// NewLogger makes a logger that writes text to w from level up. Debug overrides the level.
func NewLogger(w io.Writer, level slog.Level, debug bool) *slog.Logger {
	if debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
