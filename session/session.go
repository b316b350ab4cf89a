package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// Session is one branch of one store, mounted and served.
type Session struct {
	o       Options
	log     *slog.Logger
	db      *kv.DB
	chunks  *cas.Store
	base    *layers.Base
	tree    *layers.Tree
	branch  *layers.Branch
	journal *journal.Journal
	memory  *memory.Store
	ledger  *ledger.Ledger
	budget  *budgetKeeper
	mount   Mount
	server  *control.Server
	socket  net.Listener
	record  Record
	stats   stats
	intake  *semaphore.Weighted // bytes of conversations that are being taken in

	// drifted is told of base objects that changed underneath; nil before there is a mount.
	drifted atomic.Pointer[func(layers.Ino, *layers.NameKey)]

	// heads admits one checkpoint or head movement at a time. It guards what follows.
	heads    sync.Mutex
	calls    calls                         // tool calls under way
	before   atomic.Pointer[journal.Entry] // in front of the tool call that began last; nil: none since the last movement
	madeUp   int                           // call ids made up so far
	policy   control.Policy                // kept in the store
	lastAuto *control.AutoRolledBack
	life     string         // see legalMoves
	arrived  memory.Threads // the live conversations when the head got where it stands

	shown      atomic.Pointer[agentSide] // by the last status
	mountOp    uint64                    // number of the operation that this mount is
	missed     []journal.Op              // operations that a crash kept from the ledger
	unaudited  atomic.Int64              // events that could not be recorded
	owes       atomic.Uint64             // lines owed to the ledger so far, see owe
	thins      bool                      // automatic checkpoints are being thinned out
	thinning   sync.Mutex                // held by the one who drops checkpoints; taken before heads
	background sync.WaitGroup

	cut chan struct{} // gets a token when the mount was cut off by force

	mu       sync.Mutex
	stopping bool          // guarded by mu
	ended    chan struct{} // closed when the mount has
	done     chan struct{} // closed at the end of Serve
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
	s := &Session{
		o: o, log: o.Logger, ended: make(chan struct{}), done: make(chan struct{}), cut: make(chan struct{}, 1),
		intake: semaphore.NewWeighted(control.MaxMessages),
	}
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
	return s, s.start()
}

// lockStore makes the store directory and takes its lock. What it returns of the
// last session may be nil.
func (s *Session) lockStore() (*Record, error) {
	fresh := !isStore(s.o.Store)
	if fresh {
		// A base that does not exist must not leave a store behind.
		if err := checkBase(s.o.Base); err != nil {
			return nil, err
		}
	}
	if err := makeStore(s.o.Store); err != nil {
		return nil, badPath("%v", err)
	}
	if s.o.OpenLog != nil {
		log, err := s.o.OpenLog(s.o.Store)
		if err != nil {
			return nil, err
		}
		s.log = log
	}
	db, err := s.openDB()
	if err != nil {
		return nil, storeError(s.o.Store, err)
	}
	s.db = db
	old, err := ReadRecord(s.o.Store)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("the last session's record is of no use", "error", err)
		}
		return nil, nil
	}
	return old, nil
}

// leaving is how long a daemon may take to end after its mount is gone.
const leaving = 15 * time.Second

// openDB opens the metadata of the store. A holder without a mount is waited for: it
// is on its way out, as after umount(8), or about to mount. So is one that was killed and whose
// last threads have not ended yet.
func (s *Session) openDB() (*kv.DB, error) {
	replay := cas.NewReplayCheck(s.o.Store) // after a power cut, a record may name bytes that never got to the disk
	defer replay.Close()
	for deadline := time.Now().Add(leaving); ; {
		db, err := kv.Open(filepath.Join(s.o.Store, kvName), kv.Options{Logger: s.log, CheckReplay: replay.Check})
		var held *kv.InUseError
		if !errors.As(err, &held) || time.Now().After(deadline) {
			return db, err
		}
		rec, recErr := ReadRecord(s.o.Store)
		if recErr != nil {
			return nil, err
		}
		if on, mountErr := s.o.mounted(rec.Mountpoint); on && !dying(held.PID) || mountErr != nil {
			return nil, err
		}
		if werr := WaitExit(held.PID, leaving/200); werr != nil && !errors.Is(werr, ErrStillRunning) {
			return nil, err
		}
	}
}

// storeError says what to do about a store that does not open.
func storeError(store string, err error) error {
	var held *kv.InUseError
	switch {
	case errors.As(err, &held):
		msg := fmt.Sprintf("the store %s is held by the daemon with pid %d", store, held.PID)
		rec, recErr := ReadRecord(store)
		if recErr == nil && rec.PID == held.PID {
			msg += fmt.Sprintf(", mounted at %s: work there, or stop it with: rewindfs unmount %s", rec.Mountpoint, rec.Mountpoint)
		}
		if recErr == nil && rec.State == StateStopping {
			msg = fmt.Sprintf("the store %s is held by the daemon with pid %d, which was detached and still serves what is open: end that, or cut it off with: rewindfs unmount --force -s %s", store, held.PID, store)
		}
		return &control.Error{Code: control.CodeStoreHeld, Message: msg, Details: map[string]any{"pid": held.PID, "store": store}}
	case errors.Is(err, kv.ErrNewerFormat):
		return &control.Error{Code: control.CodeNewerStore, Message: fmt.Sprintf("the store %s cannot be opened: %v", store, err)}
	}
	return fmt.Errorf("open the store %s: %w", store, err)
}

// clearDead unmounts what a dead daemon of this store left, at its mount point and at ours.
func (s *Session) clearDead(old *Record) error {
	places := []string{s.o.Mountpoint}
	if old != nil && old.Mountpoint != s.o.Mountpoint {
		places = append(places, old.Mountpoint)
	}
	for _, p := range places {
		cleared, err := ClearDead(p)
		if err != nil {
			return err
		}
		if cleared {
			s.log.Warn("cleared the mount of a daemon that had died", "mountpoint", p)
		}
	}
	if old != nil && old.MadeMountpoint && old.Mountpoint != s.o.Mountpoint {
		s.removeMountpoint(old.Mountpoint)
	}
	return nil
}

func (s *Session) openTree() error {
	if err := checkBase(s.o.Base); err != nil {
		return err
	}
	var err error
	if s.base, err = layers.OpenBase(s.o.Base); err != nil {
		return badPath("cannot open the base: %v", err)
	}
	if err := s.claimBase(); err != nil {
		return err
	}
	if s.chunks, err = cas.Open(s.o.Store, s.db, cas.Options{Logger: s.log}); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	// Chunks are on disk before records that name them.
	s.db.SetBeforeFlush(s.chunks.Sync)
	if s.tree, err = layers.Open(s.db, s.chunks, s.base, layers.Options{Logger: s.log, Now: s.o.Now, Drifted: s.noteDrift}); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	if s.branch, err = s.tree.Branch(s.o.Branch); err != nil {
		return fmt.Errorf("open branch %s: %w", s.o.Branch, err)
	}
	if s.journal, err = journal.Open(s.db, s.o.Now); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	return s.openAgentSide()
}

func (s *Session) noteDrift(ino layers.Ino, name *layers.NameKey) {
	if tell := s.drifted.Load(); tell != nil {
		(*tell)(ino, name)
	}
}

// describe raises the generation and fills in the record.
func (s *Session) describe(old *Record) error {
	gen, err := s.raiseGeneration()
	if err != nil {
		return err
	}
	s.record = Record{
		Name: s.o.Name, Branch: s.o.Branch, Base: s.o.Base, Mountpoint: s.o.Mountpoint,
		Over: s.o.Over, CacheMode: s.o.CacheMode, AllowOther: s.o.AllowOther,
		State: StateMounted, PID: os.Getpid(), Generation: gen,
		StartedAt: s.o.Now().UTC(), Version: s.o.Version,
	}
	// One that we made and could not remove, because the daemon died, is still ours.
	s.record.MadeMountpoint = old != nil && old.MadeMountpoint && old.Mountpoint == s.o.Mountpoint
	return nil
}

// start mounts, and listens on the control socket.
func (s *Session) start() error {
	made, err := s.o.readyMountpoint()
	if err != nil {
		return err
	}
	s.record.MadeMountpoint = s.record.MadeMountpoint || made
	if s.socket, err = control.Listen(filepath.Join(s.o.Store, control.SocketName)); err != nil {
		return err
	}
	s.server = control.NewServer(control.Identity{Session: s.o.Name, Generation: s.record.Generation}, s.log)
	s.routes()
	if s.mount, err = s.o.Mount(s); err != nil {
		return mountError(err)
	}
	if err := s.record.write(s.o.Store); err != nil {
		return err
	}
	if err := NewRegistry(s.o.StateRoot).Add(s.o.Store); err != nil {
		// It can still be named by its store; that is no reason not to work.
		s.log.Warn("the session will not be listed", "error", err)
	}
	s.welcome()
	s.log.Info("mounted", "base", s.o.Base, "mountpoint", s.o.Mountpoint, "generation", s.record.Generation, "cache", s.o.CacheMode, "version", s.o.Version)
	return nil
}

// Record describes the session.
func (s *Session) Record() Record { return s.record }

// line tells whether a layer lies under the present head.
func (s *Session) line(l uint64) bool { return s.branch.Ancestor(layers.Layer(l)) }

// Serve answers the control API until the session is stopped, then takes the
// mount down and puts everything on disk. It returns nil after an orderly end.
func (s *Session) Serve(ctx context.Context, force <-chan struct{}) error {
	defer close(s.done)
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(s.socket) }()
	go func() {
		s.mount.Wait()
		close(s.ended)
	}()
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	keeper := &memoryKeeper{}
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
			done = true
		case err := <-served:
			s.log.Error("the control API ended; work goes on without it", "error", err)
			served = nil
		case <-idle.C:
			keeper.tick(s.mount.Counters())
		}
	}
	return s.release()
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
	s.record.State = StateStopping
	if err := s.record.write(s.o.Store); err != nil {
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
	if s.mount != nil && !s.gone() {
		try("unmount", s.cutOff)
	}
	if s.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		if err := s.server.Shutdown(ctx); err != nil {
			try("close the control API", s.server.Close)
		}
		cancel()
	}
	if s.socket != nil {
		if err := s.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
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
		s.record.MadeMountpoint = false
	}
	if s.mount != nil {
		s.record.State, s.record.PID = StateUnmounted, 0
		if err := s.record.write(s.o.Store); err != nil {
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

// removeMountpoint removes a mount point that was made by us, if it is empty.
func (s *Session) removeMountpoint(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Info("the mount point stays", "path", path, "why", err)
	}
}
