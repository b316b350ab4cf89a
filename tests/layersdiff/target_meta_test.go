package layersdiff

import (
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/layers"
)

func statResult(a layers.Attr) fsops.Result {
	return fsops.Result{Data: fsops.StatLine(a.Mode, a.UID, a.GID, uint64(a.Nlink), a.Size)}
}

func (l *target) meta(o fsops.Op) (fsops.Result, error) {
	a, err := l.lookup(o.Path)
	if err != nil {
		return fsops.Result{}, err
	}
	switch o.Kind {
	case fsops.Stat:
		return statResult(a), nil
	case fsops.Readdir:
		if !a.IsDir() {
			return fsops.Result{}, unix.ENOTDIR
		}
		var lines []string
		err := l.b.ReadDir(a.Ino, 0, func(e layers.Entry) bool {
			lines = append(lines, fsops.ListLine(e.Name, e.Type&unix.S_IFMT))
			return true
		})
		return fsops.ListResult(lines), err
	case fsops.Chown:
		return fsops.Result{}, l.chown(a, o)
	case fsops.Utimens:
		at, mt := layers.Time{Sec: o.Off, Nsec: uint32(o.Off2)}, layers.Time{Sec: o.Off + 1, Nsec: uint32(o.Off2)}
		_, err = l.b.Setattr(a.Ino, layers.SetAttr{Atime: &at, Mtime: &mt})
		return fsops.Result{}, err
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		return fsops.Result{}, unix.EOPNOTSUPP
	}
	switch o.Kind {
	case fsops.Chmod:
		_, err = l.b.Setattr(a.Ino, layers.SetAttr{Mode: &o.Mode})
	case fsops.Setxattr:
		err = l.setxattr(a, o)
	case fsops.Rmxattr:
		if t := a.Mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFDIR {
			return fsops.Result{}, unix.EPERM // user.* is for files and directories: xattr_permission
		}
		err = l.b.Removexattr(a.Ino, o.Name)
	}
	return fsops.Result{}, err
}

func (l *target) setxattr(a layers.Attr, o fsops.Op) error {
	if t := a.Mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFDIR {
		return unix.EPERM
	}
	return l.b.Setxattr(a.Ino, o.Name, []byte(o.Value), int(o.Flags))
}

// chown takes the set-id bits away, as the kernel asks a file system to.
func (l *target) chown(a layers.Attr, o fsops.Op) error {
	s := layers.SetAttr{KillPriv: !a.IsDir()}
	if o.Off >= 0 {
		uid := uint32(o.Off)
		s.UID = &uid
	}
	if o.Off2 >= 0 {
		gid := uint32(o.Off2)
		s.GID = &gid
	}
	_, err := l.b.Setattr(a.Ino, s)
	return err
}

// held works on a file held by a reference: an open descriptor.
func (l *target) held(o fsops.Op) (fsops.Result, error) {
	ino := l.files[o.Slot]
	if o.Kind == fsops.FOpen {
		if ino != 0 {
			return fsops.Result{}, unix.EBUSY
		}
		a, err := l.open(o.Path)
		if err != nil {
			return fsops.Result{}, err
		}
		l.files[o.Slot] = a.Ino
		l.unkeep(a.Ino)
		return fsops.Result{}, nil
	}
	if ino == 0 {
		return fsops.Result{}, unix.EBADF
	}
	var err error
	switch o.Kind {
	case fsops.FWrite:
		err = l.writeAll(ino, o.Data(), o.Off)
	case fsops.FRead:
		return l.read(ino, o)
	case fsops.FTrunc:
		_, err = l.truncate(ino, o.Len)
	case fsops.FStat:
		a, err := l.b.Getattr(ino)
		return statResult(a), err
	case fsops.FChmod:
		_, err = l.b.Setattr(ino, layers.SetAttr{Mode: &o.Mode})
	case fsops.FUtimes:
		tm := layers.Time{Sec: o.Off, Nsec: uint32(o.Off2)}
		_, err = l.b.Setattr(ino, layers.SetAttr{Atime: &tm, Mtime: &tm})
	case fsops.FLink:
		err = l.linkHeld(ino, o.Path2)
	case fsops.FClose:
		l.files[o.Slot] = 0
		l.b.Forget(ino, 1)
	default:
		panic("unknown operation " + string(o.Kind))
	}
	return fsops.Result{}, err
}

// linkHeld gives a held file another name, unless it has none (vfs_link).
func (l *target) linkHeld(ino layers.Ino, p string) error {
	dir, name, err := l.parent(p)
	if err != nil {
		return err
	}
	if _, err := l.keep(l.b.Lookup(dir, name)); err == nil {
		return unix.EEXIST
	}
	a, err := l.b.Getattr(ino)
	if err != nil {
		return err
	}
	if a.Nlink == 0 {
		return unix.ENOENT
	}
	return l.link(ino, p)
}

// unkeep turns the newest reference to ino into one that outlives the operation.
func (l *target) unkeep(ino layers.Ino) {
	for i := len(l.refs) - 1; i >= 0; i-- {
		if l.refs[i] == ino {
			l.refs = append(l.refs[:i], l.refs[i+1:]...)
			return
		}
	}
}

func (l *target) doDir(o fsops.Op) error {
	h := l.dirs[o.Slot]
	if o.Kind == fsops.DOpen {
		if h != nil {
			return unix.EBUSY
		}
		ino, err := l.dir(o.Path)
		if err != nil {
			return err
		}
		if ino != layers.RootIno {
			l.unkeep(ino)
		}
		l.dirs[o.Slot] = &heldDir{ino: ino}
		return nil
	}
	if h == nil {
		return unix.EBADF
	}
	if o.Kind == fsops.DRead {
		l.readSome(h, 2)
		return nil
	}
	l.dirs[o.Slot] = nil
	if h.ino != layers.RootIno {
		l.b.Forget(h.ino, 1)
	}
	return nil
}

// readSome takes up to n more entries. A directory that was removed reads as empty.
func (l *target) readSome(h *heldDir, n int) {
	got := 0
	err := l.b.ReadDir(h.ino, h.cookie, func(e layers.Entry) bool {
		h.seen = append(h.seen, e.Name)
		h.cookie = e.Cookie
		got++
		return got < n
	})
	if err != nil || got == 0 {
		h.eof = true
	}
}

// seen reads the directory in a slot to its end; see fsops.Dir.Seen.
func (l *target) seen(slot int) ([]string, bool) {
	h := l.dirs[slot]
	if h == nil {
		return nil, false
	}
	for !h.eof {
		l.readSome(h, 5)
	}
	return h.seen, true
}
