package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rewindfs/rewindfs/control"
)

// Files of a store directory.
const (
	recordName = "session.json"
	kvName     = "kv"
	kvLock     = "kv/lock" // what package kv locks as long as a store is open
	packsName  = "packs"
	targetsDir = "targets" // temporary files: copies of databases on their way
	ledgerName = "ledger"
	logName    = "daemon.log"
)

// ours are the names of all that this program puts into a store directory, in the order of
// removal: as long as the record is there, the store can be named and destroyed again.
var ours = []string{packsName, targetsDir, ledgerName, kvName, logName, logName + oldLogSuffix, holdName, holdDefaultsName, holdTempName, control.SocketName, agentDir, containersName, containersName + ".tmp", recordName + ".tmp", recordName}

// recordFormat is the version of Record that this program writes.
const recordFormat = 1

// The states that a record can say. Whether a daemon really lives is found out
// by calling it.
const (
	StateMounted   = "mounted"
	StateStopping  = "stopping"
	StateUnmounted = "unmounted"
)

// Record is what a store says about its session, for list and for the choice
// of a session. Nothing of it is needed to open the store.
type Record struct {
	Format         int          `json:"format"`
	Name           string       `json:"name"`
	Branch         string       `json:"branch"`
	Base           string       `json:"base"`
	Mountpoint     string       `json:"mountpoint"`
	MadeMountpoint bool         `json:"made_mountpoint"` // by us: remove it after unmounting
	Over           bool         `json:"over"`            // the mount covers the base
	CacheMode      string       `json:"cache_mode"`
	AllowOther     bool         `json:"allow_other"`
	State          string       `json:"state"`
	PID            int          `json:"pid"`
	Generation     uint64       `json:"generation"`
	StartedAt      time.Time    `json:"started_at"`
	Version        string       `json:"version"`
	Forks          []ForkRecord `json:"forks,omitempty"` // by branch
}

// ForkRecord is what a record says about a branch other than the session's own.
type ForkRecord struct {
	Branch         string `json:"branch"`
	Mountpoint     string `json:"mountpoint"`
	MountpointB64  string `json:"mountpoint_b64,omitempty"`
	MadeMountpoint bool   `json:"made_mountpoint"`
	Mounted        bool   `json:"mounted"`           // it is, while the session is: the next mount of the session brings it back
	Problem        string `json:"problem,omitempty"` // why that failed the last time
}

// Mountpoints are the places where the session and its forks are mounted, or were when the record was written.
func (r *Record) Mountpoints() []string {
	out := []string{r.Mountpoint}
	for _, f := range r.Forks {
		if f.Mounted {
			out = append(out, f.Mountpoint)
		}
	}
	return out
}

// unmounted notes that nothing of the session is mounted any more. Mounted of a fork stays: it is to come back.
func (r *Record) unmounted() {
	r.State, r.PID, r.MadeMountpoint = StateUnmounted, 0, false
	r.Forks = slices.Clone(r.Forks)
	for i := range r.Forks {
		r.Forks[i].MadeMountpoint = false
	}
}

// fork returns the record of a branch, nil when there is none.
func (r *Record) fork(branch string) *ForkRecord {
	for i := range r.Forks {
		if r.Forks[i].Branch == branch {
			return &r.Forks[i]
		}
	}
	return nil
}

// setFork replaces or adds the record of a branch.
func (r *Record) setFork(f ForkRecord) {
	forks := slices.DeleteFunc(slices.Clone(r.Forks), func(x ForkRecord) bool { return x.Branch == f.Branch })
	r.Forks = append(forks, f)
	slices.SortFunc(r.Forks, func(a, b ForkRecord) int { return strings.Compare(a.Branch, b.Branch) })
}

// dropFork forgets a branch.
func (r *Record) dropFork(branch string) {
	r.Forks = slices.DeleteFunc(slices.Clone(r.Forks), func(x ForkRecord) bool { return x.Branch == branch })
}

// recordFile is a Record in JSON. Paths that are not UTF-8 come as base64, too.
type recordFile struct {
	Record
	BaseB64       string `json:"base_b64,omitempty"`
	MountpointB64 string `json:"mountpoint_b64,omitempty"`
}

// ReadRecord reads the record of the store; fs.ErrNotExist when there is none.
func ReadRecord(store string) (*Record, error) {
	b, err := os.ReadFile(filepath.Join(store, recordName))
	if err != nil {
		return nil, fmt.Errorf("read the session record: %w", err)
	}
	var r recordFile
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("read the session record of %s: %w", store, err)
	}
	if r.Format > recordFormat {
		return nil, fmt.Errorf("the session record of %s is of format %d, this program knows %d: update rewindfs", store, r.Format, recordFormat)
	}
	var errs [2]error
	r.Base, errs[0] = control.PathName{Path: r.Base, PathB64: r.BaseB64}.Bytes()
	r.Mountpoint, errs[1] = control.PathName{Path: r.Mountpoint, PathB64: r.MountpointB64}.Bytes()
	for i := range r.Forks {
		f := &r.Forks[i]
		var err error
		f.Mountpoint, err = control.PathName{Path: f.Mountpoint, PathB64: f.MountpointB64}.Bytes()
		errs[1] = errors.Join(errs[1], err)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("read the session record of %s: %w", store, err)
	}
	return &r.Record, nil
}

// write puts r into the store, whole or not at all.
func (r *Record) write(store string) error {
	r.Format = recordFormat
	r.Forks = slices.Clone(r.Forks) // copies of the record are read without the lock
	for i := range r.Forks {
		r.Forks[i].MountpointB64 = control.NameOf(r.Forks[i].Mountpoint).PathB64
	}
	b, err := json.MarshalIndent(recordFile{
		Record: *r, BaseB64: control.NameOf(r.Base).PathB64, MountpointB64: control.NameOf(r.Mountpoint).PathB64,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the session record: %w", err)
	}
	return writeFile(filepath.Join(store, recordName), append(b, '\n'))
}

// writeFile replaces path with data by a rename, mode 0600. On a full disk it
// writes over the old file, whose block is there already.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	err := os.WriteFile(tmp, data, 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		return nil
	}
	rm := os.Remove(tmp)
	if errors.Is(rm, fs.ErrNotExist) {
		rm = nil
	}
	if errors.Is(err, syscall.ENOSPC) && overwrite(path, data) == nil {
		return rm
	}
	return errors.Join(fmt.Errorf("write %s: %w", path, err), rm)
}

// overwrite puts data into the file at path, blanks behind it up to the old length.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil {
		if pad := st.Size() - int64(len(data)); pad > 0 {
			data = append(bytes.Clone(data), bytes.Repeat([]byte(" "), int(pad))...)
		}
		_, err = f.WriteAt(data, 0)
	}
	return errors.Join(err, f.Close())
}

// makeStore makes the store directory, for its owner only, or checks that
// what is there is a store or empty.
func makeStore(store string) error {
	err := os.MkdirAll(filepath.Dir(store), 0o700)
	if err == nil {
		err = os.Mkdir(store, 0o700)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission to make the store %s: give --store DIR, or set XDG_STATE_HOME to a directory of your own", store)
	case !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("make the store: %w", err)
	}
	entries, err := os.ReadDir(store)
	if err != nil {
		return fmt.Errorf("look at the store %s: %w", store, err)
	}
	// Another mount, or one that was killed, may have come no further than its log.
	foreign := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !slices.Contains(ours, e.Name()) })
	if foreign && !isStore(store) {
		return fmt.Errorf("%s is neither empty nor a rewindfs store: give another --store", store)
	}
	// Whatever the umask or an earlier chmod: what is in it is the owner's business.
	if err := os.Chmod(store, 0o700); err != nil {
		return fmt.Errorf("protect the store: %w", err)
	}
	return nil
}

// isStore reports whether dir has been used as a store.
func isStore(dir string) bool {
	for _, name := range []string{kvName, recordName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// RemoveStore deletes a store that no daemon holds: what this program puts into a
// store directory and then the directory, unless something else is in it.
func RemoveStore(store string) error {
	if !isStore(store) {
		return fmt.Errorf("%s is not a rewindfs store", store)
	}
	release, err := holdStore(store)
	if err != nil {
		return err
	}
	defer release()
	// What becomes of them is no reason to keep a store that nobody wants.
	containersErr := RemoveContainers(store)
	for _, name := range ours {
		if err := os.RemoveAll(filepath.Join(store, name)); err != nil {
			return fmt.Errorf("delete the store: %w", err)
		}
	}
	if err := os.Remove(store); err != nil {
		return fmt.Errorf("delete the store (its data is gone): %w", err)
	}
	if containersErr != nil {
		return fmt.Errorf("the store is deleted, but a container is left: %w", containersErr)
	}
	return nil
}
