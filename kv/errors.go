package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"
)

// Sentinels; test with errors.Is.
var (
	// ErrNoSpace says that the disk of the store is full, or nearly: what is
	// left is kept for batches with UseReserve. It also is unix.ENOSPC.
	ErrNoSpace = fmt.Errorf("the disk of the store is full: free some space on it: %w", unix.ENOSPC)
	// ErrCorrupt says that bytes of the store are not those that were written.
	ErrCorrupt = errors.New("store is damaged")
	// ErrClosed is returned by a DB after Close.
	ErrClosed = errors.New("store is closed")
	// ErrNewerFormat is returned by Open for a store of a later rewindfs.
	ErrNewerFormat = errors.New("store was written by a newer rewindfs: update rewindfs")
	// ErrInUse is returned by Open while another process has the store open.
	ErrInUse = errors.New("store is in use")
	// ErrTooBig is returned for a key or a value beyond MaxKey or MaxValue.
	ErrTooBig = errors.New("too big for the store")

	errBadBatch = fmt.Errorf("log record does not decode: %w", ErrCorrupt)
)

// InUseError names the holder of a store; it is an ErrInUse.
type InUseError struct {
	Dir string
	PID int // 0: unknown
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("store %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("store %s is in use by process %d", e.Dir, e.PID)
}

// Is makes errors.Is(err, ErrInUse) hold.
func (e *InUseError) Is(target error) bool { return target == ErrInUse }

// spaceErr turns ENOSPC and EDQUOT of a system call into ErrNoSpace.
func spaceErr(err error) error {
	if errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w (%v)", ErrNoSpace, err)
}

// badgerErr gives an error that comes out of Badger an identity again. Badger's
// own wrapper formats the cause into the text (y/error.go), so errors.Is finds
// only what Badger returns bare; of the rest, those that callers must tell apart
// are known by the text of the errno, which the kernel interface fixes.
func badgerErr(err error) error {
	if err == nil || errors.Is(err, ErrNoSpace) || errors.Is(err, ErrCorrupt) {
		return err
	}
	text := err.Error()
	switch {
	case errors.Is(err, badger.ErrDBClosed), errors.Is(err, badger.ErrBlockedWrites):
		return fmt.Errorf("%w (badger: %w)", ErrClosed, err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT),
		strings.Contains(text, unix.ENOSPC.Error()), strings.Contains(text, unix.EDQUOT.Error()):
		return fmt.Errorf("%w (badger: %w)", ErrNoSpace, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE),
		errors.Is(err, unix.EIO), errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("badger: %w", err)
	case strings.Contains(text, "checksum"), strings.Contains(text, "manifest has"),
		strings.Contains(text, "orrupt"):
		return fmt.Errorf("%w (badger: %w)", ErrCorrupt, err)
	}
	return fmt.Errorf("badger: %w", err)
}
