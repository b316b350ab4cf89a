// Package beneath opens what lies below a directory, which is given by a descriptor: through no symbolic link, by no way that leads
// out of it, and whatever the length of the path. What to make of an error is for the caller to say.
package beneath

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Open opens p ("" is the directory itself) below fd with these flags, O_CLOEXEC and these RESOLVE_ flags besides its own. A path
// that is longer than PATH_MAX is walked in pieces. ELOOP: there is a symbolic link on the way, or at p; EXDEV: p leads out, or,
// with RESOLVE_NO_XDEV, into another mount.
func Open(fd int, p string, flags int, resolve uint64) (int, error) {
	at := fd
	for len(p) >= unix.PathMax {
		i := strings.LastIndexByte(p[:unix.PathMax-1], '/')
		if i <= 0 {
			break
		}
		next, err := open(at, p[:i], unix.O_PATH|unix.O_DIRECTORY, resolve)
		if at != fd {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at, p = next, p[i+1:]
	}
	n, err := open(at, p, flags, resolve)
	if at != fd {
		unix.Close(at)
	}
	return n, err
}

func open(fd int, p string, flags int, resolve uint64) (n int, err error) {
	if p == "" {
		p = "."
	}
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolve,
	}
	n = -1
	err = Retry(func() (err error) { n, err = unix.Openat2(fd, p, &how); return err })
	return n, err
}

// patience is how often Retry tries again when others rename.
const patience = 100

// Retry repeats f while it is interrupted; RESOLVE_BENEATH also answers EAGAIN when a rename races with it.
func Retry(f func() error) error {
	for i := 0; ; i++ {
		if err := f(); err != unix.EINTR && (err != unix.EAGAIN || i >= patience) {
			return err
		}
	}
}
