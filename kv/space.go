package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sizes scales what a store allocates ahead to the disk it lives on, in bytes.
type sizes struct {
	reserve int64 // free space that growing batches leave alone
	step    int64 // log blocks are allocated in steps of this, see DB.step
	segment int64 // a log segment of this size is rotated
}

const (
	mib = 1 << 20

	defaultReserve = 64 * mib
	defaultStep    = 4 * mib
	defaultSegment = 32 * mib

	// trimmedPart is which part of a step is ahead after TrimLog.
	trimmedPart = 16
)

// step is what the log has allocated ahead, and the length of its spare segment, in bytes.
func (db *DB) step() int64 {
	if db.trimmed.Load() {
		return db.sizes.step / trimmedPart
	}
	return db.sizes.step
}

func sizesFor(total, reserve int64) sizes {
	z := sizes{defaultReserve, defaultStep, defaultSegment}
	if total > 0 {
		z.reserve = min(z.reserve, total/8)
		z.step = max(256<<10, min(z.step, total/32))
		z.segment = max(mib, min(z.segment, total/16))
	}
	if reserve > 0 {
		z.reserve = reserve
	}
	return z
}

// statfs tells the free and the total bytes of the disk that holds dir. A file
// system without a size of its own reports 0 in total.
func statfs(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := retryIntr(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return 0, 0, fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// How long, and for how many bytes written by us, a reading of the free space holds.
const (
	spaceAge   = 100 * time.Millisecond
	spaceBytes = 4 * mib
)

// space watches the free bytes of the store's disk.
type space struct {
	dir     string
	reserve int64
	statfs  func(dir string) (free, total int64, err error)

	mu   sync.Mutex
	owed int64     // mu: bytes in the log only, which a flush will need once more
	free int64     // mu: at the last reading, less what was promised since
	used int64     // mu: bytes promised since the last reading
	read time.Time // mu: when that was
}

// claim counts n bytes that are about to be written. It returns ErrNoSpace if
// they would eat into the reserve, or into what is owed.
func (s *space) claim(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := s.reserve + s.owed
	if s.used+n > spaceBytes || s.free-n < keep || time.Since(s.read) > spaceAge {
		if err := s.refresh(); err != nil {
			return err
		}
	}
	if s.free-n < keep {
		return fmt.Errorf("%d KiB free on the disk of %s, %d KiB are kept in reserve: %w",
			s.free>>10, s.dir, keep>>10, ErrNoSpace)
	}
	s.free -= n
	s.used += n
	return nil
}

// low tells whether growing batches get ErrNoSpace soon, or do.
func (s *space) low() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return false, err
	}
	return s.free < 2*s.reserve+s.owed, nil
}

// room returns ErrNoSpace unless n bytes are free right now.
func (s *space) room(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return err
	}
	if s.free < n {
		return fmt.Errorf("%d KiB free on the disk of %s, %d KiB needed: %w", s.free>>10, s.dir, n>>10, ErrNoSpace)
	}
	return nil
}

// owe adds n bytes, maybe fewer than 0, to what the flushes to come will write.
func (s *space) owe(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed += n
}

// roomForLog returns ErrNoSpace unless n bytes are free besides what is owed: if
// the log took that, nothing could be flushed, and so nothing of the log be freed.
func (s *space) roomForLog(n int64) error {
	s.mu.Lock()
	owed := s.owed
	s.mu.Unlock()
	return s.room(n + owed)
}

// refresh reads the free space. The caller holds mu.
func (s *space) refresh() error {
	free, total, err := s.statfs(s.dir)
	if err != nil {
		return err
	}
	if total == 0 {
		free = 1 << 62
	}
	s.free, s.used, s.read = free, 0, time.Now()
	return nil
}

// stock allocates a file of size bytes at path, unless it is there, if there is
// more than room enough.
func (s *space) stock(path string, size int64) error {
	if st, err := os.Stat(path); err == nil && st.Size() >= size {
		return nil
	}
	if s.room(s.reserve+2*size) != nil {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	defer f.Close()
	if err := fallocate(f, 0, size); err != nil {
		os.Remove(path)
		return fmt.Errorf("allocating %s: %w", path, spaceErr(err))
	}
	return nil
}

// diskBytes sums the allocated bytes of the files below dir. Files that go away
// meanwhile count as gone.
func diskBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var st unix.Stat_t
			if err = unix.Lstat(path, &st); err == nil {
				sum += st.Blocks * 512
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measuring %s: %w", dir, err)
	}
	return sum, nil
}
