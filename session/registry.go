package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// The states of a listed session, found out by asking.
const (
	StateLive    = "live"     // a daemon answers
	StateDead    = "dead"     // it was mounted, and its daemon is gone
	StateHanging = "hanging"  // the socket or mount is there, and nothing answers
	StateOrphan  = "orphaned" // a mount without a store that anyone knows of
)

// pointerDir, below the state root, names stores that lie elsewhere.
const pointerDir = ".stores"

// pointer is the file that names a store elsewhere.
type pointer struct{ control.PathName }

// Listed is a session as the registry knows it. For an orphan only Mountpoint
// and Base, as far as the kernel tells, are set.
type Listed struct {
	Record
	Store string
	Fork  bool    // it is about another branch than the session's own, see At
	whole *Record // of the session, when it is
}

// Socket is the path of the session's control socket.
func (l *Listed) Socket() string { return filepath.Join(l.Store, control.SocketName) }

// Registry finds the sessions of a user.
type Registry struct{ root string }

// NewRegistry is the registry below the state root.
func NewRegistry(root string) *Registry { return &Registry{root} }

// Add remembers store, unless it lies where it is found anyway.
func (r *Registry) Add(store string) error {
	if filepath.Dir(store) == r.root {
		return nil
	}
	b, err := json.Marshal(pointer{control.NameOf(store)})
	if err != nil {
		return fmt.Errorf("remember the store %s: %w", store, err)
	}
	dir := filepath.Join(r.root, pointerDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("remember the store %s: %w", store, err)
	}
	return writeFile(filepath.Join(dir, shortHash(store)+".json"), b)
}

// Remove forgets store.
func (r *Registry) Remove(store string) error {
	err := os.Remove(filepath.Join(r.root, pointerDir, shortHash(store)+".json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the store %s: %w", store, err)
	}
	return nil
}

// Sessions reads the records of all stores, by name. It asks no daemon.
func (r *Registry) Sessions() ([]Listed, error) {
	var out []Listed
	add := func(store string) {
		if rec, err := ReadRecord(store); err == nil {
			out = append(out, Listed{Record: *rec, Store: store})
		}
	}
	entries, err := readDir(r.root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != pointerDir {
			add(filepath.Join(r.root, e.Name()))
		}
	}
	pointers, err := readDir(filepath.Join(r.root, pointerDir))
	if err != nil {
		return nil, err
	}
	for _, e := range pointers {
		b, err := os.ReadFile(filepath.Join(r.root, pointerDir, e.Name()))
		var p pointer
		if err != nil || json.Unmarshal(b, &p) != nil {
			continue // not ours, or going away just now
		}
		if store, err := p.Bytes(); err == nil && filepath.IsAbs(store) {
			add(store)
		}
	}
	slices.SortStableFunc(out, func(a, b Listed) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// readDir lists a directory of the registry, which need not be there.
func readDir(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return entries, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, &control.Error{Code: control.CodeNoSession, Message: fmt.Sprintf(
			"no permission to look for sessions in %s (another user's?): set XDG_STATE_HOME, or HOME, to a directory of your own, or call rewindfs as that user", dir)}
	}
	return nil, fmt.Errorf("look for sessions: %w", err)
}

// answerTime is how long a daemon has to answer at all. It needs milliseconds.
const answerTime = 2 * time.Second

// Served reports whether a process has the control socket of l open, which may be one
// that does not run at the moment: the kernel accepts connections for it.
func (l *Listed) Served(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c, err := control.Dial(ctx, l.Socket())
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// State finds out whether l has a daemon, and whether that answers.
func (l *Listed) State(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c := &control.Client{Socket: l.Socket()}
	defer c.Close()
	switch err := c.Ping(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		return StateHanging
	case !errors.Is(err, control.ErrNoDaemon):
		return StateLive // also one that ends just now
	case l.Record.State != StateUnmounted:
		return StateDead
	}
	return StateUnmounted
}

// List returns all sessions with their states, and the mounts that belong to none of them.
func (r *Registry) List(ctx context.Context) ([]Listed, error) {
	all, err := r.Sessions()
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup // all at once: one that hangs takes its time
	for i := range all {
		wg.Go(func() { all[i].Record.State = all[i].State(ctx) })
	}
	wg.Wait()
	known := map[string]bool{}
	for i := range all {
		if all[i].Record.State != StateUnmounted {
			for _, at := range all[i].Mountpoints() {
				known[at] = true
			}
		}
	}
	mounts, err := Mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if known[m.Path] {
			continue
		}
		known[m.Path] = true
		// A live one is somebody's: another user's, or of another state root.
		state := Probe(m.Path)
		if state == StateDead {
			state = StateOrphan
		}
		all = append(all, Listed{Record: Record{Base: m.Source, Mountpoint: m.Path, State: state}})
	}
	return all, nil
}

// Clean clears away what a dead daemon left of l: its mounts, the mount points
// that a daemon made, its containers, and the word "mounted" in the record. The store stays.
func Clean(l *Listed) error {
	errs := []error{RemoveContainers(l.Store)}
	clear := func(at string, made bool) {
		if _, err := ClearDead(at); err != nil {
			errs = append(errs, err)
		} else if made {
			// ENOTEMPTY and the like only mean that it is somebody's by now.
			_ = os.Remove(at)
		}
	}
	clear(l.Mountpoint, l.MadeMountpoint)
	for _, f := range l.Forks {
		if f.Mounted {
			clear(f.Mountpoint, f.MadeMountpoint)
		}
	}
	if err := errors.Join(errs[1:]...); err != nil {
		return err
	}
	rec := l.Record
	rec.unmounted()
	l.MadeMountpoint = false
	return errors.Join(rec.write(l.Store), errs[0])
}

// CutOffAll is CutOff for all mounts of l.
func CutOffAll(l *Listed) error {
	var errs []error
	for _, at := range l.Mountpoints() {
		errs = append(errs, CutOff(at))
	}
	return errors.Join(errs...)
}

// At returns l as the session that shows this branch: the branch and mount point are its own. False when
// the record knows of no such branch.
func (l *Listed) At(branch string) (Listed, bool) {
	out := l.Session()
	if branch == out.Branch {
		return out, true
	}
	whole := out.Record
	out.Branch, out.Fork, out.whole = branch, true, &whole
	f := whole.fork(branch)
	if f != nil {
		out.Mountpoint, out.MadeMountpoint = f.Mountpoint, f.MadeMountpoint
	}
	return out, f != nil
}

// Session is l as the whole session: it undoes At.
func (l *Listed) Session() Listed {
	out := *l
	if l.whole != nil {
		out.Record, out.Fork, out.whole = *l.whole, false, nil
	}
	return out
}
