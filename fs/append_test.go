package fs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// takeIn merges a new first line into f, as after a change on the host. The kernel is yet to be told of what it returns.
func (r *rig) takeIn(line string) layers.Moved {
	r.t.Helper()
	thaw := r.m.Freeze()
	defer thaw()
	a, err := r.branch.Resolve("f")
	if err != nil {
		r.t.Fatal(err)
	}
	defer r.branch.Forget(a.Ino, 1)
	text := make([]byte, a.Size)
	if _, err := r.branch.ReadAt(a.Ino, text, 0); err != nil {
		r.t.Fatal(err)
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, filepath.Join(r.base, "f"), 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		r.t.Fatal(err)
	}
	at := func(t unix.StatxTimestamp) layers.Time { return layers.Time{Sec: t.Sec, Nsec: t.Nsec} }
	mv, err := r.branch.TakeIn([]layers.TakeIn{{
		Path: "f", Seen: a, Text: append([]byte(line), text...), HostMode: uint32(st.Mode),
		Host: layers.Built{Exists: true, Type: unix.S_IFREG, Ino: st.Ino, Btime: at(st.Btime), Mtime: at(st.Mtime), Ctime: at(st.Ctime), Size: int64(st.Size)},
	}}, nil, r.m.Swapped)
	if err != nil {
		r.t.Fatal(err)
	}
	return mv
}

func (r *rig) appender(p string) *os.File {
	r.t.Helper()
	f, err := os.OpenFile(r.path(p), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { f.Close() })
	return f
}

func (r *rig) append(f *os.File, line string) {
	r.t.Helper()
	if n, err := f.WriteString(line); err != nil {
		r.t.Fatalf("append %q: %d, %v", line, n, err)
	}
}

// The kernel sends a write that crosses a page in two requests. A merge in between tears no line; who has the file open goes on appending to it, and
// so does who opens it now.
func TestAppendAcrossMerge(t *testing.T) {
	had := strings.Repeat("a line\n", 585) // 4,095 bytes
	r := newRig(t, func(base string) { os.WriteFile(filepath.Join(base, "f"), []byte(had), 0o644) })
	held := r.appender("f")
	plain, err := os.OpenFile(r.path("f"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	merged := make(chan layers.Moved, 1)
	requests := atomic.Int64{}
	wrote := func() {
		if requests.Add(1) == 1 {
			merged <- r.takeIn("host\n")
		}
	}
	r.m.fs.wrote.Store(&wrote)
	r.append(held, "mount 1\n")
	if n := requests.Load(); n != 2 {
		t.Fatalf("the write came in %d requests: nothing is tested here", n)
	}
	if err := r.m.Notify(<-merged); err != nil {
		t.Fatal(err)
	}
	want := "host\n" + had + "mount 1\n"
	r.want("f", want)
	now := r.appender("f")
	for _, f := range []*os.File{held, now, held, held, now, now} {
		r.append(f, "more\n")
		want += "more\n"
		r.want("f", want)
	}
	if err := r.m.Notify(r.takeIn("again\n")); err != nil { // and once more, over both
		t.Fatal(err)
	}
	want = "again\n" + want
	for _, f := range []*os.File{now, held, r.appender("f")} {
		r.append(f, "last\n")
		want += "last\n"
		r.want("f", want)
	}
	if _, err := plain.WriteAt([]byte("x"), 0); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a write to a place in what was there before the merge: %v, want ESTALE", err)
	}
	r.want("f", want)
}

// A head that moves in the middle of a lookup: the new node id goes out with the new size, or an append would go to the old end.
func TestLookupAcrossMerge(t *testing.T) {
	r := newRig(t, func(base string) { os.WriteFile(filepath.Join(base, "f"), []byte("base\n"), 0o644) })
	r.append(r.appender("f"), "one\n")
	var out fuse.EntryOut
	moved := false
	_, err := r.m.fs.enter(place{&r.branch.View, layers.RootIno, 0}, "f", func(*layers.Attr) *fuse.EntryOut {
		if !moved {
			moved = true
			if err := r.m.Notify(r.takeIn("host\n")); err != nil {
				t.Error(err)
			}
		}
		return &out
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.branch.Forget(layers.Ino(out.NodeId&inoMask), 1)
	if r.m.fs.inc.stale(out.NodeId) || out.Attr.Size != uint64(len("host\nbase\none\n")) {
		t.Errorf("node id %x, of an earlier incarnation: %v, with size %d", out.NodeId, r.m.fs.inc.stale(out.NodeId), out.Attr.Size)
	}
	r.want("f", "host\nbase\none\n")
}

// A rollback takes a file away from who has it open to append to, also after merges.
func TestAppendAcrossRollback(t *testing.T) {
	r := newRig(t, func(base string) { os.WriteFile(filepath.Join(base, "f"), []byte("base\n"), 0o644) })
	held := r.start("holder", r.path("f"))
	held.want("append one", "ok")
	r.checkpoint("one")
	held.want("append two", "ok")
	if err := r.m.Notify(r.takeIn("host\n")); err != nil {
		t.Fatal(err)
	}
	held.want("append three", "ok")
	r.want("f", "host\nbase\none\ntwo\nthree\n")
	r.rollback("one")
	held.want("append four", esSTALE)
	r.want("f", "base\none\n")
	if err := r.m.Notify(r.takeIn("host\n")); err != nil {
		t.Fatal(err)
	}
	held.want("append five", esSTALE)
	r.want("f", "host\nbase\none\n")
	held.stop()
}

// A base file grows or shrinks on the host while a program has it open to append to: that goes to its end, not over other bytes, nor behind a hole.
func TestAppendAfterDrift(t *testing.T) {
	for name, text := range map[string]string{"longer": "base\nand some more\n", "shorter": "b\n"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(base string) { os.WriteFile(filepath.Join(base, "f"), []byte("base\n"), 0o644) })
			r.want("f", "base\n")
			held := r.appender("f")
			if err := os.WriteFile(filepath.Join(r.base, "f"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, line := range []string{"one\n", "two\n", "three\n"} {
				r.append(held, line)
				r.append(held, line) // the kernel has not asked for the size since
				text += line + line
				r.want("f", text)
			}
			r.append(r.appender("f"), "four\n")
			r.want("f", text+"four\n")
		})
	}
}

// A file is written by way of the control API while a program has it open to append to.
func TestAppendAfterChange(t *testing.T) {
	r := newRig(t, nil)
	r.sh(0, "echo one >f")
	held := r.appender("f")
	a, err := r.branch.Resolve("f")
	if err != nil {
		t.Fatal(err)
	}
	defer r.branch.Forget(a.Ino, 1)
	r.m.Changing(a.Ino)
	if _, err := r.branch.Write(a.Ino, []byte("uno, dos\n"), 0, layers.WriteFlags{}); err != nil {
		t.Fatal(err)
	}
	r.append(held, "two\n") // before the kernel is told
	if err := r.m.Changed(a.Ino, nil); err != nil {
		t.Fatal(err)
	}
	r.append(held, "three\n")
	r.append(held, "four\n")
	r.want("f", "uno, dos\ntwo\nthree\nfour\n")
}
