package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/session"
)

type ledgerOptions struct {
	filter ledger.Filter
	events []string
	since  string
	follow bool
	last   int
}

func (a *app) newLedger() *cobra.Command {
	o := &ledgerOptions{}
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "What happened in a session, in a log that no rollback touches",
		Long: `Show what happened in the store of a session: every checkpoint, rollback, verification, tool call, action of the policy and stop of the
budget, in order. No rollback touches it, and ledger verify finds every later change. It can be read without a daemon, too.

--since takes a time (2026-11-30 or 2026-11-30T14:00:00Z) or how long ago (90m). With --follow and --json each record is one
line, as it is kept.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runLedger(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.filter.Checkpoint, "checkpoint", "", "only about this checkpoint: a label, an id, or 6 or more letters that begin it")
	a.completeRefFlag(cmd, "checkpoint")
	f.StringSliceVar(&o.events, "event", nil, "only events of this kind (more than once)")
	var kinds []string
	for _, k := range ledger.Kinds() {
		kinds = append(kinds, string(k))
	}
	completeFlag(cmd, "event", kinds)
	f.StringVar(&o.since, "since", "", "only from this time on")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what is appended, until Ctrl-C")
	f.IntVarP(&o.last, "limit", "n", 0, "only the last so many (0: all)")
	cmd.AddCommand(a.newLedgerVerify())
	return cmd
}

// complete makes a filter of the flags.
func (o *ledgerOptions) complete() error {
	if o.last < 0 {
		return usagef("-n %d: it must be 0 or more", o.last)
	}
	for _, e := range o.events {
		k, err := ledger.ParseKind(e)
		if err != nil {
			return usagef("--event: %w", err)
		}
		o.filter.Kinds = append(o.filter.Kinds, k)
	}
	if o.since == "" {
		return nil
	}
	if ago, err := time.ParseDuration(o.since); err == nil {
		o.filter.Since = time.Now().Add(-ago)
		return nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, o.since, time.Local); err == nil {
			o.filter.Since = at
			return nil
		}
	}
	return usagef("--since %s: give a time, such as 2026-11-30 or 2026-11-30T14:00:00Z, or how long ago, such as 90m", show(o.since))
}

// records is what ledger prints as JSON: the lines as they are kept.
type records struct {
	Records []json.RawMessage `json:"records"`
}

// RawMessages lets the records keep their bytes.
func (r *records) RawMessages() []*[]json.RawMessage { return []*[]json.RawMessage{&r.Records} }

func (a *app) runLedger(ctx context.Context, o *ledgerOptions) error {
	if err := o.complete(); err != nil {
		return err
	}
	l, err := a.choose(ctx)
	if err != nil {
		return err
	}
	dir := session.LedgerDir(l.Store)
	out := bufio.NewWriter(a.out)
	found := &records{Records: []json.RawMessage{}}
	put := func(r *ledger.Record) error {
		text := ledger.Format(r, time.Local)
		switch {
		case a.json && !o.follow:
			found.Records = append(found.Records, slices.Clone(r.Raw))
			return nil
		case a.json:
			text = string(r.Raw)
		}
		_, err := fmt.Fprintln(out, text)
		return err
	}
	err = o.read(ctx, dir, put)
	if unread := new(ledger.UnreadableError); err != nil && !errors.As(err, &unread) {
		return ledgerError(l, err)
	} else if err != nil {
		err = fmt.Errorf("%w; look closer with: rewindfs ledger verify", err)
	}
	if a.json && !o.follow {
		if err != nil {
			return &foundError{err, found}
		}
		return a.result(found, nil)
	}
	if flushErr := out.Flush(); flushErr != nil {
		return fmt.Errorf("print the result: %w", flushErr)
	}
	if !o.follow {
		return err
	}
	if err != nil {
		a.warn("%v", err)
	}
	return a.followLedger(ctx, dir, o.filter, func(r *ledger.Record) error { return errors.Join(put(r), out.Flush()) })
}

// read gives put the records that there are now, and sees to it that a later reading with
// the same filter goes on behind them.
func (o *ledgerOptions) read(ctx context.Context, dir string, put func(*ledger.Record) error) error {
	var last []*ledger.Record
	err := ledger.Read(dir, o.filter, func(r *ledger.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		o.filter.After = r.Seq
		if o.last == 0 {
			return put(r)
		}
		own := *r
		own.Raw = slices.Clone(r.Raw)
		if last = append(last, &own); len(last) > o.last {
			last = last[1:]
		}
		return nil
	})
	for _, r := range last {
		if putErr := put(r); putErr != nil {
			return putErr
		}
	}
	return err
}

// followLedger shows what is appended until somebody has seen enough.
func (a *app) followLedger(ctx context.Context, dir string, f ledger.Filter, put func(*ledger.Record) error) error {
	err := ledger.Follow(ctx, dir, f, put)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// ledgerError explains a ledger that cannot be read.
func ledgerError(l *session.Listed, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("session %s has no ledger yet; it begins with the next: %s", show(l.Name), remount(l))
	}
	return fmt.Errorf("read the ledger of session %s: %w", show(l.Name), err)
}

func (a *app) newLedgerVerify() *cobra.Command {
	var heads []string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Find every change that was made to the ledger",
		Long: `Read the whole ledger and check that each line is tied to the one before. It finds every change, removal, insertion and exchange of lines and
files (exit 1, with what and where). What nobody can find from the ledger alone is that all of it was made anew, or replaced by an
older copy: against that, keep the head that it prints elsewhere, where the agent cannot write, and give it with --head.

` + exitHelp,
		Args: exactly(0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runLedgerVerify(cmd.Context(), heads) },
	}
	cmd.Flags().StringArrayVar(&heads, "head", nil, "SEQ:HASH that was printed before and must be in the ledger (more than once)")
	return cmd
}

func (a *app) runLedgerVerify(ctx context.Context, heads []string) error {
	var kept []ledger.Head
	for _, s := range heads {
		h, err := ledger.ParseHead(s)
		if err != nil {
			return usagef("--head: %w", err)
		}
		kept = append(kept, h)
	}
	l, err := a.choose(ctx)
	if err != nil {
		return err
	}
	id, err := session.LedgerID(l.Store)
	if err != nil {
		return fmt.Errorf("verify the ledger of session %s: %w", show(l.Name), err)
	}
	rep, err := ledger.Verify(session.LedgerDir(l.Store), id, kept...)
	if err != nil {
		return ledgerError(l, err)
	}
	bad := error(nil)
	if !rep.OK() {
		bad = failf(exitFailure, "the ledger of session %s is not as it was written: %s", show(l.Name), count(int64(rep.Damages), "finding"))
		if a.json {
			return &foundError{bad, rep}
		}
	}
	return errors.Join(bad, a.result(rep, func(w io.Writer) { printReport(w, &rep) }))
}

func printReport(w io.Writer, rep *ledger.Report) {
	list := func(what string, all []ledger.Finding, sum int) {
		for _, f := range all {
			fmt.Fprintf(w, "%s: %s\n", what, f)
		}
		if n := sum - len(all); n > 0 {
			fmt.Fprintf(w, "… and %d more\n", n)
		}
	}
	list("Damage", rep.Damage, rep.Damages)
	list("Note", rep.Notes, rep.NoteSum)
	if rep.Newer > 0 {
		fmt.Fprintf(w, "Note: %s of a newer rewindfs: only their links were checked.\n", count(int64(rep.Newer), "line"))
	}
	lines := fmt.Sprintf("%s in %s", count(int64(rep.Lines), "line"), count(int64(rep.Files), "file"))
	if !rep.OK() {
		fmt.Fprintf(w, "Checked %s.\n", lines)
		return
	}
	fmt.Fprintf(w, "The ledger is whole: %s.\n", lines)
	fmt.Fprintf(w, "Keep this head elsewhere, and check later with: rewindfs ledger verify --head %s\n", rep.Head)
}
