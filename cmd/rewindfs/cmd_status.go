package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/session"
)

// listed is a session as list prints it in JSON.
type listed struct {
	Session    string       `json:"session"`
	State      string       `json:"state"` // live, dead, hanging, unmounted, orphaned
	Base       string       `json:"base"`
	Mountpoint string       `json:"mountpoint"`
	Store      string       `json:"store"`
	Branch     string       `json:"branch"`
	PID        int          `json:"pid"`
	Generation uint64       `json:"generation"`
	Forks      []listedFork `json:"forks"` // other branches of it

	BaseB64       string `json:"base_b64,omitempty"`
	MountpointB64 string `json:"mountpoint_b64,omitempty"`
}

// listedFork is a branch of a session other than its own, as far as the record knows.
type listedFork struct {
	Branch        string `json:"branch"`
	State         string `json:"state"` // as of the session, or unmounted
	Mountpoint    string `json:"mountpoint"`
	MountpointB64 string `json:"mountpoint_b64,omitempty"`
}

func listForks(l *session.Listed) []listedFork {
	out := []listedFork{}
	for _, f := range l.Forks {
		state := l.Record.State
		if !f.Mounted || f.Problem != "" {
			state = session.StateUnmounted
		}
		out = append(out, listedFork{Branch: f.Branch, State: state, Mountpoint: f.Mountpoint, MountpointB64: control.NameOf(f.Mountpoint).PathB64})
	}
	return out
}

func (a *app) newList() *cobra.Command {
	var prune, foreign bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sessions: live, hanging, dead, unmounted, orphaned",
		Args:    exactly(0, "no argument"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runList(cmd.Context(), prune, foreign) },
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "clear away the mounts of dead ones first; stores stay")
	cmd.Flags().BoolVar(&foreign, "all", false, "with --prune: also dead mounts of no session known here, which may be another user's, or of another home")
	return cmd
}

func (a *app) runList(ctx context.Context, prune, foreign bool) error {
	if foreign && !prune {
		return usagef("--all goes with --prune: all sessions and mounts are listed anyway")
	}
	reg, err := registry()
	if err != nil {
		return err
	}
	all, err := reg.List(ctx)
	if err != nil {
		return err
	}
	if prune {
		if err := a.prune(all, foreign); err != nil {
			return err
		}
		if all, err = reg.List(ctx); err != nil {
			return err
		}
	}
	out := []listed{}
	var hanging []string
	for _, l := range all {
		if l.Record.State == session.StateHanging && l.Store != "" {
			hanging = append(hanging, hangs(&l))
		}
		out = append(out, listed{
			Session: l.Name, State: l.Record.State, Base: l.Base, Mountpoint: l.Mountpoint,
			Store: l.Store, Branch: l.Branch, PID: l.PID, Generation: l.Generation, Forks: listForks(&l),
			BaseB64: control.NameOf(l.Base).PathB64, MountpointB64: control.NameOf(l.Mountpoint).PathB64,
		})
	}
	return a.result(map[string]any{"sessions": out}, func(w io.Writer) {
		if len(out) == 0 {
			fmt.Fprintln(w, "No sessions. Start one with: rewindfs mount DIR")
			return
		}
		rows := [][]string{{"NAME", "STATE", "MOUNTPOINT", "BASE"}}
		dead, orphaned := false, false
		for _, l := range out {
			name, mp := show(l.Session), show(l.Mountpoint)
			if l.Session == "" {
				name = "-"
			}
			if l.State == session.StateUnmounted {
				mp = "-"
			}
			dead, orphaned = dead || l.State == session.StateDead, orphaned || l.State == session.StateOrphan
			rows = append(rows, []string{name, l.State, mp, show(l.Base)})
			for _, f := range l.Forks {
				at := show(f.Mountpoint)
				if f.State == session.StateUnmounted {
					at = "-"
				}
				rows = append(rows, []string{"  branch " + show(f.Branch), f.State, at, ""})
			}
		}
		table(w, rows)
		for _, h := range hanging {
			fmt.Fprintf(w, "Hanging: %s\n", h)
		}
		if dead {
			fmt.Fprintln(w, "Dead ones lose nothing: rewindfs mount BASE brings them back. To clear away their mounts: rewindfs list --prune")
		}
		if orphaned {
			fmt.Fprintln(w, "Orphaned mounts are of no session known here: of a deleted store, another user, or another home. To clear these away, too: rewindfs list --prune --all")
		}
	})
}

// prune clears away the mounts of dead sessions; with foreign set, dead mounts that are not known here, too. What answers,
// or only hangs, is left alone.
func (a *app) prune(all []session.Listed, foreign bool) error {
	var errs []error
	for i := range all {
		l := &all[i]
		var err error
		switch state := l.Record.State; {
		case state == session.StateDead:
			err = session.Clean(l)
		case state == session.StateOrphan && foreign:
			_, err = session.ClearDead(l.Mountpoint)
		default:
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a.note("Cleared away the dead mount at %s.", show(l.Mountpoint))
	}
	return errors.Join(errs...)
}

func (a *app) newStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status [SESSION]",
		Short: "Show what a session is and holds",
		Args:  between(0, 1, "at most one session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.sessionArg(args); err != nil {
				return err
			}
			return a.runStatus(cmd.Context())
		},
	}
}

// statusTime is short: status is what one asks when something seems to hang.
const statusTime = 20 * time.Second

func (a *app) runStatus(ctx context.Context) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Timeout = statusTime
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	return a.result(st, func(w io.Writer) { printStatus(w, st) })
}

// describePatterns lists patterns of rewindfs.toml, if there are few.
func describePatterns(all []string) string {
	if len(all) == 0 {
		return "nothing"
	}
	shown := make([]string, 0, maxShown)
	for _, p := range all[:min(maxShown, len(all))] {
		shown = append(shown, show(p))
	}
	out := strings.Join(shown, " ")
	if n := len(all) - len(shown); n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}

func printStatus(w io.Writer, st *control.Status) {
	head := count(st.ChangedPaths, "path") + " changed"
	if st.Head.ID != "" {
		head += " since " + headName(st.Head)
	} else {
		head += ", no checkpoint yet"
	}
	back := "nothing to undo"
	if st.Undo > 0 || st.Redo > 0 {
		back = fmt.Sprintf("undo %d, redo %d", st.Undo, st.Redo)
	}
	free := "nothing"
	if st.ReclaimableBytes > 0 {
		free = "about " + size(st.ReclaimableBytes)
	}
	rows := [][]string{
		{"Session", fmt.Sprintf("%s (%s, generation %d, pid %d, since %s)", show(st.Session), st.State, st.Generation, st.PID, when(st.StartedAt))},
		{"Base", show(st.Base)},
		{"Mount", fmt.Sprintf("%s (cache: %s)", show(st.Mountpoint), st.CacheMode)},
		{"Branch", show(st.Branch)},
		{"Head", head},
		{"Checkpoints", fmt.Sprintf("%d; %s", st.Checkpoints, back)},
		{"Agent", describeAgent(st)},
		{"Store", fmt.Sprintf("%s in %s; gc would free %s", size(st.StoreBytes), show(st.Store), free)},
		{"Memory", fmt.Sprintf("%s; %d inodes, %s of writes in hand", size(int64(st.MemoryBytes)), st.Cache.Nodes, size(st.Cache.PendingBytes))},
		{"Requests", topRequests(st.Requests)},
	}
	if r := st.Paths; r.File != "" {
		rows = append(rows, []string{"Rules", fmt.Sprintf("%s: keeps %s; commits leave out %s", show(r.File), describePatterns(r.Keep), describePatterns(r.Ignore))})
	}
	if len(st.Targets) > 0 {
		rows = append(rows, []string{"Targets", "every checkpoint copies " + describeTargets(st.Targets)})
	}
	if len(st.TargetsOwed) > 0 {
		rows = append(rows, []string{"Not put back", describeTargets(st.TargetsOwed) + putBackWith(st.TargetsOwedBy)})
	}
	for _, r := range st.Runs {
		rows = append(rows, []string{"Running", describeRun(&r)})
	}
	if r := st.LastAutoRollback; r != nil {
		rows = append(rows, []string{"Went back", describeAutoRollback(r)})
	}
	if st.Unaudited > 0 {
		rows = append(rows, []string{"Ledger", fmt.Sprintf("%s could not be recorded: see daemon.log in the store", count(st.Unaudited, "event"))})
	}
	table(w, rows)
	for i, d := range st.Drift {
		if i == 0 {
			fmt.Fprintln(w, "Drift: files of the base that changed underneath (what the session stored of them is safe):")
		}
		fmt.Fprintf(w, "  %-9s %s\n", d.Reason, showName(d.PathName))
	}
	printLinksOut(w, st.LeadOut, st.LeadOutCut)
}

// printLinksOut names symlinks that lead out of the project, in a status.
func printLinksOut(w io.Writer, links []control.Change, cut bool) {
	if len(links) == 0 {
		return
	}
	fmt.Fprintln(w, "Symlinks that lead out of the project (what is written through them is in no checkpoint):")
	for i := range links[:min(maxShown, len(links))] {
		fmt.Fprintf(w, "  %s -> %s\n", showName(links[i].PathName), showName(*links[i].LeadsOut))
	}
	if more := len(links) - maxShown; more > 0 || cut {
		fmt.Fprintln(w, "  … and more: see: rewindfs diff base")
	}
}

// describeAgent is what status says about the agent's side.
func describeAgent(st *control.Status) string {
	out := "conversation: " + describeConversation(st.Conversation)
	if st.Lifecycle != "" {
		out = st.Lifecycle + "; " + out
	}
	if len(st.Inflight) > 0 {
		out += "; in flight: " + shownList(st.Inflight)
	}
	return out
}

// describeAutoRollback says what the policy did last.
func describeAutoRollback(r *control.AutoRolledBack) string {
	out := fmt.Sprintf("to '%s' by itself, %s, on %s", show(r.To), when(r.At), r.Trigger)
	if r.Tool != "" {
		out += " of " + show(r.Tool)
	}
	if r.Noop {
		out += " (it stood there already)"
	}
	if r.Reason != "" {
		out += ": " + show(clipText(r.Reason, 200))
	}
	return out
}

// topRequests names the most frequent requests.
func topRequests(n map[string]uint64) string {
	names := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		if n[a] != n[b] {
			return int(min(max(int64(n[b])-int64(n[a]), -1), 1))
		}
		return strings.Compare(a, b)
	})
	var out []string
	var total uint64
	for i, name := range names {
		total += n[name]
		if i < 5 && n[name] > 0 {
			out = append(out, fmt.Sprintf("%s %d", name, n[name]))
		}
	}
	if len(out) == 0 {
		return "none yet"
	}
	return fmt.Sprintf("%d (%s)", total, strings.Join(out, ", "))
}

func describeRun(r *control.OpenRun) string {
	who := "its end is not recorded"
	if r.State == control.RunRuns {
		who = fmt.Sprintf("pid %d", r.PID)
	}
	return fmt.Sprintf("'%s' (%s, since %s)", show(r.Command), who, when(r.StartedAt))
}
