package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

func mapShared(t *testing.T, f *os.File, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	ok(t, err)
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

func TestPosixSharedWritableMmap(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), strings.Repeat("a", 8192)) }, func(t *testing.T, d string) {
		f := open(t, j(d, "f"), os.O_RDWR)
		m := mapShared(t, f, 8192)
		m[5000] = 'M'
		p := make([]byte, 1)
		_, err := f.ReadAt(p, 5000)
		ok(t, err)
		is(t, "read of a mapped write", p[0], 'M')
		_, err = f.WriteAt([]byte("W"), 100)
		ok(t, err)
		is(t, "mapped view of a write", m[100], 'W')
		ok(t, f.Truncate(3*8192))
		_, err = f.WriteAt([]byte("Z"), 20000)
		ok(t, err)
		big := mapShared(t, f, 3*8192)
		is(t, "view behind the old end", big[20000], 'Z')
		big[24000] = 'Q'
		ok(t, unix.Msync(big, unix.MS_SYNC))
		before := fstat(t, f)
		tick(t)
		m[1] = 'T'
		ok(t, unix.Msync(m, unix.MS_SYNC))
		if after := fstat(t, f); mtime(after) == mtime(before) || ctime(after) == ctime(before) {
			t.Error("a mapped write moved no time")
		}
		want := bytes.Repeat([]byte("a"), 8192)
		want[5000], want[100], want[1] = 'M', 'W', 'T'
		want = append(want, make([]byte, 2*8192)...)
		want[20000], want[24000] = 'Z', 'Q'
		content(t, j(d, "f"), string(want))
	})
}

func TestPosixTruncateThenGrowGivesZeros(t *testing.T) {
	data := string(fstree.Bytes(1, 300000))
	cuts := []int{0, 1, 100, 4095, 4096, 4097, 65536, 131071, 131072, 131073, 262144, 299999}
	everywhere(t, func(t *testing.T, d string) {
		for _, c := range cuts {
			put(t, j(d, fmt.Sprint(c)), data)
		}
	}, func(t *testing.T, d string) {
		for _, c := range cuts {
			p := j(d, fmt.Sprint(c))
			want := data[:c] + strings.Repeat("\x00", 300000-c)
			ok(t, os.Truncate(p, int64(c)))
			is(t, "size", stat(t, p).Size, int64(c))
			ok(t, os.Truncate(p, 300000))
			content(t, p, want)
			// Again, growing by a write behind the end.
			put(t, p, data)
			ok(t, os.Truncate(p, int64(c)))
			f := open(t, p, os.O_RDWR)
			_, err := f.WriteAt([]byte("E"), 299999)
			ok(t, err)
			content(t, p, want[:299999]+"E")
		}
	})
}

func TestPosixSeekDataNeverHidesData(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		f := open(t, j(d, "f"), os.O_RDWR|os.O_CREATE)
		ok(t, f.Truncate(4<<20))
		for _, off := range []int64{0, 1 << 20, 3<<20 + 12345} {
			_, err := f.WriteAt(fstree.Bytes(2, 70000), off)
			ok(t, err)
		}
		f.Close()
	}, func(t *testing.T, d string) {
		f := open(t, j(d, "f"), os.O_RDWR)
		_, err := f.WriteAt([]byte("new data"), 2<<20+7)
		ok(t, err)
		whole := get(t, j(d, "f"))
		seen := make([]byte, len(whole))
		for off := int64(0); ; {
			data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) {
				break
			}
			ok(t, err)
			hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
			ok(t, err)
			if hole <= data {
				t.Fatalf("hole at %d behind data at %d", hole, data)
			}
			copy(seen[data:hole], whole[data:hole])
			off = hole
		}
		if string(seen) != whole {
			t.Error("what SEEK_DATA calls holes holds data")
		}
		_, err = unix.Seek(int(f.Fd()), 4<<20, unix.SEEK_DATA)
		wantErr(t, err, unix.ENXIO)
		_, err = unix.Seek(int(f.Fd()), 5<<20, unix.SEEK_HOLE)
		wantErr(t, err, unix.ENXIO)
	})
}

// What is only in the kernel's pages is data, too.
func TestPosixSeekDataSeesMappedWrites(t *testing.T) {
	const at = 2<<20 + 5
	scene := func(store func(t *testing.T, f *os.File)) func(*testing.T, string) {
		return func(t *testing.T, d string) {
			f := open(t, j(d, "f"), os.O_RDWR)
			store(t, f)
			seek := func(off int64, whence int) int64 {
				got, err := unix.Seek(int(f.Fd()), off, whence)
				ok(t, err)
				return got
			}
			if got := seek(1<<20, unix.SEEK_DATA); got > at {
				t.Errorf("SEEK_DATA from 1 MiB on finds %d, behind the data at %d", got, at)
			}
			store(t, f)
			is(t, "SEEK_DATA on data", seek(at, unix.SEEK_DATA), at)
			store(t, f)
			if got := seek(at, unix.SEEK_HOLE); got <= at {
				t.Errorf("SEEK_HOLE finds a hole at %d, where there is data", got)
			}
		}
	}
	hole := func(t *testing.T, d string) {
		put(t, j(d, "f"), "")
		ok(t, os.Truncate(j(d, "f"), 4<<20))
	}
	mapped := scene(func(t *testing.T, f *os.File) { mapShared(t, f, 4<<20)[at] = 'M' })
	everywhere(t, hole, mapped)
	everywhereWith(t, mounttest.Options{Args: []string{"--cache", "writeback"}}, hole, mapped)
	everywhereWith(t, mounttest.Options{Args: []string{"--cache", "writeback"}}, hole, scene(func(t *testing.T, f *os.File) {
		_, err := f.WriteAt([]byte("W"), at)
		ok(t, err)
	}))
}

func TestPosixFallocate(t *testing.T) {
	data := string(fstree.Bytes(3, 200000))
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), data) }, func(t *testing.T, d string) {
		f := open(t, j(d, "f"), os.O_RDWR)
		fd := int(f.Fd())
		want := []byte(data)
		try := func(mode uint32, off, n int64) bool {
			err := unix.Fallocate(fd, mode, off, n)
			if errors.Is(err, unix.EOPNOTSUPP) {
				content(t, j(d, "f"), string(want))
				return false
			}
			ok(t, err)
			return true
		}
		if try(unix.FALLOC_FL_KEEP_SIZE, 190000, 100000) {
			is(t, "size with KEEP_SIZE", fstat(t, f).Size, 200000)
		}
		if try(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 5000, 140000) {
			clear(want[5000:145000])
		}
		content(t, j(d, "f"), string(want))
		if try(unix.FALLOC_FL_ZERO_RANGE, 199000, 5000) {
			clear(want[199000:])
			want = append(want, make([]byte, 4000)...)
		}
		content(t, j(d, "f"), string(want))
		if try(0, 0, 300000) {
			want = append(want, make([]byte, 300000-len(want))...)
		}
		content(t, j(d, "f"), string(want))
		if unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 3) == nil {
			t.Error("COLLAPSE_RANGE of 3 bytes succeeded")
		}
		content(t, j(d, "f"), string(want))
		wantErr(t, unix.Fallocate(fd, 0, 0, 0), unix.EINVAL)
		wantErr(t, unix.Fallocate(fd, 0, -1, 5), unix.EINVAL)
	})
}

func TestPosixCopyFileRangeOfReadOnlyAndDeletedFiles(t *testing.T) {
	data := string(fstree.Bytes(4, 400000))
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "src"), data)
		ok(t, os.Chmod(j(d, "src"), 0o400))
	}, func(t *testing.T, d string) {
		src := open(t, j(d, "src"), os.O_RDONLY)
		ok(t, os.Remove(j(d, "src")))
		dst := open(t, j(d, "dst"), os.O_CREATE|os.O_RDWR)
		for total := 0; total < len(data); {
			n, err := unix.CopyFileRange(int(src.Fd()), nil, int(dst.Fd()), nil, len(data)-total, 0)
			ok(t, err)
			if n == 0 {
				t.Fatalf("copied %d of %d bytes", total, len(data))
			}
			total += n
		}
		content(t, j(d, "dst"), data)
		// What is shared must not be written through.
		_, err := dst.WriteAt([]byte("changed"), 1000)
		ok(t, err)
		p := make([]byte, 7)
		_, err = src.ReadAt(p, 1000)
		ok(t, err)
		is(t, "source after a write to the copy", string(p), data[1000:1007])
		soff, doff := int64(100), int64(50000)
		_, err = unix.CopyFileRange(int(dst.Fd()), &soff, int(dst.Fd()), &doff, 1000, 0)
		ok(t, err)
		is(t, "copy within a file", get(t, j(d, "dst"))[50000:51000], data[100:1000]+"changed"+data[1007:1100])
	})
}

func TestPosixOddSizesAndOffsets(t *testing.T) {
	offs := []int{0, 1, 511, 4095, 4097, 131071, 131072, 131073, 1 << 20, 1<<20 - 1}
	lens := []int{1, 3, 4096, 4097, 131072, 131075}
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), string(fstree.Bytes(5, 700001))) }, func(t *testing.T, d string) {
		f := open(t, j(d, "f"), os.O_RDWR)
		model := fstree.Bytes(5, 700001)
		seed := uint64(10)
		for _, off := range offs {
			for _, n := range lens {
				seed++
				p := fstree.Bytes(seed, n)
				_, err := f.WriteAt(p, int64(off))
				ok(t, err)
				if len(model) < off+n {
					model = append(model, make([]byte, off+n-len(model))...)
				}
				copy(model[off:], p)
				got := make([]byte, n+20)
				m, _ := f.ReadAt(got, int64(max(0, off-7)))
				if lo := max(0, off-7); !bytes.Equal(got[:m], model[lo:min(len(model), lo+m)]) {
					t.Fatalf("read around %d+%d is wrong", off, n)
				}
			}
		}
		content(t, j(d, "f"), string(model))
	})
}

func TestPosixTebibyteSparseFile(t *testing.T) {
	everywhere(t, nil, func(t *testing.T, d string) {
		f := open(t, j(d, "huge"), os.O_CREATE|os.O_RDWR)
		ok(t, f.Truncate(1<<40))
		_, err := f.WriteAt([]byte("far away"), 1<<40-8)
		ok(t, err)
		st := fstat(t, f)
		is(t, "size", st.Size, 1<<40)
		if st.Blocks > 10000 {
			t.Errorf("a file with 8 bytes takes %d blocks", st.Blocks)
		}
		p := make([]byte, 8)
		_, err = f.ReadAt(p, 1<<40-8)
		ok(t, err)
		is(t, "bytes at the end", string(p), "far away")
		_, err = f.ReadAt(p, 1<<39)
		ok(t, err)
		is(t, "bytes in the middle", string(p), strings.Repeat("\x00", 8))
		if data, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA); err == nil && data < 1<<39 {
			t.Logf("SEEK_DATA from 0 finds %d", data) // allowed, though slow to copy
		}
		ok(t, f.Truncate(0))
		is(t, "size", fstat(t, f).Size, 0)
	})
}

func TestPosixFsyncOfFilesAndDirectories(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		put(t, j(d, "dir", "f"), "x")
	}, func(t *testing.T, d string) {
		for range 2 { // a second time: an error must not be remembered as "not supported"
			ok(t, open(t, j(d, "dir"), os.O_RDONLY).Sync())
			f := open(t, j(d, "dir", "f"), os.O_RDWR)
			_, err := f.WriteString("data")
			ok(t, err)
			ok(t, f.Sync())
			ok(t, unix.Fdatasync(int(f.Fd())))
			ok(t, unix.Syncfs(int(f.Fd())))
		}
	})
}
