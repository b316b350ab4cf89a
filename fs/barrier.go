package fs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Barrier returns when all that programs wrote before the call has reached the tree:
// pages dirtied through shared mappings and, with the writeback cache, what
// the kernel has gathered. It holds no lock and stops nobody, so what is
// written meanwhile may or may not be in.
//
// Mappings are found in /proc. Those of processes that this one may not look at are
// flushed if the kernel wrote back some of their pages since the last barrier.
func (m *Mount) Barrier(ctx context.Context) error {
	inos := map[layers.Ino]struct{}{}
	for _, ino := range m.fs.mapped.take() {
		inos[ino] = struct{}{}
	}
	found := func(ino uint64) {
		if ino&viewBit == 0 {
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
