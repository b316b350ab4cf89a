package session

import (
	"context"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
)

// Status describes the session.
func (s *Session) Status(ctx context.Context, _ *control.None) (*control.Status, error) {
	st := &control.Status{
		Session: s.o.Name, Branch: s.o.Branch, Base: s.o.Base, Mountpoint: s.o.Mountpoint,
		Store: s.o.Store, PID: s.record.PID, Generation: s.record.Generation, State: StateLive,
		Head: s.head(), Checkpoints: s.journal.Count(s.line), ChangedPaths: s.branch.Changed(),
		Requests: s.mount.Counters(), Drift: []control.Drift{},
		CacheMode: s.o.CacheMode, StartedAt: s.record.StartedAt, Version: s.o.Version,
		BaseB64: control.NameOf(s.o.Base).PathB64, MountpointB64: control.NameOf(s.o.Mountpoint).PathB64,
		StoreB64: control.NameOf(s.o.Store).PathB64, Paths: s.wireRules(),
	}
	if s.alive() != nil {
		st.State = StateStopping
	}
	st.Runs = s.describeRuns(ctx)
	st.Undo, st.Redo = s.journal.Steps(s.o.Branch)
	s.describeAgentSide(st)
	var err error
	if st.StoreBytes, err = s.storeBytes(); err != nil {
		return nil, err
	}
	st.ReclaimableBytes = s.reclaimableBytes()
	u := s.tree.Usage()
	st.Cache = control.Cache{Nodes: u.Nodes, PendingBytes: u.PendingBytes}
	st.MemoryBytes = residentBytes()
	drift, err := s.branch.Drift()
	if err != nil {
		return nil, apiError(fmt.Errorf("look for changes of the base: %w", err))
	}
	for _, d := range drift {
		st.Drift = append(st.Drift, control.Drift{PathName: control.NameOf(d.Path), Reason: d.Reason})
	}
	owed, err := s.owedTargets(s.o.Branch)
	if err != nil {
		return nil, apiError(err)
	}
	if st.TargetsOwed = wireTargets(owed, ""); len(owed) > 0 {
		st.TargetsOwedBy = s.owedBy()
	}
	if all, err := s.rulesTargets(); err != nil {
		s.log.Warn("targets cannot be copied", "error", err) // a checkpoint says so
	} else {
		st.Targets = wireTargets(all, "")
	}
	if st.LeadOut, st.LeadOutCut, err = s.linksOut(ctx); err != nil {
		s.log.Warn("symlinks that lead out of the project cannot be told", "error", err) // a diff says so
	}
	slices.SortFunc(st.Drift, func(a, b control.Drift) int { return strings.Compare(a.Path, b.Path) })
	return st, nil
}

func (s *Session) head() control.Head {
	h := control.Head{Layer: uint64(s.branch.HeadLayer())}
	if e, ok := s.journal.Latest(s.line); ok {
		h.ID, h.Label = e.ID, e.Label
	}
	return h
}

func (s *Session) storeBytes() (int64, error) {
	meta, err := s.db.DiskBytes()
	if err != nil {
		return 0, fmt.Errorf("measure the store: %w", err)
	}
	data, err := s.chunks.DiskBytes()
	if err != nil {
		return 0, fmt.Errorf("measure the store: %w", err)
	}
	return meta + data, nil
}

// Log lists checkpoints, newest first.
func (s *Session) Log(_ context.Context, r *control.LogRequest) (*control.Log, error) {
	if r.Limit < 0 {
		return nil, badRequest("a limit of %d: it must be 0 or more", r.Limit)
	}
	out := &control.Log{Checkpoints: []control.Checkpoint{}, Head: s.head()}
	line := journal.Line(s.line)
	if r.All {
		line = nil
	}
	lines, err := s.lines()
	if err != nil {
		return nil, apiError(err)
	}
	for _, e := range s.journal.List(line) {
		if e.Auto && !r.All {
			continue
		}
		if r.Limit > 0 && len(out.Checkpoints) == r.Limit {
			break
		}
		c := s.describeCheckpoint(&e)
		c.Dropped = r.All && !inAny(lines, e.Layer)
		out.Checkpoints = append(out.Checkpoints, c)
	}
	if r.Graph {
		if out.Graph, err = s.graph(r.All, r.Limit); err != nil {
			return nil, err
		}
	}
	if r.Ops {
		steps := s.stepsTo()
		for _, op := range s.journal.Ops(0) {
			if r.Limit > 0 && len(out.Ops) == r.Limit {
				break
			}
			if r.All || op.Branch == s.o.Branch {
				out.Ops = append(out.Ops, s.describeOp(&op, steps))
			}
		}
	}
	return out, nil
}

// inAny reports whether a layer is in one of lines.
func inAny(lines []branchLine, l uint64) bool {
	return slices.ContainsFunc(lines, func(b branchLine) bool { return b.has(layers.Layer(l)) })
}

// requests counts the kernel's requests to all mounts, by opcode.
func (s *Session) requests() map[string]uint64 {
	sum := map[string]uint64{}
	for _, b := range s.sessions() {
		for op, n := range b.mount.Counters() {
			sum[op] += n
		}
	}
	return sum
}

func wireOp(op *journal.Op) control.Op {
	out := control.Op{N: op.N, Kind: string(op.Kind), Branch: op.Branch, From: op.From, To: op.To, Open: op.Open, Label: op.Label, At: op.At.UTC()}
	if op.Untouched {
		out.Same = &op.Same
	}
	return out
}

// Diff sends what differs between two states.
func (s *Session) Diff(ctx context.Context, r *control.DiffRequest, out *control.Stream[control.Change]) (*control.DiffSummary, error) {
	d, err := s.comparison(ctx, r)
	if err != nil {
		return nil, err
	}
	sum := &control.DiffSummary{From: d.fromName, To: d.toName, Counts: map[string]int{}}
	err = s.eachChange(ctx, d.from, d.to, func(c *layers.Change) bool { return d.keep(c.Path, c.OldPath) }, func(c control.Change) error {
		sum.Total++
		sum.Counts[c.Status]++
		return out.Emit(c)
	})
	if err == nil && len(r.Paths) == 0 {
		sum.Targets, err = s.compareTargets(ctx, &d)
	}
	return sum, d.failed(err)
}

// comparison is what a DiffRequest asks for.
type comparison struct {
	from, to         layers.Layer
	fromName, toName string
	fromAt, toAt     *journal.Entry // nil of the base; toAt also of the present state, see now
	now              bool
	below            func(path string) bool
}

func (s *Session) comparison(ctx context.Context, r *control.DiffRequest) (d comparison, err error) {
	from, err := s.diffFrom(r.From)
	if err != nil {
		return d, err
	}
	d.from, d.fromName, d.fromAt = layers.Layer(from.Layer), from.Name(), from.Entry
	if d.now = r.To == ""; d.now {
		if err := s.barrier(ctx); err != nil {
			return d, apiError(err)
		}
		d.to, d.toName = s.branch.HeadLayer(), "head"
	} else {
		to, err := s.resolveAnywhere(r.To)
		if err != nil {
			return d, err
		}
		d.to, d.toName, d.toAt = layers.Layer(to.Layer), to.Name(), to.Entry
	}
	d.below, err = pathFilter(r.Paths)
	return d, err
}

// keep reports whether a change is asked for. old is the path before a rename, "" if it was none.
func (d *comparison) keep(path, old string) bool { return d.below(path) || old != "" && d.below(old) }

// failed is the error of a comparison that ended with err.
func (d *comparison) failed(err error) error {
	if err == nil {
		return nil
	}
	return apiError(fmt.Errorf("compare %s with %s: %w", d.fromName, d.toName, err))
}

// diffFrom resolves the older side when not said: the latest checkpoint or what was committed to the base since, or the base.
func (s *Session) diffFrom(ref string) (journal.Target, error) {
	if ref != "" {
		return s.resolveAnywhere(ref)
	}
	e, ok := s.journal.Latest(s.line)
	l, err := s.lastCommit()
	if err != nil {
		return journal.Target{}, err
	}
	if l > layers.BaseLayer && (!ok || uint64(l) > e.Layer) {
		at := journal.Target{Layer: uint64(l)}
		if c, ok := s.journal.Newest(at.Layer); ok {
			at.Entry = &c
		}
		return at, nil
	}
	if !ok {
		return journal.Target{}, nil // the base
	}
	return journal.Target{Layer: e.Layer, Entry: &e}, nil
}

// pathFilter keeps the given paths and what lies below them; no paths keep all.
func pathFilter(paths [][]byte) (func(string) bool, error) {
	want, err := filterPaths(paths)
	if err != nil || len(want) == 0 || slices.Contains(want, ".") {
		return func(string) bool { return true }, err
	}
	return func(p string) bool {
		return slices.ContainsFunc(want, func(w string) bool { return below(p, w) })
	}, nil
}

// filterPaths brings the paths of a filter to their shortest form; "." is everything.
func filterPaths(paths [][]byte) (want []string, err error) {
	for _, p := range paths {
		clean, err := cleanPath(string(p))
		if err != nil {
			return nil, err
		}
		if len(p) == 0 { // a variable that nobody set must not mean everything
			return nil, badPath("a path is empty; '.' is everything")
		}
		// By the names alone: a filter may name what is only in one of the two trees.
		clean = path.Clean(clean)
		if clean == ".." || strings.HasPrefix(clean, "../") {
			return nil, badPath("%s leads out of the session", quotePath(string(p)))
		}
		want = append(want, clean)
	}
	return want, nil
}

func wireChange(c *layers.Change) control.Change {
	out := control.Change{PathName: control.NameOf(c.Path), Status: string(c.Status), Type: typeName(c.Type), Content: c.Content}
	if c.OldPath != "" {
		old := control.NameOf(c.OldPath)
		out.OldPath, out.OldPathB64 = old.Path, old.PathB64
	}
	if c.OldSize >= 0 {
		out.OldSize = &c.OldSize
	}
	if c.NewSize >= 0 {
		out.NewSize = &c.NewSize
	}
	return out
}

func typeName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "dir"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "chardev"
	case unix.S_IFBLK:
		return "blockdev"
	}
	return "unknown"
}

// Names lists what .rewind/checkpoints holds: each checkpoint of the line by its
// label, or its id without one, and the dropped ones by their ids.
func (s *Session) Names() []string {
	var out []string
	for _, e := range s.journal.List(nil) {
		if e.Label != "" && s.line(e.Layer) {
			out = append(out, e.Label)
		} else {
			out = append(out, e.ID)
		}
	}
	return out
}

// Lookup finds the layer of a checkpoint by a name of Names, by the id of any, or
// base. Names that come to mean something else with time are none.
func (s *Session) Lookup(name string) (layers.Layer, bool) {
	t, err := s.journal.Resolve(name, s.line)
	if err != nil || !s.tree.Has(layers.Layer(t.Layer)) {
		return 0, false
	}
	if t.Entry != nil && name != t.Entry.Label && name != t.Entry.ID {
		return 0, false
	}
	return layers.Layer(t.Layer), true
}

func (s *Session) collect(m *control.Metrics) {
	requests := s.requests()
	names := make([]string, 0, len(requests))
	for op := range requests {
		names = append(names, op)
	}
	slices.Sort(names)
	for _, op := range names {
		m.Add("rewindfs_requests_total", "counter", "Kernel requests by opcode.", float64(requests[op]), "op", op)
	}
	const second = 1e-9 // of a nanosecond
	m.Add("rewindfs_checkpoints_total", "counter", "Checkpoints made by this daemon.", float64(s.stats.checkpoints.Load()))
	m.Add("rewindfs_checkpoint_seconds_total", "counter", "Time spent making them.", float64(s.stats.checkpointNS.Load())*second)
	m.Add("rewindfs_head_moves_total", "counter", "Rollbacks, undos and redos.", float64(s.stats.rollbacks.Load()))
	m.Add("rewindfs_head_move_seconds_total", "counter", "Time spent on them.", float64(s.stats.rollbackNS.Load())*second)
	m.Add("rewindfs_head_move_paths_total", "counter", "Paths they changed.", float64(s.stats.rollbackPaths.Load()))
	m.Add("rewindfs_generation", "gauge", "Generation of the session.", float64(s.record.Generation))
	m.Add("rewindfs_changed_paths", "gauge", "Paths changed in the open layer.", float64(s.branch.Changed()))
	m.Add("rewindfs_branches_mounted", "gauge", "Branches that are mounted.", float64(len(s.sessions())))
	if n, err := s.storeBytes(); err == nil {
		m.Add("rewindfs_store_bytes", "gauge", "Bytes of the store on disk.", float64(n))
	}
	u := s.tree.Usage()
	m.Add("rewindfs_cached_nodes", "gauge", "Inodes held in memory.", float64(u.Nodes))
	m.Add("rewindfs_pending_bytes", "gauge", "Written bytes not yet cut into chunks.", float64(u.PendingBytes))
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m.Add("rewindfs_heap_bytes", "gauge", "Live heap.", float64(ms.HeapAlloc))
	m.Add("rewindfs_memory_bytes", "gauge", "Resident memory, as ps shows it.", float64(residentBytes()))
	m.Add("rewindfs_goroutines", "gauge", "Goroutines.", float64(runtime.NumGoroutine()))
}
