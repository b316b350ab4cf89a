package fstree

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Copy copies the tree under src into dst, which must be an empty directory, as
// cp -a does: types, modes, owners (where allowed), times to the nanosecond,
// extended attributes, hard links and holes. It works below descriptors, so
// paths may be longer than PATH_MAX.
func Copy(src, dst string) error {
	s, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer s.Close()
	d, err := os.Open(dst)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer d.Close()
	c := copier{links: map[[2]uint64]int{}}
	defer c.close()
	return c.dir(s, d)
}

type copier struct {
	links map[[2]uint64]int // (device, inode) of a source with several names -> O_PATH descriptor of its copy
}

func (c *copier) close() {
	for _, fd := range c.links {
		unix.Close(fd)
	}
}

func (c *copier) dir(s, d *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.Fd()), &st); err != nil {
		return fmt.Errorf("copy %q: %w", s.Name(), err)
	}
	if _, err := s.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("copy %q: %w", s.Name(), err)
	}
	names, err := s.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("copy %q: %w", s.Name(), err)
	}
	for _, n := range names {
		if err := c.object(s, d, n); err != nil {
			return fmt.Errorf("copy %q in %q: %w", n, s.Name(), err)
		}
	}
	return finish(d, &st, xattrs(s))
}

func (c *copier) object(s, d *os.File, name string) error {
	sfd, dfd := int(s.Fd()), int(d.Fd())
	var st unix.Stat_t
	if err := unix.Fstatat(sfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	key := [2]uint64{st.Dev, st.Ino}
	if fd, ok := c.links[key]; ok {
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/thread-self/fd/%d", fd), dfd, name, unix.AT_SYMLINK_FOLLOW)
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = c.subdir(s, d, name)
	case unix.S_IFREG:
		err = c.file(s, d, name, &st)
	case unix.S_IFLNK:
		target, problem := readlinkat(sfd, name)
		if problem != "" {
			return errors.New(problem)
		}
		if err = unix.Symlinkat(target, dfd, name); err == nil {
			err = finishAt(dfd, name, &st)
		}
	default:
		if err = unix.Mknodat(dfd, name, st.Mode, int(st.Rdev)); err == nil {
			err = finishAt(dfd, name, &st)
		}
	}
	if err == nil && st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		c.links[key], err = unix.Openat(dfd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	return err
}

func openat(d *os.File, name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(int(d.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (c *copier) subdir(s, d *os.File, name string) error {
	if err := unix.Mkdirat(int(d.Fd()), name, 0o700); err != nil {
		return err
	}
	sub, err := openat(s, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer sub.Close()
	dub, err := openat(d, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dub.Close()
	return c.dir(sub, dub)
}

func (c *copier) file(s, d *os.File, name string, st *unix.Stat_t) error {
	in, err := openat(s, name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := openat(d, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := copyData(in, out, st.Size); err != nil {
		return err
	}
	return finish(out, st, xattrs(in))
}

// copyData copies what is no hole.
func copyData(in, out *os.File, size int64) error {
	if err := out.Truncate(size); err != nil {
		return err
	}
	for off := int64(0); off < size; {
		start, err := unix.Seek(int(in.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(in.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, start), io.NewSectionReader(in, start, end-start)); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// finish gives f what st and the attributes say; the times go last.
func finish(f *os.File, st *unix.Stat_t, attrs map[string]string) error {
	fd := int(f.Fd())
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return err
	}
	for k, v := range attrs {
		if err := unix.Fsetxattr(fd, k, []byte(v), 0); err != nil {
			return fmt.Errorf("setxattr %s: %w", k, err)
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/thread-self/fd/%d", fd), []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// finishAt is finish for what must not be opened.
func finishAt(dir int, name string, st *unix.Stat_t) error {
	if err := unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dir, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}
