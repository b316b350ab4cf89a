package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

func (h *helper) want(cmd, answer string) {
	h.t.Helper()
	if got := h.ask(cmd); got != answer {
		h.t.Errorf("%s answered %q, want %q", cmd, got, answer)
	}
}

var esSTALE = unix.ESTALE.Error()

func TestRollbackHeldDescriptor(t *testing.T) {
	for _, inBase := range []bool{false, true} {
		r := newRig(t, func(base string) {
			if inBase {
				os.WriteFile(filepath.Join(base, "f"), []byte("old"), 0o644)
			}
		})
		if !inBase {
			r.write("f", "old")
		}
		before := lstat(t, r.path("f"))
		r.checkpoint("one")
		h := r.start("holder", r.path("f"))
		h.want("read", "old")
		h.want("write newer", "ok")
		h.want("read", "newer")
		r.want("f", "newer")
		r.rollback("one")
		r.want("f", "old")
		if after := lstat(t, r.path("f")); after != before {
			t.Errorf("stat is %+v after the rollback, was %+v", after, before)
		}
		h.want("read", "old")
		h.want("write dropped", esSTALE)
		h.want("truncate", esSTALE)
		h.want("chmod", esSTALE)
		h.want("fsync", "ok")
		h.want("stat", "size 3 nlink 1")
		r.want("f", "old")
		// What comes now through the path is seen through the old descriptor, too.
		r.write("f", "after the rollback")
		h.want("read", "after the rollback")
		h.want("stat", "size 18 nlink 1")
		if err := os.Truncate(r.path("f"), 5); err != nil {
			t.Fatal(err)
		}
		h.want("read", "after")
		h2 := r.start("holder", r.path("f"))
		h2.want("write hello", "ok")
		h.want("read", "hello")
		h.stop()
		h2.stop()
	}
}

func TestRollbackHeldMapping(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "old")
	r.checkpoint("one")
	h := r.start("holder", r.path("f"))
	h.want("map", "ok")
	h.want("mwrite new", "ok")
	h.want("mread", "new")
	r.want("f", "new")
	// The page is dirty again when the head moves.
	if err := r.m.Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	h.want("mwrite xyz", "ok")
	r.move("one")
	r.want("f", "old")
	h.want("mread", "old")
	h.want("mwrite abc", "ok")
	if got := h.ask("msync"); got == "ok" {
		t.Error("msync of a mapping from before the rollback says ok")
	}
	r.want("f", "old")
	// What that mapping could not write is nobody's loss: checkpoints go on.
	for range 3 {
		h.want("mwrite def", "ok")
		if err := r.m.Barrier(context.Background()); err != nil {
			t.Errorf("barrier with a dirty mapping from before the rollback: %v", err)
		}
		r.want("f", "old")
	}
	h.stop()
	r.want("f", "old")
}

func TestBarrierCollectsMappings(t *testing.T) {
	for _, mode := range []CacheMode{Through, Writeback} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t, nil, func(o *Options) { o.CacheMode = mode })
			r.write("f", "one")
			h := r.start("holder", r.path("f"))
			h.want("map", "ok")
			h.want("mwrite two", "ok")
			h2 := r.start("holder", r.path("f"))
			r.write("g", "")
			h3 := r.start("holder", r.path("g"))
			h3.want("write gathered", "ok")
			r.checkpoint("a")
			h.want("mwrite six", "ok")
			r.checkpoint("b")
			want := func(path, content string) {
				t.Helper()
				r.want(".rewind/checkpoints/"+path, content)
			}
			want("a/f", "two")
			want("a/g", "gathered")
			want("b/f", "six")
			h2.want("read", "six")
			h.stop()
			h2.stop()
			h3.stop()
		})
	}
}

// More dirty pages than the kernel sends at once are all in.
func TestBarrierCollectsMany(t *testing.T) {
	r := newRig(t, nil)
	r.write("f", "")
	if err := os.Truncate(r.path("f"), scattered); err != nil {
		t.Fatal(err)
	}
	h := r.start("holder", r.path("f"))
	for _, mark := range []string{"a", "b"} {
		h.want("scatter "+mark, "ok")
		r.checkpoint(mark)
	}
	h.stop()
	for _, mark := range []string{"a", "b"} {
		got, err := os.ReadFile(r.path(".rewind/checkpoints/" + mark + "/f"))
		if err != nil || len(got) != scattered {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		missing := 0
		for i := 0; i < scattered; i += 8192 {
			if got[i] != mark[0] {
				missing++
			}
		}
		if missing > 0 {
			t.Errorf("%d of %d pages are not in checkpoint %s", missing, scattered/8192, mark)
		}
	}
}

// The way around, for a mount that cannot be reached by its path.
func TestBarrierWithoutPath(t *testing.T) {
	for _, mode := range []CacheMode{Through, Writeback} {
		r := newRig(t, nil, func(o *Options) { o.CacheMode = mode })
		r.write("f", "one")
		r.write("g", "")
		h, g := r.start("holder", r.path("f")), r.start("holder", r.path("g"))
		h.want("map", "ok")
		h.want("mwrite two", "ok")
		g.want("write gathered", "ok")
		if err := r.m.flushMapped(context.Background()); err != nil {
			t.Fatal(err)
		}
		s, err := r.branch.Seal(nil)
		if err != nil {
			t.Fatal(err)
		}
		r.label("a", s.Layer)
		r.want(".rewind/checkpoints/a/f", "two")
		r.want(".rewind/checkpoints/a/g", "gathered")
		h.stop()
		g.stop()
	}
}

func TestRollbackNames(t *testing.T) {
	r := newRig(t, func(base string) {
		os.MkdirAll(filepath.Join(base, "dir/sub"), 0o755)
		os.WriteFile(filepath.Join(base, "dir/sub/f"), []byte("base"), 0o644)
		os.WriteFile(filepath.Join(base, "gone"), []byte("gone"), 0o644)
		os.Symlink("gone", filepath.Join(base, "link"))
	})
	r.sh(0, "mkdir new; echo 1 > new/a; ln new/a new/b")
	r.checkpoint("one")
	tree := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort")
	cwd := r.start("dweller", r.path("dir/sub"))
	r.sh(0, `
		rm -r new; mkdir new; echo 2 > new/c
		mv dir moved; mkdir dir; echo x > dir/sub
		rm gone; ln -sfn elsewhere link; chmod 700 .; mkfifo fifo
		cat absent 2>/dev/null || :
		ls -lR . > /dev/null; echo hi > absent; stat moved/sub/f new/c >/dev/null`)
	cwd.want("list", "f")
	after := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort")
	left := r.rollback("one")
	if got := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort"); got != tree {
		t.Errorf("after the rollback:\n%s\nwant:\n%s", got, tree)
	}
	for _, p := range []string{"absent", "moved", "new/c", "fifo"} {
		r.wantGone(p)
	}
	cwd.want("list", "f")
	cwd.want("cwd", r.path("dir/sub"))
	r.label("left", left.From)
	r.rollback("left")
	if got := r.sh(0, "find . -printf '%p %y %m %s %n %i %T@ %C@ %l\n' | sort"); got != after {
		t.Errorf("after the redo:\n%s\nwant:\n%s", got, after)
	}
	cwd.want("cwd", r.path("moved/sub"))
	cwd.stop()
}

func TestRollbackRemovesCwd(t *testing.T) {
	r := newRig(t, nil)
	r.checkpoint("empty")
	r.sh(0, "mkdir -p d/e; echo 1 > d/e/f")
	h := r.start("dweller", r.path("d/e"))
	h.want("list", "f")
	r.rollback("empty")
	r.wantGone("d")
	switch got := h.ask("list"); got {
	case "", unix.ENOENT.Error(), unix.ESTALE.Error():
	default:
		t.Errorf("a listing of the removed directory answered %q", got)
	}
	h.want("up", "ok")
	h.stop()
}

// A base file with several names leads to the restored file by each of them.
func TestRollbackHardLinks(t *testing.T) {
	r := newRig(t, func(base string) {
		os.WriteFile(filepath.Join(base, "a"), []byte("old"), 0o644)
		os.Mkdir(filepath.Join(base, "d"), 0o755)
		for _, n := range []string{"b", "d/c"} {
			os.Link(filepath.Join(base, "a"), filepath.Join(base, n))
		}
	})
	r.checkpoint("one")
	r.sh(0, "cat a b d/c; ls -l . d")
	h := r.start("holder", r.path("b"))
	h.want("write new", "ok")
	r.want("d/c", "new")
	r.rollback("one")
	for _, n := range []string{"a", "b", "d/c"} {
		r.want(n, "old")
	}
	for _, n := range []string{"b", "d/c", "a"} {
		h := r.start("holder", r.path(n))
		h.want("write via", "ok")
		h.stop()
		r.want("a", "via")
		r.want("d/c", "via")
		r.rollback("one")
	}
	h.want("write no!", esSTALE)
	h.want("read", "old")
	if st := lstat(t, r.path("b")); st.Nlink != 3 {
		t.Errorf("%d links, want 3", st.Nlink)
	}
	h.stop()
}

// However a rollback falls between the writes of a busy program, none of them is in
// the restored file, and the program is told.
func TestRollbackUnderWrites(t *testing.T) {
	r := newRig(t, nil)
	const rounds = 15
	for i := range rounds {
		content := fmt.Sprint("as it was in round ", i)
		r.write("f", content)
		before := lstat(t, r.path("f"))
		r.checkpoint("one")
		h := r.start("holder", r.path("f"))
		done := make(chan string)
		go func() { done <- h.ask("hammer") }()
		eventually(t, "the program writes", func() bool { return lstat(t, r.path("f")).Size > 0 && r.branch.Changed() > 0 })
		r.rollback("one")
		r.want("f", content)
		if got := <-done; got != esSTALE {
			t.Errorf("the program was told %q", got)
		}
		r.want("f", content)
		if after := lstat(t, r.path("f")); after != before {
			t.Errorf("stat is %+v after the rollback, was %+v", after, before)
		}
		h.stop()
	}
}

// What is looked up while the head moves is not remembered as it was before.
func TestRollbackUnderLookups(t *testing.T) {
	r := newRig(t, nil)
	r.sh(0, "mkdir d; chmod 755 d; echo one > d/f")
	r.checkpoint("one")
	r.sh(0, "chmod 700 d; echo two2 > d/f; echo new > d/new; rm -f d/x")
	two := "d 700 f 5 new"
	r.checkpoint("two")
	look := fmt.Sprintf(`cd %s; while :; do stat d d/f d/new; ls -l d; cat d/f; done >/dev/null 2>&1`, r.mnt)
	cmd := exec.Command("sh", "-c", look)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with what it has started
		cmd.Wait()
		eventually(t, "nobody uses the mount", func() bool { return len(r.m.Busy()) == 0 })
	})
	t.Cleanup(stop)
	state := "stat -c '%n %a' d | tr '\\n' ' '; stat -c 'f %s' d/f | tr '\\n' ' '; test ! -e d/new || echo new"
	for range 40 {
		r.rollback("one")
		if got := r.sh(0, state); got != "d 755 f 4" {
			t.Fatalf("after the rollback to one: %q", got)
		}
		r.rollback("two")
		if got := r.sh(0, state); got != two {
			t.Fatalf("after the rollback to two: %q", got)
		}
	}
	stop()
}

// A directory that was removed and came back is another one to the kernel: what is
// in it is seen to change by later rollbacks all the same.
func TestRollbackInRevivedDirectory(t *testing.T) {
	r := newRig(t, func(base string) {
		os.MkdirAll(filepath.Join(base, "d/e"), 0o755)
		os.WriteFile(filepath.Join(base, "d/e/f"), []byte("old"), 0o644)
	})
	r.checkpoint("one")
	held := r.start("holder", r.path("d/e/f")) // keeps the kernel's dead directories in memory
	r.sh(0, "rm -r d")
	r.rollback("one")
	r.want("d/e/f", "old")
	for range 3 {
		r.sh(0, "echo -n new > d/e/f; touch d/e/more; cat d/e/absent 2>/dev/null || :")
		r.checkpoint("")
		r.rollback("one")
		r.want("d/e/f", "old")
		r.wantGone("d/e/more")
		r.sh(0, "echo -n newer >> d/e/f; rm d/e/f; test ! -e d/e/f; echo -n third > d/e/f")
		r.rollback("one")
		r.want("d/e/f", "old")
		r.sh(0, "echo -n fourth >> d/e/f") // not ESTALE
		r.want("d/e/f", "oldfourth")
	}
	held.stop()
}

// Whoever reads a base file that has changed since it was last read gets all of the new one or
// all of an old one that the kernel remembers, never old bytes in the new size.
func TestBaseFileChangesUnderTheMount(t *testing.T) {
	r := newRig(t, func(base string) {
		os.WriteFile(filepath.Join(base, "f"), []byte("0"), 0o644)
	})
	whole := map[string]bool{"0": true}
	for i := range 40 {
		next := fmt.Sprintf("%0*d", 1+i*7919%9000, i)
		tmp := filepath.Join(r.base, "tmp")
		if err := os.WriteFile(tmp, []byte(next), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(r.base, "f")); err != nil {
			t.Fatal(err)
		}
		whole[next] = true
		if i%3 == 0 { // has the kernel ask
			if err := r.m.Notify(layers.Moved{Names: []layers.NameKey{{Dir: layers.RootIno, Name: "f"}}}); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.sh(0, "cat f"); !whole[got] {
			t.Fatalf("round %d: %d bytes that the file never had", i, len(got))
		}
	}
}

// An editor on the host replaces a base file with another. A program that still has the name for the
// old one is refused, not served a mixture; the next to open it gets the new one, and can write to it.
func TestBaseFileIsReplaced(t *testing.T) {
	r := newRig(t, func(base string) {
		os.WriteFile(filepath.Join(base, "f"), []byte("old"), 0o644)
	})
	r.want("f", "old")
	if err := os.WriteFile(filepath.Join(r.base, "tmp"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(r.base, "tmp"), filepath.Join(r.base, "f")); err != nil {
		t.Fatal(err)
	}
	appendTo := func() error {
		f, err := os.OpenFile(r.path("f"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(" and more")
		return err
	}
	if err := appendTo(); !errors.Is(err, unix.ESTALE) {
		t.Fatalf("append to what was the old file: %v, want ESTALE", err)
	}
	eventually(t, "an append to the new file", func() bool { return appendTo() == nil })
	r.want("f", "new and more")
}
