package apply

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/beneath"
	"github.com/rewindfs/rewindfs/layers"
)

// dir is a directory of the host, by its descriptor, with all that is below it. What changes
// something calls hook first, if there is one: tests stop the program there.
type dir struct {
	fd   int
	hook func(call, name string) error
}

func (d *dir) close() { unix.Close(d.fd) }

func (d *dir) at(call, name string) error {
	if d.hook == nil {
		return nil
	}
	return d.hook(call, name)
}

// open opens p, which is below d, through no symbolic link (ELOOP) and into no other mount (EXDEV).
func (d *dir) open(p string, flags int) (int, error) {
	return beneath.Open(d.fd, p, flags, unix.RESOLVE_NO_XDEV)
}

// notThere reports whether err says that nothing can be at the path.
func notThere(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// cursor opens the directories below d one after the other, and keeps the last one open.
type cursor struct {
	d    *dir
	path string
	sub  *dir // nil: none
}

// dir returns the directory at p, until the next call.
func (c *cursor) dir(p string) (*dir, error) {
	if c.sub != nil && c.path == p {
		return c.sub, nil
	}
	c.close()
	fd, err := c.d.open(p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	c.path, c.sub = p, &dir{fd, c.d.hook}
	return c.sub, nil
}

// sub opens the directory at p.
func (d *dir) sub(p string) (*dir, error) {
	fd, err := d.open(p, unix.O_PATH|unix.O_DIRECTORY)
	return &dir{fd, d.hook}, err
}

func (c *cursor) close() {
	if c.sub != nil {
		c.sub.close()
		c.sub = nil
	}
}

// found is what stat(2) says of an object on the host; Ino is the host's.
type found struct {
	layers.Attr
	mount bool // something is mounted on it
}

// stat describes name in d, itself if it is a symbolic link; nil if there is nothing. "." is d.
func (d *dir) stat(name string) (*found, error) {
	var x unix.Statx_t
	err := beneath.Retry(func() error {
		return unix.Statx(d.fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &x)
	})
	if notThere(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t := func(s unix.StatxTimestamp) layers.Time { return layers.Time{Sec: s.Sec, Nsec: s.Nsec} }
	return &found{layers.Attr{
		Ino: layers.Ino(x.Ino), Mode: uint32(x.Mode), Nlink: x.Nlink, UID: x.Uid, GID: x.Gid, Rdev: uint32(unix.Mkdev(x.Rdev_major, x.Rdev_minor)),
		Size: int64(x.Size), Atime: t(x.Atime), Mtime: t(x.Mtime), Ctime: t(x.Ctime), Btime: t(x.Btime),
	}, x.Attributes&x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0}, nil
}

// names lists the directory at p, sorted; EXDEV if something is mounted there.
func (d *dir) names(p string) ([]string, error) {
	fd, err := d.open(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var out []string
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			slices.Sort(out)
			return out, nil
		}
		_, _, out = unix.ParseDirent(buf[:n], -1, out)
	}
}

// list opens the directory name in d, to be closed, and lists it.
func (d *dir) list(name string) (sub *dir, names []string, err error) {
	if sub, err = d.sub(name); err != nil {
		return nil, nil, err
	}
	if names, err = sub.names(""); err != nil {
		sub.close()
		return nil, nil, err
	}
	return sub, names, nil
}

func (d *dir) readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, name, buf)
	return string(buf[:max(n, 0)]), err
}

// link names an object by a descriptor of its directory: by the calling thread's, as others may have
// other descriptors. It serves calls that know no descriptor of the object itself.
func (d *dir) link(name string) string { return fmt.Sprintf("/proc/thread-self/fd/%d/%s", d.fd, name) }

// xattrs returns the extended attributes of name in d that a commit brings or keeps, see carried.
func (d *dir) xattrs(name string) (map[string]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(d.link(name), buf)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out map[string]string
	for key := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !carried(key) {
			continue
		}
		v := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := unix.Lgetxattr(d.link(name), key, v)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			continue // went away, or is not ours to see
		case err != nil:
			return nil, err
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = string(v[:n])
	}
	return out, nil
}

// carried reports whether a commit carries an extended attribute: those of programs, ACLs and capabilities.
// Others are made up by the host (security.selinux) or belong to file systems (trusted.).
func carried(key string) bool {
	return strings.HasPrefix(key, "user.") || strings.HasPrefix(key, "system.posix_acl_") || key == xattrCaps
}

const xattrCaps = "security.capability"

// rename is renameat2 from one directory to another.
func (d *dir) rename(from string, to *dir, name string, flags uint) error {
	if err := d.at("rename", name); err != nil {
		return err
	}
	return beneath.Retry(func() error { return unix.Renameat2(d.fd, from, to.fd, name, flags) })
}

// removers is how many objects are removed at a time: where a file system gives blocks back at once, each takes a while.
const removers = 8

// remove removes name in d with all that is below it, but nothing of other mounts.
func (d *dir) remove(name string) error { return d.removeWith(name, make(chan struct{}, removers)) }

// removeWith is remove with helpers, as many as free has room for.
func (d *dir) removeWith(name string, free chan struct{}) error {
	if err := d.at("remove", name); err != nil {
		return err
	}
	err := beneath.Retry(func() error { return unix.Unlinkat(d.fd, name, 0) })
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	fd, err := d.open(name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	sub := &dir{fd, d.hook}
	defer sub.close()
	err = sub.emptyOut(free)
	if errors.Is(err, unix.EACCES) { // a directory of ours that forbids it to us
		if err = d.chmod(name, 0o700); err == nil {
			err = sub.emptyOut(free)
		}
	}
	if err == nil {
		err = d.at("rmdir", name)
	}
	if err != nil {
		return err
	}
	return beneath.Retry(func() error { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) })
}

// emptyOut removes all that is in d.
func (d *dir) emptyOut(free chan struct{}) error {
	names, err := d.names("")
	if err != nil {
		return err
	}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		select {
		case free <- struct{}{}:
			wg.Go(func() {
				errs[i] = d.removeWith(n, free)
				<-free
			})
		default:
			errs[i] = d.removeWith(n, free)
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// chmod sets the permissions of name in d, never those of what a symbolic link leads to.
func (d *dir) chmod(name string, mode uint32) error {
	if err := d.at("chmod", name); err != nil {
		return err
	}
	err := unix.Fchmodat(d.fd, name, mode&0o7777, unix.AT_SYMLINK_NOFOLLOW)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	fd, err := d.open(name, unix.O_PATH|unix.O_NOFOLLOW) // a kernel without fchmodat2
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod(fmt.Sprintf("/proc/thread-self/fd/%d", fd), mode&0o7777)
}

// setTimes sets the access and modification time of name in d.
func (d *dir) setTimes(name string, atime, mtime layers.Time) error {
	if err := d.at("utimes", name); err != nil {
		return err
	}
	ts := []unix.Timespec{{Sec: atime.Sec, Nsec: int64(atime.Nsec)}, {Sec: mtime.Sec, Nsec: int64(mtime.Nsec)}}
	return unix.UtimesNanoAt(d.fd, name, ts, unix.AT_SYMLINK_NOFOLLOW)
}

// sync puts on the disk what is on the file system of d.
func (d *dir) sync() error {
	if err := d.at("syncfs", ""); err != nil {
		return err
	}
	fd, err := d.open("", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

func split(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	return p[:max(i, 0)], p[i+1:]
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func typeOf(a *layers.Attr) uint32 {
	if a == nil {
		return 0
	}
	return a.Mode & unix.S_IFMT
}

func isDir(a *layers.Attr) bool { return typeOf(a) == unix.S_IFDIR }

func compareTime(a, b layers.Time) int {
	return cmp.Or(cmp.Compare(a.Sec, b.Sec), cmp.Compare(a.Nsec, b.Nsec))
}
