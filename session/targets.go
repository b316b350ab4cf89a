package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/paths"
	"github.com/rewindfs/rewindfs/targets"
)

// Targets are outside of the mount: databases and volumes that the user has named, in rewindfs.toml on the host or with a checkpoint. Checkpoints
// copy them before anything is locked that a program could wait for. A movement of the head to a checkpoint first copies what they hold
// now, for its operation, so that undo brings it back, and puts back what the checkpoint has when the head has moved. (What other programs
// commit to them between the two is in neither.)

// rulesTargets are those of rewindfs.toml.
func (s *Session) rulesTargets() (out []journal.Copy, err error) {
	if s.rules == nil {
		return nil, nil
	}
	for i := range s.rules.Targets {
		t, err := s.ruleTarget(&s.rules.Targets[i])
		if err != nil {
			return nil, badRequest("target %d of %s: %v", i+1, s.rules.File, err)
		}
		out = append(out, t)
	}
	return out, nil
}

func (s *Session) ruleTarget(t *paths.Target) (journal.Copy, error) {
	if t.SQLite == "" {
		return targets.Volume(t.Volume, t.Docker, t.Image)
	}
	path := t.SQLite
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return journal.Copy{}, err
		}
		path = filepath.Join(home, rest)
	}
	return s.database(path)
}

// database is the target at path, which must be outside of all that is ours: what is in the mount is in every checkpoint, and
// what is in the store or in the base is not for programs to change. It also would wait for this daemon.
func (s *Session) database(path string) (journal.Copy, error) {
	c, err := targets.Database(path)
	if err != nil {
		return c, err
	}
	in := ""
	for _, b := range s.sessions() {
		if below(string(c.Name), b.o.Mountpoint) {
			in = b.o.Mountpoint
		}
	}
	for _, dir := range []string{s.o.Base, s.o.Store} {
		if in == "" && inside(string(c.Name), dir) {
			in = dir
		}
	}
	if in != "" {
		return c, fmt.Errorf("%s lies inside %s; what is in the mount is in every checkpoint anyway", path, in)
	}
	return c, nil
}

// targetsOf are the targets that a checkpoint copies: those of the rules, and databases by their paths.
func (s *Session) targetsOf(sqlite [][]byte) ([]journal.Copy, error) {
	want, err := s.rulesTargets()
	if err != nil {
		return nil, err
	}
	for _, p := range sqlite {
		t, err := s.database(string(p))
		if err != nil {
			return nil, badPath("no target: %v", err)
		}
		want = journal.AndAlso(want, []journal.Copy{t})
	}
	return want, nil
}

// copied is what copyTargets took.
type copied struct {
	copies []journal.Copy
	wire   []control.Target
	// release is called when the copies are in the journal, or not needed any more.
	release func()
}

// copyTargets copies targets into the store. With skip, those that cannot be copied are left out.
// It is called without any lock: it takes as long as the targets are large.
func (s *Session) copyTargets(ctx context.Context, want []journal.Copy, skip bool) (*copied, error) {
	out := &copied{release: func() {}}
	if len(want) == 0 {
		return out, nil
	}
	dir, done, err := s.targetsTemp()
	if err != nil {
		return nil, err
	}
	defer done()
	out.release = s.targets.Hold()
	for _, t := range want {
		c, err := s.targets.Take(ctx, t, dir)
		w := wireTarget(&c, control.TargetCopied)
		if err != nil {
			if !skip || ctx.Err() != nil {
				out.release()
				return nil, targetError(fmt.Errorf("%w. No checkpoint was made (to make one without it: --skip-failed-targets)", err), err)
			}
			s.log.Warn("a checkpoint does without a target", "error", err)
			w.Status, w.Error = control.TargetSkipped, err.Error()
		} else {
			out.copies = append(out.copies, c)
		}
		out.wire = append(out.wire, w)
	}
	return out, nil
}

// copyAsked copies the targets of the rules and, for who may name some, databases by their paths.
func (s *Session) copyAsked(ctx context.Context, sqlite [][]byte, skip bool) (*copied, error) {
	if len(sqlite) > 0 && control.FromAgent(ctx) {
		return nil, &control.Error{Code: control.CodeForbidden, Message: "an agent cannot name databases outside of the project: its user can, with rewindfs run --sqlite, or in rewindfs.toml on the host"}
	}
	want, err := s.targetsOf(sqlite)
	if err != nil {
		return nil, err
	}
	return s.copyTargets(ctx, want, skip)
}

// copyRulesTargets copies the targets of rewindfs.toml for an automatic checkpoint, which does without those that cannot be copied.
func (s *Session) copyRulesTargets(ctx context.Context) (*copied, error) {
	want, err := s.rulesTargets()
	if err != nil {
		return nil, err
	}
	return s.copyTargets(ctx, want, true)
}

// targetsTemp makes a directory for temporary files.
func (s *Session) targetsTemp() (dir string, done func(), err error) {
	top := filepath.Join(s.o.Store, targetsDir)
	if err := os.MkdirAll(top, 0o700); err != nil {
		return "", nil, fmt.Errorf("make room for copies of targets: %w", err)
	}
	if dir, err = os.MkdirTemp(top, ""); err != nil {
		return "", nil, fmt.Errorf("make room for copies of targets: %w", err)
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			s.log.Warn("temporary files are left", "dir", dir, "error", err)
		}
	}, nil
}

// targetError gives err the code for what cause is.
func targetError(err, cause error) error {
	code := control.CodeOf(apiError(cause))
	switch {
	case errors.Is(cause, targets.ErrBusy):
		code = control.CodeBusy
	case errors.Is(cause, targets.ErrCorrupt):
		code = control.CodeDamaged
	}
	return &control.Error{Code: code, Message: err.Error()}
}

func wireTarget(c *journal.Copy, status string) control.Target {
	return control.Target{Kind: string(c.Kind), PathName: control.NameOf(string(c.Name)), Absent: c.Absent, Size: c.Size, Status: status}
}

func wireTargets(copies []journal.Copy, status string) (out []control.Target) {
	for i := range copies {
		out = append(out, wireTarget(&copies[i], status))
	}
	return out
}

// targetNames is how the ledger names targets.
func targetNames(all []control.Target) (out []string) {
	for _, t := range all {
		name := t.Kind + " " + quotePath(t.Path)
		if t.Status != "" {
			name += ": " + t.Status
		}
		out = append(out, name)
	}
	return out
}

// putting is what a movement of the head has to put back. Nil has nothing.
type putting struct {
	staged  []*targets.Staged
	present []journal.Copy // what they hold now, in the same order
	same    []journal.Copy // those that hold it already
	late    []journal.Copy // what they would hold, had the last movement put it back; of those that have not changed since
	release func()
}

func (p *putting) any() bool { return p != nil && len(p.staged) > 0 }

// left is what the targets held in the state that is left, as the journal is to have it.
func (p *putting) left() []journal.Copy {
	if p == nil {
		return nil
	}
	return journal.AndAlso(p.late, p.present)
}

// completes reports whether what is put back is what the last movement owes, and no more.
func (p *putting) completes() bool {
	left := p.left()
	return !slices.ContainsFunc(p.staged, func(st *targets.Staged) bool {
		was, known := copyOf(left, st.Key())
		return !known || !was.Same(&st.Copy)
	})
}

// readyTargets makes ready what putting want back needs, and copies what the targets hold now. Nothing of them is changed. The caller closes
// what it gets.
func (s *Session) readyTargets(ctx context.Context, want []journal.Copy) (_ *putting, err error) {
	if len(want) == 0 {
		return nil, nil
	}
	dir, done, err := s.targetsTemp()
	if err != nil {
		return nil, err
	}
	p := &putting{}
	hold := s.targets.Hold()
	p.release = func() {
		hold()
		done()
	}
	defer func() {
		if err != nil {
			p.release()
			err = targetError(fmt.Errorf("%w. Nothing was changed (to leave what is outside of the mount as it is: --no-targets)", err), err)
		}
	}()
	for i, c := range want {
		now, err := s.targets.Take(ctx, c, dir)
		if err != nil {
			return nil, err
		}
		if now.Same(&c) {
			p.same = append(p.same, c)
			continue
		}
		st, err := s.targets.Stage(ctx, c, filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return nil, err
		}
		if c.Kind == journal.TargetSQLite { // once more, after what took long: it may be in use
			if now, err = s.targets.Take(ctx, c, dir); err != nil {
				return nil, err
			}
		}
		p.staged, p.present = append(p.staged, st), append(p.present, now)
	}
	p.late, err = s.lateCopies(slices.Concat(p.present, p.same))
	return p, err
}

// close gives back what readyTargets took.
func (p *putting) close() {
	if p != nil {
		p.release()
	}
}

// putBack puts back what was made ready, and says what became of each. Preconditions: s.heads is held; the head has moved.
func (s *Session) putBack(ctx context.Context, p *putting) []control.Target {
	if p == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // whoever asked may be gone: it is half done now
	out := wireTargets(p.same, control.TargetUnchanged)
	failed := false
	for _, st := range p.staged {
		note, err := s.targets.PutBack(ctx, st)
		w := wireTarget(&st.Copy, control.TargetRestored)
		if w.Note = note; st.Absent {
			w.Status = control.TargetRemoved
		}
		if err != nil {
			failed = true
			w.Status, w.Error = control.TargetFailed, err.Error()
			s.log.Error("a target is not put back", "error", err)
		} else {
			s.holds(st.Copy)
		}
		out = append(out, w)
	}
	if failed {
		return out
	}
	// With nothing to put back, too: an earlier movement may have ended before it said that all is back.
	var b kv.Batch
	b.UseReserve()
	err := s.stageSettled(&b)
	if err == nil && b.Len() > 0 {
		err = s.db.Apply(&b)
	}
	if err != nil {
		s.log.Warn("status will go on to say that targets are to be put back", "error", err)
	}
	return out
}

// holds notes what a target holds as the head stands. Preconditions: s.heads is held.
func (s *Session) holds(c journal.Copy) {
	if s.held == nil {
		s.held = map[string]journal.Copy{}
	}
	s.held[c.Key()] = c
}

// wentOn reports whether targets that p is about have changed since the head got where it stands. Preconditions: s.heads is held.
func (s *Session) wentOn(p *putting) bool {
	if p == nil {
		return false
	}
	for _, c := range p.present {
		if was, known := s.held[c.Key()]; !known || !was.Same(&c) {
			return true
		}
	}
	return false
}

// stepTargets is what targets held in the state that path, of undo or redo, leads to: of one that several steps know the last says it.
func stepTargets(path []journal.Step) (out []journal.Copy) {
	for i := len(path) - 1; i >= 0; i-- {
		out = journal.AndAlso(out, path[i].Targets)
	}
	return out
}

// compareTargets lists those of from's targets that differ in the state that d compares it with.
func (s *Session) compareTargets(ctx context.Context, d *comparison) ([]control.Target, error) {
	from := d.fromAt
	if from == nil || len(from.Targets) == 0 || d.toAt == nil && !d.now {
		return nil, nil
	}
	dir, done, err := s.targetsTemp()
	if err != nil {
		return nil, err
	}
	defer done()
	defer s.targets.Hold()()
	var out []control.Target
	for _, was := range from.Targets {
		now, known := was, true
		var err error
		if d.now {
			now, err = s.targets.Now(ctx, was, dir)
		} else {
			now, known = copyOf(d.toAt.Targets, was.Key())
		}
		w := wireTarget(&now, "M")
		switch {
		case err != nil:
			w.Status, w.Error = control.TargetUnknown, err.Error()
		case !known || now.Same(&was):
			continue
		case was.Absent:
			w.Status = "A"
		case now.Absent:
			w.Status = "D"
		}
		out = append(out, w)
	}
	return out, ctx.Err()
}

func copyOf(all []journal.Copy, key string) (journal.Copy, bool) {
	for _, c := range all {
		if c.Key() == key {
			return c, true
		}
	}
	return journal.Copy{}, false
}

// neededContents lists the contents that checkpoints, undo, redo, and owed targets need.
func (s *Session) neededContents() (out []targets.Content, err error) {
	all := s.journal.Copies()
	var bad error
	err = s.db.Scan(kv.Meta(owedTargets), nil, func(_, v []byte) bool {
		var owed []journal.Copy
		bad = json.Unmarshal(v, &owed)
		all = append(all, owed...)
		return bad == nil
	})
	for _, c := range all {
		if !c.Absent {
			out = append(out, targets.Content{Size: c.Size, Digest: c.Digest})
		}
	}
	return out, errors.Join(err, bad)
}
