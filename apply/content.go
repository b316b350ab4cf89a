package apply

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// content is what a regular file holds. ReadAt is short only at its end.
type content interface {
	ReadAt(p []byte, off int64) (int, error)
	Seek(off int64, whence int) (int64, error) // SEEK_DATA or SEEK_HOLE
}

// viewFile is a file of a view.
type viewFile struct {
	v   *layers.View
	ino layers.Ino
}

func (f viewFile) ReadAt(p []byte, off int64) (int, error)   { return f.v.ReadAt(f.ino, p, off) }
func (f viewFile) Seek(off int64, whence int) (int64, error) { return f.v.Seek(f.ino, off, whence) }

// lostFile is a file of a view of which a part may be lost, because it stood on a file of the host.
type lostFile struct {
	viewFile
	path string
	full bool // it has no holes
}

func (f lostFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.viewFile.ReadAt(p, off)
	return n, f.lost(err)
}

func (f lostFile) Seek(off int64, whence int) (int64, error) {
	if f.full && whence == unix.SEEK_DATA {
		return off, nil
	}
	if f.full {
		return 0, unix.ENXIO
	}
	n, err := f.viewFile.Seek(off, whence)
	return n, f.lost(err)
}

// lost makes a raceError of one that says that the file on the host is not what it was.
func (f lostFile) lost(err error) error {
	for _, e := range []error{unix.EIO, unix.ENOENT, unix.ENOTDIR, unix.ESTALE} {
		if errors.Is(err, e) {
			return &raceError{f.path, "the file on the host that it stands on was changed or removed, or may not be read by the daemon, so a part of it is lost"}
		}
	}
	return err
}

// fileOf is the content of the regular file a of a view.
func fileOf(v *layers.View, a *layers.Attr, path string) lostFile {
	return lostFile{viewFile{v, a.Ino}, path, a.Blocks*512 >= a.Size}
}

// hostFile is an open file of the host.
type hostFile int

func (f hostFile) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; ; {
		k, err := unix.Pread(int(f), p[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if n += max(k, 0); err != nil || k == 0 || n == len(p) {
			return n, err
		}
	}
}

func (f hostFile) Seek(off int64, whence int) (int64, error) { return unix.Seek(int(f), off, whence) }

// readSize is how much is read at once, in bytes.
const readSize = 1 << 20

// eachPart calls fn for the data of a file of so many bytes, in order, without its holes.
func eachPart(c content, size int64, buf []byte, fn func(off int64, p []byte) error) error {
	for at := int64(0); at < size; {
		from, err := c.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && from >= size {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := c.Seek(from, unix.SEEK_HOLE)
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return err
		}
		if err != nil || end > size {
			end = size
		}
		if end <= from {
			return io.ErrUnexpectedEOF
		}
		for from < end {
			p := buf[:min(int64(len(buf)), end-from)]
			n, err := c.ReadAt(p, from)
			if err == nil && n < len(p) {
				err = io.ErrUnexpectedEOF // cut off while it is read
			}
			if err == nil {
				err = fn(from, p)
			}
			if err != nil {
				return err
			}
			from += int64(len(p))
		}
		at = end
	}
	return nil
}

// summer makes the sum of a file's content, which does not depend on where the file
// system has holes: of the blocks that are not all zeros, with their numbers.
type summer struct {
	h     hash.Hash
	block int64
	n     int // bytes of the block that were given
	buf   [blockSize]byte
}

const (
	blockSize = 64 << 10
	sumSize   = 16
)

func newSummer() *summer { return &summer{h: blake3.New()} }

// add takes the bytes at off; offsets rise.
func (s *summer) add(off int64, p []byte) {
	for len(p) > 0 {
		if b := off / blockSize; b != s.block {
			s.flush()
			s.block = b
		}
		at := int(off % blockSize)
		n := copy(s.buf[at:], p)
		s.n = max(s.n, at+n)
		off, p = off+int64(n), p[n:]
	}
}

func (s *summer) flush() {
	used := s.buf[:s.n]
	for s.n > 0 && used[s.n-1] == 0 {
		s.n--
	}
	if s.n > 0 {
		s.h.Write(binary.BigEndian.AppendUint64(nil, uint64(s.block)))
		s.h.Write(binary.BigEndian.AppendUint64(nil, uint64(s.n)))
		s.h.Write(used[:s.n])
	}
	clear(used)
	s.n = 0
}

// sum ends the file; the summer may be used for another one.
func (s *summer) sum() []byte {
	s.flush()
	out := s.h.Sum(nil)[:sumSize]
	s.h.Reset()
	s.block = 0
	return out
}

// sumOf is the sum of a whole file.
func sumOf(c content, size int64) ([]byte, error) {
	s := newSummer()
	err := eachPart(c, size, make([]byte, min(readSize, max(size, 1))), func(off int64, p []byte) error {
		s.add(off, p)
		return nil
	})
	return s.sum(), err
}

// hostSum is the sum of the regular file called name in d. What is no regular file is not opened: ESTALE.
func (d *dir) hostSum(name string) ([]byte, error) {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("it is no regular file any more: %w", unix.ESTALE)
	}
	return sumOf(hostFile(fd), st.Size)
}

// sumXattrs condenses extended attributes; nil for none.
func sumXattrs(xs map[string]string) []byte {
	if len(xs) == 0 {
		return nil
	}
	h := blake3.New()
	for _, k := range slices.Sorted(maps.Keys(xs)) {
		fmt.Fprintf(h, "%d %s %d %s", len(k), k, len(xs[k]), xs[k])
	}
	return h.Sum(nil)[:sumSize]
}
