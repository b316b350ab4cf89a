package fstree

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Names that file systems like to get wrong.
var (
	LongName    = strings.Repeat("n", 255)
	NotUTF8Name = "caf\xe9\xff"
	NewlineName = "two\nlines"
)

// Bytes returns n bytes that depend on seed and hold no long run of zeros.
func Bytes(seed uint64, n int) []byte {
	p := make([]byte, n)
	x := seed*0x9E3779B97F4A7C15 + 1
	for i := range p {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p[i] = byte(x>>32) | 1
	}
	return p
}

// MakeBase fills dir with a small tree in which every kind of object and most
// odd properties occur. All times are in the past, each its own.
func MakeBase(dir string) error {
	b := baseMaker{dir: dir, now: 1_000_000_000}
	b.dirs("d", "d/e", "d/e/f", "d/empty", "src", "src/pkg", "odd", "odd/"+NotUTF8Name, "modes")
	b.file("a", 100, 0o644)
	b.file("b", 5000, 0o600)
	b.file("c", 0, 0o644)
	b.file("big", 150_017, 0o644)
	b.file("d/a", 4096, 0o644)
	b.file("d/b", 131072, 0o755)
	b.file("d/e/a", 131073, 0o444)
	b.file("d/e/f/deep", 12, 0o644)
	for i := range 6 {
		b.file(fmt.Sprintf("src/pkg/f%d", i), 200*i, 0o644)
	}
	b.file("odd/"+LongName, 33, 0o644)
	b.file("odd/"+NotUTF8Name+"/x", 34, 0o644)
	b.file("odd/"+NewlineName, 35, 0o644)
	b.file("odd/.wh.a", 36, 0o644)
	b.file("odd/-rf", 37, 0o644)
	b.file("odd/ space ", 38, 0o644)
	b.file("modes/none", 10, 0)
	b.file("modes/suid", 10, 0o4755)
	b.file("modes/sgid", 10, 0o2755)
	b.file("modes/ro", 10, 0o444)
	b.link("d/a", "hl1")
	b.link("d/a", "d/e/hl2")
	b.link("src/pkg/f3", "src/hl3")
	b.symlink("a", "sym")
	b.symlink("nowhere/at all", "dangling")
	b.symlink("../d/e", "src/dirlink")
	b.sparse("sparse", 512<<10)
	b.mkfifo("fifo")
	b.xattr("b", "user.k", "value")
	b.xattr("d", "user.dir", "on a directory")
	b.xattr("d/e/a", "user.empty", "")
	b.times()
	return b.err
}

// MakeDeep makes a chain of directories below dir whose path is longer than
// PATH_MAX, with a file at the end.
func MakeDeep(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	for range 25 {
		err = unix.Mkdirat(int(d.Fd()), strings.Repeat("p", 200), 0o755)
		var next *os.File
		if err == nil {
			next, err = openat(d, strings.Repeat("p", 200), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		d.Close()
		if err != nil {
			return fmt.Errorf("make deep: %w", err)
		}
		d = next
	}
	defer d.Close()
	f, err := openat(d, "bottom", unix.O_WRONLY|unix.O_CREAT, 0o644)
	if err != nil {
		return fmt.Errorf("make deep: %w", err)
	}
	defer f.Close()
	_, err = f.Write([]byte("down here\n"))
	return err
}

// baseMaker does nothing more after its first error.
type baseMaker struct {
	dir string
	now int64
	n   uint64
	err error
}

func (b *baseMaker) do(f func() error) {
	if b.err == nil {
		b.err = f()
	}
}

func (b *baseMaker) p(name string) string { return filepath.Join(b.dir, name) }

func (b *baseMaker) dirs(names ...string) {
	for _, n := range names {
		b.do(func() error { return os.Mkdir(b.p(n), 0o755) })
	}
}

func (b *baseMaker) file(name string, size int, mode uint32) {
	b.n++
	b.do(func() error { return os.WriteFile(b.p(name), Bytes(b.n, size), 0o600) })
	b.do(func() error { return unix.Chmod(b.p(name), mode) })
}

func (b *baseMaker) link(old, name string) {
	b.do(func() error { return os.Link(b.p(old), b.p(name)) })
}

func (b *baseMaker) symlink(target, name string) {
	b.do(func() error { return os.Symlink(target, b.p(name)) })
}

func (b *baseMaker) mkfifo(name string) {
	b.do(func() error { return unix.Mkfifo(b.p(name), 0o640) })
}

func (b *baseMaker) xattr(name, k, v string) {
	b.do(func() error { return unix.Setxattr(b.p(name), k, []byte(v), 0) })
}

func (b *baseMaker) sparse(name string, size int64) {
	b.do(func() error {
		f, err := os.Create(b.p(name))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			return err
		}
		_, err = f.WriteAt(Bytes(99, 5000), size/2)
		return err
	})
}

// times gives every object a time of its own, children before their directory.
func (b *baseMaker) times() {
	b.do(func() error {
		t, err := Scan(b.dir)
		if err != nil {
			return err
		}
		paths := t.Paths()
		for i := len(paths) - 1; i >= 0; i-- {
			b.now += 1000
			ts := []unix.Timespec{{Sec: b.now, Nsec: 111111111}, {Sec: b.now + 7, Nsec: 123456789 + int64(i)}}
			if err := unix.UtimesNanoAt(unix.AT_FDCWD, b.p(paths[i]), ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
		}
		return nil
	})
}
