package bench

import (
	"context"
	"fmt"
	"path/filepath"
)

// rollbackChanged measures rollbacks against the number of paths that differ.
type rollbackChanged struct{}

func (rollbackChanged) ID() string    { return "rollback" }
func (rollbackChanged) Title() string { return "rollback against the number of changed paths" }

// rollbackBar is what a rollback over n changed paths may take, in seconds.
func rollbackBar(n int) float64 { return 5e-3 + 10e-6*float64(n) }

func (r rollbackChanged) Run(ctx context.Context, e *Env) error {
	ts, err := changedTracks(ctx, e, changedCounts(e.Opts))
	defer func() { closeSessions(e, ts) }()
	if err != nil {
		return err
	}
	for _, t := range ts {
		if err := t.ses.seal(ctx, "good"); err != nil {
			return err
		}
		t.timed = func(ctx context.Context, _ int) (float64, float64, error) { return t.ses.rollback(ctx, "good") }
	}
	if err := sampleTracks(ctx, e, ts); err != nil {
		return err
	}
	cv := Curve{ID: r.ID(), Title: "Rollback against the number of changed paths", XLabel: "files changed since the checkpoint",
		Series: lines(ts), Bar: "inside the daemon, p50 ≤ 5 ms + 10 µs per changed path", Met: Met}
	for _, p := range cv.Series[0].Points {
		if float64(p.P50) > rollbackBar(p.X) {
			cv.Met = Missed
		}
	}
	e.Report.addCurve(cv)
	return nil
}

// depth compares reading under many layers with reading under one.
type depth struct{}

func (depth) ID() string    { return "depth" }
func (depth) Title() string { return "look up and read under many layers" }

// Run gives two sessions the same files, one of them in a single layer. Before every
// sample both are mounted anew, so that every file is looked up and read in the daemon.
func (d depth) Run(ctx context.Context, e *Env) error {
	f, err := scaleTree(ctx, e, pick(e.Opts, 10_000, 1000))
	if err != nil {
		return err
	}
	n := pick(e.Opts, 10_000, 300)
	var ts []*track
	defer func() { closeSessions(e, ts) }()
	for _, layers := range []int{1, n} {
		ses, err := newSession(ctx, e, f.dir, "through")
		if err != nil {
			return err
		}
		ts = append(ts, &track{x: layers, ses: ses})
		if layers == n {
			err = ses.stack(ctx, n)
		} else {
			err = ses.oneLayer(ctx, n)
		}
		if err != nil {
			return err
		}
	}
	for round := range pick(e.Opts, 9, 3) {
		for i := range ts {
			t := ts[(i+round)%len(ts)]
			if err := t.ses.remount(ctx); err != nil {
				return err
			}
			quiet(ctx, t.ses.pid, settleLimit)
			err := guard(ctx, t.ses.abort, func() error {
				took, err := seconds(func() error { _, err := readTree(ctx, t.ses.mnt); return err })
				t.whole = append(t.whole, took)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	title := fmt.Sprintf("look up and read %s files with %s layers / with 1 layer", formatCount(pick(e.Opts, 10_000, 1000)), formatCount(n))
	v := newValue(d.ID(), title, pairedRatio(ts[1].whole, ts[0].whole), "×", 1.10)
	v.Note = fmt.Sprintf("Freshly mounted before every sample; medians %s and %s.", formatSeconds(median(ts[1].whole)), formatSeconds(median(ts[0].whole)))
	e.Report.Values = append(e.Report.Values, v)
	return nil
}

// oneLayer brings the files to the state that stack(n) leaves, in a single layer.
func (s *session) oneLayer(ctx context.Context, n int) error {
	return guard(ctx, s.abort, func() error {
		for i := max(0, n-100); i < n; i++ {
			if err := overwrite(filepath.Join(s.mnt, treeShape{}.path(i%100)), 100, i); err != nil {
				return fmt.Errorf("change a file: %w", err)
			}
		}
		return s.seal(ctx, "one")
	})
}

// memory looks at the daemon's resident memory.
type memory struct{}

func (memory) ID() string    { return "memory" }
func (memory) Title() string { return "memory of the daemon" }

func (m memory) Run(ctx context.Context, e *Env) error {
	t, err := projectTree(ctx, e)
	if err != nil {
		return err
	}
	e.Report.Tree = t.about
	if err := m.measure(ctx, e, t.fixture, "memory-idle", "daemon's memory, idle after reading the tree", 150<<20); err != nil {
		return err
	}
	n := pick(e.Opts, 1_000_000, 20_000)
	f, err := scaleTree(ctx, e, n)
	if err != nil {
		return err
	}
	return m.measure(ctx, e, f, "memory-walk", "daemon's memory after walking "+formatCount(n)+" files", 400<<20)
}

func (memory) measure(ctx context.Context, e *Env, f *fixture, id, title string, max float64) error {
	ses, err := newSession(ctx, e, f.dir, "through")
	if err != nil {
		return err
	}
	defer func() {
		if err := ses.close(); err != nil {
			e.Skip("clean up a session", err)
		}
	}()
	e.Progress.Step("walking the tree")
	if err := guard(ctx, ses.abort, func() error { _, err := readTree(ctx, ses.mnt); return err }); err != nil {
		return err
	}
	quiet(ctx, ses.pid, settleLimit)
	_, rss, anon, err := procStat(ses.pid)
	if err != nil {
		return err
	}
	v := newValue(id, title, float64(rss), "B", max)
	v.Note = "Resident, of which anonymous: " + formatBytes(float64(anon)) + "."
	e.Report.Values = append(e.Report.Values, v)
	return nil
}
