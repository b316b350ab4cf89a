package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/kv"
)

func TestOneDaemonPerStore(t *testing.T) {
	o := options(t)
	r := start(t, o)
	o.mounted = func(string) (bool, error) { return true, nil }
	_, err := tryStart(t, o)
	wantCode(t, err, control.CodeStoreHeld)
	if !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Fatalf("the pid is not named: %v", err)
	}
	r.write(t, "still", "here")
}

func TestStoreKnowsItsBase(t *testing.T) {
	o := options(t)
	o.Store = filepath.Join(t.TempDir(), "store")
	r := start(t, o)
	r.write(t, "x", "1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	other := options(t)
	other.Store = o.Store
	_, err := tryStart(t, other)
	wantCode(t, err, control.CodeConflict)
	if !strings.Contains(err.Error(), o.Base) {
		t.Fatalf("its base is not named: %v", err)
	}

	moved := o
	moved.Base = o.Base + "-moved"
	if err := os.Rename(o.Base, moved.Base); err != nil {
		t.Fatal(err)
	}
	r = start(t, moved)
	r.want(t, "", "x", "1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	// Another directory in its place, which must not get the number of the old one.
	if err := os.Rename(moved.Base, moved.Base+"-kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(moved.Base, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = tryStart(t, moved)
	wantCode(t, err, control.CodeConflict)
}

func TestBadPlaces(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "b")
	file := filepath.Join(dir, "file")
	full := filepath.Join(dir, "full")
	for _, d := range []string{base, filepath.Join(base, "in"), full} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{file, filepath.Join(full, "x")} {
		if err := os.WriteFile(f, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	alias := filepath.Join(dir, "alias")
	if err := os.Symlink(base, alias); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	for name, c := range map[string]struct {
		o    Options
		code control.Code
	}{
		"base missing":               {Options{Base: filepath.Join(dir, "nope")}, control.CodeBadPath},
		"base is a file":             {Options{Base: file}, control.CodeBadPath},
		"mount point in base":        {Options{Base: base, Mountpoint: filepath.Join(base, "in")}, control.CodeBadPath},
		"mount point in base, new":   {Options{Base: base, Mountpoint: filepath.Join(base, "new", "er")}, control.CodeBadPath},
		"through a symlink":          {Options{Base: base, Mountpoint: filepath.Join(alias, "in")}, control.CodeBadPath},
		"mount point is base":        {Options{Base: base, Mountpoint: base}, control.CodeBadPath},
		"mount point over base":      {Options{Base: base, Mountpoint: dir}, control.CodeBadPath},
		"over with a mount point":    {Options{Base: base, Mountpoint: full, Over: true}, control.CodeBadRequest},
		"store in base":              {Options{Base: base, Store: filepath.Join(base, "store")}, control.CodeBadPath},
		"store in mount point":       {Options{Base: base, Store: filepath.Join(base+".rewind", "store")}, control.CodeBadPath},
		"store is base":              {Options{Base: base, Store: base}, control.CodeBadPath},
		"store holds base":           {Options{Base: base, Store: dir}, control.CodeBadPath},
		"store is no store":          {Options{Base: base, Store: full}, control.CodeBadPath},
		"store is a file":            {Options{Base: base, Store: file}, control.CodeBadPath},
		"mount point is a file":      {Options{Base: base, Mountpoint: file}, control.CodeBadPath},
		"mount point not empty":      {Options{Base: base, Mountpoint: full}, control.CodeBadPath},
		"mount point without parent": {Options{Base: base, Mountpoint: filepath.Join(dir, "no", "where")}, control.CodeBadPath},
		"cache mode":                 {Options{Base: base, CacheMode: "fast"}, control.CodeBadRequest},
		"branch":                     {Options{Base: base, Branch: "dev"}, control.CodeUnsupported},
		"name":                       {Options{Base: base, Name: "a/b"}, control.CodeBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.o
			o.StateRoot = state
			_, err := tryStart(t, o)
			wantCode(t, err, c.code)
			if _, err := os.Lstat(base + ".rewind"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a mount point was left behind: %v", err)
			}
		})
	}
	left, err := os.ReadDir(base)
	if err != nil || len(left) != 1 {
		t.Errorf("the base holds %v, %v", left, err)
	}
}

func TestNoStoreForAMissingBase(t *testing.T) {
	o := options(t)
	o.Base += "-missing"
	if _, err := tryStart(t, o); err == nil {
		t.Fatal("started")
	}
	if _, err := os.Lstat(o.StateRoot); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("something was made: %v", err)
	}
}

func TestStoreIsPrivate(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.write(t, "secret", "s")
	r.checkpoint(t, "c")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(r.o.Store, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, fi.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMountpointIsMadeAndRemoved(t *testing.T) {
	o := options(t)
	r := start(t, o)
	mp := o.Base + ".rewind"
	if fi, err := os.Stat(mp); err != nil || !fi.IsDir() {
		t.Fatalf("while mounted: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(mp); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("after unmounting: %v", err)
	}
	if err := os.Mkdir(mp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := start(t, o).stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(mp); err != nil {
		t.Fatalf("the user's own mount point was removed: %v", err)
	}
}

func TestUnmountCall(t *testing.T) {
	o := options(t)
	r := start(t, o)
	r.m.setBusy(Process{PID: 42, Command: "vim", Uses: []string{"cwd"}})
	_, err := r.Unmount(t.Context(), control.UnmountRequest{})
	wantCode(t, err, control.CodeBusy)
	if !strings.Contains(err.Error(), "vim (pid 42)") {
		t.Fatalf("the culprit is not named: %v", err)
	}
	// Who asks is not told that it is there itself, unless nobody else is.
	me := Process{PID: os.Getpid(), Command: "rewindfs unmount", Uses: []string{"cwd"}}
	r.m.setBusy(Process{PID: 42, Command: "vim"}, me)
	_, err = r.Unmount(t.Context(), control.UnmountRequest{})
	wantCode(t, err, control.CodeBusy)
	if !strings.Contains(err.Error(), "vim (pid 42)") || strings.Contains(err.Error(), me.Command) {
		t.Fatalf("the culprits are not named: %v", err)
	}
	r.m.setBusy(me)
	_, err = r.Unmount(t.Context(), control.UnmountRequest{})
	wantCode(t, err, control.CodeBusy)
	if !strings.Contains(err.Error(), me.Command) {
		t.Fatalf("the culprit is not named: %v", err)
	}
	r.write(t, "still", "writable")

	u, err := r.Unmount(t.Context(), control.UnmountRequest{Lazy: true})
	if err != nil || u.PID != os.Getpid() {
		t.Fatalf("lazily: %+v, %v", u, err)
	}
	// The daemon stays for who has files open, but nothing new begins.
	_, err = r.Checkpoint(t.Context(), control.CheckpointRequest{})
	wantCode(t, err, control.CodeStopping)
	if rec, err := ReadRecord(r.o.Store); err != nil || rec.State != StateStopping {
		t.Fatalf("record: %+v, %v", rec, err)
	}
	if _, err := r.Unmount(t.Context(), control.UnmountRequest{Force: true}); err != nil {
		t.Fatal(err)
	}
	r.Client.Close()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	r.done <- nil
	if rec, err := ReadRecord(r.o.Store); err != nil || rec.State != StateUnmounted || rec.PID != 0 {
		t.Fatalf("record: %+v, %v", rec, err)
	}
	r = start(t, o)
	r.want(t, "", "still", "writable")
}

func TestUmountFromOutside(t *testing.T) {
	r := start(t, options(t))
	r.m.end()
	r.Client.Close()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	r.done <- nil
}

func TestSignalWhileBusy(t *testing.T) {
	for _, forced := range []bool{false, true} {
		t.Run(fmt.Sprintf("forced %v", forced), func(t *testing.T) {
			r := start(t, options(t))
			r.write(t, "x", "1")
			r.m.setBusy(Process{PID: 42, Command: "vim"})
			if forced {
				close(r.force)
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			r = start(t, r.o)
			r.want(t, "", "x", "1")
		})
	}
}

func TestSignalWaitsForABusyMount(t *testing.T) {
	r := start(t, options(t))
	r.m.setBusy(Process{PID: 42, Command: "vim"})
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	eventually(t, "the session says that it stops", func() bool { return r.s.alive() != nil })
	r.m.setBusy()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

func TestFailedMountLeavesNothing(t *testing.T) {
	o := options(t)
	o.Mount = func(*Session) (Mount, error) { return nil, errors.New("no device") }
	o.Logger = testLogger(t)
	if _, err := Open(o); err == nil {
		t.Fatal("opened")
	}
	if _, err := os.Lstat(o.Base + ".rewind"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the mount point stays: %v", err)
	}
	// And the store is free.
	start(t, o)
}

func TestRemoveStore(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveStore(dir); err == nil {
		t.Fatal("a directory that is no store was removed")
	}
	o := options(t)
	o.Store = filepath.Join(dir, "store")
	r := start(t, o)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Store, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveStore(o.Store); err == nil {
		t.Fatal("somebody's file in the store was removed")
	}
	if _, err := os.Lstat(filepath.Join(o.Store, "mine")); err != nil {
		t.Fatal(err)
	}
}

// The kernel may take long to forget a large tree after the mount has ended. The
// call is answered before the daemon ends all the same.
func TestUnmountIsAnsweredWhileTheKernelForgets(t *testing.T) {
	r := start(t, options(t))
	r.m.slow = make(chan struct{})
	defer close(r.m.slow)
	res, err := r.Unmount(t.Context(), control.UnmountRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if res.PID != os.Getpid() {
		t.Errorf("the answer names process %d", res.PID)
	}
	if err := r.stop(); err != nil { // it has not waited for the kernel either
		t.Errorf("the daemon ended with %v", err)
	}
}

// A daemon that is still opening a store, without a mount yet, keeps it.
func TestRemoveStoreThatIsBeingOpened(t *testing.T) {
	r := start(t, options(t))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	release, err := kv.Hold(filepath.Join(r.o.Store, kvName))
	if err != nil {
		t.Fatal(err)
	}
	var told *control.Error
	if err := RemoveStore(r.o.Store); !errors.As(err, &told) || told.Code != control.CodeStoreHeld {
		t.Errorf("got %v, want that the store is held", err)
	}
	if !isStore(r.o.Store) {
		t.Error("the store is gone")
	}
	release()
	if err := RemoveStore(r.o.Store); err != nil {
		t.Error(err)
	}
}
