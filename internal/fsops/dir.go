package fsops

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Dir carries out operations below a directory, by system calls.
type Dir struct {
	// Emulate makes up for what the file system below lacks (tmpfs has no
	// FALLOC_FL_ZERO_RANGE), so that it can be the model for one that has it.
	Emulate bool

	root  int
	path  string
	files [Slots]int // -1: free
	dirs  [Slots]*heldDir
	maps  [Slots]heldMap
}

// NewDir opens dir. Close the result.
func NewDir(dir string) (*Dir, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open target %s: %w", dir, err)
	}
	d := &Dir{root: fd, path: dir}
	for i := range d.files {
		d.files[i] = -1
	}
	return d, nil
}

// Close lets go of everything held.
func (d *Dir) Close() {
	d.DropSlots()
	unix.Close(d.root)
}

// DropSlots closes what the slots hold.
func (d *Dir) DropSlots() {
	for i := range Slots {
		d.Do(Op{Kind: FClose, Slot: i})
		d.Do(Op{Kind: DClose, Slot: i})
		d.Do(Op{Kind: MUnmap, Slot: i})
	}
}

// Do carries out o.
func (d *Dir) Do(o Op) Result {
	var r Result
	var err error
	switch o.Kind[0] {
	case 'f':
		if o.Kind == Fallocate {
			r, err = d.doContent(o)
		} else {
			r, err = d.doFile(o)
		}
	case 'd':
		r, err = d.doDir(o)
	default:
		switch o.Kind {
		case MMap, MWrite, MDirty, MRead, MSync, MUnmap:
			r, err = d.doMap(o)
		case Create, OpenTrunc, Write, Append, Read, Truncate, CopyRange, Tmplink, Replace:
			r, err = d.doContent(o)
		case Chmod, Chown, Utimens, Setxattr, Rmxattr, Stat, Readdir:
			r, err = d.doMeta(o)
		default:
			r, err = d.doName(o)
		}
	}
	if err != nil {
		r = Result{Errno: errnoOf(err)}
	}
	return r
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	panic(fmt.Sprintf("not an errno: %v", err))
}

// parent opens the directory that holds the last name of p.
func (d *Dir) parent(p string) (fd int, name string, done func(), err error) {
	dir, name := path.Split(p)
	dir = strings.TrimSuffix(dir, "/")
	if dir == "" {
		return d.root, name, func() {}, nil
	}
	fd, err = unix.Openat2(d.root, dir, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	return fd, name, func() { unix.Close(fd) }, err
}

// open opens p, which must be a regular file unless it is to be made. Symlinks
// are ELOOP, directories EISDIR, the rest ENXIO: nothing that could block is opened.
func (d *Dir) open(p string, flags int, mode uint32) (int, error) {
	fd, name, done, err := d.parent(p)
	if err != nil {
		return -1, err
	}
	defer done()
	if flags&unix.O_EXCL == 0 {
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case err == nil:
			if e := notRegular(st.Mode); e != 0 {
				return -1, e
			}
		case !errors.Is(err, unix.ENOENT) || flags&unix.O_CREAT == 0:
			return -1, err
		}
	}
	return unix.Openat(fd, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
}

func notRegular(mode uint32) syscall.Errno {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 0
	case unix.S_IFLNK:
		return unix.ELOOP
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return unix.ENXIO
}

func pwriteAll(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func preadAll(fd int, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(fd, p[done:], off+int64(done))
		if err != nil || n == 0 {
			return done, err
		}
		done += n
	}
	return done, nil
}

func (d *Dir) doContent(o Op) (Result, error) {
	flags := map[Kind]int{
		Create:    unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL,
		OpenTrunc: unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC,
		Write:     unix.O_WRONLY,
		Append:    unix.O_WRONLY | unix.O_APPEND,
		Read:      unix.O_RDONLY,
		Truncate:  unix.O_WRONLY,
		Fallocate: unix.O_WRONLY,
		CopyRange: unix.O_RDONLY,
	}
	switch o.Kind {
	case Tmplink:
		return Result{}, d.tmplink(o)
	case Replace:
		return Result{}, d.replace(o)
	}
	fd, err := d.open(o.Path, flags[o.Kind], o.Mode)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(fd)
	switch o.Kind {
	case Create, OpenTrunc:
		return Result{}, pwriteAll(fd, o.Data(), 0)
	case Write:
		return Result{}, pwriteAll(fd, o.Data(), o.Off)
	case Append:
		// One write: its place is the end of the file at that moment.
		n, err := unix.Write(fd, o.Data())
		return Result{N: int64(n)}, err
	case Read:
		return readResult(fd, o)
	case Truncate:
		return Result{}, unix.Ftruncate(fd, o.Len)
	case Fallocate:
		return Result{}, d.fallocate(fd, o)
	}
	return d.copyRange(fd, o)
}

func (d *Dir) fallocate(fd int, o Op) error {
	err := unix.Fallocate(fd, o.Flags, o.Off, o.Len)
	if !d.Emulate || !errors.Is(err, unix.EOPNOTSUPP) || o.Flags&unix.FALLOC_FL_ZERO_RANGE == 0 {
		return err
	}
	if o.Flags&unix.FALLOC_FL_KEEP_SIZE == 0 {
		if err := unix.Fallocate(fd, 0, o.Off, o.Len); err != nil {
			return err
		}
	}
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, o.Off, o.Len)
}

func readResult(fd int, o Op) (Result, error) {
	p := make([]byte, o.Len)
	n, err := preadAll(fd, p, o.Off)
	return Result{N: int64(n), Data: ReadLine(p[:n])}, err
}

func (d *Dir) copyRange(in int, o Op) (Result, error) {
	out, err := d.open(o.Path2, unix.O_WRONLY, 0)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(out)
	soff, doff, total := o.Off, o.Off2, int64(0)
	for total < o.Len {
		n, err := unix.CopyFileRange(in, &soff, out, &doff, int(o.Len-total), 0)
		if err != nil {
			return Result{}, err
		}
		if n == 0 {
			break
		}
		total += int64(n)
	}
	return Result{N: total}, nil
}

func (d *Dir) tmplink(o Op) error {
	dir, err := unix.Openat2(d.root, o.Path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, o.Mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := pwriteAll(fd, o.Data(), 0); err != nil {
		return err
	}
	return d.linkFd(fd, o.Path2)
}

// linkFd gives an open file a name.
func (d *Dir) linkFd(fd int, p string) error {
	dir, name, done, err := d.parent(p)
	if err != nil {
		return err
	}
	defer done()
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/thread-self/fd/%d", fd), dir, name, unix.AT_SYMLINK_FOLLOW)
}

func (d *Dir) replace(o Op) error {
	r := d.Do(Op{Kind: OpenTrunc, Path: o.Path2, Mode: o.Mode, Len: o.Len, Seed: o.Seed})
	if r.Errno != 0 {
		return r.Errno
	}
	r = d.Do(Op{Kind: Rename, Path: o.Path2, Path2: o.Path})
	if r.Errno != 0 {
		return r.Errno
	}
	return nil
}

func (d *Dir) doName(o Op) (Result, error) {
	if o.Kind == RemoveAll {
		return Result{}, d.removeAll(o.Path)
	}
	fd, name, done, err := d.parent(o.Path)
	if err != nil {
		return Result{}, err
	}
	defer done()
	switch o.Kind {
	case Mkdir:
		return Result{}, unix.Mkdirat(fd, name, o.Mode)
	case Rmdir:
		return Result{}, unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	case Unlink:
		return Result{}, unix.Unlinkat(fd, name, 0)
	case Symlink:
		return Result{}, unix.Symlinkat(o.Value, fd, name)
	case Mknod:
		return Result{}, unix.Mknodat(fd, name, o.Mode, 0)
	case Rename, Link:
		fd2, name2, done2, err := d.parent(o.Path2)
		if err != nil {
			return Result{}, err
		}
		defer done2()
		if o.Kind == Link {
			return Result{}, unix.Linkat(fd, name, fd2, name2, 0)
		}
		return Result{}, unix.Renameat2(fd, name, fd2, name2, uint(o.Flags))
	}
	panic("unknown operation " + string(o.Kind))
}

// removeAll is rm -rf that follows no symlink and stops at the first error.
func (d *Dir) removeAll(p string) error {
	fd, name, done, err := d.parent(p)
	if err != nil {
		return err
	}
	defer done()
	return removeAt(fd, name)
}

func removeAt(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeAt(fd, n); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

func (d *Dir) doMeta(o Op) (Result, error) {
	fd, name, done, err := d.parent(o.Path)
	if err != nil {
		return Result{}, err
	}
	defer done()
	obj, err := unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(obj)
	self := fmt.Sprintf("/proc/thread-self/fd/%d", obj)
	var st unix.Stat_t
	if err := unix.Fstat(obj, &st); err != nil {
		return Result{}, err
	}
	switch o.Kind {
	case Stat:
		return Result{Data: StatLine(st.Mode, st.Uid, st.Gid, uint64(st.Nlink), st.Size)}, nil
	case Chown:
		return Result{}, unix.Fchownat(obj, "", int(o.Off), int(o.Off2), unix.AT_EMPTY_PATH)
	case Utimens:
		ts := []unix.Timespec{{Sec: o.Off, Nsec: o.Off2}, {Sec: o.Off + 1, Nsec: o.Off2}}
		return Result{}, unix.UtimesNanoAt(fd, name, ts, unix.AT_SYMLINK_NOFOLLOW)
	case Readdir:
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return Result{}, unix.ENOTDIR
		}
		return listing(self)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return Result{}, unix.EOPNOTSUPP
	}
	switch o.Kind {
	case Chmod:
		return Result{}, unix.Fchmodat(unix.AT_FDCWD, self, o.Mode, 0)
	case Setxattr:
		return Result{}, unix.Setxattr(self, o.Name, []byte(o.Value), int(o.Flags))
	}
	return Result{}, unix.Removexattr(self, o.Name)
}

func listing(dir string) (Result, error) {
	ents, err := os.ReadDir(dir)
	if err != nil {
		return Result{}, err
	}
	lines := make([]string, 0, len(ents))
	for _, e := range ents {
		lines = append(lines, ListLine(e.Name(), direntMode(e)))
	}
	return ListResult(lines), nil
}

func direntMode(e os.DirEntry) uint32 {
	switch e.Type() {
	case os.ModeDir:
		return unix.S_IFDIR
	case os.ModeSymlink:
		return unix.S_IFLNK
	case os.ModeNamedPipe:
		return unix.S_IFIFO
	case os.ModeSocket:
		return unix.S_IFSOCK
	case os.ModeDevice | os.ModeCharDevice:
		return unix.S_IFCHR
	}
	return unix.S_IFREG
}

// ListLine is one entry of the Data of Readdir, mode being its S_IFMT bits.
func ListLine(name string, mode uint32) string { return fmt.Sprintf("%q %o", name, mode) }

// ListResult is the Result of Readdir.
func ListResult(lines []string) Result {
	slices.Sort(lines)
	return Result{N: int64(len(lines)), Data: fstree.HashBytes([]byte(strings.Join(lines, "\n"))) + " " + strings.Join(lines, ", ")}
}
