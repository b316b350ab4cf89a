package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// settleLimit bounds how long a measurement waits for a daemon to come to rest.
const settleLimit = 5 * time.Second

// Run measures what o asks for. The report is there also when the run was cut short,
// with the rows that were done by then. Everything that Run mounted, started or
// wrote is gone when it returns; what could not be cleaned up is part of the error.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Dir != "" {
		if o.Dir, err = filepath.Abs(o.Dir); err != nil {
			return nil, fmt.Errorf("find the directory to measure: %w", err)
		}
	}
	if o.Binary, err = filepath.EvalSymlinks(o.Binary); err != nil {
		return nil, fmt.Errorf("find the rewindfs to measure: %w", err)
	}
	parent, err := o.workParent()
	if err != nil {
		return nil, err
	}
	e, err := newEnv(parent, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		e.Progress.Close()
		err = errors.Join(err, e.Close())
	}()
	start := time.Now()
	e.Report.Machine = probeMachine(e.Work)
	e.Report.Version = e.version(ctx)
	for _, s := range e.systems {
		e.Report.Systems = append(e.Report.Systems, s.Name())
	}
	err = e.runRows(ctx)
	e.Report.Machine.LoadAfter = loadAverage()
	e.Report.Seconds = time.Since(start).Seconds()
	return e.Report, err
}

// runRows runs the chosen rows. One that fails is noted, and the next one runs.
func (e *Env) runRows(ctx context.Context) error {
	rows, err := e.Opts.selectRows()
	if err != nil {
		return err
	}
	var failed []string
	for i, r := range rows {
		e.Progress.Row(i, len(rows), r.Title())
		err := r.Run(ctx, e)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("stopped in row %s: %w", r.ID(), context.Cause(ctx))
		case err == nil:
		case isSkip(err):
			e.Skip(r.ID(), err)
		default:
			e.Skip(r.ID()+" failed", err)
			failed = append(failed, r.ID())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("these rows failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// version asks the binary what it is; an answer it does not give is no reason to stop.
func (e *Env) version(ctx context.Context) string {
	out, err := command{args: []string{e.binary, "version"}}.output(ctx)
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// seconds is what fn took.
func seconds(fn func() error) (float64, error) {
	start := time.Now()
	err := fn()
	return time.Since(start).Seconds(), err
}

// DefaultBinary is the program that is running: what a user measures is what a user has.
func DefaultBinary() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return exe, nil
}
