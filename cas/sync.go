package cas

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync makes every chunk whose Put had returned survive a power cut. Callers at
// the same time share one wait for the disk. After an error the next Sync tries
// again, with all that is in doubt.
func (s *Store) Sync() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = map[uint32]*pack{}
	s.mu.Unlock()
	var first error
	fresh := false
	for _, p := range dirty {
		if first == nil {
			first = s.syncPack(p)
		} else {
			s.later(p, nil)
		}
		fresh = fresh || p.fresh
	}
	if first != nil || !fresh {
		return first
	}
	if err := syncDir(s.dir); err != nil {
		for _, p := range dirty {
			s.later(p, nil)
		}
		return fmt.Errorf("syncing the packs: %w", spaceErr(err))
	}
	for _, p := range dirty {
		p.fresh = false
	}
	return nil
}

// syncPack makes p's records durable, and closes p if it is done with. The caller
// holds syncMu.
func (s *Store) syncPack(p *pack) error {
	s.mu.Lock()
	todo := p.unsynced
	p.unsynced = nil
	s.mu.Unlock()
	err := s.fault("pack.sync")
	if err == nil && p.failed {
		err = s.rewrite(p, todo)
	}
	if err == nil {
		err = fdatasync(p.f)
	}
	if err != nil {
		p.failed = true
		s.later(p, todo)
		return fmt.Errorf("syncing pack %s: %w", packName(p.n), spaceErr(err))
	}
	p.failed = false
	s.mu.Lock()
	defer s.mu.Unlock()
	if p == s.cur || s.dirty[p.n] != nil {
		return nil
	}
	if p.writers > 0 || p.fresh {
		s.dirty[p.n] = p
		return nil
	}
	if err := p.f.Close(); err != nil {
		return fmt.Errorf("closing pack %s: %w", packName(p.n), err)
	}
	return nil
}

// later leaves p, with the records of todo, to the next Sync.
func (s *Store) later(p *pack, todo []written) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.unsynced = append(todo, p.unsynced...)
	s.dirty[p.n] = p
}

// rewrite writes the records again whose sync failed: the kernel then marked
// their pages clean, right or not, so that another sync alone would prove
// nothing. What can no longer be read back right is lost, and that is said.
func (s *Store) rewrite(p *pack, todo []written) error {
	buf := s.cache.buf(ChunkSize)
	defer s.cache.free(buf)
	for _, w := range todo {
		data := buf[:w.at.n]
		if _, err := p.f.ReadAt(data, w.at.off); err != nil {
			return err
		}
		if HashOf(data) != w.h {
			return fmt.Errorf("chunk %s was lost on its way to the disk: %w", w.h, ErrCorrupt)
		}
		if err := p.write(w.at.off-recHdrLen, [][]byte{recordHeader(w.h, w.at.n), data}); err != nil {
			return err
		}
	}
	return nil
}

func fdatasync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
