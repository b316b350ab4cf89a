package apply

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Left is a path that is not as it was before a commit that was taken back: somebody changed it meanwhile.
type Left struct {
	Path string
	Kept string // path of what was there before, or was written meanwhile; "": nothing was
}

func (l Left) String() string {
	if l.Kept == "" {
		return fmt.Sprintf("%q", l.Path)
	}
	return fmt.Sprintf("%q, see also %q", l.Path, l.Kept)
}

// takeBack undoes the steps that were made, in any order they can be. What somebody has changed since is left, and
// named. Nothing that anybody else wrote goes with the stage: what cannot get its name again gets one beside it.
func (s *swapper) takeBack(steps []*step) (left []Left, err error) {
	var errs []error
	for _, st := range slices.Backward(steps) {
		if st.Op == opDir {
			continue
		}
		l, err := s.reverse(st)
		if err == nil && st.Mode != 0 {
			err = s.restoreMode(st)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("take back %q: %w", st.Path, err))
		} else if l != nil {
			left = append(left, *l)
		}
	}
	return left, errors.Join(errs...)
}

// reverse takes one step back, if it was made; not nil: it was, and could not be altogether.
func (s *swapper) reverse(st *step) (*Left, error) {
	path := string(st.Path)
	stage, object, inStage, err := s.inStage(st)
	if err != nil || inStage == nil && st.Op != opNew {
		return nil, err // not made
	}
	up, name := split(path)
	d, err := s.at.dir(up)
	if notThere(err) {
		d, err = nil, nil
	}
	switch {
	case err != nil:
		return nil, err
	case inStage != nil && (st.Op == opNew || inStage.Ino == st.New):
		return s.aside(st, d, name) // not made, or taken back, perhaps by one who was killed then
	case st.Op == opGone || d == nil && st.Op == opSwap:
		return s.keep(st, d, name)
	case d == nil:
		return &Left{Path: path}, nil
	}
	if st.Op == opNew {
		now, err := d.stat(name)
		if err != nil || now == nil || now.Ino != st.New {
			return nil, err // not made, or gone since
		}
	}
	ours, err := s.untouched(d, name, path, st.New, false)
	switch {
	case err != nil:
		return nil, err
	case st.Op == opNew && !ours:
		return &Left{Path: path}, nil
	case stage == nil:
		return &Left{Path: path}, nil
	case st.Op == opNew:
		err = unless(d.rename(name, stage, object, unix.RENAME_NOREPLACE), unix.ENOENT)
	case !ours:
		return s.keep(st, d, name)
	default: // what is in the stage is the host's, be it what the plan saw or what took its place just before the step
		err = stage.rename(object, d, name, unix.RENAME_EXCHANGE)
		if errors.Is(err, unix.ENOENT) { // ours was removed just now
			return s.keep(st, d, name)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.aside(st, d, name)
}

// inStage is staged, and what is there: nil for nothing. Without a stage, which may be on its way out already, there is none.
func (s *swapper) inStage(st *step) (stage *dir, object string, is *found, err error) {
	stage, object, err = s.staged(st)
	if notThere(err) {
		return nil, object, nil, nil
	}
	if err == nil {
		is, err = stage.stat(object)
	}
	return stage, object, is, err
}

// aside sees to it that nothing goes with the stage that somebody wrote to what a step had brought: what came out need not be what was
// looked at, and who has it open goes on writing to it.
func (s *swapper) aside(st *step, d *dir, name string) (*Left, error) {
	stage, object, inStage, err := s.inStage(st)
	if err != nil || inStage == nil {
		return nil, err
	}
	ours, err := s.untouched(stage, object, string(st.Path), st.New, true)
	if err != nil || ours {
		return nil, err
	}
	return s.keep(st, d, name)
}

// keep brings what is in the stage of a step to its path, name in d, or if something is there, beside it; where there is no d any more, into the
// target's root.
func (s *swapper) keep(st *step, d *dir, name string) (*Left, error) {
	up, _ := split(string(st.Path))
	suffix := fmt.Sprintf("%s-%d", s.suffix, st.I)
	beside := name[:min(len(name), unix.NAME_MAX-len(suffix))] + suffix
	names, kept := []string{name, beside}, join(up, beside)
	if d == nil {
		d, names, kept = s.host, []string{beside}, beside
	}
	stage, object, err := s.staged(st)
	if err != nil {
		return nil, err
	}
	for _, as := range names {
		err := stage.rename(object, d, as, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST):
		case err != nil:
			return nil, err
		case as == beside:
			return &Left{Path: string(st.Path), Kept: kept}, nil
		case st.Op == opNew:
			return &Left{Path: string(st.Path)}, nil
		default:
			return nil, nil
		}
	}
	return nil, fmt.Errorf("keep what was changed on the host as %q: %w", kept, unix.EEXIST)
}

// restoreMode gives a directory its mode again that was made writable to be moved.
func (s *swapper) restoreMode(st *step) error {
	up, name := split(string(st.Path))
	d, err := s.at.dir(up)
	if err != nil {
		return unless(err, unix.ENOENT)
	}
	now, err := d.stat(name)
	if err != nil || now == nil || now.Ino != st.Old || now.Mode == st.Mode {
		return err
	}
	return d.chmod(name, st.Mode)
}

// untouched reports whether name in d, which is at path, is what the commit put there, with all below it; of what is in the stage also,
// whether nobody can go on writing to it.
func (s *swapper) untouched(d *dir, name, path string, top layers.Ino, staged bool) (bool, error) {
	held := false
	if staged {
		var err error
		if held, err = d.heldOpen(name); err != nil { // first: who has closed it may have changed it
			return false, unless(err, unix.ENOENT)
		}
	}
	now, err := d.stat(name)
	switch {
	case err != nil || now == nil || top != 0 && now.Ino != top:
		return false, err
	case staged && slices.Contains(s.linked, now.Ino):
		return true, nil
	case held:
		return false, nil
	}
	r := s.recs[path]
	if r == nil || r.none || now.Ino != r.host.ino || typeOf(&now.Attr) != r.host.mode&unix.S_IFMT {
		return false, nil
	}
	if !isDir(&now.Attr) {
		return now.Size == r.host.size && now.Mtime == r.host.mtime && now.Mode == r.host.mode, nil
	}
	sub, names, err := d.list(name)
	if err != nil {
		return false, err
	}
	defer sub.close()
	for _, n := range names {
		if ours, err := s.untouched(sub, n, join(path, n), 0, staged); err != nil || !ours {
			return false, err
		}
	}
	return true, nil
}
