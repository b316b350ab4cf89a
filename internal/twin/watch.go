package twin

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watch follows the names of a directory of the plain twin while the subject
// lists the same directory.
type watch struct {
	fd        int
	must, may map[string]bool // there all the time; there at some time
}

func newWatch(root, path string) (*watch, error) {
	if path != "" {
		root += "/" + path
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return &watch{fd: fd, may: map[string]bool{}}, err
}

func (w *watch) close() { unix.Close(w.fd) }

func (w *watch) sample() error {
	now := map[string]bool{}
	fd, err := unix.Openat(w.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		f := os.NewFile(uintptr(fd), "watched")
		names, err := f.Readdirnames(-1)
		f.Close()
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		for _, n := range names {
			now[n], w.may[n] = true, true
		}
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	if w.must == nil {
		w.must = now
	}
	for n := range w.must {
		if !now[n] {
			delete(w.must, n)
		}
	}
	return nil
}

// problem says what is wrong with a listing, "" if nothing.
func (w *watch) problem(seen []string) string {
	count := map[string]int{}
	for _, n := range seen {
		count[n]++
		if !w.may[n] {
			return fmt.Sprintf("a held directory showed %q, which it never had; it showed %q", n, seen)
		}
	}
	for n := range w.must {
		if count[n] != 1 {
			return fmt.Sprintf("a held directory showed %q %d times, which it had all the time; it showed %q", n, count[n], seen)
		}
	}
	return ""
}
