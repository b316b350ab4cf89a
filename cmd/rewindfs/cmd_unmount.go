package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/sandbox"
	"github.com/rewindfs/rewindfs/session"
)

// exitWait is how long a daemon may take to put everything on disk, forceWait how
// long it may take to answer before it is cut off from outside.
const (
	exitWait  = 2 * time.Minute
	forceWait = 5 * time.Second
)

func (a *app) newUnmount() *cobra.Command {
	r := control.UnmountRequest{}
	cmd := &cobra.Command{
		Use:   "unmount [SESSION]",
		Short: "Stop a session; everything is kept for the next mount",
		Long: `Stop a session. Everything written and all checkpoints are kept; mount brings them back, with the branches that were mounted.
A mount in use is refused, with the names of who uses it. Also clears away the mount of a daemon that died.
Of a fork, named by its mount point or with --branch, only the mount goes; branch mount brings it back.

` + exitHelp,
		Args: between(0, 1, "at most one session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runUnmount(cmd.Context(), r, a.sessionArg(args))
		},
	}
	cmd.Flags().BoolVar(&r.Lazy, "lazy", false, "detach it now; what is open goes on working until it is closed")
	cmd.Flags().BoolVar(&r.Force, "force", false, "cut it off: whoever uses it gets errors; works with a daemon that hangs")
	return cmd
}

// sessionArg lets a session be said as an argument instead of with -s.
func (a *app) sessionArg(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if args[0] == "" {
		return noSession("the name of the session is empty")
	}
	if a.session != "" && a.session != args[0] {
		return usagef("two sessions are given: %s and %s", show(a.session), show(args[0]))
	}
	a.session = args[0]
	return nil
}

// unmounted is what unmount and destroy print as JSON.
type unmounted struct {
	Session    string   `json:"session"`
	Mountpoint string   `json:"mountpoint"`
	Store      string   `json:"store"`
	Cleaned    bool     `json:"cleaned"` // the daemon was gone already; its mount was cleared away
	Ended      bool     `json:"ended"`   // the daemon has ended; false while a lazy one serves open files
	Branch     string   `json:"branch"`
	Forks      []string `json:"forks"` // mount points of other branches that went with it
}

func (a *app) runUnmount(ctx context.Context, r control.UnmountRequest, argErr error) error {
	if argErr != nil {
		return argErr
	}
	l, err := a.choose(ctx)
	if err != nil {
		return err
	}
	if l.Record.State == session.StateUnmounted && !l.Served(ctx) {
		return notMounted(l)
	}
	u, err := a.stop(ctx, l, r)
	if err != nil {
		return err
	}
	return a.result(u, func(w io.Writer) {
		if l.Fork && !u.Cleaned {
			fmt.Fprintf(w, "Unmounted branch %s at %s; everything is kept.\nBring it back with: rewindfs branch mount %s\n", show(u.Branch), show(u.Mountpoint), quoteArg(show(u.Branch)))
			return
		}
		switch {
		case u.Cleaned:
			fmt.Fprintf(w, "The daemon was gone already; cleared away its mount at %s.\n", show(u.Mountpoint))
		case !u.Ended:
			fmt.Fprintf(w, "Detached %s; the daemon (pid %d) ends when the last open file is closed.\n", show(u.Mountpoint), l.PID)
		case len(u.Forks) > 0:
			fmt.Fprintf(w, "Unmounted %s, and %s; everything is kept.\n", show(u.Mountpoint), count(int64(len(u.Forks)), "fork"))
		default:
			fmt.Fprintf(w, "Unmounted %s; everything is kept.\n", show(u.Mountpoint))
		}
		fmt.Fprintf(w, "Bring it back with: %s\n", remount(l))
	})
}

// stop ends the daemon of l, or clears away what a dead one left.
func (a *app) stop(ctx context.Context, l *session.Listed, r control.UnmountRequest) (*unmounted, error) {
	u := &unmounted{Session: l.Name, Mountpoint: l.Mountpoint, Store: l.Store, Ended: true, Branch: l.Branch, Forks: []string{}}
	switch l.State(ctx) {
	case session.StateDead, session.StateUnmounted:
		u.Cleaned = true
		whole := l.Session()
		return u, session.Clean(&whole)
	case session.StateHanging:
		return u, a.cutOff(l, r.Force)
	}
	c := a.clientOf(l)
	defer c.Close()
	if r.Force {
		c.Timeout = forceWait
	}
	res, err := c.Unmount(ctx, r)
	if errors.Is(err, context.DeadlineExceeded) {
		return u, a.cutOff(l, r.Force)
	}
	if err != nil {
		return nil, err
	}
	c.Close()
	if u.Forks = res.Forks; l.Fork {
		u.Ended, u.Mountpoint = false, res.Mountpoint
		return u, nil
	}
	wait := exitWait
	if r.Lazy && !r.Force {
		// Long enough for a mount that nobody uses.
		wait = time.Second
	}
	err = session.WaitExit(res.PID, wait)
	switch {
	case errors.Is(err, session.ErrStillRunning) && r.Force:
		return u, a.cutOff(l, true)
	case errors.Is(err, session.ErrStillRunning) && r.Lazy:
		u.Ended = false
	case err != nil:
		return nil, fmt.Errorf("%s is unmounted, but the daemon has not ended: %w", l.Mountpoint, err)
	}
	return u, nil
}

// cutOff deals with a daemon that does not answer, or does not end.
func (a *app) cutOff(l *session.Listed, force bool) error {
	if !force {
		return errors.New(hangs(l))
	}
	if l.Fork {
		return session.CutOff(l.Mountpoint) // the daemon is for others, too
	}
	cut := session.CutOffAll(l)
	killed, err := session.EndHolder(l.Store, l.PID)
	if err != nil || !killed {
		return errors.Join(cut, err)
	}
	// Whatever stood in the way of cutting it off: its end did it.
	a.note("The daemon (pid %d) did not answer and was killed; what programs have written is safe.", l.PID)
	return session.Clean(l)
}

func (a *app) newDestroy() *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:   "destroy [SESSION]",
		Short: "Unmount a session and delete its store: all changes and checkpoints",
		Long: `Unmount a session and delete its store: every change since the first mount, every checkpoint. The base stays
as it is. Asks first on a terminal; elsewhere it needs --yes.

` + exitHelp,
		Args: between(0, 1, "at most one session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.sessionArg(args); err != nil {
				return err
			}
			return a.runDestroy(cmd.Context(), yes)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) runDestroy(ctx context.Context, yes bool) error {
	l, err := a.choose(ctx)
	if err != nil {
		return err
	}
	if l.Fork {
		return usagef("destroy deletes the whole session %s, with all its branches: say so with: rewindfs destroy %s; for branch %s alone: rewindfs branch delete %s",
			show(l.Name), quoteArg(show(l.Name)), show(l.Branch), quoteArg(show(l.Branch)))
	}
	state := l.State(ctx)
	loss := a.lossOf(ctx, l, state)
	if !yes {
		if !isTerminal(a.in) || a.json {
			return usagef("destroy deletes %s; say --yes to do it", loss)
		}
		fmt.Fprintf(a.err, "This deletes %s. It cannot be undone.\nThe base %s stays as it is. Type the name of the session (%s) to go on: ", loss, show(l.Base), show(l.Name))
		answer, _ := bufio.NewReader(a.in).ReadString('\n')
		if strings.TrimSpace(answer) != l.Name {
			return errors.New("nothing was deleted")
		}
	}
	u := &unmounted{Session: l.Name, Mountpoint: l.Mountpoint, Store: l.Store, Ended: true, Branch: l.Branch, Forks: []string{}}
	if state != session.StateUnmounted {
		if u, err = a.stop(ctx, l, control.UnmountRequest{}); err != nil {
			return err
		}
	}
	if err := session.RemoveStore(l.Store); err != nil {
		return err
	}
	reg, err := registry()
	if err != nil {
		return err
	}
	if err := reg.Remove(l.Store); err != nil {
		return err
	}
	for _, at := range append([]string{l.Mountpoint}, u.Forks...) {
		if err := sandbox.RemoveTemp(at); err != nil {
			a.note("rewindfs: the temporary directory of commands stays: %v", err)
		}
	}
	return a.result(u, func(w io.Writer) {
		fmt.Fprintf(w, "Deleted %s. The base %s is as it was.\n", loss, show(l.Base))
	})
}

// lossOf says what goes with the store.
func (a *app) lossOf(ctx context.Context, l *session.Listed, state string) string {
	what := "the store " + show(l.Store)
	if state != session.StateLive {
		return what + ", with all changes and checkpoints of session " + show(l.Name)
	}
	c := a.clientOf(l)
	c.Generation = nil
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return what
	}
	return fmt.Sprintf("%s (%s): %s and %s changed since", what, size(st.StoreBytes), count(int64(st.Checkpoints), "checkpoint"), count(st.ChangedPaths, "path"))
}
