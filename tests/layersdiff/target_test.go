package layersdiff

import (
	"errors"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/layers"
)

// target carries out operations on a branch, doing what the kernel would do
// between a system call and the file system: walking paths, holding references.
type target struct {
	b     *layers.Branch
	files [fsops.Slots]layers.Ino
	dirs  [fsops.Slots]*heldDir
	refs  []layers.Ino // taken during the running operation
}

type heldDir struct {
	ino    layers.Ino
	cookie uint64
	seen   []string
	eof    bool
}

// dropSlots gives back what the slots hold.
func (l *target) dropSlots() {
	for i := range fsops.Slots {
		l.Do(fsops.Op{Kind: fsops.FClose, Slot: i})
		l.Do(fsops.Op{Kind: fsops.DClose, Slot: i})
	}
}

func (l *target) keep(a layers.Attr, err error) (layers.Attr, error) {
	if err == nil {
		l.refs = append(l.refs, a.Ino)
	}
	return a, err
}

// owner gives a new object in dir its group and mode as inode_init_owner does.
func (l *target) owner(dir layers.Ino, mode *uint32) layers.Cred {
	a, err := l.b.Getattr(dir)
	if err != nil || a.Mode&unix.S_ISGID == 0 {
		return layers.Cred{}
	}
	if *mode&unix.S_IFMT == unix.S_IFDIR {
		*mode |= unix.S_ISGID
	}
	return layers.Cred{GID: a.GID}
}

// Do implements fsops.Target.
func (l *target) Do(o fsops.Op) fsops.Result {
	defer func() {
		for _, ino := range l.refs {
			l.b.Forget(ino, 1)
		}
		l.refs = l.refs[:0]
	}()
	r, err := l.do(o)
	if err != nil {
		var e syscall.Errno
		if !errors.As(err, &e) {
			panic(err)
		}
		return fsops.Result{Errno: e}
	}
	return r
}

func (l *target) do(o fsops.Op) (fsops.Result, error) {
	switch o.Kind {
	case fsops.Create, fsops.OpenTrunc, fsops.Write, fsops.Append, fsops.Read, fsops.Truncate, fsops.Fallocate, fsops.CopyRange:
		return l.content(o)
	case fsops.Chmod, fsops.Chown, fsops.Utimens, fsops.Setxattr, fsops.Rmxattr, fsops.Stat, fsops.Readdir:
		return l.meta(o)
	case fsops.Tmplink:
		return fsops.Result{}, l.tmplink(o)
	case fsops.Replace:
		return l.replace(o)
	case fsops.RemoveAll:
		return fsops.Result{}, l.removeAll(o.Path)
	case fsops.DOpen, fsops.DRead, fsops.DClose:
		return fsops.Result{}, l.doDir(o)
	case fsops.Mkdir, fsops.Rmdir, fsops.Unlink, fsops.Symlink, fsops.Mknod, fsops.Rename, fsops.Link:
		return fsops.Result{}, l.name(o)
	}
	return l.held(o)
}

// dir walks to the directory p ("" is the root).
func (l *target) dir(p string) (layers.Ino, error) {
	cur := layers.RootIno
	if p == "" {
		return cur, nil
	}
	for part := range strings.SplitSeq(p, "/") {
		a, err := l.keep(l.b.Lookup(cur, part))
		if err != nil {
			return 0, err
		}
		switch a.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
		case unix.S_IFLNK:
			return 0, unix.ELOOP
		default:
			return 0, unix.ENOTDIR
		}
		cur = a.Ino
	}
	return cur, nil
}

func (l *target) parent(p string) (layers.Ino, string, error) {
	dir, name := "", p
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		dir, name = p[:i], p[i+1:]
	}
	ino, err := l.dir(dir)
	return ino, name, err
}

func (l *target) lookup(p string) (layers.Attr, error) {
	dir, name, err := l.parent(p)
	if err != nil {
		return layers.Attr{}, err
	}
	return l.keep(l.b.Lookup(dir, name))
}

// open finds a regular file, as fsops.Dir does.
func (l *target) open(p string) (layers.Attr, error) {
	a, err := l.lookup(p)
	if err != nil {
		return a, err
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return a, nil
	case unix.S_IFLNK:
		return a, unix.ELOOP
	case unix.S_IFDIR:
		return a, unix.EISDIR
	}
	return a, unix.ENXIO
}

func (l *target) create(o fsops.Op) (layers.Attr, error) {
	dir, name, err := l.parent(o.Path)
	if err != nil {
		return layers.Attr{}, err
	}
	if o.Kind == fsops.OpenTrunc {
		a, err := l.open(o.Path)
		if err == nil {
			return l.truncate(a.Ino, 0)
		}
		if !errors.Is(err, unix.ENOENT) {
			return a, err
		}
	}
	mode := unix.S_IFREG | o.Mode
	c := l.owner(dir, &mode)
	return l.keep(l.b.Mknod(dir, name, mode, 0, c))
}

// truncate is ftruncate(2) and O_TRUNC, which move mtime even if the size stays.
func (l *target) truncate(ino layers.Ino, size int64) (layers.Attr, error) {
	now := layers.TimeOf(time.Now())
	return l.b.Setattr(ino, layers.SetAttr{Size: &size, Mtime: &now})
}

func (l *target) writeAll(ino layers.Ino, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := l.b.Write(ino, p, off, layers.WriteFlags{})
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func (l *target) read(ino layers.Ino, o fsops.Op) (fsops.Result, error) {
	p := make([]byte, o.Len)
	n, err := l.b.ReadAt(ino, p, o.Off)
	if err != nil {
		return fsops.Result{}, err
	}
	return fsops.Result{N: int64(n), Data: fsops.ReadLine(p[:n])}, nil
}

func (l *target) content(o fsops.Op) (fsops.Result, error) {
	var a layers.Attr
	var err error
	if o.Kind == fsops.Create || o.Kind == fsops.OpenTrunc {
		a, err = l.create(o)
	} else {
		a, err = l.open(o.Path)
	}
	if err != nil {
		return fsops.Result{}, err
	}
	switch o.Kind {
	case fsops.Create, fsops.OpenTrunc:
		return fsops.Result{}, l.writeAll(a.Ino, o.Data(), 0)
	case fsops.Write:
		return fsops.Result{}, l.writeAll(a.Ino, o.Data(), o.Off)
	case fsops.Append:
		return fsops.Result{N: o.Len}, l.writeAll(a.Ino, o.Data(), a.Size)
	case fsops.Read:
		return l.read(a.Ino, o)
	case fsops.Truncate:
		_, err = l.truncate(a.Ino, o.Len)
	case fsops.Fallocate:
		if o.Len == 0 {
			return fsops.Result{}, unix.EINVAL // vfs_fallocate
		}
		err = l.b.Fallocate(a.Ino, o.Flags, o.Off, o.Len, false)
	case fsops.CopyRange:
		return l.copyRange(a, o)
	}
	return fsops.Result{}, err
}

func (l *target) copyRange(src layers.Attr, o fsops.Op) (fsops.Result, error) {
	dst, err := l.open(o.Path2)
	if err != nil {
		return fsops.Result{}, err
	}
	total := int64(0)
	for total < o.Len {
		if src, err = l.b.Getattr(src.Ino); err != nil {
			return fsops.Result{}, err
		}
		soff, doff := o.Off+total, o.Off2+total
		n := max(0, min(o.Len-total, src.Size-soff)) // generic_copy_file_checks
		if src.Ino == dst.Ino && soff < doff+n && doff < soff+n {
			return fsops.Result{}, unix.EINVAL
		}
		m, err := l.b.CopyRange(src.Ino, soff, dst.Ino, doff, n, false)
		if err != nil {
			return fsops.Result{}, err
		}
		if m == 0 {
			break
		}
		total += m
	}
	return fsops.Result{N: total}, nil
}

func (l *target) tmplink(o fsops.Op) error {
	dir, err := l.dir(o.Path)
	if err != nil {
		return err
	}
	mode := unix.S_IFREG | o.Mode
	c := l.owner(dir, &mode)
	a, err := l.keep(l.b.Tmpfile(dir, mode, c))
	if err != nil {
		return err
	}
	if err := l.writeAll(a.Ino, o.Data(), 0); err != nil {
		return err
	}
	return l.link(a.Ino, o.Path2)
}

func (l *target) link(ino layers.Ino, p string) error {
	dir, name, err := l.parent(p)
	if err != nil {
		return err
	}
	_, err = l.keep(l.b.Link(ino, dir, name))
	return err
}

func (l *target) replace(o fsops.Op) (fsops.Result, error) {
	r := l.Do(fsops.Op{Kind: fsops.OpenTrunc, Path: o.Path2, Mode: o.Mode, Len: o.Len, Seed: o.Seed})
	if r.Errno == 0 {
		r = l.Do(fsops.Op{Kind: fsops.Rename, Path: o.Path2, Path2: o.Path})
	}
	return r, nil
}

func (l *target) name(o fsops.Op) error {
	dir, name, err := l.parent(o.Path)
	if err != nil {
		return err
	}
	switch o.Kind {
	case fsops.Mkdir:
		mode := unix.S_IFDIR | o.Mode&0o1777 // vfs_mkdir lets no set-id bit through
		c := l.owner(dir, &mode)
		_, err = l.keep(l.b.Mkdir(dir, name, mode&0o7777, c))
	case fsops.Rmdir:
		err = l.b.Rmdir(dir, name)
	case fsops.Unlink:
		err = l.b.Unlink(dir, name)
	case fsops.Symlink:
		var mode uint32
		_, err = l.keep(l.b.Symlink(dir, name, o.Value, l.owner(dir, &mode)))
	case fsops.Mknod:
		mode := o.Mode
		c := l.owner(dir, &mode)
		_, err = l.keep(l.b.Mknod(dir, name, mode, 0, c))
	case fsops.Link:
		if _, _, err = l.parent(o.Path2); err != nil {
			return err // fsops.Dir opens both directories first
		}
		var a layers.Attr
		if a, err = l.keep(l.b.Lookup(dir, name)); err == nil {
			err = l.link(a.Ino, o.Path2)
		}
	case fsops.Rename:
		err = l.rename(dir, name, o)
	}
	return err
}

// rename makes the checks that the kernel makes before it asks the file system,
// in the kernel's order (fs/namei.c, do_renameat2).
func (l *target) rename(dir layers.Ino, name string, o fsops.Op) error {
	ndir, nname, err := l.parent(o.Path2)
	if err != nil {
		return err
	}
	if _, err := l.keep(l.b.Lookup(dir, name)); err != nil {
		return err
	}
	_, err = l.keep(l.b.Lookup(ndir, nname))
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return err
	case err == nil && o.Flags&unix.RENAME_NOREPLACE != 0:
		return unix.EEXIST
	case err != nil && o.Flags&unix.RENAME_EXCHANGE != 0:
		return unix.ENOENT
	}
	if strings.HasPrefix(o.Path2, o.Path+"/") {
		return unix.EINVAL
	}
	if strings.HasPrefix(o.Path, o.Path2+"/") {
		if o.Flags&unix.RENAME_EXCHANGE != 0 {
			return unix.EINVAL
		}
		return unix.ENOTEMPTY
	}
	return l.b.Rename(dir, name, ndir, nname, o.Flags)
}

func (l *target) removeAll(p string) error {
	dir, name, err := l.parent(p)
	if err != nil {
		return err
	}
	return l.removeAt(dir, name)
}

func (l *target) removeAt(dir layers.Ino, name string) error {
	a, err := l.keep(l.b.Lookup(dir, name))
	if err != nil {
		return err
	}
	if !a.IsDir() {
		return l.b.Unlink(dir, name)
	}
	var names []string
	if err := l.b.ReadDir(a.Ino, 0, func(e layers.Entry) bool {
		names = append(names, e.Name)
		return true
	}); err != nil {
		return err
	}
	for _, n := range names {
		if err := l.removeAt(a.Ino, n); err != nil {
			return err
		}
	}
	return l.b.Rmdir(dir, name)
}
