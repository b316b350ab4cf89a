package fstree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Replace makes p ("." for everything) in the tree dst what it is in src, as rm -rf and cp -a do:
// gone, when src has nothing there. Directories above it that dst lacks are made as in src. links
// are names below p that become further names of other objects of dst instead. The directory
// above p gets the times of above, if that is not nil.
func Replace(dst, src, p string, links map[string]string, above *Entry) error {
	s, err := os.Open(src)
	if err != nil {
		return err
	}
	defer s.Close()
	d, err := os.Open(dst)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := remove(d, p); err != nil {
		return fmt.Errorf("remove %q: %w", p, err)
	}
	made, err := copyTo(d, s, p)
	if err != nil {
		return fmt.Errorf("copy %q: %w", p, err)
	}
	for name, other := range links {
		if err := relink(d, name, other); err != nil {
			return fmt.Errorf("link %q to %q: %w", name, other, err)
		}
	}
	if len(links) > 0 {
		err = times(d, s, p)
	}
	for _, m := range made {
		err = errors.Join(err, finishLike(d, s, m))
	}
	if err != nil || above == nil || p == "." {
		return err
	}
	dir, err := walkTo(d, path.Dir(p))
	if err != nil {
		return err
	}
	defer dir.Close()
	ts := []unix.Timespec{{Sec: above.Atime.Sec, Nsec: above.Atime.Nsec}, {Sec: above.Mtime.Sec, Nsec: above.Mtime.Nsec}}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/thread-self/fd/%d", dir.Fd()), ts, 0)
}

// walkTo opens the directory p below root.
func walkTo(root *os.File, p string) (*os.File, error) {
	at, err := openat(root, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for _, name := range strings.Split(p, "/") {
		if err != nil {
			return nil, err
		}
		var next *os.File
		next, err = openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		at.Close()
		at = next
	}
	return at, err
}

func absent(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

func remove(d *os.File, p string) error {
	dir, err := walkTo(d, path.Dir(p))
	if err != nil {
		if absent(err) {
			return nil
		}
		return err
	}
	defer dir.Close()
	at := fmt.Sprintf("/proc/thread-self/fd/%d/", dir.Fd())
	if p != "." {
		return os.RemoveAll(at + path.Base(p))
	}
	names, err := dir.Readdirnames(-1)
	for _, n := range names {
		err = errors.Join(err, os.RemoveAll(at+n))
	}
	return err
}

// copyTo copies p, if there is such a thing, and returns the directories above that it made.
func copyTo(d, s *os.File, p string) (made []string, err error) {
	c := copier{links: map[[2]uint64]int{}}
	defer c.close()
	if p == "." {
		return nil, c.dir(s, d)
	}
	sdir, err := walkTo(s, path.Dir(p))
	if err != nil {
		if absent(err) {
			err = nil
		}
		return nil, err
	}
	defer sdir.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(sdir.Fd()), path.Base(p), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if absent(err) {
			err = nil
		}
		return nil, err
	}
	dir := path.Dir(p)
	at, err := walkTo(d, dir)
	for absent(err) {
		made, dir = append(made, dir), path.Dir(dir)
		at, err = walkTo(d, dir)
	}
	for _, m := range slices.Backward(made) {
		if err == nil {
			err = unix.Mkdirat(int(at.Fd()), path.Base(m), 0o700)
			at.Close()
		}
		if err == nil {
			at, err = walkTo(d, m)
		}
	}
	if err != nil {
		return nil, err
	}
	defer at.Close()
	return made, c.object(sdir, at, path.Base(p))
}

// finishLike gives the directory p of d what that of s has.
func finishLike(d, s *os.File, p string) error {
	from, err := walkTo(s, p)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := walkTo(d, p)
	if err != nil {
		return err
	}
	defer to.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return err
	}
	return finish(to, &st, xattrs(from))
}

func relink(d *os.File, name, other string) error {
	from, err := walkTo(d, path.Dir(other))
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := walkTo(d, path.Dir(name))
	if err != nil {
		return err
	}
	defer to.Close()
	if err := unix.Unlinkat(int(to.Fd()), path.Base(name), 0); err != nil {
		return err
	}
	return unix.Linkat(int(from.Fd()), path.Base(other), int(to.Fd()), path.Base(name), 0)
}

// times gives the directories from p on the times that they have in s.
func times(d, s *os.File, p string) error {
	dir, err := walkTo(s, p)
	if err != nil {
		if absent(err) {
			return nil
		}
		return err
	}
	entries, err := dir.ReadDir(-1)
	dir.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeDir != 0 {
			if err := times(d, s, path.Join(p, e.Name())); err != nil {
				return err
			}
		}
	}
	return finishLike(d, s, p)
}
