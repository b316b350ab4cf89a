package transport

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Apart runs f, which calls into the mount that we serve, so that such a call cannot
// outlive the process. A thread that waits for an answer does not even die of SIGKILL
// once a worker has read the request, and it keeps the descriptors that it shares with
// all the others. With /dev/fuse among them the kernel would not notice that there is nobody left
// to answer: the connection and the store's lock would stay for ever. So f runs on
// a thread of its own with a copy of the descriptors, in which /dev/fuse is closed.
//
// f must not use the connection for anything but Drain, and opens and closes
// descriptors for itself only.
func (c *Conn) Apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		done <- c.apart(f)
	}()
	return <-done
}

func (c *Conn) apart(f func() error) error {
	c.fdMu.RLock()
	fd := c.fd
	err := unix.Unshare(unix.CLONE_FILES)
	c.fdMu.RUnlock()
	if err != nil {
		return fmt.Errorf("get a table of descriptors of one's own: %w", err)
	}
	if fd >= 0 {
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("close /dev/fuse for one thread: %w", err)
		}
	}
	return f()
}
