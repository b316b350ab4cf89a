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
	host      *dir
	at, stage cursor             // directories of the host, and of the stage
	recs      map[string]*placed // what the commit brings, by path: nobody must have changed it when it is taken back
	linked    []layers.Ino       // see journal
	mayHold   bool               // somebody may go on writing to what is replaced, as was asked for
	suffix    string             // of names that are made for what cannot be put back
}

// newSwapper is for the steps of j from its stage, nil for none.
func newSwapper(host, stage *dir, j *journal) *swapper {
	return &swapper{
		host: host, at: cursor{d: host}, stage: cursor{d: stage}, linked: j.Linked,
		suffix: ".rewindfs-kept-" + strings.TrimPrefix(j.Stage, layers.StagePrefix),
	}
}

func (s *swapper) close() {
	s.at.close()
	s.stage.close()
}

// staged returns the directory in the stage of a step's object, until the next call, and the object's name there.
func (s *swapper) staged(st *step) (*dir, string, error) {
	up, name := split(st.stageName())
	d, err := s.stage.dir(up)
	return d, name, err
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
	stage, object, err := s.staged(st)
	if err != nil {
		return fmt.Errorf("look for %q in the stage: %w", st.Path, err)
	}
	if st.Op == opNew {
		err := stage.rename(object, d, name, unix.RENAME_NOREPLACE)
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
		err = stage.rename(object, d, name, flags)
	} else {
		err = d.rename(name, stage, object, flags)
	}
	if errors.Is(err, unix.ENOENT) {
		return race("it was removed on the host just now")
	}
	if err != nil {
		return fmt.Errorf("put something into the place of %q: %w", st.Path, err)
	}
	return s.look(st) // taken back with the others
}

// look looks at what a step took from the host: a raceError if that is not what the plan saw, or may yet be changed.
func (s *swapper) look(st *step) error {
	if st.Op != opSwap && st.Op != opGone {
		return nil
	}
	var same, held bool
	stage, object, err := s.staged(st)
	if err == nil {
		same, held, err = stage.isAsSeen(st.it, object, st)
	}
	switch {
	case err != nil:
		return fmt.Errorf("look at what was at %q: %w", st.Path, err)
	case !same:
		return &raceError{string(st.Path), "it was changed on the host just now"}
	case held && !s.mayHold:
		return &raceError{string(st.Path), "a program on the host has it open for writing, and what that writes would be lost: wait for its end, or leave this path out"}
	}
	st.held = held
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

// isAsSeen compares name in d, and all below it, with what the plan saw. by moved the top, nil if none did. held: somebody has a file open for writing.
func (d *dir) isAsSeen(it *item, name string, by *step) (same, held bool, err error) {
	if held, err = d.heldOpen(name); err != nil { // first: who has closed it may have changed it
		return false, false, unless(err, unix.ENOENT)
	}
	now, err := d.stat(name)
	if err != nil || now == nil || it.have == nil {
		return now == nil && it.have == nil, false, err
	}
	if !asSeen(now, it.have, by) || now.mount {
		return false, false, nil
	}
	if !isDir(&now.Attr) {
		return true, held, nil
	}
	sub, names, err := d.list(name)
	if err != nil {
		return false, false, err
	}
	defer sub.close()
	seen := 0
	for _, k := range it.kids {
		if k.have == nil {
			continue
		}
		seen++
		same, h, err := sub.isAsSeen(k, k.name, nil)
		if err != nil || !same {
			return false, false, err
		}
		held = held || h
	}
	return seen == len(names), held, nil
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

func unless(err, but error) error {
	if errors.Is(err, but) {
		return nil
	}
	return err
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
