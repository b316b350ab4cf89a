package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

type mountOptions struct {
	name, store, branch, cache, logLevel string
	over, allowOther, foreground, debug  bool
	readyFD                              int
}

func (a *app) newMount() *cobra.Command {
	o := &mountOptions{}
	cmd := &cobra.Command{
		Use:   "mount BASE [MOUNTPOINT]",
		Short: "Show a directory, writable, and start keeping what changes",
		Long: `Show the directory BASE at MOUNTPOINT (default BASE.rewind), writable. BASE itself is never written.
A daemon in the background serves it; the command returns when the mount answers. What was written before,
and all checkpoints, are there again.

Rules about paths are read now, from rewindfs.toml in the store or else at the root of BASE:

  [paths]
  keep   = ["/.cache/", "*.log"]   # rollback, undo and redo leave these as they are
  ignore = ["node_modules/"]       # commit leaves these out

The patterns are those of .gitignore.

` + exitHelp,
		Args: between(1, 2, "a directory and, if you like, a mount point"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runMount(cmd.Context(), o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the session (default: the last part of BASE)")
	f.StringVar(&o.store, "store", "", "where layers are kept (default: below $XDG_STATE_HOME/rewindfs)")
	f.StringVar(&o.branch, "branch", "", "main, which a session always shows (others: fork, branch mount)")
	f.BoolVar(&o.over, "over", false, "mount on BASE itself")
	f.StringVar(&o.cache, "cache", "", "through: write(2) waits for the daemon; writeback: the kernel gathers writes (default through)")
	f.BoolVar(&o.allowOther, "allow-other", false, "let other users in (needs user_allow_other in /etc/fuse.conf)")
	f.BoolVar(&o.foreground, "foreground", false, "stay in the foreground, for service managers")
	f.BoolVar(&o.debug, "debug", false, "trace every request in the log")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.IntVar(&o.readyFD, "ready-fd", -1, "")
	if err := f.MarkHidden("ready-fd"); err != nil {
		panic(err) // the flag is defined two lines above
	}
	return cmd
}

// resolve makes session options of flags and arguments; all paths are canonical afterwards.
func (o *mountOptions) resolve(args []string) (session.Options, slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return session.Options{}, level, usagef("--log-level %q: use debug, info, warn or error", o.logLevel)
	}
	so := session.Options{
		Name: o.name, Branch: o.branch, Over: o.over, AllowOther: o.allowOther,
		CacheMode: o.cache, Debug: o.debug, Version: version,
	}
	if o.over && len(args) > 1 {
		return so, level, usagef("--over mounts on the base itself: leave the mount point out")
	}
	for _, p := range []struct {
		dst  *string
		what string
		from string
	}{
		{&so.Base, "base", args[0]},
		{&so.Mountpoint, "mount point", strings.Join(args[1:], "")},
		{&so.Store, "store", o.store},
	} {
		if p.from == "" {
			if p.dst == &so.Base || len(args) > 1 && p.dst == &so.Mountpoint {
				return so, level, failf(exitPath, "the %s is empty: name a directory", p.what)
			}
			continue
		}
		path, err := session.Canonical(p.from)
		if err != nil {
			return so, level, failf(exitPath, "%w", err)
		}
		*p.dst = path
	}
	if err := so.Complete(); err != nil {
		return so, level, err
	}
	if _, err := session.Canonical(so.Store); err != nil {
		return so, level, failf(exitPath, "%w: give --store DIR, or set XDG_STATE_HOME to a directory of your own", err)
	}
	return so, level, so.Check()
}

func (a *app) runMount(ctx context.Context, o *mountOptions, args []string) error {
	so, level, err := o.resolve(args)
	if err != nil {
		return err
	}
	if o.foreground || o.readyFD >= 0 {
		return a.serve(o, so, level)
	}
	if err := a.background(ctx, o, so); err != nil {
		return err
	}
	return a.report(ctx, so)
}

// ready is what a daemon says over its readiness pipe: an error, or that it is there.
type ready struct {
	Error *control.Error `json:"error,omitempty"`
	Exit  int            `json:"exit,omitempty"`
}

// serve is the daemon.
func (a *app) serve(o *mountOptions, so session.Options, level slog.Level) error {
	tell := func(ready) {}
	if o.readyFD >= 0 {
		pipe := os.NewFile(uintptr(o.readyFD), "ready")
		if pipe == nil {
			return usagef("--ready-fd %d is not open", o.readyFD)
		}
		syscall.CloseOnExec(o.readyFD)
		tell = func(r ready) {
			// If nobody reads any more there is nobody to tell.
			_ = json.NewEncoder(pipe).Encode(r)
			_ = pipe.Close()
			tell = func(ready) {}
		}
	}
	so.OpenLog = func(store string) (*slog.Logger, error) {
		file, err := session.OpenLog(store)
		if err != nil {
			return nil, err
		}
		var w io.Writer = file
		if o.readyFD < 0 {
			w = io.MultiWriter(file, a.err)
		}
		crashInto(store)
		return session.NewLogger(w, level, o.debug), nil
	}
	err := session.Run(so, func(s *session.Session) {
		tell(ready{})
		if o.readyFD < 0 {
			a.note("mounted %s at %s; stop with Ctrl-C", show(so.Base), show(so.Mountpoint))
		}
	})
	if err != nil {
		var api *control.Error
		if !errors.As(err, &api) || api.Message != err.Error() {
			api = &control.Error{Code: control.CodeOf(err), Message: err.Error()}
		}
		tell(ready{Error: api, Exit: exitCode(err)})
	}
	return err
}

// crashInto has a crash of the daemon leave its traces in the log.
func crashInto(store string) {
	f, err := os.OpenFile(filepath.Join(store, "daemon.log"), os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return // there is a log, so this is about descriptors; the log says so elsewhere
	}
	defer f.Close()
	_ = debug.SetCrashOutput(f, debug.CrashOptions{})
}

// readyWait is how long a daemon may take to replay its store and mount.
const readyWait = 5 * time.Minute

// background starts this program again as the daemon, and waits for it to be ready.
func (a *app) background(ctx context.Context, o *mountOptions, so session.Options) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return fmt.Errorf("start the daemon: %w", err)
	}
	defer null.Close()
	args := []string{"rewindfs", "mount", "--ready-fd", "3", "--name", so.Name, "--store", so.Store, "--cache", so.CacheMode, "--branch", so.Branch, "--log-level", o.logLevel}
	for flag, on := range map[string]bool{"--over": so.Over, "--allow-other": so.AllowOther, "--debug": so.Debug} {
		if on {
			args = append(args, flag)
		}
	}
	args = append(args, "--", so.Base)
	if !so.Over {
		args = append(args, so.Mountpoint)
	}
	// A session of its own: neither the terminal's hang-up nor its Ctrl-C is for the daemon.
	// Its directory is not ours to keep busy.
	proc, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{
		Dir: "/", Files: []*os.File{null, null, null, w}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	w.Close()
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	return awaitReady(ctx, proc, r, so)
}

func awaitReady(ctx context.Context, proc *os.Process, r *os.File, so session.Options) error {
	said := make(chan error, 1)
	go func() {
		var msg ready
		err := json.NewDecoder(r).Decode(&msg)
		switch {
		case err != nil:
			said <- fmt.Errorf("the daemon ended before it was ready; its log is %s", filepath.Join(so.Store, "daemon.log"))
		case msg.Error != nil:
			said <- &exitError{msg.Exit, msg.Error}
		default:
			said <- nil
		}
	}()
	late := time.NewTimer(readyWait)
	defer late.Stop()
	var err error
	select {
	case err = <-said:
	case <-ctx.Done():
		err = ctx.Err()
	case <-late.C:
		err = fmt.Errorf("the daemon is not ready after %s; its log is %s", readyWait, filepath.Join(so.Store, "daemon.log"))
	}
	if err != nil {
		// It ends by itself after an error; after a Ctrl-C it must be told. Wait for it, so
		// that a next try does not find the store held.
		_ = proc.Signal(syscall.SIGTERM)
		_, _ = proc.Wait()
		return err
	}
	return proc.Release()
}

// report checks that the mount answers and says where it is.
func (a *app) report(ctx context.Context, so session.Options) error {
	if state := session.Probe(so.Mountpoint); state != session.StateLive {
		return fmt.Errorf("the daemon runs, but the mount at %s is %s; its log is %s", so.Mountpoint, state, filepath.Join(so.Store, "daemon.log"))
	}
	c := &control.Client{Socket: filepath.Join(so.Store, control.SocketName)}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return fmt.Errorf("the daemon runs, but does not answer: %w", err)
	}
	forks, err := c.Branches(ctx)
	if err != nil {
		return fmt.Errorf("list the branches: %w", err)
	}
	return a.result(st, func(w io.Writer) {
		fmt.Fprintf(w, "%s is at %s, writable; %s itself is never written.\n", show(st.Base), show(st.Mountpoint), baseWord(so))
		switch {
		case st.Checkpoints > 0 && st.Head.ID == "": // automatic ones only
			fmt.Fprintf(w, "All is as you left it: %s; %s changed since the latest.\n",
				count(int64(st.Checkpoints), "automatic checkpoint"), count(st.ChangedPaths, "path"))
		case st.Checkpoints > 0:
			fmt.Fprintf(w, "All is as you left it: %s, the latest is %s; %s changed since.\n",
				count(int64(st.Checkpoints), "checkpoint"), headName(st.Head), count(st.ChangedPaths, "path"))
		case st.ChangedPaths > 0:
			fmt.Fprintf(w, "All is as you left it: %s changed, no checkpoint yet.\n", count(st.ChangedPaths, "path"))
		}
		printForks(w, forks.Branches)
		if so.Over {
			fmt.Fprintf(w, "Shells that were in it already must cd there again.\n")
		}
		fmt.Fprintf(w, "Next:  cd %s\n       rewindfs checkpoint NAME   (and later: rewindfs rollback NAME)\n", quoteArg(show(st.Mountpoint)))
	})
}

func baseWord(so session.Options) string {
	if so.Over {
		return "what is under it"
	}
	return "the base"
}

// headName is the label of a checkpoint, else its id.
func headName(h control.Head) string {
	if h.Label != "" {
		return "'" + h.Label + "'"
	}
	return h.ID
}
