package session

import (
	"fmt"
	"os"
	"sync"
)

// maxLog is how large daemon.log may get before it becomes daemon.log.1; so a
// log takes at most twice that.
const (
	maxLog       = 8 << 20
	oldLogSuffix = ".1"
)

// LogFile is a log of bounded size.
type LogFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	f    *os.File // guarded by mu; nil after Close
	size int64    // guarded by mu
}

// OpenLog opens, for appending, the log of the store at dir.
func OpenLog(dir string) (*LogFile, error) { return openLog(dir+"/"+logName, maxLog) }

func openLog(path string, limit int64) (*LogFile, error) {
	l := &LogFile{path: path, limit: limit}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// open. Preconditions: l.mu is held, or nobody else has l yet.
func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	l.f, l.size = f, st.Size()
	return nil
}

// Write appends p, after making the present file the old one when it is full.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return 0, os.ErrClosed
	}
	if l.size+int64(len(p)) > l.limit && l.size > 0 {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// rotate. Preconditions: l.mu is held.
func (l *LogFile) rotate() error {
	if err := os.Rename(l.path, l.path+oldLogSuffix); err != nil {
		return fmt.Errorf("turn the log over: %w", err)
	}
	old := l.f
	if err := l.open(); err != nil {
		return err
	}
	return old.Close()
}

// Close closes the log.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
