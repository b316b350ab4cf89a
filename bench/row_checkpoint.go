package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
)

// flat is how far the medians of a curve may lie apart to be called constant.
const flat = 1.25

// track is one x of a curve: a session prepared for it, and its samples so far.
type track struct {
	x             int
	ses           *session
	engine, whole []float64
	change        func(ctx context.Context, i int) error // before sample i, not timed
	timed         func(ctx context.Context, i int) (engine, whole float64, err error)
	samples       int
}

// sampleTracks takes the samples of all tracks in turn.
func sampleTracks(ctx context.Context, e *Env, ts []*track) error {
	most := 0
	for _, t := range ts {
		most = max(most, t.samples)
	}
	for i := range most {
		e.Progress.Step(fmt.Sprintf("sample %d/%d", i+1, most))
		for _, t := range ts {
			if i >= t.samples {
				continue
			}
			if err := t.sample(ctx, e, i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *track) sample(ctx context.Context, e *Env, i int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.Opts.timeout(), fmt.Errorf("not done within %s", e.Opts.timeout()))
	defer cancel()
	return guard(ctx, t.ses.abort, func() error {
		if err := t.change(ctx, i); err != nil {
			return fmt.Errorf("change files: %w", err)
		}
		engine, whole, err := t.timed(ctx, i)
		if err != nil {
			return err
		}
		t.engine, t.whole = append(t.engine, engine), append(t.whole, whole)
		return nil
	})
}

// checkpoints has the track take a checkpoint for every sample.
func (t *track) checkpoints() {
	t.timed = func(ctx context.Context, i int) (float64, float64, error) {
		return t.ses.checkpoint(ctx, fmt.Sprintf("sample-%d", i))
	}
}

// lines turns tracks into the two lines of a curve.
func lines(ts []*track) []Line {
	engine, whole := Line{Name: "inside the daemon"}, Line{Name: "the whole command"}
	for _, t := range ts {
		engine.Points = append(engine.Points, newPoint(t.x, t.engine))
		whole.Points = append(whole.Points, newPoint(t.x, t.whole))
	}
	return []Line{engine, whole}
}

// steepness is the largest median of a line over its smallest.
func steepness(l Line) float64 {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, p := range l.Points {
		lo, hi = min(lo, float64(p.P50)), max(hi, float64(p.P50))
	}
	return hi / lo
}

// closeSessions ends the sessions of tracks.
func closeSessions(e *Env, ts []*track) {
	for _, t := range ts {
		if err := t.ses.close(); err != nil {
			e.Skip("clean up a session", err)
		}
	}
}

// overwrite writes n bytes, different ones for every i, at the start of the file.
func overwrite(name string, n, i int) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	buf := make([]byte, n)
	newNoise(uint64(i)).fill(buf)
	_, err = f.Write(buf)
	return firstError(err, f.Close())
}

// scaleTree is a base of n empty files.
func scaleTree(ctx context.Context, e *Env, n int) (*fixture, error) {
	return e.Fixture(ctx, fmt.Sprintf("tree-%d", n), func(ctx context.Context, dir string) error {
		if err := firstError(e.Room(int64(n)*400), e.RoomForFiles(n)); err != nil {
			return err
		}
		return generateTree(ctx, dir, treeShape{Files: n, Seed: uint64(n)}, func(done int) {
			e.Progress.Step(fmt.Sprintf("making a tree: %d of %d files", done, n))
		})
	})
}

// checkpointFiles measures checkpoints against the number of files.
type checkpointFiles struct{}

func (checkpointFiles) ID() string    { return "checkpoint-files" }
func (checkpointFiles) Title() string { return "checkpoint against the number of files" }

func (c checkpointFiles) Run(ctx context.Context, e *Env) error {
	var ts []*track
	defer func() { closeSessions(e, ts) }()
	for _, n := range pick(e.Opts, []int{1000, 10_000, 100_000, 1_000_000}, []int{1000, 20_000}) {
		f, err := scaleTree(ctx, e, n)
		if isSkip(err) {
			e.Skip(fmt.Sprintf("%s, %s files", c.ID(), formatCount(n)), err)
			continue
		} else if err != nil {
			return err
		}
		ses, err := newSession(ctx, e, f.dir, "through")
		if err != nil {
			return err
		}
		t := &track{x: n, ses: ses, samples: pick(e.Opts, 100, 20)}
		ts = append(ts, t)
		t.checkpoints()
		t.change = func(_ context.Context, i int) error {
			return overwrite(filepath.Join(ses.mnt, treeShape{}.path(i%n)), 100, i)
		}
		e.Progress.Step(fmt.Sprintf("walking %d files", n))
		if err := guard(ctx, ses.abort, func() error { _, err := readTree(ctx, ses.mnt); return err }); err != nil {
			return err
		}
	}
	if err := sampleTracks(ctx, e, ts); err != nil {
		return err
	}
	cv := Curve{ID: c.ID(), Title: "Checkpoint against the number of files", XLabel: "files in the tree, all of them looked at; 1 changed", Series: lines(ts)}
	last := ts[len(ts)-1]
	largest := formatCount(last.x) + " files"
	e.Report.addCurve(cv,
		newValue("checkpoint-p50", "checkpoint inside the daemon, p50, "+largest, percentile(last.engine, 50), "s", 1e-3),
		newValue("checkpoint-p99", "checkpoint inside the daemon, p99, "+largest, percentile(last.engine, 99), "s", 0),
		newValue("checkpoint-command", "rewindfs checkpoint, the whole process, p50, "+largest, percentile(last.whole, 50), "s", 15e-3),
		newValue("checkpoint-flat-files", fmt.Sprintf("checkpoint p50, %s to %s files: largest / smallest", formatCount(ts[0].x), formatCount(last.x)), steepness(cv.Series[0]), "×", flat))
	return nil
}

// checkpointChanged measures checkpoints against the number of changed files.
type checkpointChanged struct{}

func (checkpointChanged) ID() string    { return "checkpoint-changed" }
func (checkpointChanged) Title() string { return "checkpoint against the number of changed files" }

func (c checkpointChanged) Run(ctx context.Context, e *Env) error {
	ts, err := changedTracks(ctx, e, append([]int{0}, changedCounts(e.Opts)...))
	defer func() { closeSessions(e, ts) }()
	if err != nil {
		return err
	}
	for _, t := range ts {
		t.checkpoints()
	}
	if err := sampleTracks(ctx, e, ts); err != nil {
		return err
	}
	e.Report.addCurve(Curve{ID: c.ID(), Title: "Checkpoint against the number of changed files", XLabel: "files changed since the last checkpoint", Series: lines(ts)})
	return nil
}

// changedCounts are the numbers of changed files that curves go through.
func changedCounts(o Options) []int {
	return pick(o, []int{1, 10, 100, 1000, 10_000}, []int{1, 100, 1000})
}

// changedTracks opens a session for each number of changed files; before every
// sample that many files are overwritten.
func changedTracks(ctx context.Context, e *Env, counts []int) (ts []*track, err error) {
	f, err := scaleTree(ctx, e, counts[len(counts)-1])
	if err != nil {
		return nil, err
	}
	for _, n := range counts {
		ses, err := newSession(ctx, e, f.dir, "through")
		if err != nil {
			return ts, err
		}
		t := &track{x: n, ses: ses, samples: samplesFor(e.Opts, n)}
		t.change = func(ctx context.Context, i int) error {
			for k := range n {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err := overwrite(filepath.Join(ses.mnt, treeShape{}.path(k)), 100, i*n+k); err != nil {
					return err
				}
			}
			return nil
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// samplesFor is how many samples a run that changes n files can afford.
func samplesFor(o Options, n int) int {
	switch {
	case n <= 100:
		return pick(o, 60, 15)
	case n <= 1000:
		return pick(o, 15, 5)
	}
	return pick(o, 5, 3)
}

// checkpointLayers measures checkpoints against the number of layers below.
type checkpointLayers struct{}

func (checkpointLayers) ID() string    { return "checkpoint-layers" }
func (checkpointLayers) Title() string { return "checkpoint against the number of layers" }

func (c checkpointLayers) Run(ctx context.Context, e *Env) error {
	f, err := scaleTree(ctx, e, 1000)
	if err != nil {
		return err
	}
	var ts []*track
	defer func() { closeSessions(e, ts) }()
	for _, n := range pick(e.Opts, []int{1, 100, 1000, 10_000}, []int{1, 300}) {
		ses, err := newSession(ctx, e, f.dir, "through")
		if err != nil {
			return err
		}
		t := &track{x: n, ses: ses, samples: pick(e.Opts, 60, 20)}
		ts = append(ts, t)
		t.checkpoints()
		t.change = func(_ context.Context, i int) error {
			return overwrite(filepath.Join(ses.mnt, treeShape{}.path(i%1000)), 100, n+i)
		}
		if err := ses.stack(ctx, n); err != nil {
			return err
		}
	}
	if err := sampleTracks(ctx, e, ts); err != nil {
		return err
	}
	cv := Curve{ID: c.ID(), Title: "Checkpoint against the number of layers", XLabel: "layers before the first sample; 1 file changed", Series: lines(ts)}
	last := ts[len(ts)-1].x
	e.Report.addCurve(cv, newValue("checkpoint-flat-layers", fmt.Sprintf("checkpoint p50, 1 to %s layers: largest / smallest", formatCount(last)), steepness(cv.Series[0]), "×", flat))
	return nil
}

// stack makes n layers, each with a new version of one of the first hundred files.
func (s *session) stack(ctx context.Context, n int) error {
	return guard(ctx, s.abort, func() error {
		for i := range n {
			if i%100 == 0 {
				s.env.Progress.Step(fmt.Sprintf("layer %d of %d", i, n))
			}
			if err := overwrite(filepath.Join(s.mnt, treeShape{}.path(i%100)), 100, i); err != nil {
				return fmt.Errorf("change a file: %w", err)
			}
			if err := s.seal(ctx, fmt.Sprintf("layer-%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
}
