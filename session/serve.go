package session

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/rewindfs/rewindfs/control"
)

// routes ties the calls of the control API to the sessions: each goes to that of the branch it names.
func (s *Session) routes() {
	handle(s, "GET "+control.PathStatus, (*Session).Status)
	handle(s, "POST "+control.PathLog, (*Session).Log)
	handle(s, "POST "+control.PathCheckpoint, (*Session).Checkpoint)
	handle(s, "POST "+control.PathRollback, (*Session).Rollback)
	handle(s, "POST "+control.PathUndo, (*Session).Undo)
	handle(s, "POST "+control.PathRedo, (*Session).Redo)
	handle(s, "POST "+control.PathRestore, (*Session).Restore)
	handle(s, "POST "+control.PathUnmount, (*Session).Unmount)
	handleStream(s, "POST "+control.PathCommit, (*Session).Commit)
	handleStream(s, "POST "+control.PathDiff, (*Session).Diff)
	handleStream(s, "POST "+control.PathPatch, (*Session).Patch)
	handleRaw(s, "GET "+control.PathFile, (*Session).readFile)
	handleRaw(s, "PUT "+control.PathFile, (*Session).writeFile)
	handleRaw(s, "GET "+control.PathMemory, (*Session).getMemory)
	handleRaw(s, "PUT "+control.PathMemory, (*Session).putMemory)
	handle(s, "POST "+control.PathToolBegin, (*Session).ToolBegin)
	handle(s, "POST "+control.PathToolEnd, (*Session).ToolEnd)
	handle(s, "POST "+control.PathToolReset, (*Session).ToolReset)
	handle(s, "POST "+control.PathRuns, (*Session).RunBegin)
	handle(s, "POST "+control.PathRunsEnd, (*Session).RunEnd)
	handle(s, "POST "+control.PathVerification, (*Session).Verification)
	handle(s, "GET "+control.PathPolicy, (*Session).Policy)
	handle(s, "POST "+control.PathPolicy, (*Session).SetPolicy)
	handle(s, "GET "+control.PathBudget, (*Session).Budget)
	handle(s, "POST "+control.PathBudget, (*Session).SetBudget)
	handle(s, "POST "+control.PathAttach, (*Session).Attach)
	handle(s, "POST "+control.PathReject, (*Session).Reject)
	handle(s, "GET "+control.PathCurrent, (*Session).Current)
	handle(s, "POST "+control.PathCollect, (*Session).Collect)
	handleStream(s, "POST "+control.PathGC, (*Session).GC)
	handleStream(s, "POST "+control.PathFsck, (*Session).Fsck)
	handle(s, "POST "+control.PathDelete, (*Session).Delete)
	handle(s, "POST "+control.PathMerge, (*Session).Merge)
	handle(s, "POST "+control.PathFork, (*Session).Fork)
	handle(s, "GET "+control.PathBranches, (*Session).Branches)
	handle(s, "POST "+control.PathBranchMount, (*Session).MountBranch)
	handle(s, "POST "+control.PathBranchDrop, (*Session).DropBranch)
	handleRaw(s, "GET "+control.PathExport, (*Session).export)
	handleRaw(s, "PUT "+control.PathImport, (*Session).importArchive)
	s.server.HandleMetrics(s.collect)
}

// handle serves pattern with fn, called on the session of the branch that the request names.
func handle[Req, Res any](s *Session, pattern string, fn func(*Session, context.Context, *Req) (Res, error)) {
	control.Handle(s.server, pattern, func(ctx context.Context, r *Req) (res Res, err error) {
		b, err := s.branchNamed(control.BranchOf(ctx))
		if err != nil {
			return res, err
		}
		return fn(b, ctx, r)
	})
}

// handleStream is handle for calls with an NDJSON answer.
func handleStream[Req, Item, Res any](s *Session, pattern string, fn func(*Session, context.Context, *Req, *control.Stream[Item]) (Res, error)) {
	control.HandleStream(s.server, pattern, func(ctx context.Context, r *Req, out *control.Stream[Item]) (res Res, err error) {
		b, err := s.branchNamed(control.BranchOf(ctx))
		if err != nil {
			return res, err
		}
		return fn(b, ctx, r, out)
	})
}

// handleRaw is handle for calls that write their answer themselves.
func handleRaw(s *Session, pattern string, fn func(*Session, http.ResponseWriter, *http.Request) error) {
	control.HandleRaw(s.server, pattern, func(w http.ResponseWriter, r *http.Request) error {
		b, err := s.branchNamed(control.BranchOf(r.Context()))
		if err != nil {
			return err
		}
		return fn(b, w, r)
	})
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
