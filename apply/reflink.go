package apply

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// cloneMin is from which size on, in bytes, a file is worth an attempt to share blocks.
const cloneMin = 1 << 20

// clone is a file in the stage that began as a clone of the one that it takes the place of: what has not changed is on the disk once. Then
// only what differs is written. If the host's file changes meanwhile, its ctime tells before the swap.
type clone struct {
	fd   int    // in the stage
	from int    // on the host
	size int64  // of from
	at   int64  // up to here fd is what it is to be
	buf  []byte // for what from has
}

// cloneOf makes the empty file fd in the stage a clone of the one on the host, where that is an earlier state of the same file and the file system
// shares blocks (FICLONE); nil if not.
func (w *fileWriter) cloneOf(it *item, fd int) *clone {
	p := w.s.p
	if it.have == nil || it.base == nil || it.want.Ino != it.base.Ino || it.mount || typeOf(it.haveAttr()) != unix.S_IFREG ||
		min(it.want.Size, it.have.Size) < cloneMin || w.s.noClones.Load() {
		return nil
	}
	from, err := p.host.open(it.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		if err = unix.IoctlFileClone(fd, from); err == nil {
			return &clone{fd: fd, from: from, size: st.Size, buf: make([]byte, blockSize)}
		}
		w.s.noClones.Store(true) // the next ones will not be either
	}
	unix.Close(from)
	return nil
}

func (c *clone) close() { unix.Close(c.from) }

// write brings the bytes at off, and what lies between the last ones and these, where there is a hole.
func (c *clone) write(p []byte, off int64) error {
	if err := c.hole(off); err != nil {
		return err
	}
	c.at = off + int64(len(p))
	for len(p) > 0 {
		n := min(int64(len(p)), blockSize-off%blockSize)
		k, err := hostFile(c.from).ReadAt(c.buf[:n], off)
		if err != nil {
			return err
		}
		if !bytes.Equal(p[:n], c.buf[:k]) {
			if err := writeAll(c.fd, p[:n], off); err != nil {
				return err
			}
		}
		p, off = p[n:], off+n
	}
	return nil
}

// hole makes what lies before end, and was not written, a hole.
func (c *clone) hole(end int64) error {
	if end = min(end, c.size); end <= c.at {
		return nil
	}
	return unix.Fallocate(c.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, c.at, end-c.at)
}

// writeAll writes p at off.
func writeAll(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err != nil && err != unix.EINTR {
			return err
		}
		n = max(n, 0)
		p, off = p[n:], off+int64(n)
	}
	return nil
}
