package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Spec describes a workload.
type Spec struct {
	ID, Title, Note string
	Limits          []Limit
	Needs           []string      // programs
	Room            int64         // bytes of free disk
	Writes          bool          // it changes the tree: natively it gets a copy of its own
	Fresh           bool          // every run gets a new mount
	Cold            bool          // the kernel's caches are emptied before every run
	Loaded          bool          // a busy loop runs on every processor
	Stored          bool          // tell what one run stores (needs Fresh)
	Warm            int           // runs that are not counted, before the first round
	Ops             int           // operations of one run: times are shown for one of them
	Timeout         time.Duration // of one run; 0 is the usual one
}

// Workload is one piece of work, done on every system.
type Workload interface {
	Spec() Spec
	// Base is the tree under the mount. A skip error leaves the row out.
	Base(ctx context.Context, e *Env) (*fixture, error)
	// Run does the work that is timed.
	Run(ctx context.Context, p *Place) error
}

// setup is for workloads that prepare all their runs before the first of them on any system.
type setup interface {
	Setup(ctx context.Context, p *Place, runs int) error
}

// before is for workloads that prepare a run, outside of its time.
type before interface {
	Before(ctx context.Context, p *Place) error
}

// after is for workloads that tidy up after a run, outside of its time.
type after interface {
	After(ctx context.Context, p *Place) error
}

// Place is where a run happens.
type Place struct {
	Root    string // the mounted tree
	System  string
	Round   int    // rises with every run on this system, warm ones included
	Scratch string // a directory on the bare disk, kept for this system from run to run
	Env     *Env
	Note    string // set by a run to say something about this system
}

// nth is a path for run i of w, below the mount.
func (p *Place) nth(w Workload, i int) string {
	return filepath.Join(p.Root, fmt.Sprintf("%s-%d", w.Spec().ID, i))
}

// fresh is a path for this run of w that no other run has used.
func (p *Place) fresh(w Workload) string { return p.nth(w, p.Round) }

// comparison runs one workload on all systems in turn. It is a Row.
type comparison struct{ w Workload }

func (c comparison) ID() string    { return c.w.Spec().ID }
func (c comparison) Title() string { return c.w.Spec().Title }

// lane is one system in a comparison.
type lane struct {
	sys   System
	mount *Mount
	place *Place
	cell  *Cell
	drops uint64 // Env.drops after the last run
}

func (c comparison) Run(ctx context.Context, e *Env) error {
	spec := c.w.Spec()
	if err := c.possible(e, spec); err != nil {
		return err
	}
	f, err := c.w.Base(ctx, e)
	if err != nil {
		return err
	}
	result := Comparison{ID: spec.ID, Title: spec.Title, Note: spec.Note, Limits: spec.Limits, Cells: make([]Cell, len(e.systems))}
	var lanes []*lane
	defer func() {
		for _, l := range lanes {
			if err := l.mount.Close(); err != nil {
				e.Skip(l.sys.Name()+", "+spec.ID+": clean up", err)
			}
		}
	}()
	for i, sys := range e.systems {
		result.Cells[i].System = sys.Name()
		l := &lane{sys: sys, cell: &result.Cells[i]}
		if err := c.open(ctx, e, l, f, spec); err != nil {
			c.fail(ctx, e, l, err)
			continue
		}
		lanes = append(lanes, l)
	}
	c.warm(ctx, e, lanes, spec)
	if err := c.rounds(ctx, e, lanes, f, spec); err != nil {
		return err
	}
	result.finish()
	e.Report.Comparisons = append(e.Report.Comparisons, result)
	return nil
}

// possible returns a skip error when the row cannot run on this machine at all.
func (comparison) possible(e *Env, spec Spec) error {
	for _, p := range spec.Needs {
		if !have(p) {
			return skipf("%s is not installed", p)
		}
	}
	if spec.Cold {
		if err := e.dropCaches(); err != nil {
			return err
		}
	}
	return e.Room(spec.Room)
}

// warm does the runs that are not counted.
func (c comparison) warm(ctx context.Context, e *Env, lanes []*lane, spec Spec) {
	for range spec.Warm {
		for _, l := range lanes {
			if l.cell.Error != "" {
				continue
			}
			e.Progress.Step(l.sys.Name() + " warming up")
			if _, err := c.once(ctx, e, l, spec); err != nil {
				c.fail(ctx, e, l, err)
			}
			l.drops = e.drops()
		}
	}
}

// rounds takes the samples of all systems in turn; every round begins with another one.
func (c comparison) rounds(ctx context.Context, e *Env, lanes []*lane, f *fixture, spec Spec) error {
	if spec.Loaded {
		stop, err := loadMachine()
		if err != nil {
			return err
		}
		defer e.Defer(stop)()
	}
	for round := range e.Opts.runs() {
		for i := range lanes {
			l := lanes[(i+round)%len(lanes)]
			if l.cell.Error == "" {
				e.Progress.Step(fmt.Sprintf("%s %d/%d", l.sys.Name(), round+1, e.Opts.runs()))
				if err := c.sample(ctx, e, l, f, spec); err != nil {
					c.fail(ctx, e, l, err)
				}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			for len(l.cell.Samples) <= round { // a round without a sample holds 0
				l.cell.Samples = append(l.cell.Samples, 0)
			}
		}
	}
	return nil
}

// fail notes that a system cannot do the row. A system that is not here at all is
// named once for the whole run.
func (c comparison) fail(ctx context.Context, e *Env, l *lane, err error) {
	if ctx.Err() != nil {
		return
	}
	if isSkip(err) {
		e.Skip(l.sys.Name(), err)
		l.cell.Error = "skipped"
		return
	}
	e.Skip(l.sys.Name()+", "+c.ID(), err)
	l.cell.Error = err.Error()
}

// open mounts the system and prepares its runs.
func (c comparison) open(ctx context.Context, e *Env, l *lane, f *fixture, spec Spec) (err error) {
	scratch, err := e.Dir("scratch")
	if err != nil {
		return err
	}
	l.place = &Place{System: l.sys.Name(), Scratch: scratch, Env: e}
	if spec.Fresh {
		return nil
	}
	e.Progress.Step(l.sys.Name() + " mounting")
	if l.mount, err = l.sys.Mount(ctx, e, f, spec.Writes); err != nil {
		return err
	}
	l.place.Root = l.mount.Root
	if w, ok := c.w.(setup); ok {
		e.Progress.Step(l.sys.Name() + " preparing")
		err := guard(ctx, l.mount.Abort, func() error { return w.Setup(ctx, l.place, spec.Warm+e.Opts.runs()) })
		if err != nil {
			return errors.Join(fmt.Errorf("prepare: %w", err), l.mount.Close())
		}
	}
	return nil
}

// sample adds one sample to the lane's cell.
func (c comparison) sample(ctx context.Context, e *Env, l *lane, f *fixture, spec Spec) (err error) {
	if spec.Fresh {
		if l.mount, err = l.sys.Mount(ctx, e, f, spec.Writes); err != nil {
			return err
		}
		l.place.Root = l.mount.Root
		defer func() { err = errors.Join(err, l.mount.Close()) }()
	}
	cpu, _, _, cpuErr := procStat(l.mount.pid)
	took, err := c.undisturbed(ctx, e, l, spec)
	if err != nil {
		return err
	}
	if l.mount.pid > 0 && cpuErr == nil {
		quiet(ctx, l.mount.pid, 5*time.Second)
		if now, _, _, err := procStat(l.mount.pid); err == nil {
			l.cell.cpu = append(l.cell.cpu, (now - cpu).Seconds())
		}
	}
	l.cell.Note = l.place.Note
	l.cell.Samples = append(l.cell.Samples, took.Seconds()/float64(max(spec.Ops, 1)))
	if spec.Stored && l.mount.stored != nil && l.cell.Stored == nil {
		n, err := l.mount.stored(ctx)
		if err != nil {
			return err
		}
		l.cell.Stored = &n
	}
	return nil
}

// undisturbed does one run; on warm caches again, if another program has emptied them since
// the last one. A machine where that goes on and on gets figures all the same.
func (c comparison) undisturbed(ctx context.Context, e *Env, l *lane, spec Spec) (took time.Duration, err error) {
	const tries = 5
	for range tries {
		if took, err = c.once(ctx, e, l, spec); err != nil {
			return 0, err
		}
		now := e.drops()
		clean := now == l.drops || spec.Warm == 0 || spec.Cold
		l.drops = now
		if clean {
			break
		}
	}
	return took, nil
}

// once does one run and returns what the timed part of it took.
func (c comparison) once(ctx context.Context, e *Env, l *lane, spec Spec) (time.Duration, error) {
	limit := spec.Timeout
	if limit == 0 {
		limit = e.Opts.timeout()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
	defer cancel()
	var took time.Duration // read only when guard says that the work is done
	err := guard(ctx, l.mount.Abort, func() (err error) {
		if b, ok := c.w.(before); ok {
			if err := b.Before(ctx, l.place); err != nil {
				return fmt.Errorf("prepare: %w", err)
			}
		}
		if a, ok := c.w.(after); ok {
			defer func() { err = errors.Join(err, a.After(ctx, l.place)) }()
		}
		if err := settle(ctx, e, l.mount, spec); err != nil {
			return err
		}
		start := time.Now()
		err = c.w.Run(ctx, l.place)
		took = time.Since(start)
		return err
	})
	l.place.Round++
	if err != nil {
		return 0, err
	}
	return took, nil
}

// settle lets what earlier work left behind come to rest, so that nobody pays for
// what somebody else wrote.
func settle(ctx context.Context, e *Env, m *Mount, spec Spec) error {
	if spec.Cold {
		return e.dropCaches()
	}
	syncDisk(e.Work)
	if m.pid > 0 {
		quiet(ctx, m.pid, 5*time.Second)
	}
	return nil
}
