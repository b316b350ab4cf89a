package fs

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Barrier returns when all that programs wrote before the call has reached the tree:
// pages dirtied through shared mappings and, with the writeback cache, what
// the kernel has gathered. It holds no lock and stops nobody, so what is
// written meanwhile may or may not be in.
//
// syncfs(2) has the kernel send every dirty page of the mount, but does not wait for the
// answers. So requests are drained until none of them brings such a page any more.
func (m *Mount) Barrier(ctx context.Context) error {
	if err := m.collect(ctx); err != nil {
		return err
	}
	if e := unix.Errno(m.fs.lost.Swap(0)); e != 0 {
		return fmt.Errorf("store what programs changed through shared mappings: %w", e)
	}
	return nil
}

func (m *Mount) collect(ctx context.Context) error {
	err := m.conn.Apart(func() error { return m.collectAll(ctx) })
	var gone *outOfReach
	if errors.As(err, &gone) {
		m.log.Debug("the mount cannot be opened; looking for mapped files instead", "error", gone.err)
		return m.flushMapped(ctx)
	}
	return err
}

// outOfReach says why the mount cannot be opened.
type outOfReach struct{ err error }

func (e *outOfReach) Error() string { return e.err.Error() }

func (m *Mount) collectAll(ctx context.Context) error {
	root, err := m.openRoot()
	if err != nil {
		return &outOfReach{err}
	}
	defer unix.Close(root)
	seen := m.fs.cachedWrites.Load()
	if err := unix.Syncfs(root); err != nil && !answered(err) {
		return fmt.Errorf("flush the kernel's cache: %w", err)
	}
	kick := func() error {
		var s unix.Statfs_t
		return unix.Fstatfs(root, &s) // always asks us
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.conn.Drain(kick); err != nil {
			return fmt.Errorf("wait for the kernel's cache: %w", err)
		}
		now := m.fs.cachedWrites.Load()
		if now == seen {
			return nil
		}
		seen = now
	}
}

// answered reports whether err may be what we answered to some cached write, now or
// before: syncfs(2) does not tell which. Barrier knows better what was lost.
func answered(err error) bool {
	return errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOSPC)
}

// openRoot opens the root directory of the mount. That is safe as long as no lock is
// held that a handler wants: other threads answer.
func (m *Mount) openRoot() (int, error) {
	fd, err := unix.Open(m.Mountpoint(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if dev, _, ok := cachedStat(fd, ""); !ok || dev != m.Dev() {
		unix.Close(fd)
		return -1, fmt.Errorf("something else is mounted on %s", m.Mountpoint())
	}
	return fd, nil
}

// flushMapped does as Barrier where the mount is out of reach, because it is mounted
// over or its path has changed. It finds mappings in /proc. Those of processes that this
// one may not look at are flushed if the kernel wrote back some of their pages since the last barrier.
func (m *Mount) flushMapped(ctx context.Context) error {
	inos := map[layers.Ino]struct{}{}
	for _, ino := range m.fs.mapped.take() {
		inos[ino] = struct{}{}
	}
	var mu sync.Mutex
	found := func(ino uint64) {
		if ino&viewBit == 0 {
			mu.Lock()
			defer mu.Unlock()
			inos[layers.Ino(ino)] = struct{}{}
		}
	}
	if err := eachProcess(func(p *process) {
		p.sharedMappings(m.Dev(), found)
		if m.fs.writeback {
			p.openForWriting(m.Dev(), found)
		}
	}); err != nil {
		return fmt.Errorf("look for mapped files: %w", err)
	}
	for ino := range inos {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, node := range m.fs.inc.ids(ino) {
			if err := m.conn.InvalInode(node, 0, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("flush inode %d: %w", ino, err)
			}
		}
	}
	return nil
}
