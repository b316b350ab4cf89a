package session

import (
	"context"

	"github.com/rewindfs/rewindfs/layers"
)

// HeadKeeper keeps the kernel in step with the head.
type HeadKeeper interface {
	// Barrier returns when all data that programs have written is in the open layer.
	Barrier(ctx context.Context) error
	// Freeze keeps changes out until thaw is called, so that none that was sent for
	// the old head is applied to the new one. Nothing slow may happen in between.
	Freeze() (thaw func())
	// Swapped is called, with the tree locked, the moment the head has moved.
	Swapped(m layers.Moved)
	// Notify returns when the kernel has forgotten what m made void.
	Notify(m layers.Moved) error
	// Changing is called in front of a change to the content of a file that Changed will tell of: from then on, what programs
	// append goes to the file's end, wherever the kernel believes that to be.
	Changing(ino layers.Ino)
	// Changed tells the kernel about a change that did not come through it: the
	// content of a file, and names.
	Changed(ino layers.Ino, names []layers.NameKey) error
}

// Lifetime ends a mount.
type Lifetime interface {
	// Unmount takes the mount out of the tree; EBUSY while it is used, unless lazy.
	Unmount(lazy bool) error
	// Abort ends the connection: whoever uses the mount gets errors.
	Abort() error
	// Wait returns when the mount is gone and its last request answered.
	Wait()
}

// Observer tells what goes on in a mount.
type Observer interface {
	// Counters counts requests by opcode.
	Counters() map[string]uint64
	// Busy lists the processes that use the mount.
	Busy() []Process
}

// Mount is what a session needs of a mounted file system.
type Mount interface {
	HeadKeeper
	Lifetime
	Observer
}

// Process is a program that uses a mount, with what it uses it for.
type Process struct {
	PID     int
	Command string
	Uses    []string
}

// Checkpoints is the list behind .rewind/checkpoints. Names may hold slashes.
type Checkpoints interface {
	Names() []string
	Lookup(name string) (layers.Layer, bool)
}

// MountFunc mounts the branch of s. The real one is mountFS; tests have their own.
type MountFunc func(s *Session) (Mount, error)
