package fsops

import (
	"fmt"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"
)

// doFile works on a held descriptor; an empty slot is EBADF.
func (d *Dir) doFile(o Op) (Result, error) {
	fd := d.files[o.Slot]
	if o.Kind == FOpen {
		if fd >= 0 {
			return Result{}, unix.EBUSY
		}
		fd, err := d.open(o.Path, unix.O_RDWR, 0)
		if err == nil {
			d.files[o.Slot] = fd
		}
		return Result{}, err
	}
	if fd < 0 {
		return Result{}, unix.EBADF
	}
	switch o.Kind {
	case FWrite:
		return Result{}, pwriteAll(fd, o.Data(), o.Off)
	case FRead:
		return readResult(fd, o)
	case FTrunc:
		return Result{}, unix.Ftruncate(fd, o.Len)
	case FChmod:
		return Result{}, unix.Fchmod(fd, o.Mode)
	case FUtimes:
		ts := []unix.Timespec{{Sec: o.Off, Nsec: o.Off2}, {Sec: o.Off, Nsec: o.Off2}}
		return Result{}, unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/thread-self/fd/%d", fd), ts, 0)
	case FStat:
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		return Result{Data: StatLine(st.Mode, st.Uid, st.Gid, uint64(st.Nlink), st.Size)}, err
	case FLink:
		return Result{}, d.linkFd(fd, o.Path2)
	case FClose:
		d.files[o.Slot] = -1
		return Result{}, unix.Close(fd)
	}
	panic("unknown operation " + string(o.Kind))
}

// HeldFile returns the descriptor in a slot, -1 if there is none.
func (d *Dir) HeldFile(slot int) int { return d.files[slot] }

// heldMap is a mapping of a file.
type heldMap struct {
	mem []byte
	ino uint64
}

// HeldMap returns the inode number of the file that a slot maps, 0 if it maps none.
func (d *Dir) HeldMap(slot int) uint64 { return d.maps[slot].ino }

// heldDir is an open directory that is being listed.
type heldDir struct {
	fd   int
	seen []string
	eof  bool
}

// doDir works on a held directory. What it returns says nothing of the names:
// two file systems order them differently. See Seen.
func (d *Dir) doDir(o Op) (Result, error) {
	h := d.dirs[o.Slot]
	if o.Kind == DOpen {
		if h != nil {
			return Result{}, unix.EBUSY
		}
		dir := o.Path
		if dir == "" {
			dir = "."
		}
		fd, err := unix.Openat2(d.root, dir, &unix.OpenHow{
			Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
		if err == nil {
			d.dirs[o.Slot] = &heldDir{fd: fd}
		}
		return Result{}, err
	}
	if h == nil {
		return Result{}, unix.EBADF
	}
	switch o.Kind {
	case DRead:
		return Result{}, h.read()
	case DClose:
		d.dirs[o.Slot] = nil
		return Result{}, unix.Close(h.fd)
	}
	panic("unknown operation " + string(o.Kind))
}

// read takes a few more entries: as many as fit into a buffer that holds one of
// the longest names. A directory that was removed reads as empty.
func (h *heldDir) read() error {
	if h.eof {
		return nil
	}
	buf := make([]byte, 320)
	n, err := unix.Getdents(h.fd, buf)
	if n <= 0 || err != nil {
		h.eof = true
		return nil
	}
	_, _, h.seen = unix.ParseDirent(buf[:n], -1, h.seen)
	return nil
}

// Seen reads the held directory to its end and returns every name that was read
// since it was opened, in order of reading; ok is false for an empty slot.
func (d *Dir) Seen(slot int) (names []string, ok bool) {
	h := d.dirs[slot]
	if h == nil {
		return nil, false
	}
	for !h.eof {
		if err := h.read(); err != nil {
			break
		}
	}
	return slices.Clone(h.seen), true
}

// MapLen is how much of a file a mapping shows, in bytes.
const MapLen = 64 << 10

// doMap works on a held shared mapping of the first MapLen bytes. Access behind
// the end of the file is answered with EFAULT where a program would get SIGBUS.
func (d *Dir) doMap(o Op) (r Result, err error) {
	m := d.maps[o.Slot].mem
	if o.Kind == MMap {
		if m != nil {
			return Result{}, unix.EBUSY
		}
		fd, err := d.open(o.Path, unix.O_RDWR, 0)
		if err != nil {
			return Result{}, err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return Result{}, err
		}
		m, err := unix.Mmap(fd, 0, MapLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			d.maps[o.Slot] = heldMap{m, st.Ino}
		}
		return Result{}, err
	}
	if m == nil {
		return Result{}, unix.EBADF
	}
	off := min(o.Off, MapLen)
	end := min(o.Off+o.Len, MapLen)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			r, err = Result{}, unix.EFAULT
			if o.Kind == MWrite {
				_ = unix.Msync(m, unix.MS_SYNC) // for the part that was written
			}
		}
	}()
	switch o.Kind {
	case MWrite, MDirty:
		copy(m[off:end], o.Data())
		if o.Kind == MDirty {
			return Result{}, nil
		}
		// Until then the file's times may or may not have moved.
		return Result{}, unix.Msync(m, unix.MS_SYNC)
	case MRead:
		return Result{Data: ReadLine(append([]byte(nil), m[off:end]...))}, nil
	case MSync:
		return Result{}, unix.Msync(m, unix.MS_SYNC)
	case MUnmap:
		d.maps[o.Slot] = heldMap{}
		return Result{}, unix.Munmap(m)
	}
	panic("unknown operation " + string(o.Kind))
}
