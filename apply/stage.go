package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// stager makes the new objects, complete, in the stage.
type stager struct {
	p        *planner
	dir      *dir
	at       map[*item]string // where in the stage an item is
	dirs     []*item          // in the order they were made
	files    []*item
	links    []*item
	late     []*item // links of what is on the host
	done     atomic.Int64
	texts    atomic.Int64 // bytes of texts that are remembered
	progress func(done, total int64)
	ctx      context.Context // of stage
	noClones atomic.Bool     // the file system shares no blocks

	mu    sync.Mutex
	notes map[string]int // what could not be kept, and of how many
}

// note counts something that could not be kept.
func (s *stager) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes[what]++
}

// stage makes what the steps bring, and fills in what they are.
func (s *stager) stage(steps []*step) error {
	s.at, s.notes = map[*item]string{}, map[string]int{}
	if err := s.makeDirs(steps); err != nil {
		return err
	}
	if err := s.makeFiles(); err != nil {
		return err
	}
	c := cursor{d: s.dir}
	defer c.close()
	for _, it := range s.links {
		if err := s.makeLink(it, &c); err != nil {
			return fmt.Errorf("link %q: %w", it.path, err)
		}
	}
	for i := len(s.dirs) - 1; i >= 0; i-- { // what is in a directory before itself
		if err := s.finishDir(s.dirs[i], &c); err != nil {
			return fmt.Errorf("make %q ready: %w", s.dirs[i].path, err)
		}
	}
	for _, st := range steps {
		if st.Op == opNew || st.Op == opSwap {
			st.New = st.it.put.host.ino
		}
	}
	return nil
}

// makeDirs makes the directories for the objects of steps, and those among these.
func (s *stager) makeDirs(steps []*step) error {
	made := ""
	for _, st := range steps {
		if st.Op == opDir {
			continue
		}
		if up, _ := split(st.stageName()); up != made {
			if err := s.mkdir(up); err != nil {
				return fmt.Errorf("make a directory for the objects of a commit: %w", err)
			}
			made = up
		}
		if st.Op != opGone {
			if err := s.list(st.it, st.stageName()); err != nil {
				return err
			}
		}
	}
	return nil
}

// mkdir makes a directory in the stage.
func (s *stager) mkdir(at string) error {
	if err := s.dir.at("mkdir", at); err != nil {
		return err
	}
	up, name := split(at)
	c := cursor{d: s.dir}
	defer c.close()
	d, err := c.dir(up)
	if err != nil {
		return err
	}
	return unix.Mkdirat(d.fd, name, 0o700)
}

// list makes the directories and lists what is to be made in them.
func (s *stager) list(it *item, at string) error {
	s.at[it] = at
	switch {
	case it.link != nil:
		s.links = append(s.links, it)
		return nil
	case !isDir(it.want):
		s.files = append(s.files, it)
		return nil
	}
	s.dirs = append(s.dirs, it)
	if err := s.mkdir(at); err != nil {
		return fmt.Errorf("make %q ready: %w", it.path, err)
	}
	for _, k := range it.sorted() {
		if k.verdict == vApply && k.want != nil {
			if err := s.list(k, join(at, k.name)); err != nil {
				return err
			}
		}
	}
	return s.ctx.Err()
}

// makeFiles makes what is no directory and no link, several at a time.
func (s *stager) makeFiles() error {
	return inParts(s.ctx, s.files, func() (func(*item) error, func()) {
		c := cursor{d: s.dir}
		w := &fileWriter{s: s, sum: newSummer()}
		return func(it *item) error {
			if err := w.make(it, &c); err != nil {
				return fmt.Errorf("make %q ready: %w", it.path, err)
			}
			s.progress(s.done.Add(1), int64(len(s.files)))
			return nil
		}, c.close
	})
}

// fileWriter makes objects one after the other.
type fileWriter struct {
	s   *stager
	sum *summer
	buf []byte
}

// make makes the object of it.
func (w *fileWriter) make(it *item, c *cursor) error {
	up, name := split(w.s.at[it])
	d, err := c.dir(up)
	if err != nil {
		return err
	}
	if err := d.at("make", name); err != nil {
		return err
	}
	var sum []byte
	switch typeOf(it.want) {
	case unix.S_IFREG:
		sum, err = w.file(it, d, name)
	case unix.S_IFLNK:
		var target string
		if target, err = w.s.p.want.v.Readlink(it.want.Ino); err == nil {
			err = unix.Symlinkat(target, d.fd, name)
		}
	default:
		err = unix.Mknodat(d.fd, name, typeOf(it.want)|0o600, int(it.want.Rdev))
	}
	if err != nil {
		return err
	}
	return w.s.finish(it, d, name, sum, false)
}

// file makes a regular file with its content, holes where the checkpoint has some.
func (w *fileWriter) file(it *item, d *dir, name string) (sum []byte, err error) {
	fd, err := unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, it.want.Mode&0o777)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := unix.Close(fd); err == nil && cerr != nil {
			err = cerr
		}
	}()
	size := it.want.Size
	if size == 0 {
		return w.sum.sum(), nil
	}
	if n := min(size, readSize); int64(len(w.buf)) < n {
		w.buf = make([]byte, n)
	}
	write, end := func(p []byte, off int64) error { return writeAll(fd, p, off) }, int64(0)
	c := w.cloneOf(it, fd)
	if c != nil {
		defer c.close()
		write, end = c.write, c.size
	}
	err = eachPart(w.s.p.wanted(it), size, w.buf, func(off int64, p []byte) error {
		w.sum.add(off, p)
		w.s.remember(it, off, p)
		if err := write(p, off); err != nil {
			return err
		}
		end = max(end, off+int64(len(p)))
		return w.s.ctx.Err()
	})
	if err == nil && c != nil {
		err = c.hole(size)
	}
	if err == nil && end != size {
		err = unix.Ftruncate(fd, size)
	}
	return w.sum.sum(), err
}

// finish gives an object in the stage its owner, mode, attributes and times, and notes what it then is.
func (s *stager) finish(it *item, d *dir, name string, sum []byte, writable bool) error {
	if err := d.at("finish", name); err != nil {
		return err
	}
	w := it.want
	if err := d.setTimes(name, w.Atime, w.Mtime); err != nil { // what follows does not move them
		return err
	}
	st, err := d.made(name)
	if err != nil {
		return err
	}
	xs, err := s.p.wantXattrs(it)
	if err != nil {
		return err
	}
	mode := w.Mode & 0o7777
	if writable {
		mode |= 0o200
	}
	owned := st.UID == w.UID && st.GID == w.GID
	moded := owned && st.Mode&0o7777 == mode || typeOf(w) == unix.S_IFLNK
	if !owned {
		if err := s.chown(d, name, w.UID, w.GID); err != nil {
			return err
		}
	}
	if !moded {
		if err := d.chmod(name, mode); err != nil {
			return err
		}
	}
	if err := s.setXattrs(d, name, xs); err != nil {
		return err
	}
	if !owned || !moded || len(xs) > 0 {
		if st, err = d.made(name); err != nil {
			return err
		}
	}
	it.put = placed{host: markOf(&st.Attr), want: markOf(w), sum: sum, xattrs: sumXattrs(xs)}
	return nil
}

// made is stat for what has just been made.
func (d *dir) made(name string) (*found, error) {
	st, err := d.stat(name)
	if err == nil && st == nil {
		err = unix.ENOENT
	}
	return st, err
}

// setXattrs gives an object its extended attributes, as far as we may.
func (s *stager) setXattrs(d *dir, name string, xs map[string]string) error {
	for k, v := range xs {
		err := unix.Lsetxattr(d.link(name), k, []byte(v), 0)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
			s.note("extended attribute " + k)
			continue
		}
		if err != nil {
			return fmt.Errorf("set the attribute %s: %w", k, err)
		}
	}
	return nil
}

// chown gives an object an owner, as far as we may.
func (s *stager) chown(d *dir, name string, uid, gid uint32) error {
	err := unix.Fchownat(d.fd, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EPERM) && !s.p.asRoot {
		err = unix.Fchownat(d.fd, name, -1, int(gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		s.note("owner")
		return nil
	}
	return err
}

// finishDir is finish for a directory in the stage.
func (s *stager) finishDir(it *item, c *cursor) error {
	up, name := split(s.at[it])
	d, err := c.dir(up)
	if err != nil {
		return err
	}
	late := slices.ContainsFunc(s.late, func(l *item) bool { return l.up == it })
	return s.finish(it, d, name, nil, late || s.writable(it))
}

// writable reports whether a directory must stay writable until it is on the host.
func (s *stager) writable(it *item) bool {
	_, below := s.at[it.up]
	return !below && s.p.lowered(it)
}

// makeLink makes a further name of an object that was staged before. If the object is on the host, it only
// finds out what it is: it gets the name later, as that moves its ctime.
func (s *stager) makeLink(it *item, c *cursor) error {
	if it.link.verdict == vApply {
		up, old := split(s.at[it.link])
		o, err := (&dir{fd: s.dir.fd}).sub(up)
		if err != nil {
			return err
		}
		defer o.close()
		d, name, err := s.place(it, c)
		if err == nil {
			err = d.at("link", name)
		}
		if err == nil {
			err = unix.Linkat(o.fd, old, d.fd, name, 0)
		}
		it.put = it.link.put
		it.put.want = markOf(it.want)
		return err
	}
	s.late = append(s.late, it)
	if it.link.put.want.ino == 0 {
		up, name := split(it.link.path)
		d, err := s.p.host.sub(up)
		if err != nil {
			return err
		}
		defer d.close()
		if err := s.putThere(it.link, d, name); err != nil {
			return err
		}
	}
	it.put = it.link.put
	it.put.want = markOf(it.want)
	return nil
}

// place returns the directory in the stage where an item is, and its name there.
func (s *stager) place(it *item, c *cursor) (*dir, string, error) {
	up, name := split(s.at[it])
	d, err := c.dir(up)
	return d, name, err
}

// putThere notes what an object is that is on the host already.
func (s *stager) putThere(it *item, d *dir, name string) error {
	var sum []byte
	var err error
	if typeOf(it.want) == unix.S_IFREG {
		if sum, err = d.hostSum(name); err != nil {
			return err
		}
	}
	xs, err := d.xattrs(name)
	it.put = placed{host: markOf(it.haveAttr()), want: markOf(it.want), sum: sum, xattrs: sumXattrs(xs)}
	return err
}

// linkLate makes the names in the stage of objects that are on the host. A raceError if one of them has changed.
func (s *stager) linkLate() error {
	c, from := cursor{d: s.dir}, cursor{d: s.p.host}
	defer c.close()
	defer from.close()
	dirs := map[*item]bool{}
	for _, it := range s.late {
		race := &raceError{it.link.path, "it was changed on the host just now"}
		up, old := split(it.link.path)
		o, err := from.dir(up)
		if notThere(err) {
			return race
		}
		if err != nil {
			return err
		}
		d, name, err := s.place(it, &c)
		if err == nil {
			err = d.at("link", name)
		}
		if err == nil {
			err = unix.Linkat(o.fd, old, d.fd, name, 0)
		}
		if errors.Is(err, unix.ENOENT) {
			return race
		}
		if err != nil {
			return fmt.Errorf("link %q: %w", it.path, err)
		}
		st, err := d.stat(name)
		if err != nil {
			return err
		}
		if st == nil || !asSeen(st, it.link.have, &step{}) {
			return race
		}
		if _, staged := s.at[it.up]; staged {
			dirs[it.up] = true
		}
	}
	for it := range dirs { // their times were moved
		d, name, err := s.place(it, &c)
		if err == nil {
			err = d.setTimes(name, it.want.Atime, it.want.Mtime)
		}
		if err == nil && !s.writable(it) {
			err = d.chmod(name, it.want.Mode)
		}
		if err != nil {
			return fmt.Errorf("make %q ready: %w", it.path, err)
		}
	}
	return nil
}

// putDir notes what a directory is that both sides have.
func (p *planner) putDir(it *item) error {
	xs, err := p.wantXattrs(it)
	it.put = placed{host: markOf(it.haveAttr()), want: markOf(it.want), xattrs: sumXattrs(xs)}
	return err
}
