package faults

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

func TestMain(m *testing.M) { os.Exit(mounttest.Main(m)) }

// fill makes the objects that a scene starts from.
type fill func(t *testing.T, dir string)

// everywhere runs a scene on a plain directory, on a mount over a base that fill
// made, and on a mount whose objects fill made before a checkpoint.
func everywhere(t *testing.T, f fill, scene func(t *testing.T, dir string)) {
	t.Helper()
	everywhereWith(t, mounttest.Options{}, f, scene)
}

func everywhereWith(t *testing.T, opt mounttest.Options, f fill, scene func(t *testing.T, dir string)) {
	t.Helper()
	if f == nil {
		f = func(*testing.T, string) {}
	}
	t.Run("plain", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "plain")
		ok(t, os.Mkdir(dir, 0o755))
		openUp(t, dir)
		f(t, dir)
		scene(t, dir)
	})
	t.Run("base", func(t *testing.T) {
		o := opt
		o.Fill = func(dir string) error { f(t, dir); return nil }
		scene(t, mounttest.New(t, o).Dir)
	})
	t.Run("sealed", func(t *testing.T) {
		o := opt
		o.Fill = mounttest.Empty
		m := mounttest.New(t, o)
		f(t, m.Dir)
		m.Checkpoint("filled")
		scene(t, m.Dir)
	})
}

// openUp lets other users through the parents of a test's directory.
func openUp(t *testing.T, dir string) {
	t.Helper()
	for d := filepath.Dir(dir); d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		ok(t, os.Chmod(d, 0o755))
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr fails the test unless err is want.
func wantErr(t testing.TB, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// is fails the test unless got is want.
func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func j(elem ...string) string { return filepath.Join(elem...) }

func put(t testing.TB, path, data string) {
	t.Helper()
	ok(t, os.WriteFile(path, []byte(data), 0o644))
}

func get(t testing.TB, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	ok(t, err)
	return string(p)
}

// content fails the test unless path holds want.
func content(t testing.TB, path, want string) {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	if !bytes.Equal(p, []byte(want)) {
		t.Errorf("%s holds %s, want %s", path, brief(string(p)), brief(want))
	}
}

func brief(s string) string {
	if len(s) > 60 {
		return "(" + fstree.HashBytes([]byte(s)) + ") " + s[:60] + "..."
	}
	return `"` + s + `"`
}

func gone(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there, or fails strangely: %v", path, err)
	}
}

func stat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	ok(t, unix.Lstat(path, &st))
	return st
}

func fstat(t testing.TB, f *os.File) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	ok(t, unix.Fstat(int(f.Fd()), &st))
	return st
}

func open(t testing.TB, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0o644)
	ok(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	ents, err := os.ReadDir(dir)
	ok(t, err)
	var out []string
	for _, e := range ents {
		out = append(out, e.Name())
	}
	return out
}

// listed fails the test unless dir lists exactly want, which is in order.
func listed(t testing.TB, dir string, want ...string) {
	t.Helper()
	is(t, "listing of "+dir, strings.Join(names(t, dir), " "), strings.Join(want, " "))
}

// mtime and ctime make times comparable.
func mtime(st unix.Stat_t) fstree.Time { return fstree.Time{Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec} }
func ctime(st unix.Stat_t) fstree.Time { return fstree.Time{Sec: st.Ctim.Sec, Nsec: st.Ctim.Nsec} }

// tick waits until file systems stamp with a later time.
func tick(t testing.TB) {
	t.Helper()
	var start, now unix.Timespec
	ok(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &start))
	for now = start; now == start; {
		time.Sleep(time.Millisecond)
		ok(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
	}
}

// as runs f with the rights of another user, on a thread of its own.
func as(t testing.TB, uid, gid int, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to become other users")
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and its identity with it.
		runtime.LockOSThread()
		defer close(done) // also when f ends the test
		done <- func() error {
			if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				return e
			}
			f()
			return nil
		}()
	}()
	ok(t, <-done)
}

// t0 is a time in the past.
var t0 = time.Unix(1_000_000_007, 123_456_789)

// shared is for scenes in which several users take part.
func shared() mounttest.Options { return mounttest.Options{Args: []string{"--allow-other"}} }
