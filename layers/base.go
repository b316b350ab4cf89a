package layers

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/beneath"
)

// Base is the host directory under a tree. It is only ever read, and every
// object is opened relative to one descriptor, below it and through no symbolic
// link, so neither a swapped directory nor a planted link can lead outside.
type Base struct {
	root int // O_PATH descriptor of the directory
	dev  uint64

	mu    sync.Mutex // guards what follows
	dirs  *fdCache   // directories by path, O_RDONLY
	files *fdCache   // regular files by path, O_RDONLY
	drops uint64     // how often both were emptied: what was opened before is not to be kept
}

// Directories and files of the base kept open. A descriptor saves an open per
// request; both numbers stay far below common RLIMIT_NOFILE values.
const (
	maxDirFDs  = 128
	maxFileFDs = 128
)

// OpenBase opens dir, following symbolic links in dir itself; everything is then
// resolved below its descriptor. ENOTDIR when dir is something else.
func OpenBase(dir string) (*Base, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open base %s: %w", dir, err)
	}
	b := &Base{root: fd, dirs: newFDCache(maxDirFDs), files: newFDCache(maxFileFDs)}
	st, err := b.stat("")
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("stat base %s: %w", dir, err)
	}
	b.dev = st.dev
	return b, nil
}

// Close closes every descriptor of the base.
func (b *Base) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dirs.drop()
	b.files.drop()
	return unix.Close(b.root)
}

// baseStat is what statx(2) says of a base object.
type baseStat struct {
	dev, ino                   uint64 // dev 0 is the device of the base's root, whose number may be another one after the next boot
	mode, nlink, uid, gid      uint32
	rdev                       uint32
	size, blocks               int64
	atime, mtime, ctime, btime Time
	given                      Ino // of a pre-image: the number of the object here
}

func (s *baseStat) isDir() bool { return s.mode&unix.S_IFMT == unix.S_IFDIR }

// origin says of an inode with content of s, which is at p, where it is from.
func (s *baseStat) origin(p string) *origin {
	return &origin{path: p, dev: s.dev, ino: s.ino, btime: s.btime, size: s.size, mtime: s.mtime, ctime: s.ctime}
}

// mark condenses what identifies a state of a base object's content.
func (s *baseStat) mark() uint64 {
	h := uint64(14695981039346656037)
	for _, v := range [...]uint64{s.ino, uint64(s.size), uint64(s.mtime.Sec), uint64(s.mtime.Nsec), uint64(s.ctime.Sec), uint64(s.ctime.Nsec)} {
		h = (h ^ v) * 1099511628211
		h ^= h >> 29
	}
	return h
}

func statxTime(t unix.StatxTimestamp) Time { return Time{Sec: t.Sec, Nsec: t.Nsec} }

func (b *Base) fromStatx(x *unix.Statx_t) baseStat {
	dev := unix.Mkdev(x.Dev_major, x.Dev_minor)
	if dev == b.dev {
		dev = 0
	}
	return baseStat{
		dev: dev, ino: x.Ino,
		mode: uint32(x.Mode), nlink: x.Nlink, uid: x.Uid, gid: x.Gid,
		rdev: uint32(unix.Mkdev(x.Rdev_major, x.Rdev_minor)),
		size: int64(x.Size), blocks: int64(x.Blocks),
		atime: statxTime(x.Atime), mtime: statxTime(x.Mtime), ctime: statxTime(x.Ctime), btime: statxTime(x.Btime),
	}
}

const statxMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// statFD stats an open descriptor.
func (b *Base) statFD(fd int) (baseStat, error) {
	var x unix.Statx_t
	if err := beneath.Retry(func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH, statxMask, &x) }); err != nil {
		return baseStat{}, err
	}
	return b.fromStatx(&x), nil
}

// stat describes the object at p, itself when it is a symbolic link. p is
// relative to the base, "" is the base itself.
func (b *Base) stat(p string) (baseStat, error) {
	if p == "" {
		return b.statFD(b.root)
	}
	if staged(p) {
		return baseStat{}, unix.ENOENT
	}
	d, err := b.dir(path.Dir(p))
	if err != nil {
		return baseStat{}, err
	}
	defer d.release()
	var x unix.Statx_t
	err = beneath.Retry(func() error {
		return unix.Statx(d.fd, path.Base(p), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statxMask, &x)
	})
	if err != nil {
		return baseStat{}, err
	}
	return b.fromStatx(&x), nil
}

// dir returns the directory at p, open; release it after use.
func (b *Base) dir(p string) (*sharedFD, error) {
	if p == "." {
		p = ""
	}
	b.mu.Lock()
	f, drops := b.dirs.get(p), b.drops
	b.mu.Unlock()
	if f != nil {
		return f, nil
	}
	fd, err := openBelow(b.root, p, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EACCES) { // searchable but not readable: enough to stat and open below
		fd, err = openBelow(b.root, p, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drops != drops {
		f = &sharedFD{fd: fd}
		f.refs.Store(1)
		return f, nil
	}
	return b.dirs.put(p, fd), nil
}

// open returns the regular file at p, open for reading, and what it is now.
func (b *Base) open(p string) (*sharedFD, baseStat, error) {
	b.mu.Lock()
	f := b.files.get(p)
	ahead := f != nil && f.ahead
	if ahead {
		f.ahead = false
	}
	b.mu.Unlock()
	if f == nil {
		if _, err := b.regular(p); err != nil {
			return nil, baseStat{}, err
		}
		return b.openFile(p, false)
	}
	if !ahead {
		st, err := b.statFD(f.fd)
		if err != nil {
			f.release()
		}
		return f, st, err
	}
	// Opened before anybody asked for it: it counts if that is what opening it now would give.
	st, err := b.regular(p)
	if err == nil && st.dev == f.dev && st.ino == f.ino {
		return f, st, nil
	}
	f.release()
	if err != nil {
		return nil, baseStat{}, err
	}
	return b.openFile(p, false)
}

// regular describes the object at p, which is a regular file: else ESTALE. A FIFO,
// socket or device is never opened, so its name is to say first what it is.
func (b *Base) regular(p string) (baseStat, error) {
	st, err := b.stat(p)
	if err == nil && st.mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.ESTALE
	}
	return st, err
}

// openFile opens the regular file at p anew and keeps the descriptor; ahead: for a read to come.
func (b *Base) openFile(p string, ahead bool) (*sharedFD, baseStat, error) {
	dir, name := split(p)
	d, err := b.dir(dir)
	if err != nil {
		return nil, baseStat{}, err
	}
	defer d.release()
	// O_NONBLOCK: if a FIFO took the place of the file since it was looked up, do not wait for its writer.
	fd, err := openBelow(d.fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return nil, baseStat{}, err
	}
	st, err := b.statFD(fd)
	if err == nil && st.mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return nil, baseStat{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.files.put(p, fd)
	f.dev, f.ino, f.ahead = st.dev, st.ino, ahead
	return f, st, nil
}

// forgetFile closes the cached descriptor of p, so that the next open sees what
// is there now.
func (b *Base) forgetFile(p string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files.forget(p)
}

// forget closes all cached descriptors: the host has put other objects in the place of some.
func (b *Base) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dirs.drop()
	b.files.drop()
	b.drops++
}

// readlink returns the target of the symbolic link at p.
func (b *Base) readlink(p string) (string, error) {
	d, err := b.dir(path.Dir(p))
	if err != nil {
		return "", err
	}
	defer d.release()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, path.Base(p), buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// baseEntry is one name of a base directory.
type baseEntry struct {
	name string
	ino  uint64
	typ  uint32 // S_IFMT bits, 0 when the file system does not say
	kept bool   // of a pre-image: ino is the number of the object here, not on the host
}

// readDir lists the directory at p without "." and "..".
func (b *Base) readDir(p string) ([]baseEntry, error) {
	out, err := b.list(p)
	if p == "" {
		out = slices.DeleteFunc(out, func(e baseEntry) bool { return staged(e.name) })
	}
	return out, err
}

// list lists the directory at p, with the stages of commits.
func (b *Base) list(p string) ([]baseEntry, error) {
	fd, err := openBelow(b.root, p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var out []baseEntry
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		out = parseDirents(buf[:n], out)
	}
	return out, nil
}

// xattrPath returns a path by which the attributes of p can be read through no
// descriptor of p itself, which a FIFO or an unreadable file would not give, and
// the call that reads them. Call done afterwards. The path is one of the calling
// thread: the first thread, which /proc/self means, may have other descriptors by now
// (transport.Apart).
func (b *Base) xattrPath(p string) (link string, get func(string, string, []byte) (int, error), done func(), err error) {
	if p == "" {
		return fmt.Sprintf("/proc/thread-self/fd/%d", b.root), unix.Getxattr, func() {}, nil
	}
	d, err := b.dir(path.Dir(p))
	if err != nil {
		return "", nil, nil, err
	}
	return fmt.Sprintf("/proc/thread-self/fd/%d/%s", d.fd, path.Base(p)), unix.Lgetxattr, d.release, nil
}

// xattrs returns every extended attribute of the object at p.
func (b *Base) xattrs(p string) (map[string][]byte, error) {
	link, get, done, err := b.xattrPath(p)
	if err != nil {
		return nil, err
	}
	defer done()
	list := unix.Llistxattr
	if p == "" {
		list = unix.Listxattr
	}
	return readXattrs(link, list, get)
}

// fdXattrs is xattrs for a file that is open for reading.
func fdXattrs(fd int) (map[string][]byte, error) {
	return readXattrs("", func(_ string, buf []byte) (int, error) { return unix.Flistxattr(fd, buf) },
		func(_, name string, buf []byte) (int, error) { return unix.Fgetxattr(fd, name, buf) })
}

func readXattrs(link string, list func(string, []byte) (int, error), get func(string, string, []byte) (int, error)) (map[string][]byte, error) {
	n, err := list(link, nil)
	if errors.Is(err, unix.ENOTSUP) || (err == nil && n == 0) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	buf := make([]byte, n+1024)
	if n, err = list(link, buf); err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		v := make([]byte, 64<<10) // XATTR_SIZE_MAX
		vn, err := get(link, name, v)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			continue // went away, or is not ours to see
		case err != nil:
			return nil, err
		}
		out[name] = append([]byte(nil), v[:vn]...)
	}
	return out, nil
}

// openBelow opens p beneath fd without following any symbolic link: where one is, it is not the object we knew (ESTALE).
func openBelow(fd int, p string, flags int) (int, error) {
	n, err := beneath.Open(fd, p, flags, 0)
	if errors.Is(err, unix.ELOOP) {
		err = unix.ESTALE
	}
	return n, err
}

func parseDirents(b []byte, out []baseEntry) []baseEntry {
	for len(b) >= 19 {
		reclen := int(b[16]) | int(b[17])<<8
		if reclen < 19 || reclen > len(b) {
			return out
		}
		ino := uint64(0)
		for i := 7; i >= 0; i-- {
			ino = ino<<8 | uint64(b[i])
		}
		name := b[19:reclen]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		if s := string(name); s != "." && s != ".." && ino != 0 {
			out = append(out, baseEntry{name: s, ino: ino, typ: uint32(b[18]) << 12})
		}
		b = b[reclen:]
	}
	return out
}

// xattr returns one extended attribute of the object at p. ENODATA, also where the
// base's file system has none.
func (b *Base) xattr(p, name string) ([]byte, error) {
	link, get, done, err := b.xattrPath(p)
	if err != nil {
		return nil, err
	}
	defer done()
	buf := make([]byte, 256)
	for {
		n, err := get(link, name, buf)
		switch {
		case errors.Is(err, unix.ERANGE) && len(buf) < maxXattrSize:
			buf = make([]byte, maxXattrSize)
		case errors.Is(err, unix.ENOTSUP):
			return nil, unix.ENODATA
		case err != nil:
			return nil, err
		default:
			return buf[:n], nil
		}
	}
}

// record makes the record of the base object st at p as it is there.
func (e era) record(p string, st *baseStat) (rec *inode, err error) {
	rec = &inode{
		mode: st.mode, nlink: st.nlink, uid: st.uid, gid: st.gid, rdev: st.rdev, size: st.size,
		atime: st.atime, mtime: st.mtime, ctime: st.ctime, btime: st.btime,
		origin: st.origin(p),
	}
	switch st.mode & unix.S_IFMT {
	case unix.S_IFREG:
		rec.limit = st.size
		if st.blocks*512 < st.size {
			rec.flags |= flagSparse
			rec.blocks = st.blocks
		}
	case unix.S_IFLNK:
		if rec.target, err = e.readlink(p); err != nil {
			return nil, fmt.Errorf("copy up link %q: %w", p, err)
		}
	}
	return rec, nil
}
