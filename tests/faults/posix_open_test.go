package faults

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPosixFileReplacedByRenameWhileOpen(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "f"), "old")
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
	}, func(t *testing.T, d string) {
		f := open(t, j(d, "f"), os.O_RDWR)
		dir := open(t, j(d, "dir"), os.O_RDONLY)
		put(t, j(d, "new"), "new")
		ok(t, unix.Rename(j(d, "new"), j(d, "f")))
		st := fstat(t, f)
		is(t, "nlink of the replaced file", st.Nlink, 0)
		p := make([]byte, 10)
		n, _ := f.ReadAt(p, 0)
		is(t, "content of the replaced file", string(p[:n]), "old")
		_, err := f.WriteAt([]byte("OLD2"), 0)
		ok(t, err)
		content(t, j(d, "f"), "new")
		is(t, "nlink of the new file", stat(t, j(d, "f")).Nlink, 1)
		ok(t, os.Mkdir(j(d, "dir2"), 0o755))
		put(t, j(d, "dir2", "x"), "x")
		ok(t, unix.Rename(j(d, "dir2"), j(d, "dir")))
		if _, err := dir.ReadDir(-1); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Errorf("reading the replaced directory: %v", err)
		}
		listed(t, j(d, "dir"), "x")
	})
}

func TestPosixUnlinkedButOpenFile(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), "hello") }, func(t *testing.T, d string) {
		f := open(t, j(d, "f"), os.O_RDWR)
		ino := fstat(t, f).Ino
		ok(t, os.Remove(j(d, "f")))
		is(t, "nlink", fstat(t, f).Nlink, 0)
		put(t, j(d, "f"), "another")
		if stat(t, j(d, "f")).Ino == ino {
			t.Error("a new file has the inode number of one that is still open")
		}
		_, err := f.WriteAt([]byte("HELLO, more"), 0)
		ok(t, err)
		p := make([]byte, 100)
		n, _ := f.ReadAt(p, 0)
		is(t, "content", string(p[:n]), "HELLO, more")
		ok(t, f.Truncate(2))
		ok(t, f.Chmod(0o600))
		is(t, "size", fstat(t, f).Size, 2)
		ok(t, f.Sync())
		content(t, j(d, "f"), "another")
	})
}

func TestPosixAppendLosesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "log"), "") }, func(t *testing.T, d string) {
		const writers, records = 4, 200
		var wg sync.WaitGroup
		for w := range writers {
			f := open(t, j(d, "log"), os.O_WRONLY|os.O_APPEND)
			wg.Go(func() {
				for i := range records {
					if i%10 == 0 {
						_, _ = f.Seek(0, io.SeekStart)
					}
					if _, err := fmt.Fprintf(f, "%02d-%04d\n", w, i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		got := map[string]int{}
		for line := range strings.Lines(get(t, j(d, "log"))) {
			got[line]++
		}
		is(t, "number of different records", len(got), writers*records)
		for l, n := range got {
			if n != 1 || len(l) != 8 {
				t.Fatalf("record %q occurs %d times", l, n)
			}
		}
		// After a truncation by somebody else the next record is at the then end.
		a := open(t, j(d, "log"), os.O_WRONLY|os.O_APPEND)
		ok(t, os.Truncate(j(d, "log"), 3))
		_, err := a.WriteString("end")
		ok(t, err)
		is(t, "size after truncate and append", stat(t, j(d, "log")).Size, 6)
	})
}

func TestPosixCreateRaces(t *testing.T) {
	everywhere(t, nil, func(t *testing.T, d string) {
		for round := range 50 {
			p := j(d, fmt.Sprintf("f%d", round))
			var winners, losers atomic.Int32
			var wg sync.WaitGroup
			for i := range 6 {
				flags := os.O_CREATE | os.O_WRONLY
				if i < 3 {
					flags |= os.O_EXCL
				}
				wg.Go(func() {
					f, err := os.OpenFile(p, flags, 0o644)
					switch {
					case err == nil:
						f.Close()
						if flags&os.O_EXCL != 0 {
							winners.Add(1)
						}
					case errors.Is(err, unix.EEXIST) && flags&os.O_EXCL != 0:
						losers.Add(1)
					default:
						t.Errorf("open: %v", err)
					}
				})
			}
			wg.Wait()
			if winners.Load() > 1 {
				t.Fatalf("%d of 3 got O_EXCL", winners.Load())
			}
		}
	})
}

func TestPosixReaderDuringAtomicReplaceSeesAWholeFile(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), strings.Repeat("0", 5000)) }, func(t *testing.T, d string) {
		var done atomic.Bool
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for !done.Load() {
					p, err := os.ReadFile(j(d, "f"))
					if err != nil {
						t.Errorf("read: %v", err)
						return
					}
					if len(p) != 5000 || strings.Trim(string(p), string(p[:1])) != "" {
						t.Errorf("torn: %d bytes", len(p))
						return
					}
				}
			})
		}
		for i := range 300 {
			put(t, j(d, "tmp"), strings.Repeat(string(rune('a'+i%26)), 5000))
			ok(t, unix.Rename(j(d, "tmp"), j(d, "f")))
		}
		done.Store(true)
		wg.Wait()
	})
}

func TestPosixThousandsOfOpenFiles(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		for i := range 3000 {
			put(t, j(d, fmt.Sprintf("f%d", i)), fmt.Sprint(i))
		}
	}, func(t *testing.T, d string) {
		var lim unix.Rlimit
		ok(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &lim))
		n := min(3000, int(lim.Cur)-200)
		files := make([]*os.File, n)
		for i := range files {
			files[i] = open(t, j(d, fmt.Sprintf("f%d", i)), os.O_RDWR)
		}
		for i, f := range files {
			p := make([]byte, 10)
			m, _ := f.Read(p)
			if string(p[:m]) != fmt.Sprint(i) {
				t.Fatalf("file %d holds %q", i, p[:m])
			}
		}
		for _, f := range files {
			f.Close()
		}
	})
}

func TestPosixConcurrentStorm(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		for i := range 8 {
			ok(t, os.MkdirAll(j(d, fmt.Sprintf("w%d/sub", i)), 0o755))
			put(t, j(d, fmt.Sprintf("w%d/base", i)), "base")
		}
	}, func(t *testing.T, d string) {
		var wg sync.WaitGroup
		for w := range 8 {
			dir := j(d, fmt.Sprintf("w%d", w))
			wg.Go(func() { stormWorker(t, dir, d, w) })
		}
		wg.Wait()
		for w := range 8 {
			content(t, j(d, fmt.Sprintf("w%d/base", w)), strings.Repeat("x", 100))
			content(t, j(d, fmt.Sprintf("w%d/sub2/f99", w)), "99")
			is(t, "entries", len(names(t, j(d, fmt.Sprintf("w%d/sub2", w)))), 100)
		}
		is(t, "link count of the shared file", stat(t, j(d, "w0/base")).Nlink, 1)
	})
}

func stormWorker(t *testing.T, dir, top string, w int) {
	fail := func(err error) bool {
		if err != nil {
			t.Errorf("worker %d: %v", w, err)
		}
		return err != nil
	}
	if fail(os.WriteFile(j(dir, "base"), nil, 0o644)) {
		return
	}
	for i := range 100 {
		f, err := os.OpenFile(j(dir, "base"), os.O_WRONLY|os.O_APPEND, 0)
		if fail(err) {
			return
		}
		_, err = f.WriteString("x")
		f.Close()
		a, b := j(dir, "sub", fmt.Sprintf("t%d", i)), j(dir, "sub", fmt.Sprintf("f%d", i))
		if fail(err) || fail(os.WriteFile(a, []byte(fmt.Sprint(i)), 0o644)) || fail(unix.Rename(a, b)) {
			return
		}
		l := j(top, fmt.Sprintf("link%d-%d", w, i))
		if fail(os.Link(b, l)) || fail(os.Remove(l)) {
			return
		}
		if _, err := os.ReadDir(top); fail(err) {
			return
		}
	}
	fail(unix.Rename(j(dir, "sub"), j(dir, "sub2")))
}

func TestPosixTmpfileAndDirectIO(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), strings.Repeat("a", 8192)) }, func(t *testing.T, d string) {
		fd, err := unix.Open(d, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		ok(t, err)
		defer unix.Close(fd)
		var st unix.Stat_t
		ok(t, unix.Fstat(fd, &st))
		is(t, "nlink of a tmpfile", st.Nlink, 0)
		_, err = unix.Write(fd, []byte("temporary"))
		ok(t, err)
		ok(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/thread-self/fd/%d", fd), unix.AT_FDCWD, j(d, "named"), unix.AT_SYMLINK_FOLLOW))
		content(t, j(d, "named"), "temporary")
		listed(t, d, "f", "named")

		dfd, err := unix.Open(j(d, "f"), unix.O_RDWR|unix.O_DIRECT, 0)
		if errors.Is(err, unix.EINVAL) {
			return // allowed: no direct I/O here
		}
		ok(t, err)
		defer unix.Close(dfd)
		buf, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		ok(t, err)
		defer unix.Munmap(buf)
		copy(buf, strings.Repeat("D", 4096))
		_, err = unix.Pwrite(dfd, buf, 4096)
		ok(t, err)
		content(t, j(d, "f"), strings.Repeat("a", 4096)+strings.Repeat("D", 4096))
		ok(t, os.WriteFile(j(d, "f"), []byte(strings.Repeat("b", 8192)), 0o644))
		_, err = unix.Pread(dfd, buf, 0)
		ok(t, err)
		is(t, "direct read after a buffered write", buf[0], 'b')
	})
}
