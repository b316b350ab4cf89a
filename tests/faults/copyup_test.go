package faults

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

func TestCopyUpKeepsTheInodeNumber(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		put(t, j(d, "dir/f"), "x")
	}, func(t *testing.T, d string) {
		f := open(t, j(d, "dir/f"), os.O_RDWR)
		before, dirBefore := stat(t, j(d, "dir/f")), stat(t, j(d, "dir"))
		for _, change := range []func() error{
			func() error { return appendTo(j(d, "dir/f")) },
			func() error { return os.Chmod(j(d, "dir/f"), 0o600) },
			func() error { return unix.Rename(j(d, "dir/f"), j(d, "dir/g")) },
			func() error { return unix.Rename(j(d, "dir/g"), j(d, "dir/f")) },
			func() error { return unix.Rename(j(d, "dir"), j(d, "dir2")) },
			func() error { return unix.Rename(j(d, "dir2"), j(d, "dir")) },
		} {
			ok(t, change())
			is(t, "inode by descriptor", fstat(t, f).Ino, before.Ino)
		}
		is(t, "inode by path", stat(t, j(d, "dir/f")).Ino, before.Ino)
		is(t, "device", stat(t, j(d, "dir/f")).Dev, before.Dev)
		is(t, "inode of the directory", stat(t, j(d, "dir")).Ino, dirBefore.Ino)
		tree, err := fstree.Scan(d)
		ok(t, err)
		is(t, "inode in a listing", tree.Entries["dir/f"].Ino, before.Ino)
	})
}

func TestCopyUpIsSeenByEarlierReaders(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { put(t, j(d, "f"), strings.Repeat("o", 10000)) }, func(t *testing.T, d string) {
		r := open(t, j(d, "f"), os.O_RDONLY)
		p := make([]byte, 20000)
		_, _ = r.ReadAt(p, 0)
		m, err := unix.Mmap(int(r.Fd()), 0, 10000, unix.PROT_READ, unix.MAP_SHARED)
		ok(t, err)
		defer unix.Munmap(m)
		is(t, "mapped before", m[5000], 'o')
		w := open(t, j(d, "f"), os.O_WRONLY)
		_, err = w.WriteAt([]byte("NEW"), 4999)
		ok(t, err)
		_, err = w.WriteAt([]byte("end"), 12000)
		ok(t, err)
		ok(t, os.Chmod(j(d, "f"), 0o600))
		n, _ := r.ReadAt(p, 0)
		is(t, "bytes read", n, 12003)
		is(t, "read by the earlier descriptor", string(p[4998:5003]), "oNEWo")
		is(t, "mapped after", m[5000], 'E')
		st := fstat(t, r)
		is(t, "size", st.Size, 12003)
		is(t, "mode", st.Mode&0o777, 0o600)
	})
}

func TestCopyUpKeepsHardLinks(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		put(t, j(d, "a"), "shared")
		ok(t, os.Link(j(d, "a"), j(d, "dir/b")))
		ok(t, os.Link(j(d, "a"), j(d, "c")))
	}, func(t *testing.T, d string) {
		for i, n := range []string{"dir/b", "a", "c"} {
			want := fmt.Sprint("by ", n)
			put(t, j(d, n), want)
			for _, other := range []string{"a", "dir/b", "c"} {
				content(t, j(d, other), want)
				st := stat(t, j(d, other))
				is(t, "nlink of "+other, int(st.Nlink), 3)
				is(t, "inode of "+other, st.Ino, stat(t, j(d, "a")).Ino)
			}
			ok(t, os.Chmod(j(d, n), os.FileMode(0o600+i)))
			is(t, "mode by another name", stat(t, j(d, "a")).Mode&0o777, uint32(0o600+i))
		}
		ok(t, os.Remove(j(d, "a")))
		ok(t, unix.Rename(j(d, "dir"), j(d, "dir2")))
		put(t, j(d, "dir2/b"), "last")
		content(t, j(d, "c"), "last")
		is(t, "nlink", int(stat(t, j(d, "c")).Nlink), 2)
	})
}

func TestCopyUpByConcurrentFirstWrites(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		for i := range 10 {
			put(t, j(d, fmt.Sprint(i)), strings.Repeat("-", 80000))
		}
	}, func(t *testing.T, d string) {
		for i := range 10 {
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					f, err := os.OpenFile(j(d, fmt.Sprint(i)), os.O_WRONLY, 0)
					if err != nil {
						t.Error(err)
						return
					}
					defer f.Close()
					if _, err := f.WriteAt([]byte(strings.Repeat(fmt.Sprint(w), 1000)), int64(w)*10000); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			var want strings.Builder
			for w := range 8 {
				want.WriteString(strings.Repeat(fmt.Sprint(w), 1000) + strings.Repeat("-", 9000))
			}
			content(t, j(d, fmt.Sprint(i)), want.String())
		}
	})
}

func TestCopyUpOfMetadataKeepsTheRest(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "p/q"), 0o750))
		for _, n := range []string{"chmod", "utimes", "xattr", "chown", "link", "rename"} {
			put(t, j(d, "p/q", n), "content of "+n)
			ok(t, unix.Setxattr(j(d, "p/q", n), "user.k", []byte("v"), 0))
			ok(t, unix.Chmod(j(d, "p/q", n), 0o4755))
			ok(t, os.Chtimes(j(d, "p/q", n), t0, t0))
		}
		ok(t, os.Chtimes(j(d, "p"), t0, t0))
	}, func(t *testing.T, d string) {
		q := j(d, "p/q")
		parent := stat(t, j(d, "p"))
		ok(t, unix.Chmod(j(q, "chmod"), 0o4711))
		ok(t, os.Chtimes(j(q, "utimes"), t0, t0))
		ok(t, unix.Setxattr(j(q, "xattr"), "user.other", []byte("o"), 0))
		ok(t, os.Lchown(j(q, "chown"), -1, -1))
		ok(t, os.Link(j(q, "link"), j(q, "link2")))
		ok(t, unix.Rename(j(q, "rename"), j(q, "renamed")))
		for n, mode := range map[string]uint32{"chmod": 0o4711, "chown": 0o755, "utimes": 0o4755, "xattr": 0o4755, "link": 0o4755, "renamed": 0o4755} {
			content(t, j(q, n), "content of "+strings.Replace(n, "renamed", "rename", 1))
			st := stat(t, j(q, n))
			is(t, "mtime of "+n, mtime(st), fstree.TimeOf(t0))
			is(t, "mode of "+n, st.Mode&0o7777, mode)
			p := make([]byte, 10)
			k, err := unix.Getxattr(j(q, n), "user.k", p)
			ok(t, err)
			is(t, "xattr of "+n, string(p[:k]), "v")
		}
		now := stat(t, j(d, "p"))
		is(t, "mtime of the grandparent", mtime(now), mtime(parent))
		is(t, "mode of the grandparent", now.Mode, parent.Mode)
	})
}

func TestCopyUpRenameOfBaseDirectories(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		for i := range 30 {
			ok(t, os.MkdirAll(j(d, fmt.Sprintf("big/s%d/t", i)), 0o755))
			put(t, j(d, fmt.Sprintf("big/s%d/t/f", i)), fmt.Sprint(i))
		}
		ok(t, os.Mkdir(j(d, "empty"), 0o755))
	}, func(t *testing.T, d string) {
		put(t, j(d, "big/s3/t/f"), "changed before")
		ok(t, os.Remove(j(d, "big/s4/t/f")))
		ok(t, unix.Rename(j(d, "big"), j(d, "empty"))) // over an empty directory
		ok(t, unix.Rename(j(d, "empty"), j(d, "moved")))
		gone(t, j(d, "big"))
		gone(t, j(d, "empty"))
		for i := range 30 {
			want := fmt.Sprint(i)
			switch i {
			case 3:
				want = "changed before"
			case 4:
				listed(t, j(d, "moved/s4/t"))
				continue
			}
			content(t, j(d, fmt.Sprintf("moved/s%d/t/f", i)), want)
		}
		ok(t, os.Mkdir(j(d, "big"), 0o755)) // the old name is free and empty
		listed(t, j(d, "big"))
		put(t, j(d, "big/new"), "n")
		ok(t, unix.Rename(j(d, "moved/s5"), j(d, "big/s5")))
		content(t, j(d, "big/s5/t/f"), "5")
		listed(t, j(d, "big"), "new", "s5")
	})
}

func TestCopyUpDeletedNamesStayDeleted(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "dir/sub/deep"), 0o755))
		put(t, j(d, "dir/f"), "old")
		put(t, j(d, "dir/sub/g"), "old")
		put(t, j(d, "dir/sub/deep/h"), "old")
		put(t, j(d, "file"), "old")
	}, func(t *testing.T, d string) {
		ok(t, os.RemoveAll(j(d, "dir")))
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		listed(t, j(d, "dir"))
		gone(t, j(d, "dir/f"))
		ok(t, os.Mkdir(j(d, "dir/sub"), 0o755))
		listed(t, j(d, "dir/sub"))
		gone(t, j(d, "dir/sub/g"))
		gone(t, j(d, "dir/sub/deep"))
		ok(t, os.Mkdir(j(d, "dir/sub/deep"), 0o755))
		listed(t, j(d, "dir/sub/deep"))
		// A name made again as anything, moved onto, deleted again.
		makers := []func(p string) error{
			func(p string) error { return os.WriteFile(p, []byte("new"), 0o644) },
			func(p string) error { return os.Mkdir(p, 0o755) },
			func(p string) error { return os.Symlink("x", p) },
			func(p string) error { return unix.Mkfifo(p, 0o600) },
			func(p string) error {
				if err := os.WriteFile(p+".tmp", []byte("moved"), 0o644); err != nil {
					return err
				}
				return unix.Rename(p+".tmp", p)
			},
		}
		for range 2 {
			for _, mk := range makers {
				ok(t, os.Remove(j(d, "file")))
				gone(t, j(d, "file"))
				listed(t, d, "dir")
				ok(t, mk(j(d, "file")))
				listed(t, d, "dir", "file")
			}
		}
		put(t, j(d, "over"), "over")
		ok(t, unix.Rename(j(d, "over"), j(d, "file")))
		content(t, j(d, "file"), "over")
		ok(t, os.Remove(j(d, "file")))
		gone(t, j(d, "file"))
	})
}

func TestCopyUpListingsAreMergedAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "base1"), "")
		put(t, j(d, "base2"), "")
	}, func(t *testing.T, d string) {
		sh := child(t, d)
		is(t, "before", sh.run("ls"), "base1\nbase2")
		put(t, j(d, "new"), "")
		put(t, j(d, "base2"), "copied up")
		ok(t, os.Remove(j(d, "base1")))
		is(t, "in another process", sh.run("ls; cat base2"), "base2\nnew\ncopied up")
		sh.run("mv new newer; echo x > base1")
		listed(t, d, "base1", "base2", "newer")
	})
}

func TestCopyUpKeepsHoles(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error {
		f, err := os.Create(j(dir, "sparse"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Truncate(1 << 30); err != nil {
			return err
		}
		_, err = f.WriteAt([]byte("island"), 1<<29)
		return err
	}})
	size := storeSize(t, m)
	f := open(t, m.Path("sparse"), os.O_RDWR)
	_, err := f.WriteAt([]byte("first"), 7)
	ok(t, err)
	m.Checkpoint("c")
	if b := fstat(t, f).Blocks; b > 4096 {
		t.Errorf("a file of two islands takes %d blocks", b)
	}
	if grown := storeSize(t, m) - size; grown > 256<<10 {
		t.Errorf("a write of 5 bytes stored %d bytes", grown)
	}
	p := make([]byte, 6)
	_, err = f.ReadAt(p, 1<<29)
	ok(t, err)
	is(t, "island", string(p), "island")
}

// storeSize is the space that the store takes.
func storeSize(t *testing.T, m *mounttest.Mount) int64 {
	t.Helper()
	tree, err := fstree.Scan(m.Store)
	ok(t, err)
	total := int64(0)
	for _, e := range tree.Entries {
		total += e.Blocks * 512
	}
	return total
}

func TestCopyUpOfOneByteInALargeFile(t *testing.T) {
	const size = 1 << 30
	block := fstree.Bytes(8, 1<<20)
	m := mounttest.New(t, mounttest.Options{Fill: func(dir string) error {
		f, err := os.Create(j(dir, "large"))
		if err != nil {
			return err
		}
		defer f.Close()
		for off := int64(0); off < size; off += 64 << 20 { // every 64th MiB has bytes
			if _, err := f.WriteAt(block, off); err != nil {
				return err
			}
		}
		if err := f.Truncate(size); err != nil {
			return err
		}
		return f.Sync() // ext4 then knows how many blocks the list of its extents takes, which stat(2) shows
	}})
	before := storeSize(t, m)
	f := open(t, m.Path("large"), os.O_RDWR)
	_, err := f.WriteAt([]byte("!"), 64<<20+5)
	ok(t, err)
	m.Checkpoint("c")
	if grown := storeSize(t, m) - before; grown >= 256<<10 {
		t.Errorf("one byte stored %d bytes", grown)
	}
	p := make([]byte, 1<<20)
	for off := int64(0); off < size; off += 64 << 20 {
		_, err := f.ReadAt(p, off)
		ok(t, err)
		want := append([]byte(nil), block...)
		if off == 64<<20 {
			want[5] = '!'
		}
		if string(p) != string(want) {
			t.Fatalf("the MiB at %d is wrong", off)
		}
	}
	// Cut base data does not come back.
	ok(t, f.Truncate(1000))
	ok(t, f.Truncate(size))
	_, err = f.ReadAt(p, 64<<20)
	ok(t, err)
	if strings.Trim(string(p), "\x00") != "" {
		t.Error("data of the base came back behind a truncation")
	}
}

func TestCopyUpByTruncateAsFirstTouch(t *testing.T) {
	everywhereWith(t, shared(), func(t *testing.T, d string) {
		for _, n := range []string{"trunc", "zero", "grow", "excl", "alices"} {
			put(t, j(d, n), strings.Repeat("b", 50000))
		}
		ok(t, os.Chmod(j(d, "alices"), 0o644))
	}, func(t *testing.T, d string) {
		put(t, j(d, "trunc"), "short")
		content(t, j(d, "trunc"), "short")
		ok(t, os.Truncate(j(d, "zero"), 0))
		ok(t, os.Truncate(j(d, "zero"), 50000))
		content(t, j(d, "zero"), strings.Repeat("\x00", 50000))
		ok(t, os.Truncate(j(d, "grow"), 100000))
		content(t, j(d, "grow"), strings.Repeat("b", 50000)+strings.Repeat("\x00", 50000))
		_, err := os.OpenFile(j(d, "excl"), os.O_CREATE|os.O_EXCL|os.O_TRUNC|os.O_WRONLY, 0o644)
		wantErr(t, err, unix.EEXIST)
		is(t, "size after a failed O_EXCL|O_TRUNC", stat(t, j(d, "excl")).Size, 50000)
		as(t, alice, alice, func() {
			_, err := os.OpenFile(j(d, "alices"), os.O_TRUNC|os.O_WRONLY, 0)
			wantErr(t, err, unix.EACCES)
			wantErr(t, os.Truncate(j(d, "alices"), 0), unix.EACCES)
		})
		is(t, "size after a refused truncation", stat(t, j(d, "alices")).Size, 50000)
	})
}
