package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// SocketName is the name of the socket in a store directory.
const SocketName = "control.sock"

// maxSocketPath is what fits into sockaddr_un with its closing NUL.
const maxSocketPath = 107

// shortPath gives a path for the socket that fits into a socket address: its own, or
// one through a descriptor of its directory, as the calling thread has it: package fs/transport
// gives one thread descriptors of its own. Call done when the path is no longer needed.
func shortPath(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, fmt.Errorf("open the directory of the control socket: %w", err)
	}
	short = filepath.Join("/proc/thread-self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path))
	return short, func() { dir.Close() }, nil
}

// Listen makes the socket at path with mode 0600. Whoever calls it holds the
// store, so a socket that is there already was left by a dead daemon and is replaced.
// It changes the umask for a moment: call it before anything else makes files.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old control socket: %w", err)
	}
	short, done, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The short path is gone by the time of closing: remove by the real one.
	l.SetUnlinkOnClose(false)
	return &listener{UnixListener: l, path: path}, nil
}

type listener struct {
	*net.UnixListener
	path string
}

func (l *listener) Close() error {
	err := l.UnixListener.Close()
	if rm := os.Remove(l.path); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}

// Dial connects to the socket at path. It returns ErrNoDaemon when there is no
// socket or nobody behind it.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := shortPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w at %s", ErrNoDaemon, path)
	}
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", short)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return nil, fmt.Errorf("%w at %s", ErrNoDaemon, path)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return nil, &Error{Code: CodeForbidden, Message: "the session belongs to another user: " + path}
	case err != nil:
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return c, nil
}

// Peer is who is at the other end of a connection.
type Peer struct {
	PID      int
	UID, GID uint32
}

// peerOf asks the kernel for the peer of a unix connection.
func peerOf(c net.Conn) (Peer, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return Peer{}, fmt.Errorf("connection of type %T has no peer", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	return Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, nil
}

// hungUp reports whether the other end of a unix connection is closed: then nothing,
// not even no bytes, can be sent there. Whoever only has no more to say still listens.
func hungUp(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) {
		_, sendErr = syscall.SendmsgN(int(fd), nil, nil, nil, syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT)
	})
	return err != nil || errors.Is(sendErr, syscall.EPIPE) || errors.Is(sendErr, syscall.ECONNRESET)
}
