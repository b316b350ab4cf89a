package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// Unmount takes the mount of a branch away. That of the session's own takes those of all
// others along, and Serve then ends the daemon. It refuses while one of them is in use, naming by whom, unless it
// is to be lazy or forced.
func (s *Session) Unmount(ctx context.Context, r *control.UnmountRequest) (*control.Unmounted, error) {
	s.forking.Lock()
	defer s.forking.Unlock()
	these := []*Session{s}
	if !s.isFork() {
		these = s.sessions()
	}
	// No checkpoint or rollback may be half way.
	unlock := lockHeads(these)
	out, err := s.unmountAll(ctx, r, these)
	unlock()
	if err != nil {
		return nil, err
	}
	if s.isFork() {
		s.log.Info("unmounting a branch", "branch", s.o.Branch, "mountpoint", s.o.Mountpoint)
		s.setLeaving()
		if r.Lazy && !r.Force { // it ends when the last file is closed
			go s.letGo(true)
			return out, nil
		}
		s.letGo(false)
		s.retire()
		return out, nil
	}
	s.setStopping("asked to unmount")
	if r.Force {
		s.tellCut()
		return out, nil
	}
	go func() {
		var wg sync.WaitGroup
		for _, b := range these {
			wg.Go(func() { b.letGo(r.Lazy) })
		}
		wg.Wait()
		s.tellCut() // of one that has ended, Serve knows already
	}()
	return out, nil
}

// tellCut has Serve end though the mount may not have: it was cut off.
func (s *Session) tellCut() {
	select {
	case s.cut <- struct{}{}:
	default: // told already
	}
}

// unmountAll takes the mounts of these sessions away, ours last, as r says. Preconditions: their heads are held.
func (s *Session) unmountAll(ctx context.Context, r *control.UnmountRequest, these []*Session) (*control.Unmounted, error) {
	if err := control.StillWaits(ctx); err != nil {
		return nil, err
	}
	if !r.Force && !r.Lazy {
		// Asked first: processes in mount namespaces of their own do not keep the kernel from unmounting it here.
		if err := s.nobodyIn(ctx, these); err != nil {
			return nil, err
		}
		for _, b := range these {
			b.endContainers()
		}
	}
	out := &control.Unmounted{Mountpoint: s.o.Mountpoint, Store: s.o.Store, PID: os.Getpid(), Branch: s.o.Branch, Forks: []string{}}
	for _, b := range slices.Backward(these) { // our own goes last: with it the daemon ends
		if err := b.unmount(ctx, r); err != nil {
			if len(out.Forks) > 0 {
				err = withNote(err, fmt.Sprintf(" (unmounted by now: %s)", strings.Join(out.Forks, ", ")))
			}
			return nil, err
		}
		if b != s {
			out.Forks = append(out.Forks, b.o.Mountpoint)
		}
	}
	return out, nil
}

// lockHeads keeps the heads of all these sessions where they are until the function that it returns is called.
// Two callers cannot wait for each other: they lock in the order of the names.
func lockHeads(these []*Session) (unlock func()) {
	these = slices.Clone(these)
	slices.SortFunc(these, func(a, b *Session) int { return strings.Compare(a.o.Branch, b.o.Branch) })
	for _, b := range these {
		b.heads.Lock()
	}
	return func() {
		for _, b := range these {
			b.heads.Unlock()
		}
	}
}

// unmount takes the mount of s alone away, as r says. Preconditions: s.heads is held.
func (s *Session) unmount(ctx context.Context, r *control.UnmountRequest) error {
	var err error
	if r.Force {
		err = s.cutOff()
	} else {
		err = s.detach(r.Lazy)
	}
	switch {
	case err == nil, s.gone():
	case errors.Is(err, syscall.EINVAL): // detached before, by us or with umount -l
	case errors.Is(err, syscall.EBUSY):
		busy := s.othersIn(ctx)
		if len(busy) == 0 {
			busy = s.mount.Busy() // the command itself: it was started in the mount
		}
		return inUse([]string{s.usedBy(busy)}, busy)
	default:
		return fmt.Errorf("unmount: %w", err)
	}
	return nil
}

// nobodyIn refuses when somebody uses the mount of one of these sessions: none of them is to go then.
func (s *Session) nobodyIn(ctx context.Context, these []*Session) error {
	var who []string
	var all []Process
	for _, b := range these {
		if busy := b.mount.Busy(); len(busy) > 0 {
			if others := b.othersIn(ctx); len(others) > 0 {
				busy = others
			}
			who, all = append(who, b.usedBy(busy)), append(all, busy...)
		}
	}
	if who == nil {
		return nil
	}
	return inUse(who, all)
}

func (s *Session) usedBy(busy []Process) string {
	return fmt.Sprintf("%s is in use by %s", s.o.Mountpoint, describeAll(busy))
}

func inUse(who []string, busy []Process) error {
	return &control.Error{
		Code: control.CodeBusy,
		Message: strings.Join(who, "; ") +
			": stop that and try again, or detach it with --lazy (open files go on working), or cut it off with --force",
		Details: map[string]any{"busy": wireProcesses(busy)},
	}
}

// withNote adds to the message of err, which keeps its code.
func withNote(err error, note string) error {
	var e *control.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%w%s", err, note)
	}
	return &control.Error{Code: e.Code, Message: e.Message + note, Details: e.Details}
}

// detach unmounts. When the mount has ended, umount(2) may still take seconds to drop
// what the kernel remembers of a large tree; that is not waited for, as the daemon
// would be gone before the answer.
func (s *Session) detach(lazy bool) error {
	done := make(chan error, 1)
	go func() { done <- s.mount.Unmount(lazy) }()
	select {
	case err := <-done:
		return err
	case <-s.ended:
		return nil
	}
}

// letGo has the mount end that was just unmounted, though it may still be shown in mount namespaces of others:
// containers, and those of sandboxes. Their processes are no users as long as they only have it before their eyes. What is
// in use of a lazy one is waited for, however long.
func (s *Session) letGo(lazy bool) {
	look := time.NewTicker(patience / 10)
	defer look.Stop()
	late := time.After(patience)
	for n := 0; !s.gone(); n++ {
		unused := len(s.mount.Busy()) == 0
		if !lazy || unused {
			s.endContainers() // one that was announced before may have come only now
		}
		// What the kernel lets go of at once, it has by now.
		cut := !lazy && unused && n > 1
		select {
		case <-s.ended:
			return
		case <-look.C:
		case <-late:
			cut = !lazy
		}
		if cut {
			s.log.Info("the mount is still shown somewhere: cut off", "mountpoint", s.o.Mountpoint)
			if err := s.cutOff(); err != nil {
				s.log.Error("cut off the mount", "error", err)
			}
			s.awaitEnd()
			return
		}
	}
}

// endUnseen removes the containers of a mount that somebody else has unmounted, as umount(8) does: nothing but them holds it.
func (s *Session) endUnseen() {
	if len(s.ownContainers()) == 0 || s.gone() {
		return
	}
	if on, err := s.o.mounted(s.o.Mountpoint); err == nil && !on && len(s.mount.Busy()) == 0 {
		s.endContainers()
	}
}

// endForks takes down the mounts of the other branches, after the session's own has gone. What is
// open in them is served until it is closed, a signal comes, or they are cut off, as they are already
// with cut. No new one can come.
func (s *Session) endForks(ctx context.Context, force <-chan struct{}, cut bool) {
	s.forking.Lock() // whoever was making one has made it
	forks := s.sessions()[1:]
	s.forking.Unlock()
	gone := make(chan struct{}) // closed when they were cut off
	if cut {
		close(gone)
	}
	atOnce := cut
	var wg sync.WaitGroup
	for _, b := range forks {
		wg.Go(func() {
			if !atOnce && ctx.Err() == nil {
				if err := b.detach(true); err != nil && !b.gone() && !errors.Is(err, syscall.EINVAL) {
					s.log.Warn("detach the mount of a branch", "branch", b.o.Branch, "error", err)
				}
				go b.letGo(true)
			}
			select {
			case <-b.ended:
			case <-ctx.Done():
				b.takeDown(force)
			case <-gone:
				b.awaitEnd()
			}
		})
	}
	all := make(chan struct{})
	go func() {
		wg.Wait()
		close(all)
	}()
	for {
		select {
		case <-all:
			return
		case <-s.cut:
			if !cut {
				cut = true
				close(gone)
			}
		}
	}
}
