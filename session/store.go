package session

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
	"github.com/rewindfs/rewindfs/paths"
	"github.com/rewindfs/rewindfs/targets"
)

// store is what all branches of a store share, and the daemon that serves them.
type store struct {
	log     *slog.Logger
	db      *kv.DB
	chunks  *cas.Store
	base    *layers.Base
	rules   *paths.Rules // as they were when the daemon started
	tree    *layers.Tree
	journal *journal.Journal
	memory  *memory.Store
	ledger  *ledger.Ledger
	targets *targets.Store
	budget  *budgetKeeper // one for all branches
	server  *control.Server
	socket  net.Listener
	agents  net.Listener // for commands in a sandbox
	stats   stats
	intake  *semaphore.Weighted // bytes of conversations that are being taken in

	// forking admits one change of the set of branches at a time, and makes them wait for the
	// end of the daemon. It is taken before the heads of any session.
	forking sync.Mutex
	// served are the sessions of the branches that are mounted, that of Open first, the others by name. The
	// slice is replaced, never changed, by who holds forking.
	served atomic.Pointer[[]*Session]

	// layering is held by whoever seals a layer, moves a head or notes something else in the
	// journal, from before that until the journal's index has it, so that numbers are given
	// once; and by the one who gives layers up, from listing those that are needed on. Taken after heads.
	layering sync.Mutex
	staged   map[*layers.Branch]struct{}   // being built by imports; guarded by layering
	pinned   map[*[]journal.Entry]struct{} // being exported; guarded by layering

	committing sync.Mutex    // held by the one who writes to the host; taken before all others
	committed  atomic.Uint64 // the layer that is being written to the host, 0 for none

	runsMu  sync.Mutex          // innermost
	runs    map[uint64]*openRun // by layer, see openRun; guarded by runsMu, the elements are never changed
	machine caller              // where the daemon is, see here

	containersMu sync.Mutex // guards the file of containers; innermost

	recordMu sync.Mutex
	record   Record // what changes while the daemon runs is guarded by recordMu

	mountOp    uint64        // number of the operation that this mount is
	missed     []journal.Op  // operations that a crash kept from the ledger
	unaudited  atomic.Int64  // events that could not be recorded
	owes       atomic.Uint64 // lines owed to the ledger so far, see owe
	thinning   sync.Mutex    // held by the one who drops checkpoints; taken before heads
	background sync.WaitGroup
	stagings   atomic.Int64 // staged branches made so far

	cut chan struct{} // gets a token when the mount was cut off by force

	mu       sync.Mutex    // innermost
	stopping bool          // guarded by mu: the daemon ends
	loose    reclaimable   // guarded by mu
	done     chan struct{} // closed at the end of Serve
}

func newStore(log *slog.Logger) *store {
	return &store{
		log: log, done: make(chan struct{}), cut: make(chan struct{}, 1),
		intake: semaphore.NewWeighted(control.MaxMessages),
		staged: map[*layers.Branch]struct{}{}, pinned: map[*[]journal.Entry]struct{}{},
		runs: map[uint64]*openRun{},
	}
}

// sessions are the branches that are mounted, that of Open first. Only to be read.
func (st *store) sessions() []*Session { return *st.served.Load() }

// changeRecord changes the record and writes it.
func (s *Session) changeRecord(change func(*Record)) error {
	s.recordMu.Lock()
	defer s.recordMu.Unlock()
	change(&s.record)
	return s.record.write(s.o.Store)
}

// Record describes the session.
func (s *Session) Record() Record {
	s.recordMu.Lock()
	defer s.recordMu.Unlock()
	return s.record
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

// holdStore keeps daemons from opening a store. One that is on its way out is waited for; one that is not is an
// error, also if it has no mount yet. A lock that cannot be taken for other reasons keeps nobody out.
func holdStore(store string) (release func(), err error) {
	for deadline := time.Now().Add(leaving / 3); ; {
		release, err := kv.Hold(filepath.Join(store, kvName))
		var held *kv.InUseError
		switch {
		case err == nil:
			return release, nil
		case !errors.As(err, &held):
			return func() {}, nil
		case time.Now().After(deadline):
			return nil, storeError(store, err)
		}
		if werr := WaitExit(held.PID, leaving/200); werr != nil && !errors.Is(werr, ErrStillRunning) {
			return nil, storeError(store, err)
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
	if old != nil {
		places = append(places, old.Mountpoints()...)
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
	if s.rules, err = paths.Load(s.o.Store, s.o.Base); err != nil {
		return badPath("%v", err)
	}
	if s.base, err = layers.OpenBase(s.o.Base); err != nil {
		return badPath("cannot open the base: %v", err)
	}
	if err := s.claimBase(); err != nil {
		return err
	}
	if s.chunks, err = cas.Open(s.o.Store, s.db, cas.Options{Logger: s.log}); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	if err := os.RemoveAll(filepath.Join(s.o.Store, targetsDir)); err != nil { // of a daemon that was killed
		return fmt.Errorf("remove temporary files of the store %s: %w", s.o.Store, err)
	}
	s.targets = targets.NewStore(s.db, s.chunks, func(sweep uint64, names []cas.Hash, b *kv.Batch) (bool, error) {
		return s.tree.NameChunks(sweep, names, b)
	})
	// Chunks are on disk before records that name them.
	s.db.SetBeforeFlush(s.chunks.Sync)
	if s.tree, err = layers.Open(s.db, s.chunks, s.base, layers.Options{Logger: s.log, Now: s.o.Now, Drifted: s.noteDrift, Spare: s.keepRule(), Named: s.targets.Named}); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	if s.branch, err = s.tree.Branch(s.o.Branch); err != nil {
		return fmt.Errorf("open branch %s: %w", s.o.Branch, err)
	}
	if s.journal, err = journal.Open(s.db, s.o.Now); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	if err := s.loadRuns(); err != nil {
		return fmt.Errorf("open the store %s: %w", s.o.Store, err)
	}
	return s.openAgentSide()
}

// noteDrift tells every mount. Called with the tree locked.
func (s *Session) noteDrift(ino layers.Ino, name *layers.NameKey) {
	for _, b := range s.sessions() {
		if tell := b.drifted.Load(); tell != nil {
			(*tell)(ino, name)
		}
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
	if old != nil {
		s.record.Forks = old.Forks
	}
	return nil
}

// removeMountpoint removes a mount point that was made by us, if it is empty.
func (s *Session) removeMountpoint(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Info("the mount point stays", "path", path, "why", err)
	}
}
