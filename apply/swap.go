package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// raceError says that the host is no longer what the plan saw at a path.
type raceError struct{ path, reason string }

func (e *raceError) Error() string { return fmt.Sprintf("%q: %s", e.path, e.reason) }

// swapper makes steps, and takes them back.
type swapper struct {
	host, stage *dir
	at          cursor
	recs        map[string]*placed // what the commit brings, by path: nobody must have changed it when it is taken back
}

// newSwapper is for steps from one stage.
func newSwapper(host, stage *dir) *swapper {
	return &swapper{host: host, stage: stage, at: cursor{d: host}}
}

// swap makes a step. A raceError if the host is not what it was: then the step was not made.
func (s *swapper) swap(st *step) error {
	up, name := split(string(st.Path))
	race := func(why string) error { return &raceError{string(st.Path), why} }
	d, err := s.at.dir(up)
	if notThere(err) || errors.Is(err, unix.EXDEV) {
		return race("its directory is not what it was")
	}
	if err != nil {
		return err
	}
	if st.Op == opNew {
		err := s.stage.rename(st.stageName(), d, name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			return race("it was made on the host just now")
		}
		if err != nil {
			err = fmt.Errorf("put %q in its place: %w", st.Path, err)
		}
		return err
	}
	now, err := d.stat(name)
	if err != nil {
		return err
	}
	if now == nil || !asSeen(now, st.it.have, nil) {
		return race("it was changed on the host just now")
	}
	if st.Mode != 0 {
		if err := d.chmod(name, st.Mode|0o200); err != nil {
			return fmt.Errorf("make %q writable: %w", st.Path, err)
		}
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if st.Op == opSwap {
		flags = unix.RENAME_EXCHANGE
		err = s.stage.rename(st.stageName(), d, name, flags)
	} else {
		err = d.rename(name, s.stage, st.stageName(), flags)
	}
	if errors.Is(err, unix.ENOENT) {
		return race("it was removed on the host just now")
	}
	if err != nil {
		return fmt.Errorf("put something into the place of %q: %w", st.Path, err)
	}
	same, err := s.stage.isAsSeen(st.it, st.stageName(), st)
	if err != nil {
		return err // taken back with the others
	}
	if !same {
		return race("it was changed on the host just now")
	}
	return nil
}

// asSeen compares what is with what was seen. A rename moves the ctime, which by may have done; of an object
// with several names that of each of them does.
func asSeen(now, seen *found, by *step) bool {
	a, b := markOf(&now.Attr), markOf(&seen.Attr)
	if by != nil || !isDir(&seen.Attr) && seen.Nlink > 1 {
		a.ctime = b.ctime
	}
	if by != nil && by.Mode != 0 {
		a.mode = b.mode
	}
	return a == b
}

// isAsSeen compares name in d, and all below it, with what the plan saw. by moved the top, nil if none did.
func (d *dir) isAsSeen(it *item, name string, by *step) (bool, error) {
	now, err := d.stat(name)
	if err != nil || now == nil || it.have == nil {
		return now == nil && it.have == nil, err
	}
	if !asSeen(now, it.have, by) || now.mount {
		return false, nil
	}
	if !isDir(&now.Attr) {
		return true, nil
	}
	sub, names, err := d.list(name)
	if err != nil {
		return false, err
	}
	defer sub.close()
	seen := 0
	for _, k := range it.kids {
		if k.have == nil {
			continue
		}
		seen++
		if same, err := sub.isAsSeen(k, k.name, nil); err != nil || !same {
			return false, err
		}
	}
	return seen == len(names), nil
}

// takeBack undoes the steps that were made, in any order they can be. What somebody has changed since is left, and
// named: it stays new.
func (s *swapper) takeBack(steps []*step) (left []string, err error) {
	var errs []error
	for _, st := range slices.Backward(steps) {
		if st.Op == opDir {
			continue
		}
		ok, err := s.reverse(st)
		if err == nil && st.Mode != 0 {
			err = s.restoreMode(st)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("take back %q: %w", st.Path, err))
		} else if !ok {
			left = append(left, string(st.Path))
		}
	}
	return left, errors.Join(errs...)
}

// reverse takes one step back, if it was made; false: it was, and cannot be.
func (s *swapper) reverse(st *step) (bool, error) {
	inStage, err := s.stage.stat(st.stageName())
	if err != nil {
		return false, err
	}
	switch {
	case inStage == nil && st.Op != opNew, inStage != nil && inStage.Ino == st.New && st.Op != opGone:
		return true, nil // not made
	case st.Op != opNew && inStage.Ino != st.Old, st.Op == opNew && inStage != nil:
		return false, nil // somebody was at the stage
	}
	up, name := split(string(st.Path))
	d, err := s.at.dir(up)
	if notThere(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if st.Op == opNew {
		now, err := d.stat(name)
		if err != nil || now == nil || now.Ino != st.New {
			return true, err // not made, or gone since
		}
	}
	if st.Op == opGone {
		err := s.stage.rename(st.stageName(), d, name, unix.RENAME_NOREPLACE)
		return err == nil, unless(err, unix.EEXIST)
	}
	ours, err := s.untouched(d, name, string(st.Path), st.New)
	if err != nil || !ours {
		return false, err
	}
	if st.Op == opNew {
		err = d.rename(name, s.stage, st.stageName(), unix.RENAME_NOREPLACE)
	} else {
		err = s.stage.rename(st.stageName(), d, name, unix.RENAME_EXCHANGE)
	}
	return err == nil, unless(err, unix.ENOENT)
}

// open makes directories writable that are not, for as long as what is in them is changed; finishDirs ends that.
func (s *swapper) open(steps []*step) error {
	for _, st := range steps {
		if st.Op != opDir || st.Mode == 0 {
			continue
		}
		if err := s.setMode(st, st.Mode|0o300); err != nil {
			return fmt.Errorf("make %q writable: %w", st.Path, err)
		}
	}
	return nil
}

func (s *swapper) setMode(st *step, mode uint32) error {
	up, name := split(string(st.Path))
	d, err := s.at.dir(up)
	if err != nil {
		return err
	}
	return d.chmod(name, mode)
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

func unless(err, but error) error {
	if errors.Is(err, but) {
		return nil
	}
	return err
}

// untouched reports whether name in d, which is at path, is what the commit put there, with all below it.
func (s *swapper) untouched(d *dir, name, path string, top layers.Ino) (bool, error) {
	now, err := d.stat(name)
	if err != nil || now == nil || top != 0 && now.Ino != top {
		return false, err
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
		if ours, err := s.untouched(sub, n, join(path, n), 0); err != nil || !ours {
			return false, err
		}
	}
	return true, nil
}

// finishDirs gives directories what they are to have; back: the times they had.
func (s *swapper) finishDirs(steps []*step, back bool) error {
	var errs []error
	for _, st := range slices.Backward(steps) { // what is below first
		if st.Op != opDir || back && st.Was == nil {
			continue
		}
		err := s.finishDir(st, back)
		if err == nil && st.Mode != 0 && (back || st.Meta == nil) {
			err = unless(s.setMode(st, st.Mode), unix.ENOENT)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set what %q is to have: %w", st.Path, err))
		}
	}
	return errors.Join(errs...)
}

func (s *swapper) finishDir(st *step, back bool) error {
	d, err := s.at.dir(string(st.Path))
	if notThere(err) {
		return nil // somebody removed it since
	}
	if err != nil {
		return err
	}
	if back {
		return d.setTimes(".", st.Was.Atime, st.Was.Mtime)
	}
	if m := st.Meta; m != nil {
		if err := s.setMeta(d, m); err != nil {
			return err
		}
	}
	if st.Set != nil {
		return d.setTimes(".", st.Set.Atime, st.Set.Mtime)
	}
	return nil
}

// setMeta gives the directory d its owner, mode and attributes, as far as we may.
func (s *swapper) setMeta(d *dir, m *meta) error {
	if err := d.at("setmeta", ""); err != nil {
		return err
	}
	if err := unix.Fchownat(d.fd, ".", int(m.UID), int(m.GID), 0); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	if m.All {
		old, err := d.xattrs(".")
		if err != nil {
			return err
		}
		for k := range old {
			if _, stays := m.Xattrs[k]; !stays {
				_ = unix.Lremovexattr(d.link("."), k)
			}
		}
		for k, v := range m.Xattrs {
			err := unix.Lsetxattr(d.link("."), k, v, 0)
			if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
				return err
			}
		}
	}
	return d.chmod(".", m.Mode)
}

// openStage opens the directory called name in the target's root; nil if it is not there.
func openStage(host *dir, name string) (*dir, error) {
	if !strings.HasPrefix(name, layers.StagePrefix) || strings.Contains(name, "/") {
		return nil, fmt.Errorf("the stage %q: %w", name, errDamaged)
	}
	fd, err := host.open(name, unix.O_PATH|unix.O_DIRECTORY)
	if notThere(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the stage of a commit: %w", err)
	}
	return &dir{fd, host.hook}, nil
}
