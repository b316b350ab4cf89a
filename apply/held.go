package apply

import (
	"errors"

	"golang.org/x/sys/unix"
)

// heldOpen reports whether somebody has name in d, if that is a regular file, open or mapped for writing: he goes on writing to it when it has lost its name, and
// no stat(2) tells before he does. The kernel gives a read lease (fcntl(2), F_SETLEASE) only on a file that nobody can write to. It gives none
// on a file of another user to who lacks CAP_LEASE, or where the file system has no leases (FUSE, NFS): then it is not known, and the answer is no.
// Whoever opens the file for writing in that moment waits until it is over, so this is for files that have no name but in a stage.
func (d *dir) heldOpen(name string) (bool, error) {
	if st, err := d.stat(name); err != nil || st == nil || typeOf(&st.Attr) != unix.S_IFREG {
		return false, err
	}
	fd, err := d.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	switch _, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); {
	case err == nil: // closing fd gives it back
		return false, nil
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	}
	return false, nil
}
