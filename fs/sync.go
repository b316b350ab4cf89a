package fs

import (
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Fsync of any object makes all that came before it last: the log is one.
func (f *FS) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if in.NodeId&viewBit != 0 {
		return fuse.OK
	}
	return f.status("fsync", in.NodeId, f.syncer.do(f.tree.Sync))
}

func (f *FS) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return f.Fsync(cancel, in)
}

func (f *FS) Release(<-chan struct{}, *fuse.ReleaseIn) {}

func (f *FS) ReleaseDir(*fuse.ReleaseIn) {}

// syncGroup lets callers that come while a sync runs share the next one.
type syncGroup struct {
	mu      sync.Mutex
	running *syncRun // guarded by mu
	next    *syncRun // guarded by mu: whoever comes now waits for this
}

type syncRun struct {
	done chan struct{}
	err  error // set before done is closed
}

// do returns the result of a run of f that began after the call did.
func (g *syncGroup) do(f func() error) error {
	g.mu.Lock()
	if r := g.next; r != nil {
		g.mu.Unlock()
		<-r.done
		return r.err
	}
	r := &syncRun{done: make(chan struct{})}
	if before := g.running; before != nil {
		g.next = r
		g.mu.Unlock()
		<-before.done
		g.mu.Lock()
		g.next = nil
	}
	g.running = r
	g.mu.Unlock()
	r.err = f()
	g.mu.Lock()
	if g.running == r {
		g.running = nil
	}
	g.mu.Unlock()
	close(r.done)
	return r.err
}
