package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
)

func TestRegistryFindsStoresEverywhere(t *testing.T) {
	o := options(t)
	here := start(t, o)
	o2 := options(t)
	o2.StateRoot, o2.Store, o2.Name = o.StateRoot, filepath.Join(t.TempDir(), strings.Repeat("long", 40), "s"), "elsewhere"
	if err := os.MkdirAll(filepath.Dir(o2.Store), 0o755); err != nil {
		t.Fatal(err)
	}
	there := start(t, o2)
	if err := os.WriteFile(filepath.Join(o.StateRoot, pointerDir, "junk.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := NewRegistry(o.StateRoot)
	list := func() string {
		t.Helper()
		all, err := reg.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, l := range all {
			if l.Store != "" { // the machine may have other mounts
				out = append(out, l.Name+" "+l.Record.State)
			}
		}
		return fmt.Sprint(out)
	}
	if got := list(); got != "[elsewhere live proj live]" {
		t.Fatal(got)
	}
	if err := there.stop(); err != nil {
		t.Fatal(err)
	}
	if got := list(); got != "[elsewhere unmounted proj live]" {
		t.Fatal(got)
	}
	// As after SIGKILL: the record says mounted, and nobody answers.
	rec := there.s.Record()
	rec.State, rec.PID = StateMounted, 1<<30
	if err := rec.write(o2.Store); err != nil {
		t.Fatal(err)
	}
	if got := list(); got != "[elsewhere dead proj live]" {
		t.Fatal(got)
	}
	if err := RemoveStore(o2.Store); err != nil {
		t.Fatal(err)
	}
	if err := reg.Remove(o2.Store); err != nil {
		t.Fatal(err)
	}
	if got := list(); got != "[proj live]" {
		t.Fatal(got)
	}
	if _, err := here.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Whoever listens and does not answer hangs; the kernel accepts for it.
func TestHangingIsNotLive(t *testing.T) {
	o := options(t)
	r := start(t, o)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	rec := r.s.Record()
	rec.State, rec.PID = StateMounted, os.Getpid()
	if err := rec.write(r.o.Store); err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(filepath.Join(r.o.Store, control.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	all, err := NewRegistry(o.StateRoot).List(t.Context())
	if err != nil || all[0].Record.State != StateHanging || !all[0].Served(t.Context()) {
		t.Errorf("%+v, %v", all, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if state := all[0].State(t.Context()); state != StateDead || all[0].Served(t.Context()) {
		t.Errorf("afterwards it is %s", state)
	}
}

func TestNoPermissionIsNoSession(t *testing.T) {
	root := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(root, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadDir(root); err == nil {
		t.Skip("root may look everywhere; TestEndToEndUnprivileged looks as somebody else")
	}
	_, err := NewRegistry(root).Sessions()
	wantCode(t, err, control.CodeNoSession)
}

func TestParseMounts(t *testing.T) {
	got := parseMounts([]byte(`22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:50 / /home/u/my\040proj.rewind rw,nosuid,nodev - fuse.rewindfs /home/u/my\040proj rw,user_id=1000
41 22 0:51 / /mnt/a\134b rw shared:7 master:2 - fuse.rewindfs base rw
42 22 0:52 / /x rw - fuse.sshfs host rw
short line
43 22 0:53 / /y rw,relatime shared:1 -
`))
	want := `[{/home/u/my proj.rewind /home/u/my proj 0:50} {/mnt/a\b base 0:51}]`
	if fmt.Sprint(got) != want {
		t.Fatalf("got %v, want %s", got, want)
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadRecord(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("none there: %v", err)
	}
	r := &Record{Name: "n", Base: "/b\xff", Mountpoint: "/\xfe", Generation: 3}
	r.setFork(ForkRecord{Branch: "b", Mountpoint: "/b\xfd", Mounted: true, MadeMountpoint: true})
	r.setFork(ForkRecord{Branch: "a", Mountpoint: "/a"})
	r.setFork(ForkRecord{Branch: "c"})
	r.dropFork("c")
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRecord(dir)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Fatalf("%+v, %v", got, err)
	}
	if at := got.Mountpoints(); !slices.Equal(at, []string{"/\xfe", "/b\xfd"}) {
		t.Fatalf("mount points: %q", at)
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), []byte(`{"format":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRecord(dir); err == nil || !strings.Contains(err.Error(), "update rewindfs") {
		t.Fatalf("a newer one: %v", err)
	}
}

func TestLogFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 55 {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write(line); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("after closing: %v", err)
	}
	for name, want := range map[string]int64{path: 500, path + oldLogSuffix: 1000} {
		fi, err := os.Stat(name)
		if err != nil || fi.Size() != want {
			t.Errorf("%s: %v, %v", name, fi.Size(), err)
		}
	}
	// A log that is found full is turned over, not grown.
	l, err = openLog(path, 400)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Write(line); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != 100 {
		t.Fatalf("%v, %v", fi.Size(), err)
	}
}

func TestCanonical(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"link": "real", "link/": "real", "link/x/y": "real/x/y", "real/../link/z": "real/z", "no/such": "no/such",
	} {
		got, err := Canonical(dir + "/" + in)
		if err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s is %s, %v; want %s", in, got, err, want)
		}
	}
}

func TestDefaultStore(t *testing.T) {
	for base, want := range map[string]string{"/": "/r/root-", "/home/u/proj": "/r/proj-"} {
		got := DefaultStore("/r", base)
		if !strings.HasPrefix(got, want) || len(got) != len(want)+12 {
			t.Errorf("%s: %s", base, got)
		}
	}
	if got := filepath.Base(DefaultStore("/r", "/"+strings.Repeat("é", 127))); len(got) > 255 {
		t.Errorf("%d bytes", len(got))
	}
	for _, base := range []string{"/-x", "/a\nb", "/\xff", "/" + strings.Repeat("é", 127)} {
		if name := storeName(base); checkName(name) != nil {
			t.Errorf("%q would be called %q", base, name)
		}
	}
}

// A daemon that was killed before its database was there, or one that is just starting,
// leaves a directory that is neither empty nor a store yet. It is nobody else's.
func TestMakeStoreGoesOnWhereAnotherStopped(t *testing.T) {
	for _, tt := range []struct {
		name    string
		entries []string
		ok      bool
	}{
		{"empty", nil, true},
		{"log", []string{logName}, true},
		{"rotated log", []string{logName, logName + oldLogSuffix}, true},
		{"somebody's", []string{"notes.txt"}, false},
		{"somebody's with a log", []string{logName, "notes.txt"}, false},
		{"used", []string{kvName, "lost+found"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range tt.entries {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := makeStore(dir); (err == nil) != tt.ok {
				t.Errorf("makeStore: %v", err)
			}
		})
	}
}
