package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/bench"
)

type benchOptions struct {
	bench.Options
	bytes         string
	rows          []string
	svg           string
	list, asMarks bool
}

// newBenchCommand makes `rewindfs bench`.
func newBenchCommand(a *app) *cobra.Command {
	o := &benchOptions{}
	cmd := &cobra.Command{
		Use:   "bench [DIR]",
		Short: "Measure what snapshots cost here, next to other ways",
		Long: `Measure reading, writing and metadata work in a throw-away session over DIR, next to the bare directory, kernel
overlayfs (as root) and fuse-overlayfs (where installed); and what a checkpoint and a rollback cost, next to
cp, git and btrfs snapshots. DIR is never written. Without DIR it is a Go toolchain's tree, or a generated one.

Systems take turns, and what counts is the median of the ratios. Give the machine nothing else to do. A full
run takes half an hour or more and 20 GiB of disk; --quick takes five minutes.`,
		Args: between(0, 1, "at most one directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Dir = strings.Join(args, "")
			return a.runBench(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Files, "files", 0, "measure on a generated tree of so many files")
	f.StringVar(&o.bytes, "bytes", "", "size of the generated tree, such as 500M (default 8 KiB a file)")
	f.StringSliceVar(&o.rows, "rows", nil, "only these rows, by id or pattern, such as 'git-*,checkpoint-*' (see --list)")
	f.StringSliceVar(&o.rows, "only", nil, "the same as --rows")
	f.BoolVar(&o.list, "list", false, "list the rows")
	f.IntVar(&o.Runs, "runs", 0, "rounds of each comparison (default 5, or 3 with --quick)")
	f.BoolVar(&o.Quick, "quick", false, "smaller sizes and fewer rounds")
	f.DurationVar(&o.Timeout, "timeout", 0, "give up one run of one row after this long (default 10m, or 2m with --quick)")
	f.BoolVar(&o.Writeback, "writeback", false, "also measure mount --cache writeback")
	f.StringVar(&o.Work, "work", "", "where to put trees and stores (default: on the disk of DIR)")
	f.StringVar(&o.Binary, "binary", "", "the rewindfs to measure (default: this one)")
	f.StringVar(&o.svg, "svg", "", "draw the results to this file")
	f.BoolVar(&o.asMarks, "markdown", false, "print the tables as Markdown")
	return cmd
}

func (a *app) runBench(ctx context.Context, o *benchOptions) error {
	if o.list {
		ids := bench.RowIDs()
		return a.result(ids, func(w io.Writer) { fmt.Fprintln(w, strings.Join(ids, "\n")) })
	}
	if err := o.complete(); err != nil {
		return err
	}
	o.Progress = bench.NewProgress(a.err, a.quiet || a.json)
	// A closed terminal must not leave mounts behind.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	report, err := bench.Run(ctx, o.Options)
	if report == nil {
		return err
	}
	// A report that lacks rows is shown all the same; the error says which.
	style := bench.Text
	if o.asMarks {
		style = bench.Markdown
	}
	if o.svg != "" {
		err = errors.Join(err, writeSVG(o.svg, report))
	}
	if a.json && err != nil {
		// Only the text is kept: an interruption that shows as such would hide the report.
		return &foundError{errors.New(err.Error()), report}
	}
	return errors.Join(err, a.result(report, func(w io.Writer) { _ = report.Write(w, style) })) // result sees the error of w
}

// complete checks the options and fills in what was left out.
func (o *benchOptions) complete() (err error) {
	o.Rows = o.rows
	if o.bytes != "" {
		if o.Bytes, err = parseSize(o.bytes); err != nil {
			return usagef("--bytes: %w", err)
		}
	}
	if o.Binary == "" {
		if o.Binary, err = bench.DefaultBinary(); err != nil {
			return err
		}
	}
	if err := o.Validate(); err != nil {
		return usagef("%w", err)
	}
	return nil
}

func writeSVG(name string, r *bench.Report) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the plots: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("write the plots: %w", cerr)
		}
	}()
	if err := r.WriteSVG(f); err != nil {
		return fmt.Errorf("write the plots: %w", err)
	}
	return nil
}

// parseSize reads a number of bytes with an optional K, M, G or T (powers of 1024).
func parseSize(s string) (int64, error) {
	digits := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "B"), "I")
	shift := 0
	if i := strings.IndexAny(digits, "KMGT"); i >= 0 && i == len(digits)-1 {
		shift = 10 * (1 + strings.IndexByte("KMGT", digits[i]))
		digits = digits[:i]
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > (1<<62)>>shift {
		return 0, fmt.Errorf("%q is no size: give a number and K, M, G or T, such as 500M", s)
	}
	return n << shift, nil
}
