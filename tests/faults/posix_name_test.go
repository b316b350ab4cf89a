package faults

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

func TestPosixLinkCounts(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "a"), "linked")
		ok(t, os.Link(j(d, "a"), j(d, "b")))
		put(t, j(d, "single"), "s")
	}, func(t *testing.T, d string) {
		count := func(want int, names ...string) {
			t.Helper()
			ino := stat(t, j(d, names[0])).Ino
			for _, n := range names {
				st := stat(t, j(d, n))
				is(t, "nlink of "+n, int(st.Nlink), want)
				is(t, "inode of "+n, st.Ino, ino)
			}
		}
		count(2, "a", "b")
		ok(t, os.Link(j(d, "a"), j(d, "c")))
		count(3, "a", "b", "c")
		put(t, j(d, "b"), "written")
		content(t, j(d, "a"), "written")
		content(t, j(d, "c"), "written")
		ok(t, os.Remove(j(d, "a")))
		count(2, "b", "c")
		ok(t, os.Link(j(d, "single"), j(d, "double")))
		count(2, "single", "double")
		ok(t, os.Remove(j(d, "single")))
		count(1, "double")
	})
}

func TestPosixLinkUnlinkLinkAndRenameBetweenLinks(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "a"), "x")
		put(t, j(d, "other"), "y")
	}, func(t *testing.T, d string) {
		a, b := j(d, "a"), j(d, "b")
		for range 3 {
			ok(t, os.Link(a, b))
			wantErr(t, os.Link(a, b), unix.EEXIST)
			ok(t, os.Remove(b))
		}
		ok(t, os.Link(a, b))
		ok(t, unix.Rename(a, b)) // one inode: nothing happens
		is(t, "nlink after rename between two links", int(stat(t, a).Nlink), 2)
		ok(t, unix.Rename(j(d, "other"), b))
		is(t, "nlink after the other name was replaced", int(stat(t, a).Nlink), 1)
		content(t, b, "y")
		wantErr(t, os.Link(d, j(d, "dirlink")), unix.EPERM)
	})
}

func TestPosixRenameErrorRules(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "full/sub"), 0o755))
		ok(t, os.Mkdir(j(d, "empty"), 0o755))
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		put(t, j(d, "f"), "f")
	}, func(t *testing.T, d string) {
		before, err := fstree.Scan(d)
		ok(t, err)
		rename := func(a, b string) error { return unix.Rename(j(d, a), j(d, b)) }
		if err := rename("dir", "full"); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			t.Errorf("rename onto a full directory: %v", err)
		}
		wantErr(t, rename("f", "dir"), unix.EISDIR)
		wantErr(t, rename("dir", "f"), unix.ENOTDIR)
		wantErr(t, rename("full", "full/sub/x"), unix.EINVAL)
		wantErr(t, rename("nothing", "x"), unix.ENOENT)
		wantErr(t, rename("f", "nowhere/x"), unix.ENOENT)
		wantErr(t, rename("f", "f/x"), unix.ENOTDIR)
		wantErr(t, unix.Rmdir(j(d, "full")), unix.ENOTEMPTY)
		wantErr(t, unix.Rmdir(j(d, "f")), unix.ENOTDIR)
		wantErr(t, unix.Unlink(j(d, "dir")), unix.EISDIR)
		after, err := fstree.Scan(d)
		ok(t, err)
		for _, x := range fstree.Diff(before, after, fstree.Exact, "before", "after") {
			t.Error(x)
		}
		ok(t, rename("dir", "empty"))
		gone(t, j(d, "dir"))
	})
}

func TestPosixRenameat2(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		put(t, j(d, "a"), "a")
		put(t, j(d, "b"), "b")
		ok(t, os.MkdirAll(j(d, "dir/sub"), 0o755))
		put(t, j(d, "dir/x"), "x")
	}, func(t *testing.T, d string) {
		r2 := func(a, b string, flags uint) error {
			return unix.Renameat2(unix.AT_FDCWD, j(d, a), unix.AT_FDCWD, j(d, b), flags)
		}
		wantErr(t, r2("a", "b", unix.RENAME_NOREPLACE), unix.EEXIST)
		ok(t, os.Remove(j(d, "b")))
		ok(t, r2("a", "b", unix.RENAME_NOREPLACE))
		content(t, j(d, "b"), "a")
		gone(t, j(d, "a"))
		if err := r2("b", "dir", unix.RENAME_EXCHANGE); !errors.Is(err, unix.EINVAL) {
			ok(t, err)
			content(t, j(d, "dir"), "a")
			content(t, j(d, "b/x"), "x")
			listed(t, j(d, "b"), "sub", "x")
			wantErr(t, r2("b", "missing", unix.RENAME_EXCHANGE), unix.ENOENT)
			wantErr(t, r2("b", "b/sub", unix.RENAME_EXCHANGE), unix.EINVAL)
		}
		wantErr(t, r2("dir", "c", unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE), unix.EINVAL)
	})
}

// Names that some layered file system reserves or trips over.
var oddNames = []string{
	".wh.a", ".wh..wh..opq", ".wh..opq", ".rewind2", ".fuse_hidden0001", "-rf", " ", "a b", "*", "?", "\\", "\"", "'", "$HOME", "`x`", "%s%n",
	"new\nline", "tab\t", "\x01\x1b[31m", "caf\xe9", "\xff\xfe", "日本語", "..a", "...", "~", "#", ".git", "CON", "aux.txt", ":", strings.Repeat("n", 255),
}

func TestPosixFileNames(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "base"), 0o755))
		for _, n := range oddNames {
			put(t, j(d, "base", n), n)
		}
	}, func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "new"), 0o755))
		for _, n := range oddNames {
			content(t, j(d, "base", n), n)
			put(t, j(d, "new", n), n)
			put(t, j(d, "base", n), "changed")
			ok(t, unix.Rename(j(d, "base", n), j(d, "new", "moving")))
			ok(t, unix.Rename(j(d, "new", "moving"), j(d, "base", n)))
			content(t, j(d, "base", n), "changed")
		}
		is(t, "names in new", len(names(t, j(d, "new"))), len(oddNames))
		for _, n := range oddNames {
			ok(t, os.Remove(j(d, "base", n)))
			ok(t, os.Mkdir(j(d, "base", n), 0o755))
			ok(t, os.Remove(j(d, "base", n)))
			ok(t, os.Remove(j(d, "new", n)))
		}
		listed(t, j(d, "base"))
		listed(t, j(d, "new"))
		long := strings.Repeat("n", 256)
		wantErr(t, os.Mkdir(j(d, long), 0o755), unix.ENAMETOOLONG)
		wantErr(t, os.WriteFile(j(d, long), nil, 0o644), unix.ENAMETOOLONG)
		wantErr(t, os.Symlink("x", j(d, long)), unix.ENAMETOOLONG)
		_, err := os.Stat(j(d, long))
		wantErr(t, err, unix.ENAMETOOLONG)
		wantErr(t, unix.Rename(j(d, "new"), j(d, long)), unix.ENAMETOOLONG)
		wantErr(t, os.Link(j(d, "nothing"), j(d, long)), unix.ENOENT)
	})
}

func TestPosixPathsLongerThanPathMax(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) { ok(t, fstree.MakeDeep(d)) }, func(t *testing.T, d string) {
		tree, err := fstree.Scan(d)
		ok(t, err)
		var bottom *fstree.Entry
		for p, e := range tree.Entries {
			if e.Err != "" {
				t.Errorf("%.20s... : %s", p, e.Err)
			}
			if strings.HasSuffix(p, "/bottom") {
				bottom = e
			}
		}
		if bottom == nil || bottom.Hash != fstree.HashBytes([]byte("down here\n")) {
			t.Fatalf("the file at the bottom is not there or wrong: %+v", bottom)
		}
		// Walk down by descriptor and write.
		dir, err := unix.Open(d, unix.O_PATH|unix.O_DIRECTORY, 0)
		ok(t, err)
		for range strings.Count(bottom.Path, "/") {
			next, err := unix.Openat(dir, strings.Repeat("p", 200), unix.O_PATH|unix.O_DIRECTORY, 0)
			ok(t, err)
			unix.Close(dir)
			dir = next
		}
		defer unix.Close(dir)
		fd, err := unix.Openat(dir, "bottom", unix.O_WRONLY|unix.O_APPEND, 0)
		ok(t, err)
		_, err = unix.Write(fd, []byte("more"))
		ok(t, err)
		unix.Close(fd)
		ok(t, unix.Renameat(dir, "bottom", dir, "b2"))
		tree, err = fstree.Scan(d)
		ok(t, err)
		if e := tree.Entries[filepath.Dir(bottom.Path)+"/b2"]; e == nil || e.Hash != fstree.HashBytes([]byte("down here\nmore")) {
			t.Errorf("after a write at the bottom: %+v", e)
		}
		ok(t, os.RemoveAll(j(d, strings.Repeat("p", 200))))
		listed(t, d)
	})
}

func TestPosixSymlinks(t *testing.T) {
	long := strings.Repeat("x/", 2000)
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.Mkdir(j(d, "dir"), 0o755))
		put(t, j(d, "dir/f"), "f")
		ok(t, os.Symlink("dir", j(d, "link")))
		ok(t, os.Symlink("nowhere", j(d, "dangling")))
		ok(t, os.Symlink(long, j(d, "long")))
	}, func(t *testing.T, d string) {
		content(t, j(d, "link/f"), "f")
		for n, target := range map[string]string{"link": "dir", "dangling": "nowhere", "long": long} {
			got, err := os.Readlink(j(d, n))
			ok(t, err)
			is(t, "target of "+n, got, target)
			is(t, "size of "+n, stat(t, j(d, n)).Size, int64(len(target)))
		}
		ts := []unix.Timespec{{Sec: 7}, {Sec: 8, Nsec: 9}}
		ok(t, unix.UtimesNanoAt(unix.AT_FDCWD, j(d, "dangling"), ts, unix.AT_SYMLINK_NOFOLLOW))
		is(t, "mtime of the link", mtime(stat(t, j(d, "dangling"))), fstree.Time{Sec: 8, Nsec: 9})
		ok(t, unix.Rename(j(d, "link"), j(d, "link2")))
		content(t, j(d, "link2/f"), "f")
		ok(t, os.Link(j(d, "link2"), j(d, "link3")))
		is(t, "nlink of a linked symlink", int(stat(t, j(d, "link3")).Nlink), 2)
		ok(t, os.Remove(j(d, "link2")))
		content(t, j(d, "dir/f"), "f")
		wantErr(t, os.Symlink("", j(d, "e")), unix.ENOENT)
		ok(t, os.Symlink("new target", j(d, "n")))
		is(t, "size of a new link", stat(t, j(d, "n")).Size, 10)
	})
}

func TestPosixDirectoryRenamedWhileOpenOrCwd(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "dir/sub"), 0o755))
		put(t, j(d, "dir/f"), "f")
	}, func(t *testing.T, d string) {
		dir := open(t, j(d, "dir"), os.O_RDONLY)
		f := open(t, j(d, "dir/f"), os.O_RDWR)
		child := child(t, j(d, "dir/sub"))
		ok(t, unix.Rename(j(d, "dir"), j(d, "moved")))
		_, err := f.WriteString("by the old descriptor")
		ok(t, err)
		content(t, j(d, "moved/f"), "by the old descriptor")
		fd, err := unix.Openat(int(dir.Fd()), "f", unix.O_RDONLY, 0)
		ok(t, err)
		unix.Close(fd)
		is(t, "getcwd in the renamed directory", child.run("pwd -P"), j(d, "moved/sub"))
		is(t, "relative path", child.run("cat ../f"), "by the old descriptor")
		child.run("echo new > made")
		content(t, j(d, "moved/sub/made"), "new\n")
		gone(t, j(d, "dir"))
	})
}

func TestPosixRemovedCwdAndFailedRmdir(t *testing.T) {
	everywhere(t, func(t *testing.T, d string) {
		ok(t, os.MkdirAll(j(d, "dir/sub"), 0o755))
		ok(t, os.Mkdir(j(d, "doomed"), 0o755))
	}, func(t *testing.T, d string) {
		inDir, inDoomed := child(t, j(d, "dir")), child(t, j(d, "doomed"))
		wantErr(t, unix.Rmdir(j(d, "dir")), unix.ENOTEMPTY)
		is(t, "getcwd after a failed rmdir", inDir.run("pwd -P"), j(d, "dir"))
		ok(t, unix.Rmdir(j(d, "doomed")))
		if out := inDoomed.run("echo x > f 2>&1; ls 2>&1"); strings.Contains(out, "Input/output") {
			t.Errorf("in a removed directory: %s", out)
		}
		is(t, "leaving it", inDoomed.run("cd "+d+" && ls"), "dir")
	})
}
