package beneath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := errors.Join(os.MkdirAll(filepath.Join(in, "a/b"), 0o755), os.WriteFile(filepath.Join(in, "a/b/f"), nil, 0o644),
		os.Symlink("a", filepath.Join(in, "link")), os.Symlink("f", filepath.Join(in, "a/b/last")), os.WriteFile(filepath.Join(dir, "out"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(in, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for p, want := range map[string]error{
		"": nil, "a": nil, "a/b/f": nil, "a/../a/b/f": nil, "a/b/none": unix.ENOENT, "a/b/f/x": unix.ENOTDIR,
		"link/b/f": unix.ELOOP, "a/b/last": unix.ELOOP, "../out": unix.EXDEV, "/etc/passwd": unix.EXDEV, "a/../../out": unix.EXDEV,
	} {
		n, err := Open(fd, p, unix.O_RDONLY, 0)
		if err == nil {
			unix.Close(n)
		}
		if !errors.Is(err, want) {
			t.Errorf("open %q: %v, want %v", p, err, want)
		}
	}
}

// A path of more than PATH_MAX bytes is opened, and the symbolic link in it is not followed.
func TestOpenLongPath(t *testing.T) {
	fd, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	name := strings.Repeat("n", 200)
	var parts []string
	at, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		next := -1
		if err = unix.Mkdirat(at, name, 0o755); err == nil {
			err = unix.Symlinkat(name, at, "link")
		}
		if err == nil {
			next, err = unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at, parts = next, append(parts, name)
	}
	var want, got unix.Stat_t
	err = unix.Fstat(at, &want)
	unix.Close(at)
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(fd, strings.Join(parts, "/"), unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_NO_XDEV)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Fstat(n, &got)
	if unix.Close(n); err != nil || got.Ino != want.Ino {
		t.Errorf("inode %d, %v, want %d", got.Ino, err, want.Ino)
	}
	for _, i := range []int{3, 30, 49} {
		through := append([]string{}, parts...)
		through[i] = "link"
		if n, err := Open(fd, strings.Join(through, "/"), unix.O_RDONLY, 0); !errors.Is(err, unix.ELOOP) {
			unix.Close(n)
			t.Errorf("through a link in part %d: %v", i, err)
		}
	}
}

func TestRetry(t *testing.T) {
	left := []error{unix.EINTR, unix.EAGAIN, unix.EINTR, unix.ENOENT, nil}
	if err := Retry(func() error { err := left[0]; left = left[1:]; return err }); err != unix.ENOENT || len(left) != 1 {
		t.Errorf("%v with %d left", err, len(left))
	}
	n := 0
	if err := Retry(func() error { n++; return unix.EAGAIN }); err != unix.EAGAIN || n != patience+1 {
		t.Errorf("%v after %d times", err, n)
	}
}
