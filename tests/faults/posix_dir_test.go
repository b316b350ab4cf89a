package faults

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func manyFiles(n int) fill {
	return func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		for i := range n {
			put(t, j(d, "dir", fmt.Sprintf("file-number-%05d", i)), "")
		}
	}
}

func TestPosixReaddirWhileEntriesAreDeleted(t *testing.T) {
	everywhere(t, manyFiles(1500), func(t *testing.T, d string) {
		f := open(t, j(d, "dir"), os.O_RDONLY)
		seen := map[string]int{}
		for {
			batch, err := f.Readdirnames(50)
			for _, n := range batch {
				seen[n]++
				ok(t, os.Remove(j(d, "dir", n)))
			}
			if err != nil || len(batch) == 0 {
				break
			}
		}
		is(t, "entries seen", len(seen), 1500)
		for n, c := range seen {
			if c != 1 {
				t.Fatalf("%s came %d times", n, c)
			}
		}
		listed(t, j(d, "dir"))
		ok(t, os.Remove(j(d, "dir")))
	})
}

// dirents reads a directory with a small buffer and returns the names with the
// position (d_off) behind each.
func dirents(t *testing.T, fd int) (all []string, pos []int64) {
	t.Helper()
	buf := make([]byte, 400)
	for {
		n, err := unix.Getdents(fd, buf)
		ok(t, err)
		if n == 0 {
			return all, pos
		}
		for b := buf[:n]; len(b) > 0; {
			reclen := int(b[16]) | int(b[17])<<8
			name, _, _ := strings.Cut(string(b[19:reclen]), "\x00")
			var off int64
			for i := 7; i >= 0; i-- {
				off = off<<8 | int64(b[8+i])
			}
			all, pos = append(all, name), append(pos, off)
			b = b[reclen:]
		}
	}
}

func TestPosixTelldirSeekdir(t *testing.T) {
	everywhere(t, manyFiles(300), func(t *testing.T, d string) {
		fd, err := unix.Open(j(d, "dir"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		ok(t, err)
		defer unix.Close(fd)
		all, pos := dirents(t, fd)
		is(t, "entries", len(all), 302)
		uniq := slices.Clone(pos)
		slices.Sort(uniq)
		is(t, "different positions", len(slices.Compact(uniq)), len(pos))
		check := func() {
			for i := 0; i+1 < len(all); i += 13 {
				_, err := unix.Seek(fd, pos[i], unix.SEEK_SET)
				ok(t, err)
				rest, _ := dirents(t, fd)
				if len(rest) == 0 || rest[0] != all[i+1] {
					t.Fatalf("behind %s comes %.1q, first time it was %s", all[i], rest, all[i+1])
				}
			}
		}
		check()
		put(t, j(d, "dir", "another"), "") // positions stay good
		check()
	})
}

func TestPosixOpenDirectoryShowsNewFiles(t *testing.T) {
	everywhere(t, manyFiles(5), func(t *testing.T, d string) {
		f := open(t, j(d, "dir"), os.O_RDONLY)
		_, err := f.Readdirnames(-1)
		ok(t, err)
		put(t, j(d, "dir", "new"), "")
		ok(t, os.Remove(j(d, "dir", "file-number-00000")))
		_, err = f.Seek(0, 0)
		ok(t, err)
		got, err := f.Readdirnames(-1)
		ok(t, err)
		if !slices.Contains(got, "new") || slices.Contains(got, "file-number-00000") || len(got) != 5 {
			t.Errorf("after a change the open directory shows %q", got)
		}
	})
}

func TestPosixReaddirInterruptedBySignals(t *testing.T) {
	everywhere(t, manyFiles(800), func(t *testing.T, d string) {
		ch := make(chan os.Signal, 1)
		signal.Notify(ch, unix.SIGUSR1)
		defer signal.Stop(ch)
		var done atomic.Bool
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for !done.Load() {
				_ = unix.Kill(os.Getpid(), unix.SIGUSR1)
				time.Sleep(50 * time.Microsecond)
			}
		}()
		for range 30 {
			put(t, j(d, "dir", "x"), "") // makes the kernel's cached listing void
			if n := len(names(t, j(d, "dir"))); n != 801 {
				t.Errorf("%d entries, want 801", n)
				break
			}
		}
		done.Store(true)
		<-stopped
	})
}

func TestPosixDirectoryLinkCount(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "dir/a"), 0o755))
		ok(t, os.MkdirAll(j(d, "dir/b"), 0o755))
		ok(t, os.Mkdir(j(d, "other"), 0o755))
		put(t, j(d, "dir/f"), "")
	}, func(t *testing.T, d string) {
		check := func(subdirs uint64) {
			t.Helper()
			if n := uint64(stat(t, j(d, "dir")).Nlink); n != 1 && n != 2+subdirs {
				t.Errorf("link count %d with %d subdirectories", n, subdirs)
			}
		}
		check(2)
		ok(t, os.Mkdir(j(d, "dir/c"), 0o755))
		check(3)
		ok(t, os.Remove(j(d, "dir/a")))
		check(2)
		ok(t, unix.Rename(j(d, "dir/b"), j(d, "other/b")))
		check(1)
		ok(t, unix.Rename(j(d, "other/b"), j(d, "dir/c2")))
		check(2)
		ok(t, unix.Rename(j(d, "dir/c"), j(d, "dir/c2")))
		check(1)
	})
}

// entry is what getdents(2) says of a name.
type entry struct {
	name string
	ino  uint64
	mode uint32 // the type alone
}

func entries(t *testing.T, dir string) (out []entry) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY, 0)
	ok(t, err)
	defer unix.Close(fd)
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		ok(t, err)
		if n == 0 {
			return out
		}
		for b := buf[:n]; len(b) > 0; b = b[binary.NativeEndian.Uint16(b[16:]):] {
			name, _, _ := strings.Cut(string(b[19:]), "\x00")
			out = append(out, entry{name, binary.NativeEndian.Uint64(b), uint32(b[18]) << 12})
		}
	}
}

func TestPosixDotDotOfAMovedDirectory(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "a/moved"), 0o755))
		ok(t, os.MkdirAll(j(d, "b/swapped"), 0o755))
	}, func(t *testing.T, d string) {
		check := func(parent, name string) {
			t.Helper()
			for _, e := range entries(t, j(d, parent, name)) {
				if e.name == ".." {
					is(t, "d_ino of .. in "+parent+"/"+name, e.ino, stat(t, j(d, parent)).Ino)
				}
			}
		}
		check("a", "moved")
		check("b", "swapped")
		ok(t, unix.Rename(j(d, "a/moved"), j(d, "b/moved")))
		check("b", "moved")
		ok(t, os.Mkdir(j(d, "a/other"), 0o755))
		check("a", "other")
		ok(t, unix.Renameat2(unix.AT_FDCWD, j(d, "a/other"), unix.AT_FDCWD, j(d, "b/swapped"), unix.RENAME_EXCHANGE))
		check("a", "other")
		check("b", "swapped")
	})
}

func TestPosixInodeNumbersOfEntries(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		manyFiles(100)(t, d)
		ok(t, os.Mkdir(j(d, "dir/sub"), 0o755))
		ok(t, os.Symlink("x", j(d, "dir/sym")))
		ok(t, unix.Mkfifo(j(d, "dir/fifo"), 0o600))
	}, func(t *testing.T, d string) {
		put(t, j(d, "dir", "written"), "x")
		put(t, j(d, "dir", "file-number-00007"), "copied up")
		byIno := map[uint64]string{}
		for _, e := range entries(t, j(d, "dir")) {
			if e.name == "." || e.name == ".." {
				continue
			}
			st := stat(t, j(d, "dir", e.name))
			is(t, "d_ino of "+e.name, e.ino, st.Ino)
			is(t, "d_type of "+e.name, e.mode, st.Mode&unix.S_IFMT)
			if other := byIno[e.ino]; other != "" {
				t.Errorf("%s and %s have inode number %d", e.name, other, e.ino)
			}
			byIno[e.ino] = e.name
			is(t, "st_dev of "+e.name, st.Dev, stat(t, d).Dev)
		}
		is(t, "entries", len(byIno), 104)
	})
}

func TestPosixHugeDirectoryStaysLinear(t *testing.T) {
	everywhere(t, nil, func(t *testing.T, d string) {
		// No clock: the count and the content are checked; quadratic work would
		// run into the test's timeout.
		for i := range 10000 {
			fd, err := unix.Open(fmt.Sprintf("%s/%d", d, i), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
			ok(t, err)
			unix.Close(fd)
		}
		is(t, "entries", len(names(t, d)), 10000)
		for i := range 10000 {
			ok(t, unix.Unlink(fmt.Sprintf("%s/%d", d, i)))
		}
		listed(t, d)
	})
}
