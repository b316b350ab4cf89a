package fstree

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Scan describes the tree under root. It opens no FIFO, socket or device and
// follows no symlink. What cannot be read is noted in the entry's Err; only a
// root that cannot be opened is an error.
func Scan(root string) (*Tree, error) {
	f, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("scan: %w", err)
	}
	defer f.Close()
	t := New()
	e := statFd(f, ".")
	t.Add(e)
	scanDir(t, f, "", e)
	return t, nil
}

// ScanFd describes the tree under an open directory, which may have no path any more.
func ScanFd(f *os.File) *Tree {
	t := New()
	e := statFd(f, ".")
	t.Add(e)
	scanDir(t, f, "", e)
	return t
}

func scanDir(t *Tree, d *os.File, prefix string, de *Entry) {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		de.Err = "rewinddir: " + err.Error()
		return
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		de.Err = "readdir: " + errText(err)
	}
	for _, n := range names {
		p := prefix + n
		if t.Entries[p] != nil {
			t.Entries[p].Err = "listed twice"
			continue
		}
		e := &Entry{Path: p}
		t.Add(e)
		var st unix.Stat_t
		if err := unix.Fstatat(int(d.Fd()), n, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			e.Err = "stat: " + err.Error()
			continue
		}
		e.fill(&st)
		scanObject(t, d, n, e)
	}
}

// scanObject reads what stat does not show of the object called name in d.
func scanObject(t *Tree, d *os.File, name string, e *Entry) {
	switch e.Type() {
	case unix.S_IFLNK:
		e.Target, e.Err = readlinkat(int(d.Fd()), name)
		e.Xattrs = xattrsAt(int(d.Fd()), name)
	case unix.S_IFREG, unix.S_IFDIR:
		fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOATIME, 0)
		if errors.Is(err, unix.EPERM) {
			fd, err = unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			e.Err = "open: " + err.Error()
			return
		}
		f := os.NewFile(uintptr(fd), e.Path)
		defer f.Close()
		e.Xattrs = xattrs(f)
		if e.IsDir() {
			scanDir(t, f, e.Path+"/", e)
			return
		}
		e.Hash, err = hashOf(f)
		if err != nil {
			e.Err = "read: " + errText(err)
		}
	default:
		e.Xattrs = xattrsAt(int(d.Fd()), name)
	}
}

func statFd(f *os.File, path string) *Entry {
	e := &Entry{Path: path}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		e.Err = "fstat: " + err.Error()
		return e
	}
	e.fill(&st)
	e.Xattrs = xattrs(f)
	return e
}

func (e *Entry) fill(st *unix.Stat_t) {
	e.Mode, e.UID, e.GID = st.Mode, st.Uid, st.Gid
	e.Nlink, e.Ino, e.Dev, e.Rdev = uint64(st.Nlink), st.Ino, st.Dev, st.Rdev
	e.Size, e.Blocks = st.Size, st.Blocks
	e.Atime = Time{st.Atim.Sec, st.Atim.Nsec}
	e.Mtime = Time{st.Mtim.Sec, st.Mtim.Nsec}
	e.Ctime = Time{st.Ctim.Sec, st.Ctim.Nsec}
}

// HashBytes is the Hash of a file that holds p.
func HashBytes(p []byte) string {
	s := sha256.Sum256(p)
	return hex.EncodeToString(s[:12])
}

func hashOf(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

func readlinkat(dir int, name string) (target, problem string) {
	buf := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", "readlink: " + err.Error()
	}
	return string(buf[:n]), ""
}

// xattrsAt lists the attributes of an object that must not be opened.
func xattrsAt(dir int, name string) map[string]string {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	// fgetxattr refuses an O_PATH descriptor; the magic link leads to the object itself.
	p := fmt.Sprintf("/proc/thread-self/fd/%d", fd)
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Listxattr(p, b) },
		func(k string, b []byte) (int, error) { return unix.Getxattr(p, k, b) })
}

func xattrs(f *os.File) map[string]string {
	fd := int(f.Fd())
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(k string, b []byte) (int, error) { return unix.Fgetxattr(fd, k, b) })
}

func collectXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) map[string]string {
	buf := make([]byte, 64<<10)
	n, err := list(buf)
	if err != nil || n == 0 {
		return nil
	}
	out := map[string]string{}
	val := make([]byte, 64<<10)
	for _, k := range bytes.Split(bytes.TrimRight(buf[:n], "\x00"), []byte{0}) {
		name := string(k)
		if strings.HasPrefix(name, "security.selinux") {
			continue // made up by the host's policy, not by us
		}
		m, err := get(name, val)
		if err != nil {
			out[name] = "error: " + err.Error()
			continue
		}
		out[name] = string(val[:m])
	}
	return out
}

// errText leaves the path out: it differs between two trees that are compared.
func errText(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
