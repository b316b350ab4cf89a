package transport

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Codes of enum fuse_notify_code.
const (
	notifyInvalInode = 2
	notifyInvalEntry = 3
	notifyDelete     = 6
	notifyIncEpoch   = 8
)

// HasEpoch reports whether the kernel knows IncEpoch (Linux 6.16, protocol 7.44).
func (c *Conn) HasEpoch() bool { return c.minor >= 44 }

// InvalInode has the kernel forget the attributes of node and, when off >= 0, the
// data from off on, n bytes of it or, with n <= 0, all; dirty pages are written back
// before it returns. ENOENT means that the kernel does not know the node.
func (c *Conn) InvalInode(node uint64, off, n int64) error {
	var b [24]byte
	binary.NativeEndian.PutUint64(b[0:], node)
	binary.NativeEndian.PutUint64(b[8:], uint64(off))
	binary.NativeEndian.PutUint64(b[16:], uint64(n))
	return c.notify(notifyInvalInode, b[:], "")
}

// InvalEntry has the kernel forget what name in the directory parent is. ENOENT
// means that it did not know.
func (c *Conn) InvalEntry(parent uint64, name string) error {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[0:], parent)
	binary.NativeEndian.PutUint32(b[8:], uint32(len(name)))
	return c.notify(notifyInvalEntry, b[:], name)
}

// Delete tells the kernel that name in parent, which was child, was removed. It is
// InvalEntry that inotify watchers hear of. A directory that is in use is ENOTEMPTY or EBUSY.
func (c *Conn) Delete(parent, child uint64, name string) error {
	var b [24]byte
	binary.NativeEndian.PutUint64(b[0:], parent)
	binary.NativeEndian.PutUint64(b[8:], child)
	binary.NativeEndian.PutUint32(b[16:], uint32(len(name)))
	return c.notify(notifyDelete, b[:], name)
}

// IncEpoch has the kernel look every name up again. It takes microseconds, but
// costs the cached data of every file that is not open.
func (c *Conn) IncEpoch() error { return c.notify(notifyIncEpoch, nil, "") }

// notify writes an unasked-for message. It must not be called from a
// handler for the same object, nor with a lock held that a handler may want.
func (c *Conn) notify(code int32, arg []byte, name string) error {
	msg := make([]byte, 16, 16+len(arg)+len(name)+1)
	msg = append(msg, arg...)
	if name != "" {
		msg = append(append(msg, name...), 0)
	}
	binary.NativeEndian.PutUint32(msg[0:], uint32(len(msg)))
	binary.NativeEndian.PutUint32(msg[4:], uint32(code)) // with unique 0, the error field is the code
	c.fdMu.RLock()
	defer c.fdMu.RUnlock()
	if c.fd < 0 {
		return unix.ENODEV
	}
	for {
		_, err := unix.Write(c.fd, msg)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
