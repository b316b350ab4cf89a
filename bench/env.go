package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Env is what the rows of one run share: the working directory, the trees made
// so far, and the list of what has to be undone.
type Env struct {
	Work     string // all that the run writes lies below, on the disk that is measured
	Opts     Options
	Report   *Report
	Progress Progress
	Root     bool
	binary   string
	systems  []System
	drops    func() uint64 // cacheDrops, but for tests

	mu       sync.Mutex // guards undo and serial
	undo     []undo     // in the order of set-up
	serial   int
	fixtures map[string]*fixture // used by the one goroutine that runs the rows
}

type undo struct {
	id int
	fn func() error
}

// newEnv makes the working directory below parent.
func newEnv(parent string, o Options) (*Env, error) {
	work, err := os.MkdirTemp(parent, "rewindfs-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a working directory: %w", err)
	}
	e := &Env{
		Work: work, Opts: o, Progress: o.Progress, Root: os.Geteuid() == 0,
		binary: o.Binary, systems: systems(o), drops: cacheDrops, fixtures: map[string]*fixture{},
		Report: &Report{Date: time.Now(), Quick: o.Quick, Runs: o.runs()},
	}
	if e.Progress == nil {
		e.Progress = silent{}
	}
	e.Defer(func() error { return errors.Join(unmountBelow(work), removeAll(work)) })
	return e, nil
}

// Defer has fn called by Close, after all that is deferred later. The function it
// returns calls fn at once instead; it may be called any number of times.
func (e *Env) Defer(fn func() error) (now func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.serial++
	id := e.serial
	e.undo = append(e.undo, undo{id, fn})
	return func() error {
		e.mu.Lock()
		for i, u := range e.undo {
			if u.id == id {
				e.undo = append(e.undo[:i:i], e.undo[i+1:]...)
				e.mu.Unlock()
				return fn()
			}
		}
		e.mu.Unlock()
		return nil
	}
}

// Close undoes what is left, newest first, and goes on after an error.
func (e *Env) Close() error {
	var errs []error
	for {
		e.mu.Lock()
		if len(e.undo) == 0 {
			e.mu.Unlock()
			return errors.Join(errs...)
		}
		last := e.undo[len(e.undo)-1]
		e.undo = e.undo[:len(e.undo)-1]
		e.mu.Unlock()
		errs = append(errs, last.fn())
	}
}

// Dir makes a new, empty directory in the working directory.
func (e *Env) Dir(name string) (string, error) {
	e.mu.Lock()
	e.serial++
	dir := filepath.Join(e.Work, fmt.Sprintf("%s-%d", name, e.serial))
	e.mu.Unlock()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("make %s: %w", dir, err)
	}
	return dir, nil
}

// skipped says that something is not measured here; the run goes on without it.
type skipped struct{ why string }

func (s skipped) Error() string { return s.why }

func skipf(format string, args ...any) error { return skipped{fmt.Sprintf(format, args...)} }

// isSkip reports whether err only says that something cannot be measured here.
func isSkip(err error) bool {
	var s skipped
	return errors.As(err, &s)
}

// Skip notes, once, that what cannot be measured and why.
func (e *Env) Skip(what string, err error) {
	line := what + ": " + err.Error()
	for _, s := range e.Report.Skipped {
		if s == line {
			return
		}
	}
	e.Report.Skipped = append(e.Report.Skipped, line)
}

// Room says with a skip error when the disk has fewer than need bytes free. A
// fiftieth of the disk stays free in any case.
func (e *Env) Room(need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(e.Work, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", e.Work, err)
	}
	free := int64(st.Bavail)*st.Bsize - int64(st.Blocks)*st.Bsize/50
	if free < need {
		return skipf("needs %s of free space in %s, there are %s", formatBytes(float64(need)), e.Work, formatBytes(float64(max(free, 0))))
	}
	return nil
}

// RoomForFiles is Room for n inodes; file systems without a limit always have it.
func (e *Env) RoomForFiles(n int) error {
	var st unix.Statfs_t
	if err := unix.Statfs(e.Work, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", e.Work, err)
	}
	if st.Files > 0 && st.Ffree < uint64(n)+uint64(n)/4 {
		return skipf("needs %d free inodes in %s, there are %d", n, e.Work, st.Ffree)
	}
	return nil
}

// discard gives back the space that dir takes, if that is much; the rest is removed
// at the end of the run. Removing many files at once would slow whoever makes files
// next: ext4 does not use an inode again for a minute or more, and searches past all
// of them.
func (e *Env) discard(dir string) error {
	n, err := diskUsage(dir)
	if err != nil || n < 256<<20 {
		return err
	}
	return removeAll(dir)
}

// removeAll is os.RemoveAll for trees with directories that their owner cannot write.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	walk := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(p, 0o700)
		}
		return err
	})
	return errors.Join(walk, os.RemoveAll(dir))
}

// diskUsage is what the files below dir take on the disk, hard links counted once.
func diskUsage(dir string) (int64, error) {
	type id struct{ dev, ino uint64 }
	seen := map[id]bool{}
	var sum int64
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a file of a living store may go while we look
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return fmt.Errorf("stat %s: %w", p, err)
		}
		if k := (id{st.Dev, st.Ino}); !seen[k] {
			seen[k] = true
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum, err
}

// dropCaches empties the kernel's caches of pages, names and inodes, those of
// every mounted file system; only root may.
func (e *Env) dropCaches() error {
	if !e.Root {
		return skipf("only root can empty the kernel's caches")
	}
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return skipf("the kernel's caches cannot be emptied here: %v", err)
	}
	return nil
}

// cacheDrops counts how often somebody has emptied the kernel's caches since it started.
func cacheDrops() (n uint64) {
	for line := range procLines("/proc/vmstat") {
		name, value, _ := strings.Cut(line, " ")
		if name == "drop_pagecache" || name == "drop_slab" {
			k, _ := strconv.ParseUint(value, 10, 64) // a kernel that writes anything else has no such counter
			n += k
		}
	}
	return n
}

// guard runs fn, which may be stuck in the kernel on a mount whose daemon does not
// answer: when ctx is done, abort has to break that mount.
func guard(ctx context.Context, abort func(), fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	abort()
	select {
	case <-done:
		return context.Cause(ctx)
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%w; the work is still stuck in the kernel", context.Cause(ctx))
	}
}
