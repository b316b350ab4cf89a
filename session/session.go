package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/memory"
)

// Session is one branch of one store, mounted and served. The one that Open returns shows
// the main branch, runs the daemon, and owns the sessions of the other branches.
type Session struct {
	*store
	o      Options // with the branch and the mount point of this one
	branch *layers.Branch
	mount  Mount
	made   bool   // the mount point was made by us; of the session of Open, the record says it
	born   uint64 // the first layer of the branch; 0 of main

	// drifted is told of base objects that changed underneath; nil before there is a mount.
	drifted atomic.Pointer[func(layers.Ino, *layers.NameKey)]

	// heads admits one checkpoint or head movement of the branch at a time. It guards what follows.
	heads    sync.Mutex
	calls    calls                         // tool calls under way
	before   atomic.Pointer[journal.Entry] // in front of the tool call that began last; nil: none since the last movement
	madeUp   int                           // call ids made up so far
	policy   control.Policy                // kept in the store
	lastAuto *control.AutoRolledBack
	life     string                  // see legalMoves
	arrived  memory.Threads          // the live conversations when the head got where it stands
	held     map[string]journal.Copy // what targets outside of the mount held when the head got where it stands, by Copy.Key
	thins    bool                    // automatic checkpoints are being thinned out

	shown   atomic.Pointer[agentSide] // by the last status
	leaving bool                      // guarded by store.mu: the mount is being taken down
	ended   chan struct{}             // closed when the mount has
}

// stats counts what the session did, for /metrics.
type stats struct {
	checkpoints, checkpointNS atomic.Int64
	rollbacks, rollbackNS     atomic.Int64
	rollbackPaths             atomic.Int64
}

// Open opens the store of o, mounts it and prepares the control API; Serve answers
// it. On an error nothing is left behind but a store that is as good as before.
func Open(o Options) (opened *Session, err error) {
	if err := o.Complete(); err != nil {
		return nil, err
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := newSession(newStore(o.Logger), o)
	s.served.Store(&[]*Session{s})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	old, err := s.lockStore()
	if err != nil {
		return nil, err
	}
	if err := s.clearDead(old); err != nil {
		return nil, err
	}
	if err := s.openTree(); err != nil {
		return nil, err
	}
	if err := s.describe(old); err != nil {
		return nil, err
	}
	return s, s.start(old)
}

func newSession(st *store, o Options) *Session {
	return &Session{store: st, o: o, ended: make(chan struct{})}
}

// start mounts, and listens on the control socket.
func (s *Session) start(old *Record) error {
	if err := s.recoverCommit(); err != nil {
		// What the mount shows does not depend on it. The next commit tries again.
		s.log.Error("a commit that was cut off cannot be brought to an end yet", "error", err)
	}
	made, err := s.o.readyMountpoint()
	if err != nil {
		return err
	}
	s.record.MadeMountpoint = s.record.MadeMountpoint || made
	if s.socket, err = control.Listen(filepath.Join(s.o.Store, control.SocketName)); err != nil {
		return err
	}
	if err := s.listenForAgents(); err != nil {
		return err
	}
	s.server = control.NewServer(control.Identity{Session: s.o.Name, Generation: s.record.Generation}, s.log)
	s.routes()
	if s.mount, err = s.o.Mount(s); err != nil {
		return mountError(err)
	}
	if err := s.changeRecord(func(*Record) {}); err != nil {
		return err
	}
	if err := NewRegistry(s.o.StateRoot).Add(s.o.Store); err != nil {
		// It can still be named by its store; that is no reason not to work.
		s.log.Warn("the session will not be listed", "error", err)
	}
	s.welcome()
	s.watch()
	if err := s.dropOldStaged(); err != nil {
		s.log.Warn("an unfinished import is still there", "error", err)
	}
	s.bringBack()
	s.log.Info("mounted", "base", s.o.Base, "mountpoint", s.o.Mountpoint, "generation", s.record.Generation, "cache", s.o.CacheMode, "version", s.o.Version)
	return nil
}

// line tells whether a layer lies under the present head.
func (s *Session) line(l uint64) bool { return s.branch.Ancestor(layers.Layer(l)) }

// Serve answers the control API until the session is stopped, then takes the
// mount down and puts everything on disk. It returns nil after an orderly end.
func (s *Session) Serve(ctx context.Context, force <-chan struct{}) error {
	defer close(s.done)
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(s.socket) }()
	go s.serveAgents()
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	keeper, gc := &memoryKeeper{}, &idleGC{}
	working, enough := context.WithCancel(ctx)
	defer enough()
	cut := false
	for done := false; !done; {
		select {
		case <-ctx.Done():
			s.setStopping("asked to stop")
			s.takeDown(force)
			done = true
		case <-s.ended:
			// umount(8), an unmount call, or a connection that broke. After a lazy
			// unmount this comes when the last file is closed; until then it is served.
			s.setStopping("the mount is gone")
			done = true
		case <-s.cut:
			s.awaitEnd()
			done, cut = true, true
		case err := <-served:
			s.log.Error("the control API ended; work goes on without it", "error", err)
			served = nil
		case <-idle.C:
			keeper.tick(s.requests())
			gc.tick(working, s)
		}
	}
	enough()
	s.endForks(ctx, force, cut)
	return s.release()
}

// watch has ended closed when the mount has.
func (s *Session) watch() {
	go func() {
		s.mount.Wait()
		close(s.ended)
		if s.isFork() {
			s.forkEnded()
		}
	}()
}

// gone reports whether the mount has ended.
func (s *Session) gone() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// setStopping marks the session as ending, once.
func (s *Session) setStopping(why string) {
	s.mu.Lock()
	first := !s.stopping
	s.stopping = true
	s.mu.Unlock()
	if !first {
		return
	}
	s.log.Info("stopping", "why", why)
	if err := s.changeRecord(func(r *Record) { r.State = StateStopping }); err != nil {
		s.log.Warn("the record does not say that the session is stopping", "error", err)
	}
}

// patience is how long a signal waits for processes to leave the mount.
const patience = 3 * time.Second

// takeDown unmounts for a signal. While the mount is in use it waits a little, or
// until forced; then it detaches the mount, so that stopping never hangs. What was
// written is safe either way.
func (s *Session) takeDown(force <-chan struct{}) {
	err := s.mount.Unmount(false)
	if err == nil {
		<-s.ended
		return
	}
	if s.gone() {
		return
	}
	s.log.Warn("the mount is in use", "error", err, "by", describeAll(s.mount.Busy()))
	late := time.After(patience)
	retry := time.NewTicker(patience / 20)
	defer retry.Stop()
	for waiting := true; waiting; {
		select {
		case <-s.ended:
			return
		case <-force:
			waiting = false
		case <-late:
			waiting = false
		case <-retry.C:
			if s.mount.Unmount(false) == nil {
				<-s.ended
				return
			}
		}
	}
	if err := s.cutOff(); err != nil {
		s.log.Error("cut off the mount", "error", err)
	}
	s.awaitEnd()
}

// cutOff ends the connection and detaches the mount, in this order: a detached mount
// may not be reached any more. If the connection cannot be ended, the end of the process ends it.
func (s *Session) cutOff() error {
	if err := s.mount.Abort(); err != nil {
		s.log.Warn("end the connection", "error", err)
	}
	err := s.mount.Unmount(true)
	if errors.Is(err, syscall.EINVAL) || err != nil && s.gone() {
		return nil // it was detached before
	}
	return err
}

// awaitEnd gives requests that are being answered a moment to end.
func (s *Session) awaitEnd() {
	select {
	case <-s.ended:
	case <-time.After(closing):
		s.log.Warn("the connection ends with the process only")
	}
}

// closing bounds how long calls that still run may keep the daemon.
const closing = 2 * time.Second

// release gives everything back in the reverse order of taking it. It serves a
// session that opened only half way, too.
func (s *Session) release() error {
	var errs []error
	try := func(doing string, f func() error) {
		if err := f(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", doing, err))
			s.log.Error(doing, "error", err)
		}
	}
	for _, b := range s.sessions() {
		if b.mount != nil && !b.gone() {
			try("unmount "+b.o.Mountpoint, b.cutOff)
		}
		if b.made {
			b.removeMountpoint(b.o.Mountpoint)
		}
	}
	if s.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		if err := s.server.Shutdown(ctx); err != nil {
			try("close the control API", s.server.Close)
		}
		cancel()
	}
	for _, l := range []net.Listener{s.socket, s.agents} {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			try("close the control socket", func() error { return err })
		}
	}
	try("close the ledger", s.farewell)
	if s.tree != nil {
		try("store what is in memory", s.tree.Close)
		try("put the store on disk", s.tree.Sync)
		s.db.SetBeforeFlush(s.chunks.Sync) // the tree takes no more calls
	}
	if s.record.MadeMountpoint {
		s.removeMountpoint(s.o.Mountpoint)
	}
	if s.mount != nil {
		err := s.changeRecord(func(r *Record) { r.unmounted() })
		if err != nil {
			s.log.Warn("the record still says that the session is mounted", "error", err)
		}
	}
	// kv flushes through the hook into chunks, so it is closed first; its lock is
	// what others wait for, but they need nothing of what follows.
	if s.db != nil {
		try("close the store", s.db.Close)
	}
	if s.chunks != nil {
		try("close the chunks", s.chunks.Close)
	}
	if s.base != nil {
		try("close the base", s.base.Close)
	}
	s.log.Info("stopped")
	return errors.Join(errs...)
}
